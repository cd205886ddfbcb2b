package dispatch

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/picker"
)

// endpointSet is the endpoints of one role that a pool picks from. The pool's mutex
// guards it.
type endpointSet struct {
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

	policy       *picker.Policy
	index        *picker.Index // nil when the policy has no use for prompts
	input        picker.Input  // in.Endpoints are the slots'
	choice       picker.Choice
	onlyService  *service.Key  // whose endpoints are chosen from; nil for all
	alternative  picker.Choice // of Grant.Alternatives
	allowedCount int           // how many endpoints the last request's subset left
	// generation counts the changes of the slots; 0 is none's.
	generation   uint64
	eligible     picker.Set // that may be given a request that waits
	cachedBlocks int        // leading blocks of the last request that its endpoint held
}

// slot is an endpoint as its pool sees it.
type slot struct {
	number   int
	endpoint *endpoint
	phase    replica.Phase
	message  string      // of the replica
	address  string      // "host:port" of its HTTP surface
	grpc     string      // "host:port" of its gRPC surface; "" when it has none
	limit    int         // of requests in flight there, from all pools; 0 for none
	config   *PoolConfig // of the service or pool it belongs to
	demand   *demandCounter
	report   *loadReport
}

// listedReplica is a replica of a configuration.
type listedReplica struct {
	*replica.Replica
	config *PoolConfig
	demand *demandCounter // of its service; nil when it has none
	limit  int
}

// serves reports whether the endpoint serves at all, busy or not.
func (x *slot) serves() bool {
	return x.phase == replica.Ready && x.address != "" && !x.endpoint.draining.Load()
}

// replace makes these the set's endpoints. Those that stay keep their slots.
func (s *endpointSet) replace(p *pool, all []listedReplica) {
	s.generation++
	gone := s.byID
	s.byID = make(map[string]int, len(all))
	s.byAddress = nil
	var fresh []listedReplica
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
		s.removeSlot(p, n)
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
			s.input.Endpoints = append(s.input.Endpoints, picker.Endpoint{})
		}
		x := &slot{number: n, endpoint: p.d.endpoints.join(l.ID, p)}
		s.slots[n], s.byID[l.ID] = x, n
		s.update(x, l)
	}
	s.recount()
}

// removeSlot forgets a slot's endpoint.
func (s *endpointSet) removeSlot(p *pool, n int) {
	p.d.endpoints.leave(s.slots[n].endpoint, p)
	s.slots[n], s.input.Endpoints[n] = nil, picker.Endpoint{}
	if s.index != nil {
		s.index.Forget(n)
	}
}

// recount renews what is derived from the slots.
func (s *endpointSet) recount() {
	s.ready, s.alive, s.shared = 0, 0, s.shared[:0]
	for n, x := range s.slots {
		if x == nil {
			continue
		}
		if x.serves() {
			s.ready++
		}
		hopeless := (x.phase == replica.Failed || x.phase == replica.Pending) && x.config.Cause.Permanent ||
			x.phase == replica.Failed && x.config.Shared && !x.config.Restarted // nobody starts what is no service's
		if x.phase != replica.Draining && !x.endpoint.draining.Load() && !hopeless {
			s.alive++
		}
		if len(x.endpoint.listedBy()) > 1 {
			s.shared = append(s.shared, n)
		}
		s.refresh(x)
	}
}

// update takes a new configuration. A process that has just become ready starts with a
// clean record and knows no prompts.
func (s *endpointSet) update(x *slot, l listedReplica) {
	if l.Serving() && (x.phase != l.Phase || x.address != l.HTTP) {
		x.endpoint.breaker.reset()
		s.input.Endpoints[x.number].Resident = nil
		if s.index != nil {
			s.index.Forget(x.number)
		}
	}
	x.phase, x.message, x.address, x.grpc = l.Phase, l.Message, l.HTTP, l.GRPC
	x.limit, x.config, x.demand = l.limit, l.config, l.demand
}

