package dispatch

import (
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/latency"
	"roundhouse.dev/roundhouse/internal/decide/picker"
)

// memory is what a set's endpoints hold, as far as is known: prompts that they
// were sent, and LoRA adapters. Endpoints go by their slots' numbers.
type memory struct {
	prompts   *picker.Index       // nil when the policy has no use for prompts
	residency []*picker.Residency // of adapters; by slot
	latency   latency.Model       // how long endpoints take
	// adapters are the names that endpoints have reported as LoRA adapters: any
	// other is the base model's, which every endpoint has.
	adapters map[string]bool
	// declared are those that manifests name.
	declared map[string]bool
}

// keepPrompts has prompts remembered, or no longer.
func (m *memory) keepPrompts(keep bool, c picker.IndexConfig) {
	if !keep {
		m.prompts = nil
	} else if m.prompts == nil {
		m.prompts, _ = picker.NewIndex(c) // Config.Validate has checked it
	}
}

// forget forgets all that an endpoint holds.
func (m *memory) forget(n int) {
	m.residency[n] = nil
	m.latency.Forget(n)
	if m.prompts != nil {
		m.prompts.Forget(n)
	}
}

// maxKnown is how many adapters' names a set knows at a time.
const maxKnown = 4096

// observe notes what an endpoint reports of its cache and its adapters. If its
// engine tells what it evicts, the size is only a bound.
func (m *memory) observe(n int, l *replica.Load, evicts bool) {
	if m.prompts != nil && l.Blocks > 0 {
		tokens := l.Blocks * l.BlockTokens
		if evicts {
			tokens *= 2 // tokens are shorter in some languages
		}
		m.prompts.Resize(n, tokens)
	}
	if l.Adapters == nil {
		return
	}
	m.resident(n).Observe(l.Adapters)
	for _, names := range [][]string{l.Adapters.Running, l.Adapters.Waiting} {
		for _, name := range names {
			if m.adapters[name] {
				continue
			}
			if m.adapters == nil || len(m.adapters) >= maxKnown {
				m.adapters = map[string]bool{}
			}
			m.adapters[name] = true
		}
	}
}

// resident is the memory of an endpoint's adapters.
func (m *memory) resident(n int) *picker.Residency {
	if m.residency[n] == nil {
		m.residency[n] = &picker.Residency{}
	}
	return m.residency[n]
}

// adapter is name where it is a LoRA adapter's; "" where it is the base model's.
func (m *memory) adapter(name string) string {
	if m.adapters[name] || m.declared[name] {
		return name
	}
	return ""
}

// sent notes that an endpoint is sent a request, and returns how many leading
// blocks of the prompt it held before.
func (m *memory) sent(n int, in *picker.Input) (cached int) {
	if in.Adapter != "" {
		m.resident(n).Used(in.Adapter)
	}
	if m.prompts == nil || len(in.Blocks) == 0 {
		return 0
	}
	m.prompts.Remember(in.Whole)
	return m.prompts.Sent(n, in.Blocks)
}

// compile makes a policy of what a pool asks for.
func compile(pc routing.Picker) (*picker.Policy, error) {
	c, err := picker.Of(pc)
	if err != nil {
		return nil, err
	}
	return picker.New(c)
}

// hashes are a request's scratch, used again by later ones.
type hashes struct {
	blocks  []uint64
	whole   uint64
	allowed picker.Set
	// subset are the slots of the request's subset, and subsetCount how many
	// they are, as they were in a generation of the pool's endpoints.
	subset      picker.Set
	subsetCount int
	generation  uint64
}

var scratch = sync.Pool{New: func() any { return new(hashes) }}

// pick reserves a place for g on the endpoint the policy chooses, not one of
// tried; nil if there is none, or with choice.Late if none is predicted to answer in
// time. dropped: the policy sheds the request.
func (s *endpointSet) pick(g *Grant, tried []*endpoint, now time.Time) (x *slot, dropped bool) {
	s.choice.Forecast = picker.Forecast{} // not that of the request before
	if g.ordered {
		if x = s.pickNamed(g, tried, now); x != nil || s.allowedCount > 0 || !g.openToAll() {
			return x, false
		}
	}
	for range len(s.slots) + 1 {
		s.prepare(g, tried, now)
		s.policy.Pick(&s.input, s.memory.prompts, &s.choice)
		switch s.choice.Outcome {
		case picker.Dropped:
			return nil, true
		case picker.Picked:
		default:
			return nil, false
		}
		if s.choice.Late && len(tried) == 0 { // another request may go first
			return nil, false
		}
		x := s.slots[s.choice.Slot]
		if x.endpoint.claim(x.limit) {
			s.recordSent(x)
			return x, false
		}
		s.refresh(x) // another pool was faster, or it drains
	}
	return nil, false
}

