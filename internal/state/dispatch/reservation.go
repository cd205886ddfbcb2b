package dispatch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/admission"
	"roundhouse.dev/roundhouse/internal/decide/breaker"
	"roundhouse.dev/roundhouse/internal/decide/retry"
)

// Grant is one admitted request's place on a replica. Its methods are for the
// one goroutine that holds it.
type Grant struct {
	pool *pool
	// What the request is and where it may go; see Request.
	named      bool
	ordered    bool // subset is an external picker's choice, the best first
	open       bool // that may be passed over if it is no use
	idempotent bool
	answered   bool    // its answer has begun
	copied     bool    // Request.Copy
	alone      bool    // helpers have failed it, so it goes without
	blames     []blame // what of that is held against them; it stands if the request does well alone
	protocol   service.Protocol
	model      string
	adapter    string
	session    string
	subset     []string
	bytes      int   // of the prompt
	tokens     int64 // of the prompt, estimated
	hash       *hashes
	entries    []uint64                 // hashes of its pictures, sounds and videos, where encoders may compute them
	waiting    func(Wait) time.Duration // Request.Waiting
	pace       pace
	handling   *routing.Handling
	hedges     time.Time   // when the request was sent that this one hedges; zero for none
	route      *routeState // nil where the route neither retries nor hedges

	// Guarded by the pool's mutex while the request waits.
	waiter         admission.Waiter
	until          time.Time // the request's own deadline; zero without
	since          time.Time // of waiting
	waited         time.Duration
	result         chan error
	tally          tally
	reservation    reservation
	failed         attempts
	config         *PoolConfig
	replica        string // ID of the last one
	address        string
	rank           string
	grpc           string
	prefillAddress string // the prefill replica's address
	prefillGRPC    string // its gRPC address
	encoders       []string
}

// reservation is a request's places: on the replica that answers, on one that
// computes the prompt for it, and on those that compute its pictures.
type reservation struct {
	slot     *slot // nil while no place is held
	prefill  *slot // nil without
	encoders []*slot
	uncached int64 // tokens of the prompt, counted at both endpoints
	cached   int   // leading blocks of the prompt that the replica had before
	judged   bool  // the replica's answer has been
	// explained: the answer is a failure of the encoders or the prefill replica.
	explained bool
	awaiting  bool // it counts in the endpoint's silence
	since     time.Time
}

// endWait notes that the answer has begun, or that it is no longer waited for.
func (r *reservation) endWait(answered bool) {
	s := &r.slot.endpoint.silence
	if answered {
		s.answers.Add(1)
	}
	if !r.awaiting {
		return
	}
	r.awaiting = false
	if s.awaiting.Add(-1) == 0 {
		s.idle.Add(1)
	}
}

// attempts are a request's that have failed.
type attempts struct {
	on       []*endpoint // the endpoints, which are not tried again, nor other ranks of their servers
	sent     int         // how many of them were sent the request
	lost     int32       // how many of those ended the connection
	prefills int32       // how often another prefill replica was asked for
	last     error
}

// add notes a failure.
func (a *attempts) add(failed error) {
	if !IsUnsent(failed) {
		a.sent++
	}
	if isLost(failed) {
		a.lost++
	}
}

// Address is the replica's "host:port".
func (g *Grant) Address() string { return g.address }

// Rank is the data-parallel rank at Address that is to serve the request, as
// routing.HeaderRank names it; "" where there is nothing to name.
func (g *Grant) Rank() string { return g.rank }

// GRPCAddress is the "host:port" of the replica's gRPC surface; "" when it has
// none.
func (g *Grant) GRPCAddress() string { return g.grpc }

// Prefill is the "host:port" of the replica that computes the prompt for the
// one at Address (prefill and decode apart); "" when Address does both.
func (g *Grant) Prefill() string { return g.prefillAddress }

// PrefillGRPC is the "host:port" of that replica's second port; "" when it has
// none.
func (g *Grant) PrefillGRPC() string { return g.prefillGRPC }

// Encoders are the "host:port" of the servers that compute the pictures, sounds and
// videos of the request for the one at Address or at Prefill, in the order of these; nil
// when nobody else does. Not to be changed.
func (g *Grant) Encoders() []string { return g.encoders }

