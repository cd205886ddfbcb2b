package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/breaker"
	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// transport is how the gateway reaches replicas. All requests share it.
type transport struct {
	cfg      Config
	log      *slog.Logger
	warnings *observe.Warnings // those that each failed try would repeat
	metrics  *observe.Metrics
	upstream upstream
	buffered ingress.Budget
	mirrored atomic.Int64 // copies of requests under way
}

// answerTimeout is how long the granted replica may take to begin its answer.
func (t *transport) answerTimeout(g *dispatch.Grant) time.Duration {
	return cmp.Or(g.Pool().Limits.AnswerTimeout, t.cfg.AnswerTimeout)
}

// tryTimeout is how long the replica of g may take to begin its answer now.
// ofRoute reports that the request's route says so, and not the replica's service: it
// is then no fault of the replica's to take longer.
func (p *proxy) tryTimeout(g *dispatch.Grant) (limit time.Duration, ofRoute bool) {
	limit = p.answerTimeout(g)
	h := g.Handling()
	if h.TryTimeout > 0 && h.TryTimeout < limit {
		limit, ofRoute = h.TryTimeout, true
	}
	if h.Timeout > 0 {
		if left := h.Timeout - time.Since(p.seen.Begun); left < limit {
			limit, ofRoute = max(left, time.Millisecond), true
		}
	}
	return limit, ofRoute
}

// late says how long the last try could take to begin its answer, and who says so.
func (p *proxy) late() string {
	h := p.grant.Handling()
	switch {
	case !p.limitOfRoute:
		return p.limit.String()
	case p.limit == h.TryTimeout:
		return fmt.Sprintf("the %v that its route allows one endpoint", p.limit)
	}
	return fmt.Sprintf("the route's timeout of %v", h.Timeout)
}

// codeTimeout is the code of an error for which nobody but a limit is to blame.
const codeTimeout = "timeout"

// codeReplicaFailed is the code of an error that is a replica's fault.
const codeReplicaFailed = "replica_failed"

// ends is when the whole answer must have come; zero for no such time.
func (p *proxy) ends() time.Time {
	if d := p.grant.Handling().Timeout; d > 0 {
		return p.seen.Begun.Add(d)
	}
	return time.Time{}
}

// proxy sends one admitted request to its replica, and to others while they fail,
// until one answers. One goroutine owns it.
type proxy struct {
	*transport
	grant    *dispatch.Grant
	req      *request
	seen     *observe.Record
	prefill  prefill
	outgoing http1.Request
	parts    [3][]byte // of the body
	// limit is how long the last try could take; limitOfRoute, that the route said so.
	limit        time.Duration
	limitOfRoute bool
	taken        context.CancelFunc // of the attempt that the answer is of; nil for a try alone
}

// send returns the first answer that is to be passed on, and its first bytes in
// out. The error is why there is none.
func (p *proxy) send() (in incoming, out relay, err error) {
	if !http1.ValidTarget(p.req.target(p.grant)) { // the client's error, not a replica's
		return in, out, &failure{status: http.StatusBadRequest, message: "the path or query holds spaces or control characters: escape them"}
	}
	for {
		p.setTryHeaders()
		if after, ok := p.hedgeAfter(); ok {
			in, out, err = p.tryHedged(after)
		} else {
			in, out, err = p.try()
		}
		if err == nil {
			if in.status >= http.StatusBadRequest && p.retryAnswer(&in, &out) {
				continue
			}
			return in, out, nil
		}
		if p.req.r.Context().Err() == nil && p.req.body.clientError() == nil {
			p.seen.Retried = err.Error()
		}
		p.seen.Failed(err)
		if errors.Is(err, errSlow) {
			late := p.late()
			if p.limitOfRoute && p.retrySlow() {
				continue
			}
			p.warn("replica did not answer in time", "within", late)
			if p.limitOfRoute {
				p.grant.Done(dispatch.Outcome{})
			} else {
				p.grant.Done(dispatch.Outcome{Failed: errSlow})
			}
			return in, out, &failure{status: http.StatusGatewayTimeout, message: "the model did not begin its answer within " + late, code: codeTimeout}
		}
		if err := p.retry(err); err != nil {
			return in, out, err
		}
	}
}

