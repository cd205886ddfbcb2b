package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

func TestConfigValidate(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	bad := DefaultConfig()
	bad.Listen, bad.MaxBodyBytes, bad.StallTimeout, bad.MaxBufferedBytes = "8080", 0, -1, -5
	err := bad.Validate()
	for _, want := range []string{"Listen", "MaxBodyBytes", "StallTimeout", "MaxBufferedBytes"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %s", err, want)
		}
	}
	if _, err := New(bad, nil, nil, prometheus.NewRegistry()); err == nil {
		t.Error("New took a bad Config")
	}
}

// TestStopDrains: a request in flight when the gateway is told to stop is
// answered, and readiness is gone meanwhile.
func TestStopDrains(t *testing.T) {
	d, err := dispatch.New(dispatch.DefaultConfig(), &demand{}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	gw, err := New(DefaultConfig(), d, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	inside, release := make(chan struct{}), make(chan struct{})
	d.SetPool(pool("iris", replicaServer(t, func(w http.ResponseWriter, r *http.Request) {
		close(inside)
		<-release
		echo(w, r)
	})))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- gw.Serve(ctx, l) }()
	r := &rig{t: t, url: "http://" + l.Addr().String(), client: &http.Client{Transport: &http.Transport{}}}
	got := make(chan answer, 1)
	go func() { got <- r.send("POST", "/v2/models/iris/infer", "{}") }()
	<-inside
	stop()
	until(t, gw.draining.Load)
	probe := httptest.NewRecorder()
	gw.Handler().ServeHTTP(probe, httptest.NewRequest("GET", "/v2/health/ready", nil))
	if probe.Code != 400 || !strings.Contains(probe.Body.String(), `"ready":false`) {
		t.Errorf("readiness while stopping: %d %s", probe.Code, probe.Body)
	}
	close(release)
	(<-got).want(t, 200, "infer")
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

// TestClientThatStopsReading: a client that takes nothing for ClientTimeout
// gives its place back.
func TestClientThatStopsReading(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.ClientTimeout = 100 * time.Millisecond })
	ended := make(chan struct{})
	r.d.SetPool(pool("chat", replicaServer(t, func(w http.ResponseWriter, _ *http.Request) {
		defer close(ended)
		for b := make([]byte, 1<<20); ; {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	})))
	c, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	body := `{"model":"chat"}`
	if _, err := io.WriteString(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n\r\n"+body); err != nil {
		t.Fatal(err)
	}
	<-ended
	waitIdle(r)
}

// TestClientThatStopsSending: half a body is refused after ClientTimeout, held
// or streamed.
func TestClientThatStopsSending(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.ClientTimeout, c.MaxReplayBytes = 100*time.Millisecond, 10 })
	r.d.SetPool(pool("iris", replicaServer(t, echo)))
	for _, path := range []string{"/v1/completions", "/v2/models/iris/infer"} {
		c, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "POST "+path+" HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"+strings.Repeat("x", 20)); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(c)
		_ = c.Close()
		if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 408") {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	waitIdle(r)
}

// TestDeadlinesEndWithTheAnswer: a connection outlives ClientTimeout while it
// is idle.
func TestDeadlinesEndWithTheAnswer(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.ClientTimeout = 300 * time.Millisecond })
	addr := replicaServer(t, echo)
	for i := range 200 { // an answer longer than the server's buffer
		r.d.SetPool(pool(fmt.Sprintf("iris-%d", i), addr))
	}
	r.client = &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	defer r.client.CloseIdleConnections()
	for range 3 {
		r.send("POST", "/v1/completions", `{"model":"iris-1"}`).want(t, 200)
		<-time.After(400 * time.Millisecond) // longer than any deadline that was left behind
		r.send("POST", "/v2/repository/index", "{}").want(t, 200, "iris-199")
	}
}

func TestEventEnd(t *testing.T) {
	for in, want := range map[string]int{
		"": 0, "\n": 0, "data: 1": 0, "data: 1\n": 0, "data: 1\n\n": 9, "data: 1\n\nda": 9, "a\r\n\r\nb": 5,
		"a\r\rb": 3, "a\r\nb": 0, "a\r\n\n": 4, "\n\n": 2, "a\n\nb\n\n\nc": 7,
	} {
		if got := eventEnd([]byte(in)); got != want {
			t.Errorf("eventEnd(%q) = %d, want %d", in, got, want)
		}
	}
}

// FuzzServe: whatever a client asks for is answered, errors as JSON.
func FuzzServe(f *testing.F) {
	for _, s := range [][3]string{
		{"POST", "/v1/chat/completions", `{"model":"iris"}`}, {"POST", "/v1/models/iris:predict", "{}"},
		{"GET", "/v2/models/iris/versions/1/ready", ""}, {"POST", "/v2/models/%2f%00/infer", ""}, {"POST", "/v2/repository/models//load", ""},
		{"POST", "/v2/repository/index", `{"ready":1}`}, {"DELETE", "//v1/models/:explain", ""}, {"GET", "/v1/models/%C3%28", ""},
	} {
		f.Add(s[0], s[1], []byte(s[2]))
	}
	d, err := dispatch.New(dispatch.DefaultConfig(), &demand{}, nil, nil)
	if err != nil {
		f.Fatal(err)
	}
	broken := pool("iris")
	broken.Cause = dispatch.Cause{Message: "no program", Permanent: true}
	d.SetPool(broken)
	gw, err := New(DefaultConfig(), d, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, method, path string, body []byte) {
		r, err := http.NewRequest(method, "http://host"+path, bytes.NewReader(body))
		if err != nil {
			return
		}
		w := httptest.NewRecorder()
		gw.Handler().ServeHTTP(w, r)
		if w.Code >= 400 && !json.Valid(w.Body.Bytes()) {
			t.Fatalf("%s %s: %d %q", method, path, w.Code, w.Body)
		}
	})
}