// plain is the handling of requests whose route asks for nothing.
var plain routing.Handling

// Handling is how the request's route treats it. Not to be changed.
func (g *Grant) Handling() *routing.Handling { return g.handling }

// Model is the name to give the replica; "" leaves the request's as it is.
func (g *Grant) Model() string {
	if g.named && g.config != nil {
		return g.config.ServedName
	}
	if g.config != nil && g.adapter != "" {
		if a := g.config.adapter(g.adapter); a != nil && a.ServedName != "" {
			return a.ServedName
		}
	}
	return g.model
}

// Replica is the replica's ID, or that of a rank of it.
func (g *Grant) Replica() string { return g.replica }

// Service is the pool's name: "namespace/name" of a service, "pool
// namespace/name" of a shared pool.
func (g *Grant) Service() string { return g.pool.id }

// Priority is the request's.
func (g *Grant) Priority() int32 { return g.waiter.Priority }

// Pool is the configuration of the service whose replica was found, or of the pool if
// the replica is no service's, as they were then. Not to be changed.
func (g *Grant) Pool() *PoolConfig { return g.config }

// Named reports that the request named the service, so that the replica is to be
// given Pool().ServedName instead of the request's name.
func (g *Grant) Named() bool { return g.named }

// Waited is how long the request has waited for a place, in all.
func (g *Grant) Waited() time.Duration { return g.waited }

// Retry gives the failed replica back, tells its breaker, and moves the request
// to another. failed is what went wrong; if it is marked Unsent, or Lost for the
// first time, and no other replica is ready, the request waits for one as in
// Admit. The error is an *Error or the context's; the grant then holds no place,
// and Done is still to be called.
func (g *Grant) Retry(ctx context.Context, failed error) error {
	p := g.pool
	p.mu.Lock()
	if g.tally.stage != running || g.answered || g.reservation.slot == nil {
		p.mu.Unlock()
		return unavailable(p.id, "the answer has begun, so the request cannot be sent again", failed)
	}
	now := p.d.clock.Now()
	x := g.reservation.slot
	g.failed.last = failed
	g.failed.add(failed)
	p.entry.forgetPrompt(g, x, 0)
	p.entry.observe(x, breaker.Lost, 0)
	freed := p.release(&g.reservation)
	g.tally.moveTo(queued, now)
	g.failed.on = append(g.failed.on, x.endpoint)

	err := g.retryError(ctx, x.endpoint.id, failed, now)
	if err == nil { // it goes before those that wait: it has been admitted
		y, _ := p.entry.pick(g, g.failed.on, now)
		if y == nil && g.openToAll() { // all that the external picker named have failed it
			y, _ = p.entry.pick(g, g.failed.on, now)
		}
		if y != nil {
			p.reserve(g, y, now)
			p.mu.Unlock()
			freed.notifyPools()
			return nil
		}
	}
	if err == nil && !g.mayWait(failed) {
		err = unavailable(p.id, fmt.Sprintf("replica %s failed before it answered and no other is ready: %v", x.endpoint.id, failed), failed)
	}
	if err != nil {
		g.finish(now)
	} else {
		p.requeue(g, now)
	}
	p.serveQueue(now)
	p.mu.Unlock()
	freed.notifyPools()
	if err != nil {
		return err
	}
	return p.wait(ctx, g)
}

