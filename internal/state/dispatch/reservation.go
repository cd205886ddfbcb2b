package dispatch

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/admission"
	"roundhouse.dev/roundhouse/internal/decide/breaker"
	"roundhouse.dev/roundhouse/internal/decide/picker"
)

// Grant is one admitted request's place on a replica. Its methods are for the
// one goroutine that holds it.
type Grant struct {
	pool *pool
	// What the request is and where it may go; see Request.
	named   bool
	ordered bool // subset is a picker's choice, the best first
	open    bool // that may be passed over if it is no use
	// idempotent: it may be sent any number of times.
	idempotent bool
	protocol   service.Protocol
	model      string
	adapter    string
	session    string
	subset     []string
	tokens     int64 // of the prompt, estimated
	hash       *hashes

	// Guarded by the pool's mutex while the request waits.
	waiter         admission.Waiter
	until          time.Time // the request's own deadline; zero without
	since          time.Time // of waiting
	result         chan error
	stage          stage
	memberDemand   *demandCounter // of the service it counts for beside the pool's own
	slot           *slot          // nil while no place is held
	prefill        *slot          // nil without
	uncached       int64          // counted in the endpoint's tokens
	config         *PoolConfig
	replica        string // ID of the last one
	address        string
	grpc           string
	prefillTries   int    // how often PrefillAgain was asked
	prefillAddress string // the prefill replica's address
	prefillGRPC    string // its gRPC address
	waited         time.Duration
	tried          []*endpoint // that failed it
	sent           int         // how many of them were sent it
	lost           int         // how many of those ended the connection
	cachedBlocks   int         // leading blocks of the prompt that the replica had before
	judged         bool        // the replica's answer has been
	awaits         bool        // it counts in the endpoint's silence
	failure        error       // of the last try
	answered       bool        // the first byte is here
}

// hashes are a request's scratch, used again by later ones.
type hashes struct {
	blocks  []uint64
	allowed picker.Set
	// bound are the slots of the subset, within how many, as they were in a
	// generation of the pool's endpoints.
	bound      picker.Set
	within     int
	generation uint64
}

var scratch = sync.Pool{New: func() any { return new(hashes) }}

// Address is the replica's "host:port".
func (g *Grant) Address() string { return g.address }

// GRPCAddress is the "host:port" of the replica's gRPC surface; "" when it has
// none.
func (g *Grant) GRPCAddress() string { return g.grpc }

// Prefill is the "host:port" of the replica that computes the prompt for the
// one at Address (prefill and decode apart); "" when Address does both.
func (g *Grant) Prefill() string { return g.prefillAddress }

// PrefillGRPC is the "host:port" of that replica's second port; "" when it has
// none.
func (g *Grant) PrefillGRPC() string { return g.prefillGRPC }

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

// Replica is the replica's ID.
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
	if g.stage != running || g.answered || g.slot == nil {
		p.mu.Unlock()
		return p.unavailableError("the answer has begun, so the request cannot be sent again", failed)
	}
	now := p.d.clock.Now()
	last := g.slot.endpoint
	g.failure = failed
	g.countFailure(failed)
	p.forgetPrompt(g, 0)
	p.observe(&p.entry, g.slot, breaker.Lost, 0)
	freed := p.release(g)
	p.moveTo(g, queued, now)
	g.tried = append(g.tried, last)

	err := p.mayRetry(ctx, g, last, failed, now)
	if err == nil { // it goes before those that wait: it has been admitted
		x, _ := p.entry.pick(g, g.tried, now)
		if x == nil && g.openToAll() { // all that the picker named have failed it
			x, _ = p.entry.pick(g, g.tried, now)
		}
		if x != nil {
			p.reserve(g, x, now)
			p.mu.Unlock()
			freed.notifyPools()
			return nil
		}
	}
	if err == nil && !p.mayWait(g, failed) {
		err = p.unavailableError(fmt.Sprintf("replica %s failed before it answered and no other is ready: %v", last.id, failed), failed)
	}
	if err != nil {
		p.finish(g, now)
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

// countFailure notes a failure of a replica that was sent the request.
func (g *Grant) countFailure(failed error) {
	if !IsUnsent(failed) {
		g.sent++
	}
	if isLost(failed) {
		g.lost++
	}
}

// mayRetry returns why the request may not be sent once more. One that was not
// sent costs nobody anything.
func (p *pool) mayRetry(ctx context.Context, g *Grant, last *endpoint, failed error, now time.Time) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case p.closed != "":
		return p.unavailableError(p.closed, failed)
	case g.lost >= maxLost:
		return p.unavailableError(fmt.Sprintf("the connection ended %d times when a replica was sent the request, the last time that of %s, so it is sent to no other: %v",
			g.lost, last.id, failed), failed)
	case g.sent >= p.sends(g):
		return p.unavailableError(fmt.Sprintf("%d tries failed, the last on replica %s: %v", g.sent, last.id, failed), failed)
	case IsUnsent(failed):
	case !p.budget.Take(now):
		p.counts.RetriesRefused++
		return p.unavailableError(fmt.Sprintf("replica %s failed before it answered, and too many of the pool's requests have been sent again of late: %v",
			last.id, failed), failed)
	}
	p.counts.Retries++
	return nil
}