// headerPrefill tells a decode replica (the sidecar in front of it) which replica
// computes the prompt, headerEncoders which servers compute its pictures, sounds and
// videos, with commas between them. They are ingress.PeerHeaders.
const (
	headerPrefill  = "X-Prefiller-Host-Port"
	headerEncoders = "X-Encoder-Hosts-Ports"
)

// setTryHeaders sets the headers that differ from try to try: which replicas
// compute parts of the prompt, and the trace context.
func (p *proxy) setTryHeaders() {
	q := p.req
	if !q.picked && !q.routed { // otherwise a picker or a router has named it
		to := ""
		if disaggregation(p.grant) == service.DisaggregationHeader {
			to = p.grant.Prefill()
		}
		q.nameHelpers(headerPrefill, to)
		q.nameHelpers(headerEncoders, strings.Join(p.grant.Encoders(), ","))
	}
	if parent := p.seen.Trying(q.r.Method, p.grant.Address(), p.grant.Replica()); parent != "" {
		q.setHeader(observe.HeaderTraceparent, parent)
	}
}

// nameHelpers has a header name those that help the replica; "" for nobody.
func (q *request) nameHelpers(header, to string) {
	if before, ok := q.r.Header[header]; (to != "" || ok) && (len(before) != 1 || before[0] != to) {
		q.setHeader(header, to)
	}
}

// try sends the request once and waits for the first bytes of the answer's body:
// a replica that dies before them can be replaced. out has them.
func (p *proxy) try() (in incoming, out relay, err error) {
	if err = p.prefill.start(); err != nil {
		return in, out, err
	}
	if in, err = p.sendOnce(); err != nil {
		return in, out, p.prefill.cause(err)
	}
	if out, err = firstBytes(&in); err != nil {
		return in, out, p.prefill.cause(err)
	}
	p.prefill.answers()
	return in, out, nil
}

// sendOnce sends the request to the granted replica and waits for the header of
// its answer.
func (p *proxy) sendOnce() (incoming, error) {
	address, q := p.grant.Address(), p.req
	out := &p.outgoing
	p.limit, p.limitOfRoute = p.tryTimeout(p.grant)
	*out = http1.Request{Address: address, Host: q.host(p.grant), Method: q.r.Method, Target: q.target(p.grant),
		Fields: q.headerTo(p.grant), Timeout: p.limit}
	out.Body, out.Length = q.appendBody(p.parts[:0], p.grant.Model())
	if q.body.tail != nil {
		out.Tail = q.body.tail
	}
	in, err := p.upstream.send(p.prefill.context(), out)
	q.body.spent = q.body.spent || err != nil && out.TailRead
	return in, err
}

// retry moves the request to another replica after err. The error is why it
// cannot.
func (p *proxy) retry(err error) error {
	q, ctx := p.req, p.req.r.Context()
	if lost := q.body.clientError(); lost != nil {
		return bodyFailure(ctx, lost, &p.cfg)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	p.warn("replica failed before it answered", "error", err)
	if !q.body.replayable() {
		p.grant.Done(dispatch.Outcome{Failed: err})
		return replicaFailed(fmt.Sprintf("the replica failed and the body, over %d bytes, cannot be sent again: %v", p.cfg.MaxReplayBytes, err))
	}
	if p.prefill.retry(err) {
		return nil
	}
	err = lost(err)
	waited := p.grant.Waited()
	retryErr := p.grant.Retry(ctx, err)
	if retryErr == nil || dispatch.IsUnsent(err) || p.grant.Waited() > waited || ctx.Err() != nil { // no replica took it
		return retryErr
	}
	return replicaFailed(retryErr.Error())
}

func replicaFailed(message string) error {
	return &failure{status: http.StatusBadGateway, message: message, code: codeReplicaFailed}
}

// retryAnswer tells the dispatcher of an answer that did not do the work, and
// reports whether the request has moved to another replica, which makes this
// answer void.
func (p *proxy) retryAnswer(in *incoming, out *relay) bool {
	replica := p.grant.Replica()
	if !p.again(dispatch.Answer{Status: in.status, Result: breaker.OfStatus(in.status), RetryAfter: retryAfter(in.fields, time.Now()), Retryable: p.req.repeatable()}) {
		return false
	}
	out.close()
	err := fmt.Errorf("%s answered %d", replica, in.status)
	p.seen.Retried = err.Error()
	p.seen.Failed(err)
	p.warn("the request is sent to this replica, since another one failed", "error", err)
	return true
}

// retrySlow reports whether a request that a replica has not begun to answer within the
// time of its route has moved to another, as only a route that retries asks for.
func (p *proxy) retrySlow() bool {
	return p.grant.Handling().Retry != nil &&
		p.again(dispatch.Answer{Status: http.StatusGatewayTimeout, Unheard: true, Retryable: p.req.repeatable()})
}

// again reports whether the request has moved to another replica because of an answer,
// after the wait that its route asks for.
func (p *proxy) again(a dispatch.Answer) bool {
	j := p.grant.Judge(a)
	if !j.Again {
		return false
	}
	if j.After > 0 {
		if ends := p.ends(); !ends.IsZero() && time.Until(ends) <= j.After {
			return false
		}
		p.grant.Pause() // others may have its place meanwhile
		wait := time.NewTimer(j.After)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-p.req.r.Context().Done():
			return false
		}
	}
	return p.grant.Move()
}

