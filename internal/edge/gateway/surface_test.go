package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/edge/gateway/surface"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// TestProtocols: each protocol's path is known, its model found and renamed in
// place, every other byte kept, and what the dispatcher decides by read.
func TestProtocols(t *testing.T) {
	r := newRig(t, nil)
	p := pool("m", replicaServer(t, echo))
	p.ServedName = "org/m"
	r.d.SetPool(p)
	const tail = `,"seed":12345678901234567890,"z":{"b":1.0e+2,"<&>":"\u00e9\/"},"a":[ ]}`
	for _, c := range []struct {
		path, body string // the body without its model and tail
		surface    surface.Surface
		operation  string
		prompt     []string
		stream     bool
		max        int64
	}{
		{"/v1/chat/completions", `"messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":9,"tools":[{"t":1}]`, surface.OpenAI, "chat",
			[]string{`[{"t":1}]`, `[{"role":"user","content":"hi"}]`}, true, 9},
		{"/openai/v1/chat/completions", `"messages":[],"cache_salt":"s"`, surface.OpenAI, "chat", []string{`"s"`, "[]"}, false, 0},
		{"/v1/completions", `"prompt":"once","max_tokens":3`, surface.OpenAI, "text_completion", []string{`"once"`}, false, 3},
		{"/v1/completions", `"prompt":["a","b"]`, surface.OpenAI, "text_completion", []string{`["a","b"]`}, false, 0},
		{"/v1/completions", `"prompt":[128000,9906]`, surface.OpenAI, "text_completion", []string{"[128000,9906]"}, false, 0},
		{"/v1/responses", `"input":"q","instructions":"be brief","max_output_tokens":5,"stream":true`, surface.OpenAI, "chat", []string{`"be brief"`, `"q"`}, true, 5},
		{"/v1/embeddings", `"input":["a",[1,2]]`, surface.OpenAI, "embeddings", []string{`["a",[1,2]]`}, false, 0},
		{"/v1/rerank", `"query":"q","documents":["d"]`, surface.OpenAI, "rerank", []string{`"q"`, `["d"]`}, false, 0},
		{"/v1/images/generations", `"prompt":"a cat"`, surface.OpenAI, "image_generation", []string{`"a cat"`}, false, 0},
		{"/v1/audio/speech", `"input":"say","voice":"v"`, surface.OpenAI, "speech", []string{`"say"`}, false, 0},
		{"/v1/audio/new", `"x":1`, surface.OpenAI, "other", nil, false, 0},
		{"/v1/messages", `"system":"s","messages":[],"max_tokens":7`, surface.Anthropic, "chat", []string{`"s"`, "[]"}, false, 7},
		{"/v1/messages/count_tokens", `"messages":[]`, surface.Anthropic, "count_tokens", []string{"[]"}, false, 0},
		{"/v1/chat", `"message":"m","preamble":"p"`, surface.Cohere, "chat", []string{`"p"`, `"m"`}, false, 0},
		{"/v1/embed", `"texts":["t"]`, surface.Cohere, "embeddings", []string{`["t"]`}, false, 0},
		{"/v2/chat", `"messages":[],"stream":true`, surface.Cohere, "chat", []string{"[]"}, true, 0},
		{"/v2/embed", `"texts":["t"]`, surface.Cohere, "embeddings", []string{`["t"]`}, false, 0},
		{"/v2/rerank", `"query":"q","documents":["d"]`, surface.Cohere, "rerank", []string{`"q"`, `["d"]`}, false, 0},
	} {
		body := "{" + c.body + ` , "model" : "m"` + tail
		want := "POST " + strings.TrimPrefix(c.path, "/openai") + " {" + c.body + ` , "model" : "org/m"` + tail
		if a := r.send("POST", c.path, body); a.code != 200 || a.body != want {
			t.Errorf("%s: %d\n got %s\nwant %s", c.path, a.code, a.body, want)
		}
		// The same by itself, to look inside.
		req := httptest.NewRequest("POST", c.path, strings.NewReader(body))
		req.Header.Set(routing.HeaderObjective[0], "urgent")
		req.Header.Set(routing.HeaderFairness[1], "tenant")
		x := newExchange(r.gw, httptest.NewRecorder(), req)
		x.begin(surface.Find(c.path, c.path, false), c.path)
		if x.req.call.Surface != c.surface {
			t.Errorf("%s: surface %d", c.path, x.req.call.Surface)
		}
		r.gw.cfg.SessionHeader = "X-Session"
		req.Header.Set("X-Session", "s1")
		if err := x.serveCall(); err != nil {
			t.Fatal(err)
		}
		x.finish()
		q := x.query()
		var prompt []string
		long := 0
		for _, part := range x.req.parsed.AppendPrompt(nil, []byte(body)) {
			prompt, long = append(prompt, string(part)), long+len(part)
		}
		if x.req.promptLength() != long || len(q.Prompt) > 0 || q.Messages != nil {
			t.Errorf("%s: a prompt of %d bytes was one of %d, and %q is held", c.path, long, x.req.promptLength(), q.Prompt)
		}
		if x.seen.Operation != c.operation || !slices.Equal(prompt, c.prompt) || x.req.parsed.Stream != c.stream || q.MaxTokens != c.max {
			t.Errorf("%s: operation %q, prompt %q, stream %v, max %d", c.path, x.seen.Operation, prompt, x.req.parsed.Stream, q.MaxTokens)
		}
		if q.Model != "m" || q.Objective != "urgent" || q.FairnessID != "tenant" || q.Session != "s1" || q.Path != c.path || q.Header("x-session") != "s1" {
			t.Errorf("%s: query %+v", c.path, q)
		}
	}
}