// pickNamed reserves a place for g on the first of the endpoints its external
// picker named that can take it, not one of tried; nil if none can now.
func (s *endpointSet) pickNamed(g *Grant, tried []*endpoint, now time.Time) *slot {
	s.prepare(g, tried, now)
	for _, a := range g.subset {
		x := s.lookup(a)
		if x == nil || !x.accepts() || x.endpoint.among(tried) || !x.endpoint.claim(x.limit) {
			continue
		}
		s.choice.Slot, s.choice.Uncached = x.number, g.tokens
		s.choice.Forecast = picker.Forecast{Work: latency.Work{Uncached: g.tokens, Running: float64(x.endpoint.inFlight.Load())}}
		s.recordSent(x)
		return x
	}
	return nil
}

// prepare shows the policy g, and the endpoints as they are now.
func (s *endpointSet) prepare(g *Grant, tried []*endpoint, now time.Time) {
	s.refreshShared()
	in := &s.input
	in.Now = now
	in.Allowed = nil
	if g.subset != nil {
		in.Allowed = s.allowedSlots(g)
	} else if s.onlyService != nil {
		in.Allowed = s.slotsOfService(g)
	}
	in.Tried = in.Tried[:0]
	if len(tried) > 0 {
		for n, x := range s.slots {
			if x != nil && x.endpoint.among(tried) {
				in.Tried = append(in.Tried, n)
			}
		}
	}
	in.Adapter, in.Session = s.memory.adapter(g.adapter), g.session
	in.Priority, in.Critical = int(g.waiter.Priority), g.waiter.Priority > 0
	in.Blocks, in.Whole, in.Tokens = g.hash.blocks, g.hash.whole, g.tokens
	in.Target = g.pace.left(now)
}

// recordSent notes that the request of the last prepare goes to x.
func (s *endpointSet) recordSent(x *slot) {
	s.cachedBlocks = s.memory.sent(x.number, &s.input)
	s.input.Turn++
	s.refresh(x)
}

// alternatives are the addresses of at most n further endpoints that g could
// go to, best first: those of the rank that its header names.
func (s *endpointSet) alternatives(g *Grant, tried []*endpoint, n int, now time.Time) (out []string) {
	c := &s.alternative
	s.prepare(g, tried, now)
	for len(out) < n {
		s.policy.Pick(&s.input, s.memory.prompts, c)
		if c.Outcome != picker.Picked {
			break
		}
		if x := s.slots[c.Slot]; x.rank == g.rank {
			out = append(out, x.address)
		}
		s.input.Tried = append(s.input.Tried, c.Slot)
	}
	return out
}

// slotsOfService is the slots of onlyService.
func (s *endpointSet) slotsOfService(g *Grant) picker.Set {
	set := g.hash.allowed
	clear(set[:cap(set)])
	if set = set[:0]; set == nil {
		set = picker.Set{} // nil would allow all
	}
	for n, x := range s.slots {
		if x != nil && x.config.Key == *s.onlyService {
			set = set.Add(n)
		}
	}
	g.hash.allowed = set
	return set
}

// allowedSlots is the slots g may go to; allowedCount is how many they are.
func (s *endpointSet) allowedSlots(g *Grant) picker.Set {
	h := g.hash
	if h.generation != s.generation {
		clear(h.subset[:cap(h.subset)])
		h.subset, h.subsetCount, h.generation = h.subset[:0], 0, s.generation
		for _, a := range g.subset {
			for _, n := range s.at(a) {
				h.subset = h.subset.Add(n)
				h.subsetCount++
			}
		}
		if h.subset == nil {
			h.subset = picker.Set{} // nil would allow all
		}
	}
	s.allowedCount = h.subsetCount
	return h.subset
}

// canReach reports whether g may go to one of the eligible endpoints.
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

// explain makes a choice from the last prepare, and gives its reasons.
func (s *endpointSet) explain(c *picker.Choice) *Pick {
	c.Explain = true
	in := s.input
	in.WhyClosed = func(n int) string { return s.slots[n].whyClosed() }
	s.policy.Pick(&in, s.memory.prompts, c)
	out := &Pick{Reason: c.Reason(), Uncached: c.Uncached}
	if c.Outcome == picker.Picked {
		out.Replica, out.Address = s.slots[c.Slot].endpoint.id, s.slots[c.Slot].address
	}
	_, table, _ := strings.Cut(c.String(), "\n")
	for line := range strings.Lines(table) {
		out.Table = append(out.Table, strings.TrimSuffix(line, "\n"))
	}
	return out
}

// forgetPrompt forgets that x holds the prompt of a request, but for so many
// leading blocks.
func (s *endpointSet) forgetPrompt(g *Grant, x *slot, from int) {
	if m := s.memory.prompts; m != nil && g.hash != nil && from < len(g.hash.blocks) && s.slots[x.number] == x {
		m.ForgetBlocks(x.number, g.hash.blocks[from:])
	}
}