// refresh shows the picker the endpoint as it is now.
func (s *endpointSet) refresh(x *slot) {
	if s.slots[x.number] != x { // a request of before it had left; it may be back
		n, ok := s.byID[x.endpoint.id]
		if !ok {
			return
		}
		x = s.slots[n]
	}
	ep := &s.input.Endpoints[x.number]
	n := int(x.endpoint.inFlight.Load())
	if ep.Name != x.address {
		ep.Name, ep.Hash = x.address, picker.NameHash(x.address)
	}
	ep.InFlight, ep.Tokens = n, x.endpoint.tokens.Load()
	ep.Open = x.serves() && x.endpoint.breaker.allows() && (x.limit == 0 || n < x.limit)
	if now := x.endpoint.report.Load(); now != x.report {
		x.report = now
		if l := now.load; l != nil && (ep.Load == nil || l.At.Sub(ep.Load.At) >= s.policy.Config().Stale) {
			ep.Heard = l.At
		}
		ep.Load, ep.AtLoad = now.load, now.inFlight
		if now.load != nil && now.load.Adapters != nil {
			s.observeAdapters(x.number, now.load.Adapters)
		}
		if s.index != nil && now.load != nil && now.load.Blocks > 0 {
			s.index.Resize(x.number, now.load.Blocks*now.load.BlockTokens)
		}
	}
}

// maxKnown is how many adapters' names a set knows at a time.
const maxKnown = 4096

