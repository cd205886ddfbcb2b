package gateway

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"syscall"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/decide/breaker"
	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// forward sends the request to the granted replica, and to others while it
// fails before its answer begins, and passes the answer on.
func (x *exchange) forward() {
	if !http1.ValidTarget(x.target()) { // no replica is to blame
		x.fail(http.StatusBadRequest, "the path or query holds spaces or control characters: escape them")
		return
	}
	for {
		x.sending()
		in, out, err := x.try()
		if err == nil {
			if in.status >= http.StatusBadRequest && x.better(&in, &out) {
				continue
			}
			x.answer(&in, out)
			return
		}
		x.failed(err)
		if errors.Is(err, errSlow) {
			limit := x.answerTimeout()
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

// answerTimeout is how long the granted replica may take to begin its answer.
func (x *exchange) answerTimeout() time.Duration {
	return cmp.Or(x.grant.Pool().Limits.AnswerTimeout, x.gw.cfg.AnswerTimeout)
}

// try sends the request once and waits for the first bytes of the answer's
// body, so that a replica that dies before them can be replaced. They are in
// out, with what came with them.
func (x *exchange) try() (in incoming, out passing, err error) {
	if err = x.prefill(); err != nil {
		return in, out, err
	}
	in, err = x.send()
	if err != nil {
		return in, out, x.blame(err)
	}
	out = passing{x: x, body: in.body}
	out.begin(&in)
	for out.n == 0 && out.err == nil {
		out.read()
	}
	if out.n == 0 && !errors.Is(out.err, io.EOF) {
		out.close()
		return in, out, x.blame(out.err)
	}
	return in, out, nil
}

// send sends the request to the granted replica and waits for the header of its
// answer.
func (x *exchange) send() (incoming, error) {
	address := x.grant.Address()
	q := &x.outgoing
	*q = http1.Request{Address: address, Host: x.hostOf(address), Method: x.r.Method, Target: x.target(),
		Fields: x.requestFields(), Timeout: x.answerTimeout()}
	q.Body, q.Length = x.sentBody(x.parts[:0])
	if x.body.tail != nil {
		q.Tail = x.body.tail
	}
	in, err := x.gw.upstream.send(x.context(), q)
	x.body.spent = x.body.spent || err != nil && q.TailRead
	return in, err
}

// requestTo is the exchange's request with another body for another replica. It
// shares nothing with the exchange, so that another goroutine may send it. The
// body must not be changed any more.
func (x *exchange) requestTo(address string, body []byte, limit time.Duration) *http1.Request {
	return &http1.Request{Address: address, Host: address, Method: x.r.Method, Target: x.target(),
		Fields: bytes.Clone(x.requestFields()), Body: [][]byte{body}, Length: int64(len(body)), Timeout: limit}
}

// target is the path and query to ask the granted replica for.
func (x *exchange) target() string {
	prefix := ""
	if p := x.grant.Pool(); p != nil {
		prefix = p.OpenAIPrefix
	}
	path := x.call.Target(prefix, x.grant.Model())
	if path == "" {
		path = "/"
	}
	if q := x.r.URL.RawQuery; q != "" {
		return path + "?" + q
	}
	return path
}

// splice is how the body is changed so that it names the model as the replica
// does.
func (x *exchange) splice() splice {
	name := x.grant.Model()
	if x.parsed == nil || name == "" || x.model == name || x.renamed {
		return splice{}
	}
	at := x.parsed.ModelSpan
	if x.form {
		return splice{at.Start, at.End, []byte(name)}
	}
	return splice{at.Start, at.End, openai.AppendQuoted(nil, name)}
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
	if x.again(err) {
		return true
	}
	err = lost(err)
	waited := x.grant.Waited()
	retry := x.grant.Retry(x.r.Context(), err)
	switch {
	case retry == nil:
		return true
	case dispatch.IsUnsent(err) || x.grant.Waited() > waited || x.r.Context().Err() != nil:
		x.refuse(retry) // no replica took it
	default:
		x.failWith(http.StatusBadGateway, retry.Error(), "", "replica_failed")
	}
	return false
}

// better tells the dispatcher of an answer that did not do the work, and reports
// whether another replica is to be asked in place of passing it on.
func (x *exchange) better(in *incoming, out *passing) bool {
	replica := x.grant.Replica()
	moved := x.grant.Answered(dispatch.Answer{Result: breaker.OfStatus(in.status), RetryAfter: retryAfter(in.fields, time.Now()),
		Again: (x.call.Infers || x.idempotent()) && x.body.replayable() && x.r.Context().Err() == nil})
	if moved {
		out.close()
		err := fmt.Errorf("%s answered %d", replica, in.status)
		x.failed(err)
		x.gw.log.Warn("replica failed: the request is sent to another", x.attrs("error", err)...)
	}
	return moved
}

// idempotent reports whether the method alone says that the request may be
// repeated (RFC 9110 9.2.2).
func (x *exchange) idempotent() bool {
	switch x.r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

// retryAfter is how long an answer asks to be left alone (RFC 9110 10.2.3); 0
// when it does not say.
func retryAfter(fields []http1.Field, now time.Time) time.Duration {
	for _, f := range fields {
		if f.Name == "Retry-After" {
			return breaker.RetryAfter(f.Value, now)
		}
	}
	return 0
}

// lost marks a failure that may be the end of the replica.
func lost(err error) error {
	if isLost(err) && !dispatch.IsUnsent(err) {
		return dispatch.Lost(err)
	}
	return err
}

// isLost says whether the connection to a replica ended, as it does when the
// replica does, or is of no use any more, since what came is no answer.
func isLost(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, http1.ErrMalformed) ||
		errors.Is(err, syscall.ECONNREFUSED) // after a kept connection broke, so that the request may have been sent
}

func (x *exchange) attrs(more ...any) []any {
	return append([]any{"request", x.id, "service", x.service, "replica", x.grant.Replica()}, more...)
}

// answer passes on a replica's answer of which out holds the first bytes. A
// failure from here on cannot be hidden: an event stream ends with an error
// event, any other answer with a cut connection.
func (x *exchange) answer(in *incoming, out passing) {
	defer out.close()
	x.grant.FirstByte()
	x.body.release() // it will not be sent again
	x.code = in.status
	x.seen.Answering(in.status, in.fields)
	hear(x.gw.cfg.Heard, x.grant.Replica(), in.fields)
	in.fields = withoutCORS(in.fields, x.w.Header()["Vary"])
	x.copyHeader(in)
	if x.picked != nil {
		x.picked.Answered(in.status, x.w.Header(), x.grant.Address())
	}
	x.w.WriteHeader(in.status)
	for {
		if !out.write() {
			return // the client is gone
		}
		if out.err != nil {
			break
		}
		in.body.SetPause(x.gw.cfg.StallTimeout)
		out.read()
	}
	if errors.Is(out.err, io.EOF) {
		x.copyTrailer(in)
		return
	}
	if x.r.Context().Err() != nil {
		return
	}
	x.gw.log.Warn("replica failed within its answer", x.attrs("error", out.err)...)
	x.gw.metrics.Cut(x.service)
	x.seen.Cut = out.err.Error()
	x.grant.Done(dispatch.Outcome{Failed: out.err})
	if !out.events {
		panic(http.ErrAbortHandler) // the only way to tell the client that the answer is not whole
	}
	out.errorEvent(fmt.Sprintf("the replica failed within its answer: %v", out.err))
}

// isEventStream is false for a compressed stream, whose events cannot be told
// apart.
func isEventStream(fields []http1.Field) bool {
	stream := false
	for _, f := range fields {
		switch f.Name {
		case "Content-Encoding":
			if f.Value != "" {
				return false
			}
		case "Content-Type":
			if !strings.HasPrefix(f.Value, "text/") && !strings.HasPrefix(f.Value, "Text/") && !strings.HasPrefix(f.Value, "TEXT/") {
				continue
			}
			t, _, err := mime.ParseMediaType(f.Value)
			stream = err == nil && t == "text/event-stream"
		}
	}
	return stream
}
