package scrape

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/edge/simulate"
)

// TestServers reads real servers: their answers, their paths, their faults.
func TestServers(t *testing.T) {
	trtllm := http.NewServeMux()
	trtllm.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `[{"numActiveRequests": 99}]`)
	})
	trtllm.HandleFunc("/prometheus/metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = io.WriteString(w, "trtllm_num_requests_waiting 2\n")
	})
	answer := func(kind, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept") != "text/plain;version=0.0.4" || r.Header.Get("Accept-Encoding") != "" {
				t.Errorf("asked with %v", r.Header)
			}
			w.Header().Set("Content-Type", kind)
			_, _ = io.WriteString(w, text)
		}
	}
	for _, c := range []struct {
		name, path, engine string
		handler            http.Handler
		want               *replica.Load
		reason             string
	}{
		{"vLLM", "", "", answer("text/plain", exposition(3, 80<<10)), &replica.Load{Waiting: 3, Running: 7, KV: 0.375, Blocks: 27816, BlockTokens: 16,
			Adapters: &replica.Adapters{Running: []string{"sql", "chat"}, Waiting: []string{"law"}, Max: 4}}, ""},
		{"trtllm-serve", "", "", trtllm, &replica.Load{Waiting: 2}, ""},
		{"trtllm-serve, stated", "/", "trtllm-serve", trtllm, &replica.Load{Waiting: 2}, ""},
		{"a path", "/prometheus/metrics", "", trtllm, &replica.Load{Waiting: 2}, ""},
		{"another engine than stated", "", "sglang", answer("text/plain", exposition(3, 0)), nil, "engine"},
		{"protobuf", "", "", answer("application/vnd.google.protobuf", "x"), nil, "body"},
		{"not found", "", "", http.NotFoundHandler(), nil, "status"},
		{"redirect", "", "", http.RedirectHandler("http://127.0.0.1:1/", http.StatusFound), nil, "status"},
		{"too long", "", "", answer("text/plain", strings.Repeat("x 1\n", 2<<20)), nil, "body"},
		{"malformed", "", "", answer("text/plain", "vllm:num_requests_waiting x\n"), nil, "body"},
		{"nothing", "", "", answer("text/plain", ""), nil, "engine"},
		{"hangs", "", "", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "vllm:num_requests_waiting 1\n")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}), nil, "timeout"},
		{"breaks off", "", "", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "vllm:num_requests_waiting 1\n")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}), nil, "connection"},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(c.handler)
			server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
			server.Start()
			defer server.Close()
			cfg := DefaultConfig()
			cfg.Timeout = 20 * time.Second
			if c.reason == "timeout" {
				cfg.Timeout = 100 * time.Millisecond
			}
			cfg.Sink = newHeard()
			cfg.settle()
			at, err := Target{ID: "a", URL: server.URL + c.path, Engine: c.engine}.source()
			if err != nil {
				t.Fatal(err)
			}
			var w worker
			got, found, err := w.readFrom(t.Context(), &cfg, at, 1)
			if err != nil {
				if c.want != nil || reason(err) != c.reason {
					t.Fatalf("%v (%s)", err, reason(err))
				}
				return
			}
			if c.want == nil {
				t.Fatalf("read %+v, want a failure", got)
			}
			got[0].At, got[0].Tells = time.Time{}, replica.Figures{}
			if !reflect.DeepEqual(got[0], c.want) || len(found.urls) != 1 || len(found.plan.engines) != 1 {
				t.Errorf("%+v at %v", got, found.urls)
			}
		})
	}
}

// TestSimulator reads the engine simulator as it is.
func TestSimulator(t *testing.T) {
	cfg := simulate.DefaultConfig()
	cfg.Physics.MaxAdapters, cfg.Adapters = 4, []string{"sql"}
	e, err := simulate.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(e.Handler())
	defer server.Close()
	res, err := http.Post(server.URL+"/simulate/pin", "application/json", strings.NewReader(`{"waiting":5,"running":2,"kv_usage":0.9}`))
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode/100 != 2 {
		t.Fatal(res.Status)
	}
	own := DefaultConfig()
	own.Timeout, own.Sink = 20*time.Second, newHeard()
	own.settle()
	at, err := Target{ID: "a", URL: server.URL}.source()
	if err != nil {
		t.Fatal(err)
	}
	var w worker
	loads, _, err := w.readFrom(t.Context(), &own, at, 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := loads[0]; got.Waiting != 5 || got.Running != 2 || got.KV != 0.9 || got.Blocks != cfg.Physics.KVBlocks || got.BlockTokens != simulate.BlockTokens || got.Adapters == nil || got.Adapters.Max != 4 {
		t.Errorf("%+v", got)
	}
}

// TestConnectionsAreKept reads one server many times over one connection, and
// finds it again when it has restarted as another engine.
func TestConnectionsAreKept(t *testing.T) {
	var mu sync.Mutex
	text, connections := exposition(1, 0), 0
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = io.WriteString(w, text)
	}))
	server.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			mu.Lock()
			connections++
			mu.Unlock()
		}
	}
	server.Start()
	defer server.Close()
	h := newHeard()
	h.news = make(chan string)
	h.put("a", 1)
	cfg := DefaultConfig()
	cfg.Fast, cfg.MaxShare, cfg.Sink, cfg.Traffic = time.Millisecond, 1, h, h
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	_ = s.SetPool("p", []Target{{ID: "a", URL: server.URL}})
	for range 20 {
		<-h.news
	}
	mu.Lock()
	if connections != 1 {
		t.Errorf("%d connections for 20 readings", connections)
	}
	text = "sglang:num_queue_reqs 5\n"
	mu.Unlock()
	for {
		<-h.news
		h.mu.Lock()
		last := h.loads["a"][len(h.loads["a"])-1]
		h.mu.Unlock()
		if last.Waiting == 5 {
			break
		}
	}
	go func() {
		for range h.news {
			continue // whatever is on its way
		}
	}()
	s.Close()
	close(h.news)
}

// series counts what a collector shows, checked as a registry does.
func series(t *testing.T, c prometheus.Collector) (n int) {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(c); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Error(err)
	}
	for _, f := range families {
		n += len(f.GetMetric())
	}
	return n
}
