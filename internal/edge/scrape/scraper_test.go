package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse.dev/roundhouse/internal/core/orca"
	"roundhouse.dev/roundhouse/internal/core/replica"
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
		if *last != (replica.Load{At: time.Now(), Waiting: 9, KV: 0.5, Tells: replica.Figures{Queue: true, KV: true}}) {
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
