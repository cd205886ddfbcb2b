package dispatch

import (
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// reserve puts g in flight on x, where it has a place, and on a prefill
// replica if one is to help.
func (p *pool) reserve(g *Grant, x *slot, now time.Time) {
	if p.ref.Pool && g.member != x.owner {
		if g.stage != outside {
			g.member.move(g.stage, handed, now)
			x.owner.move(outside, g.stage, now)
		}
		g.member = x.owner
	}
	g.at, g.replica, g.address, g.grpc, g.part = x, x.e.id, x.address, x.grpc, x.part
	g.uncached, g.held, g.judged = p.main.choice.Uncached, p.main.held, false
	x.e.tokens.Add(g.uncached)
	p.await(g)
	p.precede(g, now)
	p.main.refresh(x)
	p.advance(g, running, now)
}

// precede gives g a place on a prefill replica if one is to help.
func (p *pool) precede(g *Grant, now time.Time) {
	g.prefill, g.before, g.beforeIn = nil, "", ""
	if !p.prefills(g.part, g.uncached) || g.ordered && g.part.Disaggregation != service.DisaggregationSGLang {
		return // a picker says itself who computes the prompt
	}
	subset := g.subset
	g.subset = nil // it names those that may answer
	p.pairWith(g.part)
	if y, _ := p.prefill.take(g, nil, now); y != nil {
		g.prefill, g.before, g.beforeIn = y, y.address, y.grpc
		y.e.tokens.Add(g.uncached)
		p.prefill.refresh(y)
	}
	g.subset = subset
}

// pairWith has prefill replicas chosen from part's own: engines of another
// service may hold another model.
func (p *pool) pairWith(part *Pool) {
	if p.prefill.only = nil; p.ref.Pool {
		p.prefill.only = &part.Key
	}
}

// prefills says whether a prompt is for a prefill replica to compute, of which
// so many tokens are new to the replica that answers, one of part's.
func (p *pool) prefills(part *Pool, uncached int64) bool {
	return p.prefill.ready > 0 && (uncached >= p.d.cfg.PrefillTokens || part.Disaggregation == service.DisaggregationSGLang)
}

// advance takes g to another stage of its life, in all accounts it counts in.
func (p *pool) advance(g *Grant, to stage, now time.Time) {
	p.account.move(g.stage, to, now)
	g.member.move(g.stage, to, now)
	g.stage = to
}

// counted is the account that a shared pool's waiting request counts in: that
// of the service that would be woken for it.
func (p *pool) counted() *account {
	if !p.ref.Pool {
		return nil
	}
	if m := p.starter; m != nil {
		return p.d.account(m.Key)
	}
	return nil
}

// freed are endpoints with a place that other pools may use too.
type freed [2]*endpoint

func (f freed) shared() bool { return f[0] != nil }

// offer tells those pools. No pool's mutex is held.
func (f freed) offer() {
	for _, e := range f {
		if e != nil {
			e.offer()
		}
	}
}

// offer tells every pool that lists the endpoint that it has changed, each
// time another one first.
func (e *endpoint) offer() {
	ps := e.listed()
	first := int(e.turn.Add(1))
	for i := range ps {
		ps[(first+i)%len(ps)].touched(e)
	}
}

// touched looks at an endpoint anew and lets go on whoever can.
func (p *pool) touched(e *endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range []*side{&p.main, &p.prefill} {
		if n, ok := s.byID[e.id]; ok {
			s.refresh(s.slots[n])
		}
	}
	p.pump(p.d.clock.Now())
}

// release takes g off its replicas.
func (p *pool) release(g *Grant) (f freed) {
	f[1] = p.unprefill(g)
	g.begun(false)
	x := g.at
	g.at = nil
	f[0] = p.drop(&p.main, x)
	if f[0] == nil {
		f[0], f[1] = f[1], nil
	}
	return f
}

// unprefill ends what g has before its answer begins: its tokens, and its
// place on the prefill replica.
func (p *pool) unprefill(g *Grant) *endpoint {
	g.at.e.tokens.Add(-g.uncached)
	p.main.refresh(g.at)
	y := g.prefill
	if g.prefill = nil; y == nil {
		g.uncached = 0
		return nil
	}
	y.e.tokens.Add(-g.uncached)
	g.uncached = 0
	return p.drop(&p.prefill, y)
}

// drop gives a place back; it returns the endpoint if others have use for it.
func (p *pool) drop(s *side, x *slot) *endpoint {
	x.e.leave()
	s.refresh(x)
	ps := x.e.listed()
	if len(ps) == 0 {
		p.d.endpoints.left(x.e)
		return nil
	}
	if len(ps) > 1 || ps[0] != p {
		return x.e
	}
	return nil
}

// settle counts g, off its replica and out of the queue, as done.
func (p *pool) settle(g *Grant, now time.Time) {
	if g.stage == done {
		return
	}
	p.advance(g, done, now)
	if h := g.hash; h != nil {
		g.hash, g.subset = nil, nil
		scratch.Put(h)
	}
}