// mayWait reports whether g, which no replica can take now, may wait for one
// after failed: one can be started, or there is one that was not tried.
func (p *pool) mayWait(g *Grant, failed error) bool {
	if !IsUnsent(failed) && !isLost(failed) {
		return false
	}
	return p.scalable != nil || p.config.Restarted && p.entry.alive > 0 || slices.ContainsFunc(p.entry.slots, func(x *slot) bool {
		return x != nil && x.serves() && !slices.Contains(g.tried, x.endpoint)
	})
}

// Prefilled reports that the replica at Prefill has computed the prompt, or has
// failed to: it is then avoided for a while. Its place goes to the next.
func (g *Grant) Prefilled(failed error) {
	p := g.pool
	p.mu.Lock()
	y := g.prefill
	if y == nil {
		p.mu.Unlock()
		return
	}
	var f freedEndpoints
	if failed == nil {
		p.observe(&p.prefill, y, breaker.Answered, 0)
		f[0] = p.releasePrefill(g)
	} else {
		g.countFailure(failed)
		p.observe(&p.prefill, y, breaker.Lost, 0)
		g.prefill = nil
		y.endpoint.tokens.Add(-g.uncached)
		f[0] = p.releaseSlot(&p.prefill, y)
	}
	p.mu.Unlock()
	f.notifyPools()
}

// PrefillAgain puts another replica in the place of the one at Prefill, which
// has failed (Prefilled); false when none is ready or too many have failed.
func (g *Grant) PrefillAgain() bool {
	p := g.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.d.clock.Now()
	g.prefillTries++
	if g.stage != running || g.answered || g.prefill != nil || g.prefillTries >= p.d.cfg.MaxTries || g.lost >= maxLost {
		return false
	}
	if !p.budget.Take(now) {
		p.counts.RetriesRefused++
		return false
	}
	if p.reservePrefill(g, now); g.prefill == nil {
		return false
	}
	p.counts.Retries++
	return true
}

// FirstByte reports that the replica's answer has begun: from here on the request
// belongs to this replica. Unless Answered told otherwise, it does the work.
func (g *Grant) FirstByte() {
	g.answered = true
	if g.slot == nil {
		return
	}
	g.begun(true)
	well := g.judged || g.slot.endpoint.breaker.well.Load()
	if g.uncached == 0 && g.prefill == nil && well {
		return
	}
	p := g.pool
	p.mu.Lock()
	if !well {
		p.observe(&p.entry, g.slot, breaker.Answered, 0)
	}
	f := freedEndpoints{p.releasePrefill(g)}
	p.mu.Unlock()
	f.notifyPools()
}

// Done settles the request: its place goes to the next. Calls after the first
// do nothing.
func (g *Grant) Done(o Outcome) {
	p := g.pool
	p.mu.Lock()
	if g.stage == done {
		p.mu.Unlock()
		return
	}
	now := p.d.clock.Now()
	var freed freedEndpoints
	if g.slot != nil {
		if o.Failed != nil {
			p.observe(&p.entry, g.slot, breaker.Lost, 0)
		}
		freed = p.release(g)
	}
	p.finish(g, now)
	p.counts.add(o.Usage)
	if !freed.shared() {
		p.serveQueue(now)
	}
	p.mu.Unlock()
	freed.notifyPools()
}

// reserve puts g in flight on x, where it has a place, and on a prefill
// replica if one is to help.
func (p *pool) reserve(g *Grant, x *slot, now time.Time) {
	if p.ref.Pool && g.memberDemand != x.demand {
		if g.stage != uncounted {
			g.memberDemand.move(g.stage, transferred, now)
			x.demand.move(uncounted, g.stage, now)
		}
		g.memberDemand = x.demand
	}
	g.slot, g.replica, g.address, g.grpc, g.config = x, x.endpoint.id, x.address, x.grpc, x.config
	g.uncached, g.cachedBlocks, g.judged = p.entry.choice.Uncached, p.entry.cachedBlocks, false
	x.endpoint.tokens.Add(g.uncached)
	p.await(g)
	p.reservePrefill(g, now)
	p.entry.refresh(x)
	p.moveTo(g, running, now)
}

