package dispatch

import "roundhouse.dev/roundhouse/internal/decide/picker"

// maxAlternatives bounds Grant.Alternatives.
const maxAlternatives = 8

// Alternatives are the addresses of at most n other endpoints the request could
// go to, best first, for an outer gateway that forwards by itself. No place is
// reserved there; Served tells if one was taken.
func (g *Grant) Alternatives(n int) []string {
	p := g.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.at == nil {
		return nil
	}
	var out []string
	s := &p.main
	c := &s.spare
	s.input(g, append(g.tried[:len(g.tried):len(g.tried)], g.at.e), p.d.clock.Now())
	for len(out) < min(n, maxAlternatives) {
		s.policy.Pick(&s.in, s.index, c)
		if c.Outcome != picker.Picked {
			break
		}
		out = append(out, s.slots[c.Slot].address)
		s.in.Tried = append(s.in.Tried, c.Slot)
	}
	return out
}

// Served says which endpoint of the pool has the request in the end, where an
// outer gateway decides that. The place moves there, whatever the endpoint's
// limit; an address that is no endpoint's changes nothing.
func (g *Grant) Served(address string) {
	p := g.pool
	p.mu.Lock()
	var x *slot
	if g.at != nil && address != g.address {
		x = p.main.find(address)
	}
	if x == nil || !x.e.enter(0) {
		p.mu.Unlock()
		return
	}
	now := p.d.clock.Now()
	freed := p.release(g)
	p.advance(g, queued, now)
	p.main.choice.Uncached, p.main.held = 0, 0
	p.reserve(g, x, now)
	p.pump(now)
	p.mu.Unlock()
	freed.offer()
}
