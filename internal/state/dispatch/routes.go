package dispatch

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/admission"
	"roundhouse.dev/roundhouse/internal/decide/breaker"
	"roundhouse.dev/roundhouse/internal/decide/retry"
	"roundhouse.dev/roundhouse/internal/decide/route"
)

// routeState is what is remembered of a route that retries or hedges. Its mutex is taken
// with a pool's held, or without.
type routeState struct {
	mu     sync.Mutex
	budget admission.Budget // of retries and hedges
	first  retry.Times      // until answers began
}

// request notes a request of the route.
func (s *routeState) request(now time.Time) {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.budget.Request(now)
	s.mu.Unlock()
}

// take counts a retry or hedge and reports whether the budget allows it.
func (s *routeState) take(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.budget.Take(now)
}

// allows reports whether the budget has one left.
func (s *routeState) allows(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.budget.Allows(now)
}

// stateOf is the state of the route that led to a target; nil for one that neither
// retries nor hedges.
func (d *Dispatcher) stateOf(t *route.Target) *routeState {
	h := t.Handling
	if h == nil || h.Retry == nil && h.Hedge == nil {
		return nil
	}
	var b routing.RetryBudget
	if h.Retry != nil {
		b = h.Retry.Budget
	} else {
		b = h.Hedge.Budget
	}
	d.routes.Lock()
	defer d.routes.Unlock()
	id := t.RouteID()
	s := d.routes.byID[id]
	if s == nil {
		s = &routeState{}
		d.routes.byID[id] = s
	}
	s.mu.Lock()
	s.budget.Ratio, s.budget.Rate = float64(b.Percent)/100, float64(b.PerSecond)
	s.mu.Unlock()
	return s
}

// forgetRoutes forgets the state of routes that are none of the objects.
func (d *Dispatcher) forgetRoutes(objects []routing.Object) {
	d.routes.Lock()
	defer d.routes.Unlock()
	for id := range d.routes.byID {
		if !slices.ContainsFunc(objects, func(o routing.Object) bool { return routing.IDOf(o) == id.ID }) {
			delete(d.routes.byID, id)
		}
	}
}

// takeRetry counts a retry against the budget of the request's route, or else the
// pool's. The pool's mutex is held.
func (g *Grant) takeRetry(now time.Time) bool {
	if g.handling.Retry != nil {
		return g.route.take(now)
	}
	return g.pool.budget.Take(now)
}

// Judged is what follows from an answer.
type Judged struct {
	// Again: the request may go to another replica (Grant.Move), After that time.
	Again bool
	After time.Duration
	// Why it may not, where its route says when; "" otherwise.
	Why retry.Reason
}

// Judge notes an answer that did not do the work, before FirstByte, and decides whether
// the request may be sent to another replica for it.
func (g *Grant) Judge(a Answer) (out Judged) {
	p := g.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.tally.stage != running || g.answered || g.reservation.slot == nil {
		return out
	}
	if p.ref.Plain() {
		// A web server's 404 or 503 may be what its client asked for.
		a.Result, a.RetryAfter = breaker.Answered, 0
	}
	if !a.Unheard {
		g.heard(a)
	}
	failed := a.Result == breaker.Failed || a.Result == breaker.Busy
	policy := g.handling.Retry
	if policy == nil {
		out.Again = a.Retryable && failed && g.failed.sent < g.maxSends() && len(g.failed.on)+1 < p.d.cfg.MaxTries
		return out
	}
	out.Why, out.After = retry.Decide(policy, retry.Try{Status: a.Status, Failed: failed, Tried: len(g.failed.on) + 1,
		Begun: g.answered, Replayable: a.Retryable, Budget: g.route.allows(p.d.clock.Now())})
	if out.Again = out.Why == retry.Retried; out.Why == retry.OverBudget {
		p.counts.RetriesRefused++
	}
	return out
}

// heard tells the breaker of an answer that did not do the work. The prompt is not taken
// to be in the replica's cache. The pool's mutex is held.
func (g *Grant) heard(a Answer) {
	p, r := g.pool, &g.reservation
	r.endWait(true) // it is not silent while the request waits to be sent again
	r.judged = true
	kept := r.cached
	if a.Result == breaker.Failed {
		kept = 0
		g.failed.sent++
	}
	p.entry.forgetPrompt(g, r.slot, kept)
	if a.Result == breaker.Failed && a.Status == http.StatusBadGateway && p.blameHelpers(g) {
		return
	}
	p.entry.observe(r.slot, a.Result, a.RetryAfter)
}

// Pause gives the request's place to others while it waits before it is sent again, after
// Judge. Move then takes one anew.
func (g *Grant) Pause() {
	p := g.pool
	p.mu.Lock()
	if g.tally.stage != running || g.answered || g.reservation.slot == nil {
		p.mu.Unlock()
		return
	}
	now := p.d.clock.Now()
	g.failed.on = g.tried()
	freed := p.release(&g.reservation)
	g.tally.moveTo(queued, now)
	p.serveQueue(now)
	p.mu.Unlock()
	freed.notifyPools()
}

