package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/core/orca"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/edge/simulate"
)

// heard is a Sink that remembers, and a Traffic that says what it is told.
type heard struct {
	mu       sync.Mutex
	loads    map[string][]*replica.Load
	inFlight map[string]int
	news     chan string // IDs, as they come; nil: nobody waits
}

func newHeard() *heard {
	return &heard{loads: map[string][]*replica.Load{}, inFlight: map[string]int{}}
}

func (h *heard) SetLoad(id string, l *replica.Load) {
	h.mu.Lock()
	h.loads[id] = append(h.loads[id], l)
	h.mu.Unlock()
	if h.news != nil {
		h.news <- id
	}
}

func (h *heard) InFlight(id string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.inFlight[id]
}

func (h *heard) put(id string, n int) { h.mu.Lock(); h.inFlight[id] = n; h.mu.Unlock() }

// since is how many loads of a server came since the last time it was asked.
func (h *heard) since(id string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.loads[id])
	h.loads[id] = nil
	return n
}

// network answers requests without a network, so that time can be simulated.
type network struct {
	mu    sync.Mutex
	takes time.Duration
	down  map[string]bool // hosts that do not answer
	asked map[string]int
	most  int // requests at once
	now   int
}

func (n *network) RoundTrip(r *http.Request) (*http.Response, error) {
	n.mu.Lock()
	down, takes := n.down[r.URL.Host], n.takes
	if n.asked == nil {
		n.asked = map[string]int{}
	}
	n.asked[r.URL.Host]++
	n.now++
	n.most = max(n.most, n.now)
	n.mu.Unlock()
	defer func() { n.mu.Lock(); n.now--; n.mu.Unlock() }()
	if down {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	time.Sleep(takes)
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("vllm:num_requests_waiting 1\n"))}, nil
}

func (n *network) set(f func(*network)) { n.mu.Lock(); f(n); n.mu.Unlock() }

func (n *network) of(host string) int { n.mu.Lock(); defer n.mu.Unlock(); return n.asked[host] }

// start makes a Scraper in simulated time.
func start(t *testing.T, change func(*Config)) (*Scraper, *heard, *network) {
	t.Helper()
	h, n := newHeard(), &network{}
	cfg := DefaultConfig()
	cfg.Sink, cfg.Traffic, cfg.Transport, cfg.Random = h, h, n, func() float64 { return 0.5 }
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, h, n
}

func target(id string) Target { return Target{ID: id, URL: "http://" + id, Engine: "vllm"} }

func TestIntervalFollowsTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h, _ := start(t, nil)
		if err := s.SetPool("p", []Target{target("a"), target("b")}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n, m := h.since("a"), h.since("b"); n != 1 || m != 1 {
			t.Fatalf("%d and %d readings of new servers, want 1", n, m)
		}
		time.Sleep(time.Hour)
		if n := h.since("a"); n != 0 {
			t.Errorf("%d readings without traffic", n)
		}
		if st, _ := s.Status("a"); !st.Idle || st.Engine != "vllm" || st.Load == nil {
			t.Errorf("%+v", st)
		}

		h.put("a", 1)
		s.Wake("p")
		synctest.Wait()
		if n, m := h.since("a"), h.since("b"); n != 1 || m != 1 {
			t.Errorf("%d and %d readings at the first request, want 1", n, m)
		}
		for range 50 {
			time.Sleep(100 * time.Millisecond)
			s.Wake("p")
		}
		if n := h.since("a"); n < 49 || n > 51 {
			t.Errorf("%d readings in 5 s of the server that works, want 50", n)
		}
		if n := h.since("b"); n < 7 || n > 8 { // after 0.1, 0.2, 0.4, 0.8, then every second
			t.Errorf("%d readings in 5 s of the other, want 7 or 8", n)
		}

		h.put("a", 0)
		time.Sleep(time.Hour)
		if n := h.since("a"); n < 12 || n > 14 {
			t.Errorf("%d readings after the last request, want 4 in the first second and 9 until IdleAfter", n)
		}
		if st, _ := s.Status("a"); !st.Idle {
			t.Errorf("still not idle: %+v", st)
		}
	})
}

// TestLongRequest: a server whose request outlasts IdleAfter is still read.
func TestLongRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h, _ := start(t, nil)
		h.put("a", 1)
		_ = s.SetPool("p", []Target{target("a")})
		time.Sleep(time.Minute)
		if n := h.since("a"); n < 590 {
			t.Errorf("%d readings in a minute", n)
		}
		h.put("a", 0)
		time.Sleep(time.Minute)
		if h.since("a"); h.since("a") != 0 {
			t.Error("read after the request's end")
		}
	})
}

func TestSlowServersAreReadLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h, n := start(t, nil)
		n.set(func(n *network) { n.takes = 20 * time.Millisecond })
		h.put("a", 1)
		_ = s.SetPool("p", []Target{target("a")})
		time.Sleep(42 * time.Second)
		if got := h.since("a"); got < 99 || got > 101 { // 20 ms are 5 % of 400, and 20 are spent
			t.Errorf("%d readings of 20 ms in 42 s, want 100", got)
		}
	})
}

func TestFailuresBackOffAndHoldUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s, h, n := start(t, func(c *Config) { c.Workers = 8; c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		n.set(func(n *network) {
			n.down = map[string]bool{}
			for i := range 50 {
				n.down[fmt.Sprint("down", i)] = true
			}
		})
		targets := []Target{target("up")}
		for i := range 50 {
			targets = append(targets, target(fmt.Sprint("down", i)))
		}
		h.put("up", 1)
		_ = s.SetPool("p", targets)
		time.Sleep(20 * time.Second) // all have failed once
		h.since("up")
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			s.Wake("p")
		}
		if got := h.since("up"); got < 590 {
			t.Errorf("%d readings in a minute beside 50 servers that hang, want 600", got)
		}
		if got := n.of("down7"); got < 3 || got > 12 {
			t.Errorf("a server that hangs was asked %d times in 80 s", got)
		}
		n.set(func(n *network) {
			if n.most > 8 {
				t.Errorf("%d at once, more than workers", n.most)
			}
		})
		st, _ := s.Status("down7")
		if st.Failures < 3 || !errors.Is(st.Err, context.DeadlineExceeded) {
			t.Errorf("%+v", st)
		}
		if got := series(t, s); got != 1+len(reasons)+3+1 {
			t.Errorf("%d series", got)
		}

		n.set(func(n *network) { n.down = nil })
		for range 400 {
			time.Sleep(100 * time.Millisecond)
			s.Wake("p")
		}
		if st, _ := s.Status("down7"); st.Failures != 0 || st.Load == nil {
			t.Errorf("not read again: %+v", st)
		}
		s.Close()
		text := log.String()
		if strings.Count(text, "server=down7 ") != 1 || !strings.Contains(text, "read again\" server=down7\n") {
			t.Errorf("told of down7:\n%s", text)
		}
	})
}

func TestPoolsComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h, n := start(t, func(c *Config) { c.MaxTargets = 3 })
		_ = s.SetPool("p", []Target{target("a"), target("b")})
		_ = s.SetPool("q", []Target{target("b"), target("c")})
		time.Sleep(time.Hour)
		s.Wake("q")
		synctest.Wait()
		if n.of("a") != 1 || n.of("b") != 2 || n.of("c") != 2 {
			t.Errorf("%v: q is not p", n.asked)
		}
		if err := s.SetPool("r", []Target{target("d")}); err == nil || !strings.Contains(err.Error(), "one more") {
			t.Errorf("beyond MaxTargets: %v", err)
		}
		_ = s.SetPool("q", nil)
		if _, ok := s.Status("c"); ok {
			t.Error("c is still there")
		}
		if _, ok := s.Status("b"); !ok {
			t.Error("b went with q, and is in p")
		}
		s.Wake("q")
		h.since("b")
		time.Sleep(time.Hour)
		if st, _ := s.Status("b"); !st.Idle {
			t.Error("b is not idle")
		}
		// It moves to another address.
		moved := target("b")
		moved.URL = "http://elsewhere"
		h.since("b")
		_ = s.SetPool("p", []Target{moved, target("a")})
		synctest.Wait()
		if h.since("b") != 1 || n.of("elsewhere") != 1 {
			t.Errorf("%v", n.asked)
		}
		time.Sleep(time.Hour)
		s.Wake("p")
		synctest.Wait()
		if n.of("elsewhere") < 2 || n.of("a") < 2 {
			t.Errorf("%v", n.asked)
		}
		s.Close()
		before := n.of("a")
		s.Wake("p")
		_ = s.SetPool("p", []Target{target("a")})
		time.Sleep(time.Hour)
		if n.of("a") != before {
			t.Error("read after Close")
		}
	})
}

func TestHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h, _ := start(t, nil)
		_ = s.SetPool("p", []Target{target("a")})
		synctest.Wait()
		time.Sleep(time.Second)
		s.Heard("a", orca.Report{Waiting: 9, Running: -1, KV: 0.5})
		s.Heard("nobody", orca.Report{Waiting: 9})
		last := h.loads["a"][len(h.loads["a"])-1]
		if *last != (replica.Load{At: time.Now(), Waiting: 9, KV: 0.5}) {
			t.Errorf("%+v", last)
		}
	})
}

func TestBadTargets(t *testing.T) {
	s, _, _ := start(t, nil)
	for _, bad := range []Target{{ID: "a", URL: "10.0.0.1:8000"}, {ID: "a", URL: "ftp://x"}, {ID: "a", URL: "http://"}, {ID: "a", URL: "http://x", Engine: "vlm"}} {
		if err := s.SetPool("p", []Target{bad}); err == nil || !strings.Contains(err.Error(), "target a") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if _, err := New(Config{}); err == nil || !strings.Contains(err.Error(), "Sink") || !strings.Contains(err.Error(), "MaxShare") {
		t.Errorf("%v", err)
	}
}

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
			at, err := Target{ID: "a", URL: server.URL + c.path, Engine: c.engine}.places()
			if err != nil {
				t.Fatal(err)
			}
			var w worker
			got, found, err := w.readPlace(t.Context(), &cfg, at)
			if err != nil {
				if c.want != nil || reason(err) != c.reason {
					t.Fatalf("%v (%s)", err, reason(err))
				}
				return
			}
			if c.want == nil {
				t.Fatalf("read %+v, want a failure", got)
			}
			got.At = time.Time{}
			if !reflect.DeepEqual(got, c.want) || len(found.urls) != 1 || len(found.plan.engines) != 1 {
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
	at, err := Target{ID: "a", URL: server.URL}.places()
	if err != nil {
		t.Fatal(err)
	}
	var w worker
	got, _, err := w.readPlace(t.Context(), &own, at)
	if err != nil || got.Waiting != 5 || got.Running != 2 || got.KV != 0.9 || got.Blocks != cfg.Physics.KVBlocks || got.BlockTokens != simulate.BlockTokens || got.Adapters == nil || got.Adapters.Max != 4 {
		t.Errorf("%+v, %v", got, err)
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
