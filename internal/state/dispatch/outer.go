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
	if g.slot == nil {
		return nil
	}
	var out []string
	s := &p.entry
	c := &s.alternative
	s.prepare(g, append(g.tried[:len(g.tried):len(g.tried)], g.slot.endpoint), p.d.clock.Now())
	for len(out) < min(n, maxAlternatives) {
		s.policy.Pick(&s.input, s.index, c)
		if c.Outcome != picker.Picked {
			break
		}
		out = append(out, s.slots[c.Slot].address)
		s.input.Tried = append(s.input.Tried, c.Slot)
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
	if g.slot != nil && address != g.address {
		x = p.entry.lookup(address)
	}
	if x == nil || !x.endpoint.reserve(0) {
		p.mu.Unlock()
		return
	}
	now := p.d.clock.Now()
	freed := p.release(g)
	p.moveTo(g, queued, now)
	p.entry.choice.Uncached, p.entry.cachedBlocks = 0, 0
	p.reserve(g, x, now)
	p.serveQueue(now)
	p.mu.Unlock()
	freed.notifyPools()
}
