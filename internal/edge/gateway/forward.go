package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// chunkSize is what is read from a replica at once, and the longest event that
// is held back until it is whole, in bytes.
const chunkSize = 32 << 10

var chunks = sync.Pool{New: func() any { b := make([]byte, chunkSize); return &b }}

// errSlow is the cause of an upstream context that ended because the replica
// kept silent.
var errSlow = errors.New("the replica kept silent for too long")

// watch ends an upstream request that makes no progress.
type watch struct {
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

// forward sends the request to the granted replica, and to others while it
// fails before its answer begins, and passes the answer on.
func (x *exchange) forward() {
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	for {
		ctx, cancel := context.WithCancelCause(x.r.Context())
		limit := x.gw.cfg.AnswerTimeout
		wd := watch{cancel: cancel, timer: time.AfterFunc(limit, func() { cancel(errSlow) })}
		x.sending()
		resp, n, err := x.try(ctx, *buf) //nolint:bodyclose // answer closes it
		if resp != nil {
			x.answer(ctx, resp, *buf, n, err, wd)
			return
		}
		slow := errors.Is(context.Cause(ctx), errSlow)
		x.failed(err)
		wd.stop()
		if slow {
			x.gw.log.Warn("replica did not answer in time", x.attrs("timeout", limit)...)
			x.grant.Done(dispatch.Outcome{Failed: errSlow})
			x.failWith(http.StatusGatewayTimeout, fmt.Sprintf("the model did not begin its answer within %v", limit), "", "timeout")
			return
		}
		if !x.elsewhere(err) {
			return
		}
	}
}

func (w watch) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// try sends the request once and waits for the first bytes of the answer's
// body, so that a replica that dies before them can be replaced. resp is nil
// when it failed; else n bytes are in buf, and err is what came with them (nil
// or io.EOF, or a failure after some bytes).
func (x *exchange) try(ctx context.Context, buf []byte) (resp *http.Response, n int, err error) {
	req, err := x.upstreamRequest(ctx)
	if err != nil {
		return nil, 0, err
	}
	resp, err = x.gw.upstream.do(req)
	if err != nil {
		return nil, 0, err
	}
	for n == 0 && err == nil {
		n, err = resp.Body.Read(buf)
	}
	if n == 0 && !errors.Is(err, io.EOF) {
		_ = resp.Body.Close() // it has failed already
		return nil, 0, err
	}
	return resp, n, err
}

// upstreamRequest builds the request for the granted replica.
func (x *exchange) upstreamRequest(ctx context.Context) (*http.Request, error) {
	pool := x.grant.Pool()
	escaped := x.path(pool)
	path, err := url.PathUnescape(escaped)
	if err != nil {
		return nil, fmt.Errorf("path %q: %w", escaped, err)
	}
	req := &http.Request{
		Method: x.r.Method,
		URL: &url.URL{Scheme: "http", Host: x.grant.Address(), Path: path, RawPath: escaped,
			RawQuery: x.r.URL.RawQuery},
		Host:   x.grant.Address(),
		Header: x.requestHeader(),
		Proto:  "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	head, cut := x.renamed(pool.ServedName)
	req.Body, req.ContentLength = x.body.reader(head, cut)
	if x.body.tail == nil {
		req.GetBody = func() (io.ReadCloser, error) {
			again, _ := x.body.reader(head, cut)
			return again, nil
		}
	}
	return req.WithContext(ctx), nil
}

// renamed returns what stands in place of the body's first cut bytes so that
// it names the model as the replica does.
func (x *exchange) renamed(name string) (head []byte, cut int) {
	if x.parsed == nil || !x.grant.Named() || x.model == name {
		return nil, 0
	}
	at := x.parsed.ModelSpan
	if x.form {
		return append(bytes.Clone(x.body.head[:at.Start]), name...), at.End
	}
	return x.parsed.SplicedHead(x.body.head, name), at.End
}

// elsewhere moves the request to another replica after err; false when it has
// been answered instead.
func (x *exchange) elsewhere(err error) bool {
	if lost := x.body.clientError(); lost != nil {
		x.refuseBody(lost)
		return false
	}
	if x.r.Context().Err() != nil {
		x.code = statusClientGone
		return false
	}
	x.gw.log.Warn("replica failed before it answered", x.attrs("error", err)...)
	if !x.body.replayable() {
		x.grant.Done(dispatch.Outcome{Failed: err})
		x.failWith(http.StatusBadGateway, fmt.Sprintf("the replica failed and the body, over %d bytes, cannot be sent again: %v",
			x.gw.cfg.MaxReplayBytes, err), "", "replica_failed")
		return false
	}
	retry := x.grant.Retry(x.r.Context(), err)
	switch {
	case retry == nil:
		return true
	case dispatch.IsUnsent(err) || x.r.Context().Err() != nil:
		x.refuse(retry)
	default:
		x.failWith(http.StatusBadGateway, retry.Error(), "", "replica_failed")
	}
	return false
}

func (x *exchange) attrs(more ...any) []any {
	return append([]any{"request", x.id, "service", x.service, "replica", x.grant.Replica()}, more...)
}

// answer passes on a replica's answer of which n bytes are in buf and err came
// with them. A failure from here on cannot be hidden: an event stream ends with
// an error event, any other answer with a cut connection.
func (x *exchange) answer(ctx context.Context, resp *http.Response, buf []byte, n int, err error, wd watch) {
	defer wd.stop()
	defer func() { _ = resp.Body.Close() }() // what matters was read
	x.grant.FirstByte()
	x.code = resp.StatusCode
	announced := len(resp.Trailer)
	x.answering(resp.StatusCode, resp.Header)
	x.copyHeader(resp)
	x.w.WriteHeader(resp.StatusCode)

	streams := resp.ContentLength < 0
	out := passing{x: x, flush: streams, events: streams && isEventStream(resp.Header)}
	for {
		if !out.write(buf, &n, errors.Is(err, io.EOF)) {
			return // the client is gone
		}
		if err != nil {
			break
		}
		wd.timer.Reset(x.gw.cfg.StallTimeout)
		var m int
		m, err = resp.Body.Read(buf[n:])
		n += m
	}
	if errors.Is(err, io.EOF) {
		x.copyTrailer(resp, announced)
		return
	}
	if x.r.Context().Err() != nil {
		return
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	x.gw.log.Warn("replica failed within its answer", x.attrs("error", err)...)
	x.gw.metrics.cut(x.service)
	x.grant.Done(dispatch.Outcome{Failed: err})
	if !out.events {
		panic(http.ErrAbortHandler) // the only way to tell the client that the answer is not whole
	}
	out.errorEvent(fmt.Sprintf("the replica failed within its answer: %v", err))
}

// isEventStream is false for a compressed stream, whose events cannot be told
// apart.
func isEventStream(h http.Header) bool {
	if h.Get("Content-Encoding") != "" {
		return false
	}
	t, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && t == "text/event-stream"
}