// warn writes a warning about the granted replica, unless it was just written.
func (p *proxy) warn(message string, attrs ...any) {
	p.warnings.Warn(time.Now(), message, p.grant.Service()+" "+p.grant.Replica(), p.attrs(attrs...)...)
}

// attrs are attributes of a log line.
func (p *proxy) attrs(more ...any) []any {
	return append([]any{"request", p.req.id, "service", p.grant.Service(), "replica", p.grant.Replica()}, more...)
}

// retryAfter is how long an answer asks to wait (RFC 9110 10.2.3); 0 when it
// names no time.
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

// isLost reports whether the connection to a replica ended, as it does when the
// replica does, or is useless, since what came is not an answer.
func isLost(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, http1.ErrMalformed) || errors.Is(err, errDied) ||
		errors.Is(err, syscall.ECONNREFUSED) // after a kept connection broke, so that the request may have been sent
}

// upstream sends requests to replicas over HTTP/1.1.
type upstream interface {
	// send returns when the answer's header has come. A failure before anything
	// was sent is marked dispatch.Unsent; errSlow is a replica that did not answer
	// within the request's Timeout. The caller closes the answer's body.
	send(ctx context.Context, q *http1.Request) (incoming, error)
	closeIdle()
}

// incoming is a replica's answer.
type incoming struct {
	status int
	length int64 // of the body; -1 when it is not known
	fields []http1.Field
	// announced is the value of the field Trailer.
	announced string
	body      incomingBody
}

// incomingBody is the body of an answer. Until SetPause is called the time of
// AnswerTimeout goes on; afterwards each read has d. Close is called once.
type incomingBody interface {
	io.ReadCloser
	SetPause(d time.Duration)
	Trailer() []http1.Field // after io.EOF
}

// errSlow is a replica that kept silent.
var errSlow = errors.New("the replica kept silent for too long")

// client is the upstream over package http1.
type client struct{ *http1.Client }

func newClient(c Config) (client, error) {
	cfg := http1.DefaultConfig()
	cfg.DialTimeout, cfg.MaxIdlePerHost = c.DialTimeout, c.MaxIdleConns
	made, err := http1.New(cfg)
	return client{made}, err
}

func (c client) closeIdle() { c.CloseIdle() }

func (c client) send(ctx context.Context, q *http1.Request) (incoming, error) {
	resp, err := c.Do(ctx, q)
	if err != nil {
		return incoming{}, unsent(slow(err))
	}
	return incoming{status: resp.Status, length: resp.Length, fields: resp.Fields, announced: resp.Announced, body: quiet{resp}}, nil
}

// unsent marks a failure before anything was sent.
func unsent(err error) error {
	var failed *http1.Error
	if errors.As(err, &failed) && failed.Unsent {
		return dispatch.Unsent(err)
	}
	return err
}

// slow names a timeout as the gateway does.
func slow(err error) error {
	if errors.Is(err, http1.ErrTimeout) {
		return errSlow
	}
	return err
}

// quiet names its timeouts as the gateway does.
type quiet struct{ *http1.Response }

func (q quiet) Read(p []byte) (int, error) {
	n, err := q.Response.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // io.EOF comes as it is, and often
		err = slow(err)
	}
	return n, err
}
