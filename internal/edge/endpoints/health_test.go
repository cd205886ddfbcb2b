package endpoints

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/test/loopback"
)

// TestServersAreAskedWhetherTheyAreWell: on the engine's path or the stated one;
// a server without the engine's path is well, one that refuses connections or
// fails is not, until it is again.
func TestServersAreAskedWhetherTheyAreWell(t *testing.T) {
	told := make(chan string, 100)
	cfg := DefaultHealthConfig()
	cfg.Changed = func(_ service.Key, address, why string) { told <- address + " " + why }
	h, err := NewHealth(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	var status atomic.Int32
	asked := make(chan string, 1000)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		w.WriteHeader(int(status.Load()))
	}))
	defer srv.Close()
	address := strings.TrimPrefix(srv.URL, "http://")
	gone := loopback.Reserve(t)

	p := &routing.Pool{Meta: service.Meta{Key: service.ParseKey("a/p")}, Protocol: service.ProtocolOpenAI,
		Health: routing.HealthCheck{Interval: 10 * time.Millisecond, FailureThreshold: 2}}
	status.Store(http.StatusNotFound)
	h.Set(p, []string{address, gone})
	first := map[string]string{} // results arrive in any order
	for range 2 {
		got, why, _ := strings.Cut(<-told, " ")
		first[got] = why
	}
	if why, ok := first[address]; !ok || why != "" || !strings.Contains(first[gone], "refused") {
		t.Errorf("first results %q", first)
	}
	if path := <-asked; path != "/health" {
		t.Errorf("asked for %s", path)
	}
	status.Store(http.StatusInternalServerError)
	if got := <-told; got != address+" /health is answered 500 Internal Server Error" {
		t.Errorf("told %q", got)
	}
	status.Store(http.StatusOK)
	if got := <-told; got != address+" " {
		t.Errorf("told %q of one that is well again", got)
	}

	stated := *p
	stated.Health.Path = "/live" // its own path must be there
	status.Store(http.StatusNotFound)
	if begun := h.Set(&stated, []string{address}); !slices.Equal(begun, []string{address}) {
		t.Errorf("checks begin of %v", begun)
	}
	if begun := h.Set(&stated, []string{address}); len(begun) > 0 {
		t.Errorf("checks begin once more of %v", begun)
	}
	if got := <-told; got != address+" /live is answered 404 Not Found" {
		t.Errorf("told %q", got)
	}
	stated.Health.Disabled = true
	h.Set(&stated, []string{address})
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.checks) != 0 {
		t.Errorf("%d checks of a pool that disables them", len(h.checks))
	}
}

// TestHealthPaths: each engine's own.
func TestHealthPaths(t *testing.T) {
	h, err := NewHealth(HealthConfig{Interval: 1, Timeout: 1, Failures: 1, MaxChecks: 1, Changed: func(service.Key, string, string) {}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		p    routing.Pool
		want string
	}{
		{routing.Pool{Protocol: service.ProtocolOpenAI}, "http://10.0.0.1:80/health"},
		{routing.Pool{Protocol: service.ProtocolOpenAI, Metrics: routing.Metrics{Engine: "triton-trtllm"}}, "http://10.0.0.1:80/v2/health/ready"},
		{routing.Pool{Protocol: service.ProtocolV2}, "http://10.0.0.1:80/v2/health/ready"},
		{routing.Pool{Protocol: service.ProtocolV1}, ""},
		{routing.Pool{Protocol: service.ProtocolGRPCV2}, ""},
		{routing.Pool{Protocol: service.ProtocolV1, Health: routing.HealthCheck{Path: "/x", Port: 81}}, "http://10.0.0.1:81/x"},
	} {
		if got := h.question(&c.p, "10.0.0.1:80").url; got != c.want {
			t.Errorf("%+v: %q, want %q", c.p, got, c.want)
		}
	}
	if _, err := NewHealth(HealthConfig{}); err == nil {
		t.Error("a Health that tells nobody")
	}
}
