package dispatch

import (
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

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

// wantsPrefill says whether a prompt is for a prefill replica to compute, of which
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

// memberDemand is the account that a shared pool's waiting request counts in: that
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
