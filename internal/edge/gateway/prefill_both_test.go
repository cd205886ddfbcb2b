package gateway

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// rooms is where the fakes of SGLang's servers meet: a decode server answers
// when a prefill server has come to its room.
type rooms struct {
	mu   sync.Mutex
	open map[int64]chan string
}

type bootstrap struct {
	Host   string `json:"bootstrap_host"`
	Port   int    `json:"bootstrap_port"`
	Room   int64  `json:"bootstrap_room"`
	Model  string
	Prompt string
}

// enter is the room that a request names.
func (r *rooms) enter(req *http.Request) (bootstrap, chan string, error) {
	var b bootstrap
	raw, err := io.ReadAll(req.Body)
	if err == nil {
		err = json.Unmarshal(raw, &b)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == nil {
		r.open = map[int64]chan string{}
	}
	if r.open[b.Room] == nil {
		r.open[b.Room] = make(chan string, 1)
	}
	return b, r.open[b.Room], err
}

func (r *rooms) prefill(w http.ResponseWriter, req *http.Request) {
	b, room, err := r.enter(req)
	if err != nil {
		w.WriteHeader(400)
		return
	}
	room <- b.Prompt
	writes(`{"choices":[],"usage":{"prompt_tokens":70,"completion_tokens":1}}`)(w, req)
}

func (r *rooms) decode(asked chan<- bootstrap) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		b, room, err := r.enter(req)
		if err != nil {
			w.WriteHeader(400)
			return
		}
		asked <- b
		select {
		case text := <-room:
			if text != b.Prompt {
				w.WriteHeader(500)
				return
			}
			writes(usageAnswer)(w, req)
		case <-req.Context().Done():
		}
	}
}

func TestPrefillBoth(t *testing.T) {
	var meet rooms
	asked := make(chan bootstrap, 100)
	r := newRig(t, nil)
	prefill := replicaServer(t, meet.prefill)
	p := apart(service.DisaggregationSGLang, prefill, replicaServer(t, meet.decode(asked)))
	r.d.SetPool(p)
	seen := map[int64]bool{}
	for _, text := range []string{"hi", longText, strings.Repeat(longText, 100)} { // the last over 64 KiB
		body, _ := json.Marshal(map[string]any{"model": "default/chat", "prompt": text, "bootstrap_host": "169.254.169.254"})
		r.send("POST", "/v1/completions", string(body)).want(t, 200, "completion_tokens")
		b := <-asked
		if b.Host != "127.0.0.1" || b.Port != 8998 || b.Room < 0 || b.Room >= maxBootstrapRoom || seen[b.Room] || b.Model != "chat" {
			t.Errorf("the decode replica is told %+v", b)
		}
		seen[b.Room] = true
	}
	until(t, func() bool { return r.counter(prefillsTotal, prefillComputed) == 3 })
	until(t, func() bool { return r.counter("roundhouse_gateway_tokens_total", "completion") == 9 })

	p.Replicas[1].GRPC = "127.0.0.1:9123" // its second port
	r.d.SetPool(p)
	r.send("POST", "/v1/chat/completions", `{"model":"chat","messages":[]}`).want(t, 200)
	if b := <-asked; b.Port != 9123 {
		t.Errorf("the bootstrap port is %d, want the replica's second", b.Port)
	}
	until(t, func() bool { return r.d.InFlight("prefill-0") == 0 && r.gw.buffered.Used() == 0 })
}

// TestPrefillBothFails: a pair of which the prefill replica fails is given up,
// not waited for, and another is tried; the client is told when all fail.
func TestPrefillBothFails(t *testing.T) {
	var meet rooms
	asked := make(chan bootstrap, 100)
	var broken atomic.Int32
	r := newRig(t, func(_ *Config, d *dispatch.Config) {
		d.Breaker.LostRest, d.Breaker.MaxLostRest = 10*time.Millisecond, 10*time.Millisecond
	})
	breaks := replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
		broken.Add(1)
		hijack("")(w, req)
	})
	p := apart(service.DisaggregationSGLang, breaks, replicaServer(t, meet.decode(asked)))
	r.d.SetPool(p)
	r.send("POST", "/v1/completions", ask).want(t, 503, "prefill replica")
	if n := broken.Load(); n == 0 {
		t.Error("the prefill replica was not asked")
	}
	if n := r.counter(prefillsTotal, prefillFailed); n == 0 {
		t.Error("no failure is counted")
	}

	p.Replicas = append(p.Replicas, replica.Replica{ID: "prefill-1", Service: p.Key, Role: service.RoleEngine, Phase: replica.Ready, HTTP: replicaServer(t, meet.prefill)})
	r.d.SetPool(p)
	for range 6 {
		r.send("POST", "/v1/completions", ask).want(t, 200, "completion_tokens")
	}

	// Without any it waits for one.
	all := p.Replicas
	p.Replicas = all[:1:1]
	r.d.SetPool(p)
	got := make(chan answer, 1)
	go func() { got <- r.send("POST", "/v1/completions", ask) }()
	until(t, func() bool {
		s, _ := r.d.Status(routing.Service(service.ParseKey("default/chat")))
		return s.Demand.Queued == 1
	})
	p.Replicas = []replica.Replica{all[0], all[2]}
	r.d.SetPool(p)
	(<-got).want(t, 200, "completion_tokens")
	until(t, func() bool { return r.d.InFlight("chat-0") == 0 })
}

// TestPrefillBothFailsLate: a prefill replica that is lost after the decode replica has
// begun to answer, which then has the prompt's KV, does not end the answer.
func TestPrefillBothFailsLate(t *testing.T) {
	r := newRig(t, nil)
	begun, goOn := make(chan struct{}), make(chan struct{})
	breaks := replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
		<-begun
		hijack("")(w, req)
	})
	decode := replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {}\n\n")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-goOn:
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
		case <-req.Context().Done():
		}
	})
	r.d.SetPool(apart(service.DisaggregationSGLang, breaks, decode))
	resp, err := r.client.Post(r.url+"/v1/completions", "application/json", strings.NewReader(ask))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	first := make([]byte, len("data: {}\n\n"))
	if _, err := io.ReadFull(resp.Body, first); err != nil {
		t.Fatal(err)
	}
	close(begun)
	until(t, func() bool { return r.counter(prefillsTotal, prefillFailed) == 1 })
	close(goOn)
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "data: [DONE]\n\n" {
		t.Errorf("after the prefill replica was lost comes %q (%v)", rest, err)
	}
}

// TestPrefillBothClientLeaves: neither replica works on for a client that has
// gone.
func TestPrefillBothClientLeaves(t *testing.T) {
	r := newRig(t, nil)
	inside, left := make(chan struct{}, 2), make(chan struct{}, 2)
	hangs := func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		inside <- struct{}{}
		<-req.Context().Done()
		left <- struct{}{}
	}
	r.d.SetPool(apart(service.DisaggregationSGLang, replicaServer(t, hangs), replicaServer(t, hangs)))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", r.url+"/v1/completions", strings.NewReader(ask))
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
	<-inside
	cancel()
	if err := <-done; err == nil {
		t.Error("an answer came to a client that had left")
	}
	<-left
	<-left
	r.waitSettled()
}
