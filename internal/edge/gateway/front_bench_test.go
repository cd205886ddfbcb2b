package gateway

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/apikey"
	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// canned is an upstream that answers at once.
type canned struct{ body []byte }

func (c canned) closeIdle() {}

func (c canned) send(context.Context, *http1.Request) (incoming, error) {
	return incoming{status: 200, length: int64(len(c.body)), fields: []http1.Field{{Name: "Content-Type", Value: "application/json"}},
		body: &cannedBody{*bytes.NewReader(c.body)}}, nil
}

type cannedBody struct{ bytes.Reader }

func (*cannedBody) Close() error           { return nil }
func (*cannedBody) SetPause(time.Duration) {}
func (*cannedBody) Trailer() []http1.Field { return nil }

// discard is a client that takes everything.
type discard struct{ h http.Header }

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}

// BenchmarkFront is what the gateway does for one chat request and its answer
// of 1 KB, sockets apart: with nothing set, with a key that has limits, and
// with an access log as well.
func BenchmarkFront(b *testing.B) {
	ring, err := keys.Open(keys.DefaultConfig(), &keyStore{})
	if err != nil {
		b.Fatal(err)
	}
	_, secret, err := ring.Create("bench", apikey.Limits{Models: []string{"bench"}, RequestsPerMinute: 1 << 40, TokensPerMinute: 1 << 50}, time.Time{})
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		keys, log bool
	}{{"plain", false, false}, {"keys", true, false}, {"keys and log", true, true}} {
		b.Run(c.name, func(b *testing.B) {
			r := newRig(b, func(cfg *Config, _ *dispatch.Config) {
				if c.keys {
					cfg.Keys = ring
				}
				if c.log {
					cfg.Ended.AccessLog = observe.NewAccessLog(io.Discard)
					b.Cleanup(func() { _ = cfg.Ended.AccessLog.Close() })
				}
			})
			r.d.SetPool(pool("bench", "127.0.0.1:1"))
			r.gw.upstream = canned{[]byte(`{"choices":[{"message":{"content":"` + strings.Repeat("x", 900) + `"}}],"usage":{"prompt_tokens":7,"completion_tokens":10}}`)}
			body := `{"model":"bench","messages":[{"role":"user","content":"` + strings.Repeat("word and ", 80) + `"}]}`
			req := httptest.NewRequest("POST", "/v1/chat/completions", nil)
			h, w := r.gw.Handler(), &discard{http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				req.Body, req.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
				if c.keys {
					req.Header["X-Api-Key"] = []string{secret}
				}
				clear(w.h)
				h.ServeHTTP(w, req)
			}
		})
	}
}