// retryError returns why the request may not be sent once more, after failed
// on a replica. One that was not sent costs nobody anything.
func (g *Grant) retryError(ctx context.Context, replica string, failed error, now time.Time) error {
	p := g.pool
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case p.closed != "":
		return unavailable(p.id, p.closed, failed)
	case g.failed.lost >= maxLost:
		return unavailable(p.id, fmt.Sprintf("the connection was closed %d times after the request was sent, the last time by replica %s, so it is not sent again: %v",
			g.failed.lost, replica, failed), failed)
	case g.failed.sent >= g.maxSends(), g.handling.Retry != nil && g.failed.sent > retry.Attempts(g.handling.Retry):
		return unavailable(p.id, fmt.Sprintf("%d tries failed, the last on replica %s: %v", g.failed.sent, replica, failed), failed)
	case IsUnsent(failed):
	case !g.takeRetry(now):
		p.counts.RetriesRefused++
		of, ratio, rate := "pool", p.budget.Ratio, p.budget.Rate
		if b := g.handling.Retry; b != nil {
			of, ratio, rate = "route", float64(b.Budget.Percent)/100, float64(b.Budget.PerSecond)
		}
		return unavailable(p.id, fmt.Sprintf("replica %s failed before it answered, and the %s's retry budget is used up (%g per request and %g per second): %v",
			replica, of, ratio, rate, failed), failed)
	}
	p.counts.Retries++
	return nil
}

const (
	// maxSends is how many replicas a request that may not be repeated is sent
	// to.
	maxSends = 2
	// maxLost is how many replicas a request may be sent to whose connection
	// then ends before they answer, as it does when a request ends its server.
	maxLost = 2
)

// maxSends is how many replicas may be sent the request that then fail. One that
// may not be repeated goes to one other, of those that predict: it might be what breaks
// them, and each may have done a part of the work. What other servers did counts
// (RFC 9110 9.2.2).
func (g *Grant) maxSends() int {
	switch {
	case g.idempotent:
		return g.pool.d.cfg.MaxTries
	case g.pool.ref.Plain():
		return 1
	}
	return min(maxSends, g.pool.d.cfg.MaxTries)
}

// mayWait reports whether the request, which no replica can take now, may wait
// for one after failed: one can be started, or there is one that was not tried.
func (g *Grant) mayWait(failed error) bool {
	if !IsUnsent(failed) && !isLost(failed) {
		return false
	}
	p := g.pool
	return p.scalable != nil || p.config.Load().Restarted && p.entry.alive > 0 || slices.ContainsFunc(p.entry.slots, func(x *slot) bool {
		return x != nil && x.serves() && !x.endpoint.among(g.failed.on)
	})
}

// Answer is what a replica answered that did not do the work.
type Answer struct {
	// Status is HTTP's, 0 for another protocol's.
	Status int
	Result breaker.Result
	// RetryAfter is how long the replica asks not to be sent requests; 0 when
	// it names no time.
	RetryAfter time.Duration
	// Retryable reports that the request may be sent to another replica.
	Retryable bool
	// Unheard: the time that the request's route gives a try is over and the answer has
	// not begun, which is neither the replica's fault nor to its credit.
	Unheard bool
}

// reserveAnother takes a place on an endpoint that the request was not sent to;
// nil if there is none now, or it may not be sent again.
func (g *Grant) reserveAnother(now time.Time) *slot {
	p := g.pool
	if p.closed != "" || p.queue.Len() > 0 {
		return nil
	}
	allows := p.budget.Allows
	if g.handling.Retry != nil {
		allows = g.route.allows
	}
	if !allows(now) {
		p.counts.RetriesRefused++
		return nil
	}
	tried := g.tried()
	x, _ := p.entry.pick(g, tried, now)
	if x == nil {
		return nil
	}
	g.failed.on = tried
	g.takeRetry(now)
	p.counts.Retries++
	return x
}

// tried are the endpoints that failed the request, without one whose helpers did.
func (g *Grant) tried() []*endpoint {
	all := slices.Clone(g.failed.on)
	if x := g.reservation.slot; x != nil && !g.reservation.explained {
		all = append(all, x.endpoint)
	}
	return all
}

// Prefilled reports that the replica at Prefill has computed the prompt, or has
// failed to: it is then avoided for a while. Its place goes to the next.
func (g *Grant) Prefilled(failed error) {
	p := g.pool
	p.mu.Lock()
	x := g.reservation.prefill
	if x == nil {
		p.mu.Unlock()
		return
	}
	var f freedEndpoints
	if failed == nil {
		p.prefill.observe(x, breaker.Answered, 0)
		f = p.releasePrompt(&g.reservation)
	} else {
		g.failed.add(failed)
		p.prefill.observe(x, breaker.Lost, 0)
		f.own[0] = p.releasePrefill(&g.reservation)
	}
	p.mu.Unlock()
	f.notifyPools()
}