// Move sends the request to another replica, after Judge, and Pause if it waited. It is
// false where none can take it now, or the budget for retries allows none: then the
// answer is the request's.
func (g *Grant) Move() bool {
	p := g.pool
	p.mu.Lock()
	paused := g.tally.stage == queued && g.reservation.slot == nil
	if g.answered || !paused && (g.tally.stage != running || g.reservation.slot == nil) {
		p.mu.Unlock()
		return false
	}
	now := p.d.clock.Now()
	x := g.reserveAnother(now)
	if x == nil {
		g.tally.moveTo(running, now) // the answer that it has is passed on
		p.mu.Unlock()
		return false
	}
	var freed freedEndpoints
	if !paused {
		freed = p.release(&g.reservation)
		g.tally.moveTo(queued, now)
	}
	p.reserve(g, x, now)
	p.serveQueue(now)
	p.mu.Unlock()
	freed.notifyPools()
	return true
}

// Answered is Judge and, where that allows it, Move at once: moved reports whether the
// request is on another replica now, to be sent again. Otherwise the answer is the
// request's.
func (g *Grant) Answered(a Answer) (moved bool) { return g.Judge(a).Again && g.Move() }

// HedgeAfter is how long the replica may take to begin its answer before another one is
// asked as well; false is never.
func (g *Grant) HedgeAfter() (time.Duration, bool) {
	h, s := g.handling.Hedge, g.route
	if h == nil {
		return 0, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return retry.HedgeAfter(h, &s.first)
}

// Hedge is a second grant for the request, which the first one's replica is slow to
// answer; both are settled with Done. It is nil where no other replica has a place now,
// where requests wait, in the gateway or in the slow replica's engine, since more work
// would only have them wait longer, and where the route's budget is used up.
func (g *Grant) Hedge() *Grant {
	p := g.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.tally.stage != running || g.answered || g.reservation.slot == nil || p.closed != "" || p.queue.Len() > 0 || g.reservation.prefill != nil || g.reservation.encoders != nil || g.ordered || len(g.blames) > 0 {
		return nil
	}
	now := p.d.clock.Now()
	slow := g.reservation.slot.endpoint
	if r := slow.report.Load(); r != nil && p.queue.Config().Queues(r.load, now) || p.entry.saturation(p.queue.Config(), nil, now) >= 1 {
		return nil
	}
	if !g.route.allows(now) {
		p.counts.RetriesRefused++
		return nil
	}
	h := g.twin()
	h.failed.on = append(slices.Clone(g.failed.on), slow)
	x, _ := p.entry.pick(h, h.failed.on, now)
	if x == nil {
		scratch.Put(h.hash)
		return nil
	}
	g.route.take(now)
	g.failed.on = append(g.failed.on, x.endpoint) // it counts as a try, and is not asked once more
	p.reserve(h, x, now)
	p.queue.Twin(&g.waiter, &h.waiter)
	p.counts.Hedges++
	return h
}

// sent is when the request was sent first: of a hedge, the one that it hedges.
func (g *Grant) sent(since time.Time) time.Time {
	if g.hedges.IsZero() {
		return since
	}
	return g.hedges
}

// twin is a grant for the same request, without a place.
func (g *Grant) twin() *Grant {
	h := &Grant{pool: g.pool, named: g.named, protocol: g.protocol, model: g.model, adapter: g.adapter, session: g.session, subset: g.subset,
		idempotent: g.idempotent, copied: true, bytes: g.bytes, tokens: g.tokens, handling: g.handling, route: g.route, until: g.until, waited: g.waited, pace: g.pace}
	h.tally.pool, h.hedges = g.tally.pool, g.reservation.since
	h.waiter.Priority, h.waiter.Fairness, h.waiter.Owner = g.waiter.Priority, g.waiter.Fairness, h
	h.hash = scratch.Get().(*hashes)
	h.hash.blocks, h.hash.whole, h.hash.generation = append(h.hash.blocks[:0], g.hash.blocks...), g.hash.whole, 0
	return h
}

// explainHandling is what the request's route does with it, a line each.
func (g *Grant) explainHandling() (lines []string) {
	h := g.handling
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	lines = append(lines, h.TimeoutLines()...)
	for _, part := range []struct {
		of      string
		changes []routing.HeaderChange
	}{{"request", h.RequestHeader}, {"response", h.ResponseHeader}} {
		for _, c := range part.changes {
			add("%s header: %s %s", part.of, c.Op, c.Name) // the value may be a secret
		}
	}
	if w := h.Rewrite; w != nil && w.Host != "" {
		add("rewrite: host %s", w.Host)
	}
	if w := h.Rewrite; w != nil && w.Path != nil {
		add("rewrite: path %s to %s", cmp.Or(w.Path.Prefix, "(whole)"), cmp.Or(w.Path.Value, "/"))
	}
	if p := h.Retry; p != nil {
		codes := "429 and 5xx except 501 and 505"
		if len(p.Codes) > 0 {
			codes = strings.Trim(fmt.Sprint(p.Codes), "[]")
		}
		add("retry: at most %d after %s, backoff %v; %s", retry.Attempts(p), codes, p.Backoff, g.route.left(p.Budget, g.pool.d.clock.Now()))
	}
	if p := h.Hedge; p != nil {
		text := "nothing is learned yet"
		if after, ok := g.HedgeAfter(); ok {
			text = "after " + after.Round(time.Millisecond).String()
		}
		add("hedge: %s; %s", text, g.route.left(p.Budget, g.pool.d.clock.Now()))
	}
	return append(lines, h.MirrorLines()...)
}

// left is a line about the budget.
func (s *routeState) left(b routing.RetryBudget, now time.Time) string {
	state := "used up"
	if s.allows(now) {
		state = "not used up"
	}
	return fmt.Sprintf("budget of %d%% and %d a second %s", b.Percent, b.PerSecond, state)
}
