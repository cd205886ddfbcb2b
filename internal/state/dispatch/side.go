package dispatch

import (
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/picker"
)

// side is the endpoints of one role that a pool picks from. The pool's mutex
// guards it.
type side struct {
	d      *Dispatcher
	slots  []*slot        // by number, which is the picker's; nil where one is free
	byID   map[string]int // slot numbers
	shared []int          // slots whose endpoint other pools have too
	// byAddress finds slots by either of their addresses; made when asked for.
	byAddress map[string]int
	// adapters are the names that endpoints have said are LoRA adapters: any
	// other is the base model's, which every endpoint has.
	adapters map[string]bool
	// declared are those that manifests name.
	declared map[string]bool
	ready    int // how many serve, busy or not
	alive    int // how many serve or will

	policy *picker.Policy
	index  *picker.Index // nil when the policy has no use for prompts
	in     picker.Input  // in.Endpoints are the slots'
	choice picker.Choice
	only   *service.Key  // whose endpoints are chosen from; nil for all
	spare  picker.Choice // of Grant.Alternatives
	within int           // how many endpoints the last request's subset left
	// generation counts the changes of the slots; 0 is none's.
	generation uint64
	takers     picker.Set // that may be given a request that waits
	held       int        // leading blocks of the last request that its endpoint held
}

// slot is an endpoint as its pool sees it.
type slot struct {
	n       int
	e       *endpoint
	phase   replica.Phase
	message string // of the replica
	address string // "host:port" of its HTTP surface
	grpc    string // "host:port" of its gRPC surface; "" when it has none
	limit   int    // of requests in flight there, from all pools; 0 for none
	part    *Pool  // whose facts it belongs to
	owner   *account
	said    *said
}

// listed is a replica among the facts.
type listed struct {
	*replica.Replica
	part  *Pool
	owner *account // of its service; nil when it has none
	limit int
}

// serves says whether the endpoint serves at all, busy or not.
func (s *slot) serves() bool {
	return s.phase == replica.Ready && s.address != "" && !s.e.draining.Load()
}

// set makes these the side's endpoints. Those that stay keep their slots.
func (s *side) set(p *pool, all []listed) {
	s.generation++
	gone := s.byID
	s.byID = make(map[string]int, len(all))
	s.byAddress = nil
	var fresh []listed
	for _, l := range all {
		n, ok := gone[l.ID]
		if !ok {
			fresh = append(fresh, l)
			continue
		}
		delete(gone, l.ID)
		s.byID[l.ID] = n
		s.update(s.slots[n], l)
	}
	for _, n := range gone {
		s.free(p, n)
	}
	n := 0
	for _, l := range fresh {
		if _, twice := s.byID[l.ID]; twice {
			continue
		}
		for n < len(s.slots) && s.slots[n] != nil {
			n++
		}
		if n == len(s.slots) {
			s.slots = append(s.slots, nil)
			s.in.Endpoints = append(s.in.Endpoints, picker.Endpoint{})
		}
		x := &slot{n: n, e: p.d.endpoints.join(l.ID, p)}
		s.slots[n], s.byID[l.ID] = x, n
		s.update(x, l)
	}
	s.recount()
}

// free forgets a slot's endpoint.
func (s *side) free(p *pool, n int) {
	p.d.endpoints.part(s.slots[n].e, p)
	s.slots[n], s.in.Endpoints[n] = nil, picker.Endpoint{}
	if s.index != nil {
		s.index.Forget(n)
	}
}

// recount renews what is derived from the slots.
func (s *side) recount() {
	s.ready, s.alive, s.shared = 0, 0, s.shared[:0]
	for n, x := range s.slots {
		if x == nil {
			continue
		}
		if x.serves() {
			s.ready++
		}
		hopeless := (x.phase == replica.Failed || x.phase == replica.Pending) && x.part.Cause.Permanent ||
			x.phase == replica.Failed && x.part.Shared && !x.part.Restarted // nobody starts what is no service's
		if x.phase != replica.Draining && !x.e.draining.Load() && !hopeless {
			s.alive++
		}
		if len(x.e.listed()) > 1 {
			s.shared = append(s.shared, n)
		}
		s.refresh(x)
	}
}

// update takes new facts. A process that has just become ready starts with a
// clean record and knows no prompts.
func (s *side) update(x *slot, l listed) {
	if l.Serving() && (x.phase != l.Phase || x.address != l.HTTP) {
		x.e.breaker.renew()
		s.in.Endpoints[x.n].Resident = nil
		if s.index != nil {
			s.index.Forget(x.n)
		}
	}
	x.phase, x.message, x.address, x.grpc = l.Phase, l.Message, l.HTTP, l.GRPC
	x.limit, x.part, x.owner = l.limit, l.part, l.owner
}