// reservePrefill gives g a place on a prefill replica if one is to help.
func (p *pool) reservePrefill(g *Grant, now time.Time) {
	g.prefill, g.prefillAddress, g.prefillGRPC = nil, "", ""
	if !p.wantsPrefill(g.config, g.uncached) || g.ordered && g.config.Disaggregation != service.DisaggregationSGLang {
		return // a picker says itself who computes the prompt
	}
	subset := g.subset
	g.subset = nil // it names those that may answer
	p.limitPrefillTo(g.config)
	if y, _ := p.prefill.pick(g, nil, now); y != nil {
		g.prefill, g.prefillAddress, g.prefillGRPC = y, y.address, y.grpc
		y.endpoint.tokens.Add(g.uncached)
		p.prefill.refresh(y)
	}
	g.subset = subset
}

// limitPrefillTo has prefill replicas chosen from part's own: engines of another
// service may hold another model.
func (p *pool) limitPrefillTo(part *PoolConfig) {
	if p.prefill.onlyService = nil; p.ref.Pool {
		p.prefill.onlyService = &part.Key
	}
}

// wantsPrefill reports whether a prompt is for a prefill replica to compute, of which
// so many tokens are new to the replica that answers, one of part's.
func (p *pool) wantsPrefill(part *PoolConfig, uncached int64) bool {
	return p.prefill.ready > 0 && (uncached >= p.d.cfg.PrefillTokens || part.Disaggregation == service.DisaggregationSGLang)
}

// moveTo takes g to another stage of its life, in all accounts it counts in.
func (p *pool) moveTo(g *Grant, to stage, now time.Time) {
	p.demand.move(g.stage, to, now)
	g.memberDemand.move(g.stage, to, now)
	g.stage = to
}

// memberDemand is the counter that a shared pool's waiting request counts in: that
// of the service that would be woken for it.
func (p *pool) memberDemand() *demandCounter {
	if !p.ref.Pool {
		return nil
	}
	if m := p.scalable; m != nil {
		return p.d.account(m.Key)
	}
	return nil
}

// freedEndpoints are endpoints with a place that other pools may use too.
type freedEndpoints [2]*endpoint

func (f freedEndpoints) shared() bool { return f[0] != nil }

// notifyPools tells those pools. No pool's mutex is held.
func (f freedEndpoints) notifyPools() {
	for _, e := range f {
		if e != nil {
			e.notifyPools()
		}
	}
}

// notifyPools tells every pool that lists the endpoint that it has changed, each
// time another one first.
func (e *endpoint) notifyPools() {
	ps := e.listedBy()
	first := int(e.turn.Add(1))
	for i := range ps {
		ps[(first+i)%len(ps)].endpointChanged(e)
	}
}

// endpointChanged looks at an endpoint anew and lets go on whoever can.
func (p *pool) endpointChanged(e *endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range []*endpointSet{&p.entry, &p.prefill} {
		if n, ok := s.byID[e.id]; ok {
			s.refresh(s.slots[n])
		}
	}
	p.serveQueue(p.d.clock.Now())
}

// release takes g off its replicas.
func (p *pool) release(g *Grant) (f freedEndpoints) {
	f[1] = p.releasePrefill(g)
	g.begun(false)
	x := g.slot
	g.slot = nil
	f[0] = p.releaseSlot(&p.entry, x)
	if f[0] == nil {
		f[0], f[1] = f[1], nil
	}
	return f
}

// releasePrefill ends what g has before its answer begins: its tokens, and its
// place on the prefill replica.
func (p *pool) releasePrefill(g *Grant) *endpoint {
	g.slot.endpoint.tokens.Add(-g.uncached)
	p.entry.refresh(g.slot)
	y := g.prefill
	if g.prefill = nil; y == nil {
		g.uncached = 0
		return nil
	}
	y.endpoint.tokens.Add(-g.uncached)
	g.uncached = 0
	return p.releaseSlot(&p.prefill, y)
}

// releaseSlot gives a place back; it returns the endpoint if others have use for it.
func (p *pool) releaseSlot(s *endpointSet, x *slot) *endpoint {
	x.endpoint.release()
	s.refresh(x)
	ps := x.endpoint.listedBy()
	if len(ps) == 0 {
		p.d.endpoints.forgetIdle(x.endpoint)
		return nil
	}
	if len(ps) > 1 || ps[0] != p {
		return x.endpoint
	}
	return nil
}

// finish counts g, off its replica and out of the queue, as done.
func (p *pool) finish(g *Grant, now time.Time) {
	if g.stage == done {
		return
	}
	p.moveTo(g, done, now)
	if h := g.hash; h != nil {
		g.hash, g.subset = nil, nil
		scratch.Put(h)
	}
}
