package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// transport is an upstream over net/http: slower than direct, for those who
// doubt it, and what TLS and HTTP/2 to replicas will need.
type transport struct{ rt *http.Transport }

func newTransport(c Config) *transport {
	bounds := http1.DefaultConfig()
	dialer := &net.Dialer{Timeout: c.DialTimeout, KeepAlive: 30 * time.Second}
	return &transport{rt: &http.Transport{
		DialContext:            dialer.DialContext,
		MaxIdleConnsPerHost:    c.MaxIdleConns,
		IdleConnTimeout:        bounds.IdleTimeout,
		DisableCompression:     true, // bytes pass as they are
		MaxResponseHeaderBytes: int64(bounds.MaxHeaderBytes),
		WriteBufferSize:        16 << 10,
		ReadBufferSize:         16 << 10,
	}}
}

func (t *transport) closeIdle() { t.rt.CloseIdleConnections() }

func (t *transport) do(x *exchange) (incoming, error) {
	parts, length := x.sentBody(nil)
	req, err := x.upstreamRequest(x.grant.Address(), parts, length)
	in, err := t.send(x.context(), req, err, x.gw.cfg.AnswerTimeout)
	if err != nil && x.body.tail != nil && x.body.tail.begun.Load() {
		x.body.spent = true
	}
	return in, err
}

func (t *transport) post(x *exchange, address string, body []byte, limit time.Duration) func(context.Context) (incoming, error) {
	req, err := x.upstreamRequest(address, [][]byte{body}, int64(len(body)))
	return func(ctx context.Context) (incoming, error) { return t.send(ctx, req, err, limit) }
}

// send sends a request unless err says why it could not be made.
func (t *transport) send(ctx context.Context, req *http.Request, err error, limit time.Duration) (incoming, error) {
	ctx, p := newPatience(ctx, limit)
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }})
	var resp *http.Response
	if err == nil {
		resp, err = t.rt.RoundTrip(req.WithContext(ctx)) //nolint:bodyclose // transportBody closes it
	}
	if err != nil {
		if errors.Is(context.Cause(ctx), errSlow) {
			err = errSlow
		}
		p.stop()
		switch {
		case !sent.Load():
			err = dispatch.Unsent(err)
		case strings.Contains(err.Error(), "transport connection broken"): // net/http has no type for it
			err = fmt.Errorf("%w: %w", http1.ErrMalformed, err)
		}
		return incoming{}, err
	}
	in := incoming{status: resp.StatusCode, length: resp.ContentLength, body: &transportBody{ctx: ctx, patience: p, resp: resp},
		fields: flatten(resp.Header)}
	if req.Method == http.MethodHead {
		in.length = max(in.length, 0) // no body, whatever its length
	}
	for name := range resp.Trailer {
		in.announced += name + ","
	}
	in.announced = strings.TrimSuffix(in.announced, ",")
	return in, nil
}

// upstreamRequest is the request in the form of net/http, with the parts of a
// body that are held.
func (x *exchange) upstreamRequest(address string, parts [][]byte, length int64) (*http.Request, error) {
	escaped := x.path(x.grant.Pool())
	path, err := url.PathUnescape(escaped)
	if err != nil {
		return nil, fmt.Errorf("path %q: %w", escaped, err)
	}
	req := &http.Request{
		Method: x.r.Method,
		URL:    &url.URL{Scheme: "http", Host: address, Path: path, RawPath: escaped, RawQuery: x.r.URL.RawQuery},
		Host:   x.hostOf(address),
		Header: x.requestHeader(),
		Proto:  "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	req.ContentLength = length
	req.Body = x.body.reader(parts, length)
	if x.body.tail == nil {
		req.GetBody = func() (io.ReadCloser, error) { return x.body.reader(parts, length), nil }
		// A replica may close an idle connection just as it is used again;
		// net/http then sends the request on a new one, if it may be sent
		// twice. An empty value says so and is not sent itself.
		if _, ok := req.Header["Idempotency-Key"]; !ok {
			req.Header["X-Idempotency-Key"] = nil
		}
	}
	return req, nil
}

// reader reads the body's parts and what follows them.
func (b *body) reader(parts [][]byte, length int64) io.ReadCloser {
	if length == 0 {
		return http.NoBody
	}
	all := make([]io.Reader, 0, len(parts)+1)
	for _, p := range parts {
		all = append(all, bytes.NewReader(p))
	}
	if b.tail != nil {
		all = append(all, b.tail)
	}
	return io.NopCloser(io.MultiReader(all...))
}

func flatten(h http.Header) []http1.Field {
	fields := make([]http1.Field, 0, len(h))
	for name, values := range h {
		for _, v := range values {
			fields = append(fields, http1.Field{Name: name, Value: v})
		}
	}
	return fields
}

// transportBody is an answer's body that keeps time.
type transportBody struct {
	ctx      context.Context
	patience *patience
	resp     *http.Response
}

func (b *transportBody) SetPause(d time.Duration) { b.patience.pause = d }

func (b *transportBody) Read(p []byte) (int, error) {
	if b.patience.pause > 0 {
		b.patience.timer.Reset(b.patience.pause)
	}
	n, err := b.resp.Body.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && errors.Is(context.Cause(b.ctx), errSlow) {
		err = errSlow
	}
	return n, err
}

func (b *transportBody) Close() error {
	b.patience.stop()
	return b.resp.Body.Close()
}

func (b *transportBody) Trailer() []http1.Field { return flatten(b.resp.Trailer) }
