package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/apikey"
	"roundhouse.dev/roundhouse/internal/core/orca"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// series are the metrics as text, one per line.
func (r *rig) series() string {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range families {
		for _, m := range f.GetMetric() {
			_, _ = fmt.Fprintln(&b, f.GetName(), strings.Join(strings.Fields(m.String()), " "))
		}
	}
	return b.String()
}

// waitSettled waits until no request is in flight, and the last has been
// settled.
func (r *rig) waitSettled() {
	r.t.Helper()
	until(r.t, func() bool { return r.gw.running.Load() == 0 })
}

// lines is a writer that tells of what it got.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// stream answers with events, cut into frames of size bytes.
func stream(text string, size int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			_, _ = io.WriteString(w, rest[:n])
			_ = http.NewResponseController(w).Flush()
			rest = rest[n:]
		}
	}
}

const events = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n" +
	"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":10,\"total_tokens\":17,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n" +
	"data: [DONE]\n\n"

// TestUsage: what an answer says it cost is counted once, however its bytes
// come, and shows in metrics and access log, with the key and never its secret.
func TestUsage(t *testing.T) {
	log := &lines{}
	al := observe.NewAccessLog(log)
	r, create := newKeyRig(t, func(c *Config, _ *dispatch.Config) { c.Ended.AccessLog = al })
	whole := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		_, _ = io.WriteString(w, `{"choices":[{"x":"`+strings.Repeat("y", 100_000)+`"}],"usage":{"prompt_tokens":5,"completion_tokens":6}}`)
	}
	gone := pool("flaky", "127.0.0.1:1", replicaServer(t, whole))
	r.d.SetPools([]dispatch.PoolConfig{pool("frames", replicaServer(t, stream(events, 3))), pool("one", replicaServer(t, stream(events, 1<<20))),
		pool("whole", replicaServer(t, whole)), gone, pool("claude", replicaServer(t, stream("event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":3,\"cache_read_input_tokens\":20}}}\n\nevent: message_delta\ndata: {\"usage\":{\"output_tokens\":9}}\n\n", 5))),
		pool("iris", replicaServer(t, whole)), pool("bad", replicaServer(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(400)
			_, _ = io.WriteString(w, `{"usage":{"prompt_tokens":1000}}`)
		}))})
	k, secret := create(apikey.Limits{})
	auth := []string{"Authorization", "Bearer " + secret, "X-Request-Id", "req-1", "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	for _, m := range []string{"frames", "one", "whole", "flaky", "bad", "nope-by-client"} {
		r.send("POST", "/v1/chat/completions?token=hidden", `{"model":"`+m+`","messages":["private words"]}`, auth...)
	}
	r.send("POST", "/v1/messages", `{"model":"claude","messages":[]}`, auth...).want(t, 200)
	r.send("POST", "/v2/models/iris/infer", `{}`, auth...).want(t, 200)
	r.waitSettled()
	got := r.series()
	for _, want := range []string{
		`roundhouse_gateway_tokens_total label:{name:"service" value:"default/frames"} label:{name:"type" value:"prompt"} counter:{value:7 `,
		`value:"default/frames"} label:{name:"type" value:"cached"} counter:{value:4 `,
		`value:"default/frames"} label:{name:"type" value:"completion"} counter:{value:10 `,
		`value:"default/one"} label:{name:"type" value:"completion"} counter:{value:10 `,
		`value:"default/whole"} label:{name:"type" value:"completion"} counter:{value:6 `,
		`value:"default/claude"} label:{name:"type" value:"prompt"} counter:{value:23 `,
		`roundhouse_gateway_retries_total label:{name:"service" value:"default/flaky"} counter:{value:1 `,
		`gen_ai_client_token_usage label:{name:"gen_ai_operation_name" value:"chat"} label:{name:"gen_ai_provider_name" value:"openai"} label:{name:"gen_ai_request_model" value:"frames"} label:{name:"gen_ai_token_type" value:"output"} histogram:{sample_count:1 sample_sum:10 `,
		`label:{name:"gen_ai_provider_name" value:"anthropic"} label:{name:"gen_ai_request_model" value:"claude"} label:{name:"gen_ai_token_type" value:"input"} histogram:{sample_count:1 sample_sum:23 `,
		`gen_ai_server_time_to_first_token_seconds label:{name:"gen_ai_operation_name" value:"chat"} label:{name:"gen_ai_provider_name" value:"openai"} label:{name:"gen_ai_request_model" value:"frames"} histogram:{sample_count:1 `,
		`gen_ai_server_time_per_output_token_seconds label:{name:"gen_ai_operation_name" value:"chat"} label:{name:"gen_ai_provider_name" value:"openai"} label:{name:"gen_ai_request_model" value:"one"} histogram:{sample_count:1 `,
		`gen_ai_server_request_duration_seconds label:{name:"error_type" value:"404"} label:{name:"gen_ai_operation_name" value:"chat"} label:{name:"gen_ai_provider_name" value:"openai"} label:{name:"gen_ai_request_model" value:"other"} histogram:{sample_count:1 `,
		`gen_ai_server_request_duration_seconds label:{name:"error_type" value:"400"} `,
		`roundhouse_gateway_request_seconds label:{name:"service" value:"default/iris"} histogram:{sample_count:1 `,
		`roundhouse_gateway_access_log_dropped_total counter:{value:0`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	for _, not := range []string{"nope-by-client", `value:"default/bad"} label:{name:"type"`, `first_token_seconds label:{name:"gen_ai_operation_name" value:"chat"} label:{name:"gen_ai_provider_name" value:"openai"} label:{name:"gen_ai_request_model" value:"whole"`,
		`gen_ai_request_model" value:"iris"`} {
		if strings.Contains(got, not) {
			t.Errorf("metrics hold %s", not)
		}
	}
	if t.Failed() {
		t.Log(got)
	}
	if err := al.Close(); err != nil {
		t.Fatal(err)
	}
	text := log.String()
	for _, not := range []string{secret, secret[12:], "private", "hidden"} {
		if strings.Contains(text, not) {
			t.Errorf("the access log holds %q", not)
		}
	}
	entries := map[string]map[string]any{}
	for line := range strings.Lines(text) {
		var e map[string]any
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		entries[e["model"].(string)] = e
	}
	for model, want := range map[string]map[string]any{
		"frames": {"request_id": "req-1", "key": k.ID, "method": "POST", "path": "/v1/chat/completions", "target": "default/frames", "replica": "frames-0",
			"status": 200.0, "prompt_tokens": 7.0, "completion_tokens": 10.0, "cached_tokens": 4.0, "bytes_out": float64(len(events)), "bytes_in": 47.0,
			"client": "127.0.0.1", "trace_id": "0af7651916cd43dd8448eb211c80319c", "tries": nil},
		"flaky": {"tries": 2.0, "replica": "flaky-1", "status": 200.0},
		"bad":   {"status": 400.0, "prompt_tokens": nil},
		"nope-by-client": {"status": 404.0, "target": nil, "replica": nil, "ttft_ms": nil,
			"reason": `model "nope-by-client" is not served here; the models are bad, claude, flaky, frames, iris, one, whole`},
		"iris": {"prompt_tokens": nil, "path": "/v2/models/iris/infer"},
	} {
		for field, v := range want {
			if entries[model][field] != v {
				t.Errorf("%s: %s is %v, want %v in %v", model, field, entries[model][field], v, entries[model])
			}
		}
	}
	if s, _ := entries["flaky"]["retried"].(string); !strings.Contains(s, "refused") {
		t.Errorf("why it was sent again: %q", s)
	}
	if e := entries["frames"]; e["ttft_ms"].(float64) <= 0 || e["duration_ms"].(float64) < e["ttft_ms"].(float64) {
		t.Errorf("times: %v", e)
	}
	r.d.Remove(routing.Service(service.ParseKey("frames")))
	if got := r.series(); strings.Contains(got, "frames") {
		t.Error("series of a deleted service stay")
	}
}

// TestHeard: what a replica says of its load in a header is told with its name,
// and the client has the header as well.
func TestHeard(t *testing.T) {
	heard := make(chan string, 2)
	r := newRig(t, func(c *Config, _ *dispatch.Config) {
		c.Heard = func(id string, o orca.Report) { heard <- fmt.Sprint(id, " ", o.Waiting, " ", o.KV) }
	})
	r.d.SetPool(pool("chat", replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Quiet") == "" {
			w.Header().Set("endpoint-load-metrics", "TEXT named_metrics.kv_cache_usage_perc=0.5, named_metrics.num_requests_waiting=3")
		}
		echo(w, req)
	})))
	r.send("POST", "/v1/completions", ask, "Quiet", "1").want(t, 200)
	a := r.send("POST", "/v1/completions", ask)
	if a.want(t, 200); a.header.Get("Endpoint-Load-Metrics") == "" {
		t.Error("the client lacks the header")
	}
	if got := <-heard; got != "chat-0 3 0.5" || len(heard) > 0 {
		t.Errorf("heard %q and %d more", got, len(heard))
	}
}
