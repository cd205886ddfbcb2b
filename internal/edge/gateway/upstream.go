package gateway

import (
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// upstream sends one request to a replica and returns when its answer's header
// is there. A failure before anything was sent is marked dispatch.Unsent. The
// caller closes the answer's body.
type upstream interface {
	do(*http.Request) (*http.Response, error)
}

// transport is an upstream over net/http.
type transport struct{ rt *http.Transport }

// upstreamIdle is how long an idle connection to a replica is kept: less than
// the 5 s after which uvicorn, behind most Python servers, closes it.
const upstreamIdle = 4 * time.Second

func newTransport(c Config) *transport {
	dialer := &net.Dialer{Timeout: c.DialTimeout, KeepAlive: 30 * time.Second}
	return &transport{rt: &http.Transport{
		DialContext:            dialer.DialContext,
		MaxIdleConnsPerHost:    c.MaxIdleConns,
		IdleConnTimeout:        upstreamIdle,
		DisableCompression:     true, // bytes pass as they are
		MaxResponseHeaderBytes: 1 << 20,
		WriteBufferSize:        16 << 10,
		ReadBufferSize:         16 << 10,
	}}
}

func (t *transport) do(req *http.Request) (*http.Response, error) {
	if req.GetBody != nil || req.Body == http.NoBody {
		// A replica may close an idle connection just as it is used again;
		// net/http then sends the request on a new one, if it may be sent
		// twice. An empty value says so and is not sent itself.
		if _, ok := req.Header["Idempotency-Key"]; !ok {
			req.Header["X-Idempotency-Key"] = nil
		}
	}
	var sent atomic.Bool
	trace := &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }}
	resp, err := t.rt.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
	if err != nil && !sent.Load() {
		return nil, dispatch.Unsent(err)
	}
	return resp, err
}
