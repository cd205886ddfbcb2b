package dispatch

import (
	"time"

	"roundhouse.dev/roundhouse/internal/decide/admission"
	"roundhouse.dev/roundhouse/internal/decide/picker"
)

// condition is the pool's state for a request that arrives.
func (p *pool) condition(g *Grant, now time.Time) admission.State {
	s := admission.State{Starting: p.main.ready == 0}
	if s.Starting || g.ordered { // its picker has decided that it goes on
		return s
	}
	s.Held = p.holds() && !p.capacity(now)
	if g.waiter.Priority < 0 {
		var among picker.Set
		if g.subset != nil {
			among = p.main.allowed(g)
		}
		if s.Saturation = p.saturation(among, now); s.Held { // what capacity comes is for those that wait
			s.Saturation = max(s.Saturation, 1)
		}
	}
	return s
}

// holds reports whether requests are held while no endpoint has capacity. Where
// the pool's policy sheds by itself, or an endpoint picker says where requests
// go, those decide.
func (p *pool) holds() bool {
	return p.queue.Config().HoldAt > 0 && !p.main.policy.Sheds() && p.facts.External.Name == ""
}

// capacity reports whether some endpoint has capacity; while requests are held,
// for more than it was sent since it last spoke. It is true where breakers keep
// all requests out: those wait for other reasons.
func (p *pool) capacity(now time.Time) bool {
	some := false
	for n, x := range p.main.slots {
		if x != nil && x.serves() && x.e.breaker.passes() {
			if some = true; p.roomy(n, x, now) {
				return true
			}
		}
	}
	return !some
}

// roomy is capacity of one endpoint; its limit is another matter.
func (p *pool) roomy(n int, x *slot, now time.Time) bool {
	c, e := p.queue.Config(), p.load(n, x)
	e.Limit = 0
	if p.pacing {
		return !c.Holds(c.Pace(&e, now))
	}
	return !c.Holds(c.Saturation(&e, now))
}

// load is what the saturation of an endpoint is worked out from.
func (p *pool) load(n int, x *slot) admission.Endpoint {
	ep := &p.main.in.Endpoints[n]
	return admission.Endpoint{Load: ep.Load, InFlight: int(x.e.inFlight.Load()), AtLoad: ep.AtLoad, Limit: x.limit}
}

// saturation is the least of the endpoints', or of those among; nil is all. 0
// without any. Where the policy sheds by itself only places count.
func (p *pool) saturation(among picker.Set, now time.Time) float64 {
	least, some := 0.0, false
	c, sheds := p.queue.Config(), p.main.policy.Sheds()
	for n, x := range p.main.slots {
		if x == nil || !x.serves() || !x.e.breaker.passes() || among != nil && !among.Has(n) {
			continue
		}
		e := p.load(n, x)
		if sheds {
			e.Load = nil
		}
		if v := c.Saturation(&e, now); !some || v < least {
			least, some = v, true
		}
	}
	return least
}

// survey finds the endpoints that may be given a request that waits.
func (p *pool) survey(now time.Time) {
	s := &p.main
	for _, n := range s.shared {
		s.refresh(s.slots[n])
	}
	clear(s.takers[:cap(s.takers)])
	s.takers = s.takers[:0]
	if s.takers == nil {
		s.takers = picker.Set{}
	}
	for n, x := range s.slots {
		if x != nil && s.in.Endpoints[n].Open && (!p.pacing || p.roomy(n, x, now)) {
			s.takers = s.takers.Add(n)
		}
	}
}

// reaches reports whether g may go to one of the takers.
func (s *side) reaches(g *Grant) bool {
	if g.subset == nil {
		return true
	}
	for w, word := range s.allowed(g) {
		if w < len(s.takers) && word&s.takers[w] != 0 {
			return true
		}
	}
	return g.ordered && g.open
}