// refresh shows the picker the endpoint as it is now.
func (s *side) refresh(x *slot) {
	if s.slots[x.n] != x { // a request of before it had left; it may be back
		n, ok := s.byID[x.e.id]
		if !ok {
			return
		}
		x = s.slots[n]
	}
	ep := &s.in.Endpoints[x.n]
	n := int(x.e.inFlight.Load())
	if ep.Name != x.address {
		ep.Name, ep.Hash = x.address, picker.NameHash(x.address)
	}
	ep.InFlight, ep.Tokens = n, x.e.tokens.Load()
	ep.Open = x.serves() && x.e.breaker.passes() && (x.limit == 0 || n < x.limit)
	if now := x.e.said.Load(); now != x.said {
		x.said = now
		if l := now.load; l != nil && (ep.Load == nil || l.At.Sub(ep.Load.At) >= s.policy.Config().Stale) {
			ep.Heard = l.At
		}
		ep.Load, ep.AtLoad = now.load, now.inFlight
		if now.load != nil && now.load.Adapters != nil {
			s.observe(x.n, now.load.Adapters)
		}
		if s.index != nil && now.load != nil && now.load.Blocks > 0 {
			s.index.Resize(x.n, now.load.Blocks*now.load.BlockTokens)
		}
	}
}

// maxKnown is how many adapters' names a side knows at a time.
const maxKnown = 4096

// observe notes what an endpoint says of its adapters.
func (s *side) observe(n int, a *replica.Adapters) {
	s.resident(n).Observe(a)
	for _, names := range [][]string{a.Running, a.Waiting} {
		for _, name := range names {
			if s.adapters[name] {
				continue
			}
			if s.adapters == nil || len(s.adapters) >= maxKnown {
				s.adapters = map[string]bool{}
			}
			s.adapters[name] = true
		}
	}
}

// resident is the memory of an endpoint's adapters.
func (s *side) resident(n int) *picker.Residency {
	ep := &s.in.Endpoints[n]
	if ep.Resident == nil {
		ep.Resident = &picker.Residency{}
	}
	return ep.Resident
}

// take reserves a place for g on the endpoint the policy chooses, not one of
// tried; nil if there is none. dropped: the policy sheds the request.
func (s *side) take(g *Grant, tried []*endpoint, now time.Time) (x *slot, dropped bool) {
	if g.ordered {
		if x = s.first(g, tried, now); x != nil || s.within > 0 || !g.unbind() {
			return x, false
		}
	}
	for range len(s.slots) + 1 {
		s.input(g, tried, now)
		s.policy.Pick(&s.in, s.index, &s.choice)
		switch s.choice.Outcome {
		case picker.Dropped:
			return nil, true
		case picker.Picked:
		default:
			return nil, false
		}
		x := s.slots[s.choice.Slot]
		if s.d.claim(x.e, x.limit) {
			s.sent(g, x)
			return x, false
		}
		s.refresh(x) // another pool was faster, or it drains
	}
	return nil, false
}

// input shows the picker g, and the endpoints as they are now.
func (s *side) input(g *Grant, tried []*endpoint, now time.Time) {
	for _, n := range s.shared {
		s.refresh(s.slots[n])
	}
	in := &s.in
	in.Now = now
	in.Allowed = nil
	if g.subset != nil {
		in.Allowed = s.allowed(g)
	} else if s.only != nil {
		in.Allowed = s.owned(g)
	}
	in.Tried = in.Tried[:0]
	for _, e := range tried {
		if n, ok := s.byID[e.id]; ok {
			in.Tried = append(in.Tried, n)
		}
	}
	in.Adapter, in.Session = "", g.session
	if s.adapters[g.adapter] || s.declared[g.adapter] {
		in.Adapter = g.adapter
	}
	in.Priority, in.Critical = int(g.waiter.Priority), g.waiter.Priority > 0
	in.Blocks, in.Tokens = g.hash.blocks, g.tokens
}

// sent notes that g goes to x.
func (s *side) sent(g *Grant, x *slot) {
	s.held = 0
	if s.index != nil && len(s.in.Blocks) > 0 {
		s.held = s.index.Sent(x.n, s.in.Blocks)
	}
	if s.in.Adapter != "" {
		s.resident(x.n).Used(s.in.Adapter)
	}
	s.in.Turn++
	s.refresh(x)
}

// find is the slot of an address; nil when there is none.
func (s *side) find(address string) *slot {
	if s.byAddress == nil {
		s.byAddress = make(map[string]int, len(s.slots))
		for n, x := range s.slots {
			if x == nil {
				continue
			}
			s.byAddress[x.address] = n
			s.byAddress[x.grpc] = n
		}
	}
	if n, ok := s.byAddress[address]; ok && address != "" {
		return s.slots[n]
	}
	return nil
}

// owned is the slots of the service that only names.
func (s *side) owned(g *Grant) picker.Set {
	set := g.hash.allowed
	clear(set[:cap(set)])
	if set = set[:0]; set == nil {
		set = picker.Set{} // nil would allow all
	}
	for n, x := range s.slots {
		if x != nil && x.part.Key == *s.only {
			set = set.Add(n)
		}
	}
	g.hash.allowed = set
	return set
}

// allowed is the slots g may go to; within is how many they are.
func (s *side) allowed(g *Grant) picker.Set {
	h := g.hash
	if h.generation != s.generation {
		clear(h.bound[:cap(h.bound)])
		h.bound, h.within, h.generation = h.bound[:0], 0, s.generation
		for _, a := range g.subset {
			if x := s.find(a); x != nil {
				h.bound = h.bound.Add(x.n)
				h.within++
			}
		}
		if h.bound == nil {
			h.bound = picker.Set{} // nil would allow all
		}
	}
	s.within = h.within
	return h.bound
}