// RetryPrefill puts another replica in the place of the one at Prefill, which
// has failed (Prefilled); false when none is ready or too many have failed.
func (g *Grant) RetryPrefill() bool {
	p := g.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.d.clock.Now()
	g.failed.prefills++
	if g.tally.stage != running || g.answered || g.reservation.prefill != nil || int(g.failed.prefills) >= p.d.cfg.MaxTries || g.failed.lost >= maxLost {
		return false
	}
	if !p.budget.Take(now) {
		p.counts.RetriesRefused++
		return false
	}
	if p.reservePrefill(g, now); g.reservation.prefill == nil {
		return false
	}
	p.counts.Retries++
	return true
}

// FirstByte reports that the replica's answer has begun: from here on the request
// belongs to this replica. Unless Answered told otherwise, it does the work.
func (g *Grant) FirstByte() {
	g.answered = true
	r := &g.reservation
	if r.slot == nil {
		return
	}
	if r.endWait(!r.judged); !r.judged {
		g.blames = nil
	}
	if g.route != nil && !r.judged && g.handling.Hedge != nil {
		g.route.mu.Lock()
		g.route.first.Add(g.pool.d.clock.Now().Sub(g.sent(r.since)))
		g.route.mu.Unlock()
	}
	if !r.judged {
		r.slot.endpoint.record.answered(g.pool.d.clock.Now().Sub(r.since))
	}
	if f := g.pool.d.cfg.Sent; f != nil && g.hash != nil && len(g.hash.blocks) > 0 && !r.judged {
		f(r.slot.endpoint.id, g.hash.blocks)
	}
	well := r.judged || r.slot.endpoint.breaker.well.Load()
	if r.uncached == 0 && r.prefill == nil && r.encoders == nil && well {
		return
	}
	p := g.pool
	p.mu.Lock()
	if !well {
		p.entry.observe(r.slot, breaker.Answered, 0)
	}
	if !r.judged {
		p.creditHelpers(g)
	}
	f := p.releasePrompt(r)
	p.mu.Unlock()
	f.notifyPools()
}

// Done settles the request: its place goes to the next. Calls after the first
// do nothing.
func (g *Grant) Done(o Outcome) {
	p := g.pool
	now := p.d.clock.Now()
	learned := g.lastToken(&o, now)
	p.mu.Lock()
	p.acquitHelpers(g)
	if g.tally.stage == done {
		p.mu.Unlock()
		return
	}
	p.entry.memory.latency.Take(&learned)
	var freed freedEndpoints
	if x := g.reservation.slot; x != nil {
		if o.Failed != nil {
			p.entry.observe(x, breaker.Lost, 0)
		}
		freed = p.release(&g.reservation)
		p.queue.Settle(&g.waiter, p.queue.cost(g, &o))
	}
	g.finish(now)
	p.counts.add(o.Usage)
	if !freed.shared() {
		p.serveQueue(now)
	}
	p.mu.Unlock()
	freed.notifyPools()
}

// finish counts the request, off its replica and out of the queue, as done. The
// pool's mutex is held.
func (g *Grant) finish(now time.Time) {
	if g.tally.stage == done {
		return
	}
	g.pool.queue.Settle(&g.waiter, 0) // it was sent nowhere in the end
	g.tally.moveTo(done, now)
	if h := g.hash; h != nil {
		g.hash, g.subset = nil, nil
		scratch.Put(h)
	}
}

// freedEndpoints are endpoints with a place that other pools may use too.
type freedEndpoints struct {
	own      [2]*endpoint // of the replica that answers and of the one that computes the prompt
	encoders []*endpoint
}

// shared reports whether the request's own pool is told too.
func (f freedEndpoints) shared() bool { return f.own[0] != nil }

// notifyPools tells those pools. No pool's mutex is held.
func (f freedEndpoints) notifyPools() {
	for _, e := range f.own {
		if e != nil {
			e.notifyPools()
		}
	}
	for _, e := range f.encoders {
		e.notifyPools()
	}
}
