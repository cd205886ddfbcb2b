package dispatch

import (
	"time"

	"roundhouse.dev/roundhouse/internal/decide/admission"
	"roundhouse.dev/roundhouse/internal/decide/picker"
)

// admissionState is the pool's state for a request that arrives.
func (p *pool) admissionState(g *Grant, now time.Time) admission.State {
	s := admission.State{Starting: p.entry.ready == 0}
	if s.Starting || g.ordered { // its picker has decided that it goes on
		return s
	}
	s.Held = p.holdsRequests() && !p.hasCapacity(now)
	if g.waiter.Priority < 0 {
		var among picker.Set
		if g.subset != nil {
			among = p.entry.allowedSlots(g)
		}
		if s.Saturation = p.saturation(among, now); s.Held { // what capacity comes is for those that wait
			s.Saturation = max(s.Saturation, 1)
		}
	}
	return s
}

// holdsRequests reports whether requests are held while no endpoint has capacity. Where
// the pool's policy sheds by itself, or an endpoint picker says where requests
// go, those decide.
func (p *pool) holdsRequests() bool {
	return p.queue.Config().HoldAt > 0 && !p.entry.policy.Sheds() && p.config.External.Name == ""
}

// hasCapacity reports whether some endpoint has capacity; while requests are held,
// for more than it was sent since it last spoke. It is true where breakers keep
// all requests out: those wait for other reasons.
func (p *pool) hasCapacity(now time.Time) bool {
	some := false
	for n, x := range p.entry.slots {
		if x != nil && x.serves() && x.endpoint.breaker.allows() {
			if some = true; p.endpointHasCapacity(n, x, now) {
				return true
			}
		}
	}
	return !some
}

// endpointHasCapacity is capacity of one endpoint; its limit is another matter.
func (p *pool) endpointHasCapacity(n int, x *slot, now time.Time) bool {
	c, e := p.queue.Config(), p.loadOf(n, x)
	e.Limit = 0
	if p.pacing {
		return !c.Holds(c.Pace(&e, now))
	}
	return !c.Holds(c.Saturation(&e, now))
}

// loadOf is what the saturation of an endpoint is worked out from.
func (p *pool) loadOf(n int, x *slot) admission.Endpoint {
	ep := &p.entry.input.Endpoints[n]
	return admission.Endpoint{Load: ep.Load, InFlight: int(x.endpoint.inFlight.Load()), AtLoad: ep.AtLoad, Limit: x.limit}
}

// saturation is the least of the endpoints', or of those among; nil is all. 0
// without any. Where the policy sheds by itself only places count.
func (p *pool) saturation(among picker.Set, now time.Time) float64 {
	least, some := 0.0, false
	c, sheds := p.queue.Config(), p.entry.policy.Sheds()
	for n, x := range p.entry.slots {
		if x == nil || !x.serves() || !x.endpoint.breaker.allows() || among != nil && !among.Has(n) {
			continue
		}
		e := p.loadOf(n, x)
		if sheds {
			e.Load = nil
		}
		if v := c.Saturation(&e, now); !some || v < least {
			least, some = v, true
		}
	}
	return least
}

// findEligible finds the endpoints that may be given a request that waits.
func (p *pool) findEligible(now time.Time) {
	s := &p.entry
	for _, n := range s.shared {
		s.refresh(s.slots[n])
	}
	clear(s.eligible[:cap(s.eligible)])
	s.eligible = s.eligible[:0]
	if s.eligible == nil {
		s.eligible = picker.Set{}
	}
	for n, x := range s.slots {
		if x != nil && s.input.Endpoints[n].Open && (!p.pacing || p.endpointHasCapacity(n, x, now)) {
			s.eligible = s.eligible.Add(n)
		}
	}
}

// canReach reports whether g may go to one of the takers.
func (s *endpointSet) canReach(g *Grant) bool {
	if g.subset == nil {
		return true
	}
	for w, word := range s.allowedSlots(g) {
		if w < len(s.eligible) && word&s.eligible[w] != 0 {
			return true
		}
	}
	return g.ordered && g.open
}