// observeAdapters notes what an endpoint says of its adapters.
func (s *endpointSet) observeAdapters(n int, a *replica.Adapters) {
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
func (s *endpointSet) resident(n int) *picker.Residency {
	ep := &s.input.Endpoints[n]
	if ep.Resident == nil {
		ep.Resident = &picker.Residency{}
	}
	return ep.Resident
}

// pick reserves a place for g on the endpoint the policy chooses, not one of
// tried; nil if there is none. dropped: the policy sheds the request.
func (s *endpointSet) pick(g *Grant, tried []*endpoint, now time.Time) (x *slot, dropped bool) {
	if g.ordered {
		if x = s.pickFirst(g, tried, now); x != nil || s.allowedCount > 0 || !g.openToAll() {
			return x, false
		}
	}
	for range len(s.slots) + 1 {
		s.prepare(g, tried, now)
		s.policy.Pick(&s.input, s.index, &s.choice)
		switch s.choice.Outcome {
		case picker.Dropped:
			return nil, true
		case picker.Picked:
		default:
			return nil, false
		}
		x := s.slots[s.choice.Slot]
		if s.d.claim(x.endpoint, x.limit) {
			s.recordSent(g, x)
			return x, false
		}
		s.refresh(x) // another pool was faster, or it drains
	}
	return nil, false
}

// prepare shows the picker g, and the endpoints as they are now.
func (s *endpointSet) prepare(g *Grant, tried []*endpoint, now time.Time) {
	for _, n := range s.shared {
		s.refresh(s.slots[n])
	}
	in := &s.input
	in.Now = now
	in.Allowed = nil
	if g.subset != nil {
		in.Allowed = s.allowedSlots(g)
	} else if s.onlyService != nil {
		in.Allowed = s.slotsOfService(g)
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

// recordSent notes that g goes to x.
func (s *endpointSet) recordSent(g *Grant, x *slot) {
	s.cachedBlocks = 0
	if s.index != nil && len(s.input.Blocks) > 0 {
		s.cachedBlocks = s.index.Sent(x.number, s.input.Blocks)
	}
	if s.input.Adapter != "" {
		s.resident(x.number).Used(s.input.Adapter)
	}
	s.input.Turn++
	s.refresh(x)
}

// lookup is the slot of an address; nil when there is none.
func (s *endpointSet) lookup(address string) *slot {
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

// slotsOfService is the slots of the service that only names.
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

// allowedSlots is the slots g may go to; within is how many they are.
func (s *endpointSet) allowedSlots(g *Grant) picker.Set {
	h := g.hash
	if h.generation != s.generation {
		clear(h.bound[:cap(h.bound)])
		h.bound, h.within, h.generation = h.bound[:0], 0, s.generation
		for _, a := range g.subset {
			if x := s.lookup(a); x != nil {
				h.bound = h.bound.Add(x.number)
				h.within++
			}
		}
		if h.bound == nil {
			h.bound = picker.Set{} // nil would allow all
		}
	}
	s.allowedCount = h.within
	return h.bound
}

// endpoint is one replica, or one server by its address, as all the pools that
// list it share it: what is in flight there counts whichever pool it came
// through.
type endpoint struct {
	id       string
	inFlight atomic.Int64 // >= 0
	// tokens are the uncached prompt tokens of the requests in flight that
	// have not begun to answer.
	tokens atomic.Int64
	report atomic.Pointer[loadReport]
	// draining stays set: a replica that drains never comes back.
	draining atomic.Bool
	breaker  circuit
	silence  silence
	// pools are those that list it. The slice is replaced, not changed.
	pools atomic.Pointer[[]*pool]
	turn  atomic.Uint32 // which pool is offered a freed place first

	mu   sync.Mutex
	idle chan struct{} // closed when inFlight falls to 0; nil when nobody waits
}

// loadReport is what an endpoint has said of itself.
type loadReport struct {
	load *replica.Load
	// inFlight is how many of our requests it had then.
	inFlight int
}

// reserve takes a place if the endpoint has fewer than limit requests (0: any
// number) and is not draining.
func (e *endpoint) reserve(limit int) bool {
	for {
		n := e.inFlight.Load()
		if limit > 0 && n >= int64(limit) {
			return false
		}
		if e.inFlight.CompareAndSwap(n, n+1) {
			break
		}
	}
	// Drain sets the mark before it reads the count, so one of the two sees
	// the other.
	if e.draining.Load() {
		e.release()
		return false
	}
	return true
}

// release gives a place back.
func (e *endpoint) release() {
	if e.inFlight.Add(-1) > 0 || !e.draining.Load() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.idle != nil && e.inFlight.Load() == 0 {
		close(e.idle)
		e.idle = nil
	}
}

// drain closes the endpoint for good. The channel is closed once it has
// nothing in flight.
func (e *endpoint) drain() <-chan struct{} {
	e.draining.Store(true)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.idle != nil {
		return e.idle
	}
	idle := make(chan struct{})
	if e.inFlight.Load() == 0 {
		close(idle)
		return idle
	}
	e.idle = idle
	return idle
}

// listedBy are the pools that list the endpoint.
func (e *endpoint) listedBy() []*pool {
	if ps := e.pools.Load(); ps != nil {
		return *ps
	}
	return nil
}

// registry holds the endpoints of all pools, and those that no pool lists any
// more while they are busy.
type registry struct {
	mu   sync.Mutex
	byID map[string]*endpoint
}

// join adds p to those that list the endpoint, which is made if need be.
func (r *registry) join(id string, p *pool) *endpoint {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.byID[id]
	if e == nil {
		e = &endpoint{id: id}
		r.byID[id] = e
	}
	if ps := e.listedBy(); !slices.Contains(ps, p) {
		ps = append(slices.Clone(ps), p)
		e.pools.Store(&ps)
	}
	return e
}

// leave takes p out of those that list the endpoint.
func (r *registry) leave(e *endpoint, p *pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ps := slices.DeleteFunc(slices.Clone(e.listedBy()), func(q *pool) bool { return q == p })
	e.pools.Store(&ps)
	r.drop(e)
}

// forgetIdle forgets an endpoint that nobody lists and that has become idle.
func (r *registry) forgetIdle(e *endpoint) {
	if len(e.listedBy()) > 0 || e.inFlight.Load() > 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(e)
}

func (r *registry) drop(e *endpoint) {
	if len(e.listedBy()) == 0 && e.inFlight.Load() == 0 && r.byID[e.id] == e {
		delete(r.byID, e.id)
	}
}

func (r *registry) get(id string) *endpoint {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byID[id]
}
