package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/test/loopback"
)

// apart is a service whose prompts one replica computes for another.
func apart(how service.Disaggregation, prefill, decode string) dispatch.PoolConfig {
	p := pool("chat", decode)
	p.Disaggregation, p.Entry = how, service.RoleDecoder
	p.Replicas[0].Role = service.RoleDecoder
	p.Replicas = append(p.Replicas, replica.Replica{ID: "prefill-0", Service: p.Key, Role: service.RoleEngine, Phase: replica.Ready, HTTP: prefill})
	return p
}

// longText is a prompt that is worth a prefill replica.
var longText = strings.Repeat("word & <b> ", 300)

// handed is what a prefill replica says of the KV, with numbers and members
// that must come through as they are.
const handed = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"e-1","remote_block_ids":[9007199254740993, 2],"remote_host":"127.0.0.1","remote_port":5600,"tp_size":1}`

// records serves h and keeps the bodies it is sent.
func records(t *testing.T, h http.HandlerFunc) (address string, bodies chan string) {
	bodies = make(chan string, 100)
	return replicaServer(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		bodies <- r.URL.Path + " " + string(b)
		if r.Header.Get(headerPrefill) != "" {
			bodies <- "told by header"
		}
		h(w, r)
	}), bodies
}

func writes(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, body)
	}
}

const usageAnswer = `{"choices":[],"usage":{"prompt_tokens":70,"completion_tokens":3,"total_tokens":73}}`

func TestPrefillFirst(t *testing.T) {
	r := newRig(t, nil)
	prefill, asked := records(t, writes(`{"usage":{"prompt_tokens":70,"completion_tokens":1,"total_tokens":71},"kv_transfer_params": `+handed+`}`))
	decode, got := records(t, writes(usageAnswer))
	r.d.SetPool(apart(service.DisaggregationVLLM, prefill, decode))
	const ask1 = `"kv_transfer_params":` + prefillParams
	for name, c := range map[string]struct{ path, body, prefill, decode string }{
		"completion": {"/v1/completions", `{"model":"chat", "prompt":"TEXT","n": 1,"seed":12345678901234567890,"temperature":1.0}`,
			`{"model":"chat", "prompt":"TEXT","n": 1,"seed":12345678901234567890,"temperature":1.0,"max_tokens":1,` + ask1 + `}`,
			`{"model":"chat", "prompt":"TEXT","n": 1,"seed":12345678901234567890,"temperature":1.0,"kv_transfer_params":` + handed + `}`},
		"chat, renamed and streamed": {"/v1/chat/completions", `{"max_completion_tokens":50,"min_tokens":5,"stream":true,"stream_options":{"include_usage":true},"model":"default/chat","messages":[{"role":"user","content":"TEXT"}]}`,
			`{"max_completion_tokens":1,"min_tokens":0,"stream":false,"stream_options":null,"model":"chat","messages":[{"role":"user","content":"TEXT"}],"max_tokens":1,` + ask1 + `}`,
			`{"max_completion_tokens":50,"min_tokens":5,"stream":true,"stream_options":{"include_usage":true},"model":"chat","messages":[{"role":"user","content":"TEXT"}],"kv_transfer_params":` + handed + `}`},
		"the client's own": {"/v1/completions", `{"model":"chat","kv_transfer_params":{"remote_host":"169.254.169.254"},"prompt":"TEXT"}`,
			`{"model":"chat",` + ask1 + `,"prompt":"TEXT","max_tokens":1}`, `{"model":"chat","kv_transfer_params":` + handed + `,"prompt":"TEXT"}`},
		"the client's own, short": {"/v1/completions", `{"model":"chat","kv_transfer_params":{"remote_host":"169.254.169.254"},"prompt":"hi"}`,
			"", `{"model":"chat","kv_transfer_params":null,"prompt":"hi"}`},
		"short":           {"/v1/completions", `{"model":"chat","prompt":"hi"}`, "", `{"model":"chat","prompt":"hi"}`},
		"several choices": {"/v1/completions", `{"model":"chat","n":2,"prompt":"TEXT"}`, "", `{"model":"chat","n":2,"prompt":"TEXT"}`},
		"several prompts": {"/v1/completions", `{"model":"chat","prompt":[ "TEXT","b"]}`, "", `{"model":"chat","prompt":[ "TEXT","b"]}`},
		"embeddings":      {"/v1/embeddings", `{"model":"chat","input":"TEXT"}`, "", `{"model":"chat","input":"TEXT"}`},
	} {
		text := name + " " + longText // one that nobody has computed
		in := func(s string) string { return strings.ReplaceAll(s, "TEXT", text) }
		r.send("POST", c.path, in(c.body)).want(t, 200, "completion_tokens")
		if b := <-got; b != c.path+" "+in(c.decode) {
			t.Errorf("%s: the decode replica is sent\n%s, want\n%s", name, b, c.path+" "+in(c.decode))
		}
		if c.prefill == "" {
			if n := len(asked); n != 0 {
				t.Errorf("%s: the prefill replica is asked: %s", name, <-asked)
			}
		} else if b := <-asked; b != c.path+" "+in(c.prefill) {
			t.Errorf("%s: the prefill replica is sent\n%s, want\n%s", name, b, c.path+" "+in(c.prefill))
		}
	}
	if n := len(got); n != 0 {
		t.Errorf("the decode replica got %d more: %s", n, <-got)
	}
	if n := r.counter(prefillsTotal, prefillComputed); n != 3 {
		t.Errorf("%v prefills are counted, want 3", n)
	}
	// 8 answers of 3 tokens: those of the prefills are not the client's.
	if n := r.counter("roundhouse_gateway_tokens_total", "completion"); n != 24 {
		t.Errorf("%v tokens are counted, want 24", n)
	}
	until(t, func() bool { return r.gw.buffered.Used() == 0 })
	for _, id := range []string{"prefill-0", "chat-0"} {
		until(t, func() bool { return r.d.InFlight(id) == 0 })
	}
}

// counter is the value of a counter whose labels have the value.
func (r *rig) counter(name, value string) (n float64) {
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == name && l.GetValue() == value {
					n += m.GetCounter().GetValue()
				}
			}
		}
	}
	return n
}

const prefillsTotal = "roundhouse_gateway_prefills_total"

// TestPrefillFails: whatever the prefill replica does, the decode replica
// answers, and one that is broken is not asked again at once.
func TestPrefillFails(t *testing.T) {
	for name, c := range map[string]struct {
		h       http.HandlerFunc // nil: nobody listens
		outcome string
	}{
		"dead":          {nil, prefillFailed},
		"breaks off":    {hijack("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"), prefillFailed},
		"500":           {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, prefillFailed},
		"400":           {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(400) }, prefillRefused},
		"no parameters": {writes(usageAnswer), prefillFailed},
		"null":          {writes(`{"kv_transfer_params":null}`), prefillFailed},
		"no JSON":       {writes(`<html>`), prefillFailed},
		"endless": {func(w http.ResponseWriter, _ *http.Request) {
			for b := []byte(strings.Repeat("x", 1<<20)); ; {
				if _, err := w.Write(b); err != nil {
					return
				}
			}
		}, prefillFailed},
		"silent": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, prefillFailed},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(cfg *Config, d *dispatch.Config) {
				if name == "silent" {
					cfg.PrefillTimeout = 300 * time.Millisecond
				}
				d.Breaker.LostRest, d.Breaker.MaxLostRest = time.Hour, time.Hour
			})
			var asked atomic.Int32
			prefill := loopback.Reserve(t)
			if c.h != nil {
				prefill = replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
					_, _ = io.Copy(io.Discard, req.Body)
					asked.Add(1)
					c.h(w, req)
				})
			}
			decode, got := records(t, writes(usageAnswer))
			r.d.SetPool(apart(service.DisaggregationVLLM, prefill, decode))
			for i := range 2 {
				body := fmt.Sprintf(`{"model":"chat","prompt":"%d %s"}`, i, longText)
				r.send("POST", "/v1/completions", body).want(t, 200, "completion_tokens")
				if b := <-got; b != "/v1/completions "+body {
					t.Errorf("the decode replica is sent %s", b)
				}
			}
			want := 1.0 // then it is suspect
			if c.outcome == prefillRefused {
				want = 2
			}
			if n := r.counter(prefillsTotal, c.outcome); n != want {
				t.Errorf("%v are counted as %s, want %v", n, c.outcome, want)
			}
			if n := asked.Load(); c.h != nil && n != int32(want) {
				t.Errorf("it was asked %d times, want %v", n, want)
			}
			until(t, func() bool { return r.d.InFlight("prefill-0") == 0 })
		})
	}
}

// TestPrefillClientLeaves: nobody computes anything for a client that has
// gone, and the prefill replica is not blamed.
func TestPrefillClientLeaves(t *testing.T) {
	r := newRig(t, nil)
	inside, left := make(chan struct{}), make(chan struct{})
	prefill := replicaServer(t, func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		close(inside)
		<-req.Context().Done()
		close(left)
	})
	decode, got := records(t, writes(usageAnswer))
	r.d.SetPool(apart(service.DisaggregationVLLM, prefill, decode))
	body, _ := json.Marshal(map[string]string{"model": "chat", "prompt": longText})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", r.url+"/v1/completions", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		resp, err := r.client.Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		done <- err
	}()
	<-inside
	cancel()
	if err := <-done; err == nil {
		t.Error("an answer came to a client that had left")
	}
	<-left
	until(t, func() bool { return r.gw.running.Load() == 0 })
	if n := len(got); n != 0 {
		t.Errorf("the decode replica was asked: %s", <-got)
	}
	if n := r.counter(prefillsTotal, prefillFailed); n != 0 {
		t.Errorf("%v failures are counted", n)
	}
}

// TestEncoders: a sidecar is told who computes the pictures of a chat, anew at each try,
// and no client can name anybody.
func TestEncoders(t *testing.T) {
	const evil = "169.254.169.254:80"
	r := newRig(t, nil)
	told := make(chan []string, 10)
	failing := replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
		told <- append([]string{"failing"}, req.Header[headerEncoders]...)
		hijack("")(w, req)
	})
	sidecar := replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
		told <- append([]string{"sidecar"}, slices.Concat(req.Header[headerEncoders], req.Header[headerPrefill])...)
		echo(w, req)
	})
	p := pool("room", sidecar)
	p.Shared, p.Protocol = true, service.ProtocolOpenAI
	to := routing.PoolRef(p.Key)
	r.d.SetObjects([]routing.Object{&routing.Pool{Meta: service.Meta{Key: p.Key}},
		&routing.Route{Meta: service.Meta{Key: service.ParseKey("chat")}, Models: []string{"chat"}, Targets: []routing.Target{{Ref: to, Weight: 1}}}})
	ask := func(body string, want ...string) {
		t.Helper()
		r.send("POST", "/v1/chat/completions", body, "Content-Type", "application/json", "X-Encoder-Hosts-Ports", evil, "X-Prefiller-Host-Port", evil).want(t, 200)
		for _, w := range want {
			if got := strings.Join(<-told, " "); got != w {
				t.Errorf("%.60s: the sidecar is told %q, want %q", body, got, w)
			}
		}
	}
	chat := func(urls ...string) string {
		var parts []string
		for _, u := range urls {
			parts = append(parts, `{"type":"image_url","image_url":{"url":"`+u+`"}}`)
		}
		return `{"model":"chat","messages":[{"role":"user","content":[` + strings.Join(parts, ",") + `]}]}`
	}
	r.d.SetPool(p)
	ask(chat("http://a"), "sidecar") // nobody encodes apart
	p.Replicas = append(p.Replicas, replica.Replica{ID: "encode-0", Role: service.RoleEncode, Phase: replica.Ready, HTTP: "127.0.0.1:9"})
	r.d.SetPool(p)
	ask(chat("http://a", "http://b", "http://a"), "sidecar 127.0.0.1:9,127.0.0.1:9")
	ask(chat(), "sidecar")
	ask(`{"model":"chat","messages":[{"role":"user","content":"hi"}]}`, "sidecar")
	var many []string
	for n := range 10_000 {
		many = append(many, fmt.Sprint("http://a/", n))
	}
	ask(chat(many...), "sidecar "+strings.TrimSuffix(strings.Repeat("127.0.0.1:9,", 64), ","))

	p.Replicas = append(pool("room", failing).Replicas, p.Replicas[1], replica.Replica{ID: "decode-1", Phase: replica.Ready, HTTP: sidecar})
	p.Replicas[2].Role = service.RoleEngine
	for n := range 20 { // until the failing one is tried
		p.Replicas[0].ID = fmt.Sprint("failing-", n)
		r.d.SetPool(p)
		ask(chat(fmt.Sprint("http://a/", n))) // a prompt that no replica holds
		if got := <-told; got[0] == "failing" {
			if next := <-told; len(got) != 2 || len(next) != 1 {
				t.Errorf("told %v, and then %v: its only encoder may be why it failed", got, next)
			}
			return
		}
	}
	t.Error("the failing replica was never asked")
}

// TestEncodersAcquitted: a picture that nobody can load, of which a sidecar says 502 as if
// its encoder were dead, leaves the encoder where it was, and one that is dead rests.
func TestEncodersAcquitted(t *testing.T) {
	r := newRig(t, func(_ *Config, d *dispatch.Config) {
		d.RetryRate = 1e6
		d.Breaker.LostRest, d.Breaker.MaxLostRest = time.Hour, time.Hour
	})
	var dead atomic.Bool
	var helped atomic.Int32 // requests that name an encoder
	sidecar := replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		bad := err != nil || strings.Contains(string(body), "http://bad")
		named := req.Header.Get(headerEncoders) != ""
		if named {
			helped.Add(1)
		}
		switch {
		case named && (bad || dead.Load()):
			w.WriteHeader(http.StatusBadGateway)
		case bad:
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":{"message":"the picture cannot be loaded"}}`)
		default:
			writes(usageAnswer)(w, req)
		}
	})
	p := pool("room", sidecar)
	p.Shared, p.Protocol = true, service.ProtocolOpenAI
	p.Replicas = append(p.Replicas, replica.Replica{ID: "encode-0", Role: service.RoleEncode, Phase: replica.Ready, HTTP: "127.0.0.1:9"})
	r.d.SetPool(p)
	r.d.SetObjects([]routing.Object{&routing.Pool{Meta: service.Meta{Key: p.Key}},
		&routing.Route{Meta: service.Meta{Key: service.ParseKey("chat")}, Models: []string{"chat"}, Targets: []routing.Target{{Ref: routing.PoolRef(p.Key), Weight: 1}}}})
	ask := func(url string, status int, says ...string) {
		t.Helper()
		r.send("POST", "/v1/chat/completions", `{"model":"chat","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"`+url+`"}}]}]}`,
			"Content-Type", "application/json").want(t, status, says...)
	}
	rests := func() bool {
		return slices.ContainsFunc(r.d.Endpoints(p.Ref()), func(e dispatch.Endpoint) bool { return e.ID == "encode-0" && e.Ejected != "" })
	}
	for n := range 5 {
		ask(fmt.Sprint("http://bad/", n), 400, "cannot be loaded")
		until(t, func() bool { return !rests() })
	}
	ask("http://good/1", 200, "completion_tokens")
	if rests() {
		t.Error("an encoder that does its work rests")
	}
	dead.Store(true)
	ask("http://good/2", 200, "completion_tokens")
	if !rests() {
		t.Error("an encoder that is dead is named again")
	}
	if n := helped.Load(); n != 7 {
		t.Errorf("%d requests named the encoder, want 7", n)
	}
}
