package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/breaker"
	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
	"roundhouse.dev/roundhouse/internal/edge/gateway/surface"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// hedged are the calls whose body names the model and that leave nothing behind in a
// replica, so that two of them may compute the same.
var hedged = map[string]bool{
	"/v1/chat/completions": true, "/v1/completions": true, "/v1/messages": true, "/v1/messages/count_tokens": true,
	"/v1/embeddings": true, "/v1/rerank": true, "/v1/score": true, "/v1/classify": true, "/v1/pooling": true, "/v1/moderations": true,
	"/v1/chat": true, "/v1/embed": true, "/v2/chat": true, "/v2/embed": true, "/v2/rerank": true,
	"/tokenize": true, "/detokenize": true,
}

// What became of hedges, as metrics name it.
const (
	hedgeWon  = "won"
	hedgeLost = "lost"
)

// hedgeable reports whether two replicas may be sent the request. Those of a sequence
// (Triton's stateful models) are for one.
func (q *request) hedgeable() bool {
	if !q.call.Infers || q.form || q.picked || q.routed || q.replaced != nil || q.body.tail != nil || !q.body.replayable() {
		return false
	}
	if q.call.Kind == surface.ModelInBody {
		return hedged[q.call.Path]
	}
	return q.call.Kind == surface.ModelInPath && !bytes.Contains(q.body.head, []byte("sequence_id"))
}

// hedgeAfter is how long this try may take to begin its answer before a second replica
// is asked; false is never.
func (p *proxy) hedgeAfter() (time.Duration, bool) {
	if p.grant.Handling().Hedge == nil || p.seen.Tries > 1 || p.grant.Prefill() != "" || p.grant.Encoders() != nil || !p.req.hedgeable() {
		return 0, false
	}
	return p.grant.HedgeAfter()
}

// attempt is one of a request's that are under way at a time. Its goroutine ends when
// it is sent over the channel, which is once.
type attempt struct {
	grant  *dispatch.Grant
	ctx    context.Context
	cancel context.CancelFunc
	in     incoming
	out    relay
	err    error
	// limit is how long it may take to begin its answer; ofRoute, that the route says so.
	limit   time.Duration
	ofRoute bool
}

// failed reports whether the replica did not do the work.
func (a *attempt) failed() bool {
	return a.err != nil || breaker.OfStatus(a.in.status) != breaker.Answered
}

// attempt sends the request to the granted replica, and itself to ended when the first
// bytes of the answer are there. It shares nothing with the request that changes, and the
// body's bytes, which are not used for another request as long as it may read them.
func (p *proxy) attempt(g *dispatch.Grant, ended chan<- *attempt) *attempt {
	a := &attempt{grant: g}
	a.limit, a.ofRoute = p.tryTimeout(g)
	a.ctx, a.cancel = context.WithCancel(p.req.r.Context())
	out := &http1.Request{Address: g.Address(), Host: p.req.host(g), Method: p.req.r.Method, Target: p.req.target(g),
		Fields: bytes.Clone(p.req.headerTo(g)), Timeout: a.limit}
	out.Body, out.Length = p.req.appendBody(nil, g.Model())
	t := p.transport
	go func() {
		if a.in, a.err = t.upstream.send(a.ctx, out); a.err == nil {
			a.out, a.err = firstBytes(&a.in)
		}
		ended <- a
	}()
	return a
}

// firstBytes reads the first bytes of an answer's body: a replica that dies before them
// can be replaced. out has them.
func firstBytes(in *incoming) (out relay, err error) {
	out = relay{body: in.body}
	out.begin(in)
	for out.n == 0 && out.err == nil {
		out.read()
	}
	if out.n == 0 && !errors.Is(out.err, io.EOF) {
		out.close()
		return out, out.err
	}
	if in.status == http.StatusInternalServerError && slices.ContainsFunc(lastWords, func(w string) bool { return bytes.HasPrefix((*out.buf)[:out.n], []byte(w)) }) {
		out.close()
		return out, errDied
	}
	return out, nil
}

// lastWords are what servers answer with 500 to each request that they have when the
// process behind them that computes has died, before they end themselves. The body
// begins so: what a client wrote may stand later in it.
var lastWords = []string{
	`{"error":{"message":"EngineCore encountered an issue`, // vLLM's EngineDeadError
}

// errDied is a server that said its last words.
var errDied = errors.New("its engine has died, by its own answer")

// tryHedged is try with a second replica that is asked if the first has not begun its
// answer after a time. The answer that begins first is the request's, unless it is a
// failure and the other is none; the other replica is cancelled.
func (p *proxy) tryHedged(after time.Duration) (in incoming, out relay, err error) {
	ended := make(chan *attempt, 2)
	first := p.attempt(p.grant, ended)
	timer := time.NewTimer(after)
	defer timer.Stop()
	select {
	case <-ended:
		return p.take(first)
	case <-timer.C:
	}
	g := p.grant.Hedge()
	if g == nil {
		return p.take(<-ended)
	}
	p.seen.Tries++
	p.seen.Retried = fmt.Sprintf("%s had not begun its answer after %v, so %s was asked as well", p.grant.Replica(), after.Round(time.Millisecond), g.Replica())
	second := p.attempt(g, ended)
	won := <-ended
	other := first
	if won == first {
		other = second
	}
	here := false // the other has ended as well
	if won.failed() {
		<-ended
		if here = true; !other.failed() || other == first {
			won, other = other, won
		}
	}
	outcome := hedgeLost
	if won == second {
		outcome, p.grant, p.prefill.grant = hedgeWon, g, g
	}
	p.metrics.Hedged(p.grant.Service(), outcome)
	if here {
		other.discard()
	} else {
		other.cancel()
		p.req.body.lent = true
		go func() { (<-ended).discard() }()
	}
	return p.take(won)
}

// take makes an attempt the request's, whose context ends with the exchange.
func (p *proxy) take(a *attempt) (incoming, relay, error) {
	p.taken, p.limit, p.limitOfRoute = a.cancel, a.limit, a.ofRoute
	return a.in, a.out, a.err
}

// discard settles an attempt that has ended and is not the request's. Its replica is
// blamed for what it did before it was cancelled.
func (a *attempt) discard() {
	cancelled := a.ctx.Err() != nil
	a.cancel()
	var outcome dispatch.Outcome
	switch {
	case a.err == nil:
		a.out.close()
		if a.in.status >= http.StatusBadRequest && !cancelled {
			a.grant.Judge(dispatch.Answer{Status: a.in.status, Result: breaker.OfStatus(a.in.status), RetryAfter: retryAfter(a.in.fields, time.Now())})
		}
	case !cancelled && !errors.Is(a.err, errSlow):
		outcome.Failed = lost(a.err)
	}
	a.grant.Done(outcome)
}