// TestErrorForms: every surface's errors have its shape, whatever went wrong.
func TestErrorForms(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.MaxBodyBytes = 100 })
	r.d.SetPool(pool("m", replicaServer(t, echo)))
	forms := map[surface.Surface]func(v map[string]any, status int) string{
		surface.OpenAI: func(v map[string]any, status int) string {
			e, _ := v["error"].(map[string]any)
			if _, ok := e["code"]; !ok || e["type"] != surface.ErrorType(status) {
				return ""
			}
			m, _ := e["message"].(string)
			return m
		},
		surface.Anthropic: func(v map[string]any, status int) string {
			e, _ := v["error"].(map[string]any)
			if v["type"] != "error" || e["type"] != surface.AnthropicType(status) {
				return ""
			}
			m, _ := e["message"].(string)
			return m
		},
		surface.Cohere: func(v map[string]any, _ int) string { m, _ := v["message"].(string); return m },
		surface.OIP:    func(v map[string]any, _ int) string { m, _ := v["error"].(string); return m },
	}
	long := `{"model":"m","x":"` + strings.Repeat("x", 100) + `"}`
	for path, s := range map[string]surface.Surface{"/v1/completions": surface.OpenAI, "/v1/messages": surface.Anthropic, "/v1/messages/count_tokens": surface.Anthropic,
		"/v1/chat": surface.Cohere, "/v2/chat": surface.Cohere, "/v2/embed": surface.Cohere, "/v2/rerank": surface.Cohere} {
		for _, c := range []struct {
			method, body, want string
			status             int
		}{
			{"POST", `{"model":"nope"}`, "not served here", 404}, {"POST", `{}`, "model", 400}, {"POST", `{"model":1}`, "not a string", 400},
			{"POST", `[`, "not valid JSON", 400}, {"GET", "", "takes POST", 405}, {"POST", long, "larger than 100", 413},
		} {
			a := r.send(c.method, path, c.body)
			var v map[string]any
			if err := json.Unmarshal([]byte(a.body), &v); err != nil || a.code != c.status {
				t.Errorf("%s %s: %d %s", c.method, path, a.code, a.body)
				continue
			}
			if m := forms[s](v, c.status); !strings.Contains(m, c.want) {
				t.Errorf("%s %s %s: %s has no message with %q in its surface's form", c.method, path, c.body, a.body, c.want)
			}
		}
	}
	for status, want := range map[int]string{400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
		413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 502: "api_error", 503: "overloaded_error", 504: "timeout_error"} {
		if got := surface.AnthropicType(status); got != want {
			t.Errorf("%d is %s, want %s", status, got, want)
		}
	}
}

// TestStreamErrorForms: a stream that breaks ends with an error event in the
// surface's form.
func TestStreamErrorForms(t *testing.T) {
	r := newRig(t, nil)
	r.d.SetPool(pool("m", replicaServer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, "data: {}\n\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})))
	for path, want := range map[string]string{
		"/v1/chat/completions": `data: {"error":{"message":"the replica failed`,
		"/v1/messages":         `data: {"type":"error","error":{"type":"api_error","message":"the replica failed`,
		"/v2/chat":             `data: {"message":"the replica failed`,
	} {
		a := r.send("POST", path, `{"model":"m","stream":true}`)
		a.want(t, 200, "data: {}\n\nevent: error\n"+want)
	}
}

func TestAnthropicModels(t *testing.T) {
	r := newRig(t, nil)
	r.d.SetPools([]dispatch.PoolConfig{pool("a"), pool("b")})
	plain := r.send("GET", "/v1/models", "")
	plain.want(t, 200, `"models":["a","b"]`)
	if strings.Contains(plain.body, "has_more") || strings.Contains(plain.body, "display_name") {
		t.Errorf("OpenAI's list holds Anthropic's words: %s", plain.body)
	}
	r.send("GET", "/v1/models", "", "Anthropic-Version", "2023-06-01").want(t, 200,
		`"type":"model"`, `"display_name":"a"`, `"created_at":"1970-01-01T00:00:00Z"`, `"first_id":"a"`, `"last_id":"b"`, `"has_more":false`)
	r.send("GET", "/v1/models/b", "", "Anthropic-Version", "2023-06-01").want(t, 200, `"type":"model"`, `"display_name":"b"`)
	r.send("GET", "/v1/models/c", "", "Anthropic-Version", "2023-06-01").want(t, 404, `{"type":"error","error":{"type":"not_found_error"`)
	r.d.SetPools(nil)
	r.send("GET", "/v1/models", "", "Anthropic-Version", "2023-06-01").want(t, 200, `"first_id":null`)
}
