package dispatch

import (
	"cmp"
	"reflect"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/admission"
	"roundhouse.dev/roundhouse/internal/decide/picker"
)

// endpoints are a pool's, of all roles. The pool's mutex guards them.
type endpoints struct {
	entry   endpointSet // of the role that takes requests
	prefill endpointSet // of the role that computes prompts for it, if there is one
	encode  endpointSet // that compute pictures, sounds and videos for both, if there are any
	// picker is what the sets pick by, fault what is wrong with the
	// configured one, so that the default holds; "" when nothing is.
	picker routing.Picker
	fault  string
}

func (e *endpoints) sets() [3]*endpointSet {
	return [3]*endpointSet{&e.entry, &e.prefill, &e.encode}
}

// setPolicy makes the sets pick as pc says.
func (e *endpoints) setPolicy(pc routing.Picker) {
	if e.entry.policy != nil && reflect.DeepEqual(e.picker, pc) {
		return
	}
	policy, err := compile(pc)
	e.fault = ""
	if err != nil {
		e.fault = "picker: " + err.Error()
		if policy, err = compile(routing.Picker{}); err != nil {
			panic("dispatch: the default policy: " + err.Error())
		}
	}
	e.picker = pc
	prefix, _ := policy.Affinity()
	for _, s := range e.sets() {
		s.policy = policy
		s.memory.keepPrompts(prefix && s != &e.encode, s.d.cfg.Index)
	}
}

// replace makes a configuration's replicas the endpoints.
func (e *endpoints) replace(c *PoolConfig) {
	var entry, prefill, encode []listedReplica
	var declared map[string]bool
	for part := range c.configs {
		for _, a := range part.Adapters {
			if declared == nil {
				declared = map[string]bool{}
			}
			declared[a.Name] = true
		}
		limit := part.Limits.MaxConcurrency
		if n := c.Bounds.MaxConcurrency; n > 0 && (limit == 0 || n < limit) {
			limit = n
		}
		var demand *demandCounter
		if !part.Shared && (c.Shared || part.owner() != part.Key) {
			demand = e.entry.d.demandOf(part.owner())
		}
		for i := range part.Replicas {
			r := &part.Replicas[i]
			switch l := (listedReplica{r, r.ID, 0, part, demand, limit}); part.roleOf(r) {
			case part.Entry:
				entry = l.appendRanks(entry)
			case part.Prefill:
				prefill = append(prefill, l)
			default:
				if part.encodes(r) {
					encode = append(encode, l)
				}
			}
		}
	}
	e.entry.memory.declared, e.prefill.memory.declared = declared, declared
	e.entry.replace(entry)
	e.prefill.replace(prefill)
	e.encode.replace(encode)
}

// clear lets the endpoints go; those that are busy stay until they are idle.
func (e *endpoints) clear() {
	for _, s := range e.sets() {
		s.replace(nil)
	}
}

// recount counts the endpoints again, after some have changed for all pools.
func (e *endpoints) recount() {
	for _, s := range e.sets() {
		s.recount()
	}
}

// refresh shows the picker one endpoint as it is now.
func (e *endpoints) refresh(id string) {
	for _, s := range e.sets() {
		if n, ok := s.byID[id]; ok {
			s.refresh(s.slots[n])
		}
	}
}

// sharers are the pools that have some of the endpoints, this one among them.
func (e *endpoints) sharers() map[*pool]bool {
	out := map[*pool]bool{}
	for _, s := range e.sets() {
		for _, n := range s.shared {
			for _, p := range s.slots[n].endpoint.listedBy() {
				out[p] = true
			}
		}
	}
	return out
}

// usePrompts reports whether prompts make a difference to where requests go.
func (e *endpoints) usePrompts() bool {
	return e.entry.memory.prompts != nil && len(e.entry.byID)+len(e.prefill.byID) > 1
}

// wantPrefill reports whether a prompt is for a prefill replica to compute, of
// which so many tokens are new to the replica that answers, one of part's. The
// prefill replica must be part's too: engines of another service may have
// another model.
func (e *endpoints) wantPrefill(part *PoolConfig, uncached int64) bool {
	if e.prefill.onlyService = nil; e.entry.pool.ref.Pool {
		e.prefill.onlyService = &part.Key
	}
	least := cmp.Or(e.entry.pool.config.Load().Bounds.PrefillTokens, e.entry.d.cfg.PrefillTokens)
	return e.prefill.ready > 0 && (uncached >= least || part.Disaggregation == service.DisaggregationSGLang)
}

// reservePrefill gives g a place on a prefill replica if one is to help.
func (e *endpoints) reservePrefill(g *Grant, now time.Time) {
	g.prefillAddress, g.prefillGRPC = "", ""
	if g.alone || !e.wantPrefill(g.config, g.reservation.uncached) || g.ordered && g.config.Disaggregation != service.DisaggregationSGLang {
		return // an external picker says itself who computes the prompt
	}
	subset := g.subset
	g.subset = nil // it names those that may answer
	if x, _ := e.prefill.pick(g, nil, now); x != nil {
		g.reservation.prefill, g.prefillAddress, g.prefillGRPC = x, x.address, x.grpc
		x.endpoint.tokens.Add(g.reservation.uncached)
		e.prefill.refresh(x)
	}
	g.subset = subset
}

// release gives a request's places back.
func (e *endpoints) release(r *reservation) (f freedEndpoints) {
	f = e.releasePrompt(r)
	r.endWait(false)
	x := r.slot
	r.slot = nil
	if own := e.entry.release(x); own != nil {
		f.own = [2]*endpoint{own, f.own[0]}
	}
	return f
}

// releasePrompt ends what a request has before its answer begins: its tokens,
// and its places on the prefill replica and on encoders.
func (e *endpoints) releasePrompt(r *reservation) (f freedEndpoints) {
	r.slot.endpoint.tokens.Add(-r.uncached)
	e.entry.refresh(r.slot)
	f.own[0] = e.releasePrefill(r)
	f.encoders = e.releaseEncoders(r)
	r.uncached = 0
	return f
}

// releasePrefill gives the place on the prefill replica back, if there is one.
func (e *endpoints) releasePrefill(r *reservation) *endpoint {
	x := r.prefill
	if r.prefill = nil; x == nil {
		return nil
	}
	x.endpoint.tokens.Add(-r.uncached)
	return e.prefill.release(x)
}

// list appends the endpoints that are not among seen.
func (e *endpoints) list(out []Endpoint, seen map[string]bool) []Endpoint {
	for _, s := range e.sets() {
		for n, x := range s.slots {
			if x == nil || seen[x.endpoint.id] {
				continue
			}
			seen[x.endpoint.id] = true
			s.refresh(x)
			ep := &s.input.Endpoints[n]
			one := Endpoint{ID: x.endpoint.id, Replica: x.endpoint.server.replica, Role: x.config.Entry, Phase: x.phase, Address: x.address, Rank: x.rank, GRPC: x.grpc, Protocol: x.config.Protocol,
				InFlight: ep.InFlight, Limit: x.limit, Tokens: ep.Tokens, Open: ep.Open, Ejected: x.endpoint.breaker.ejected(), Message: x.message, Load: ep.Load, Record: x.endpoint.record.now()}
			if !x.config.Shared {
				one.Service = x.config.owner()
			}
			if s == &e.prefill {
				one.Role = x.config.Prefill
			} else if s == &e.encode {
				one.Role = service.RoleEncode
			}
			if m := s.memory.prompts; m != nil {
				one.Blocks = m.Blocks(n)
			}
			out = append(out, one)
		}
	}
	return out
}

// endpointSet is the endpoints of one role that a pool picks from. The pool's
// mutex guards it.
type endpointSet struct {
	d      *Dispatcher
	pool   *pool          // in whose name it lists endpoints
	slots  []*slot        // by number, which is the picker's; nil where one is free
	byID   map[string]int // slot numbers
	shared []int          // slots whose endpoint other pools have too, or whose limit other ranks
	// byAddress finds slots by either of their addresses, which the ranks of a replica
	// share; made when asked for.
	byAddress map[string][]int
	ready     int // how many serve, busy or not
	alive     int // how many serve or will

	policy       *picker.Policy
	memory       memory
	input        picker.Input // in.Endpoints are the slots'
	choice       picker.Choice
	onlyService  *service.Key  // whose endpoints are chosen from; nil for all
	alternative  picker.Choice // of Grant.Alternatives
	learner      learner       // has a lock of its own, beside the pool's
	allowedCount int           // how many endpoints the last request's subset has here
	cachedBlocks int           // leading blocks of the last request that its endpoint held
	// generation counts the changes of the slots; 0 is none's.
	generation uint64
	eligible   picker.Set // that may be given a request that waits
}

// replace makes these the set's endpoints. Those that stay keep their slots.
func (s *endpointSet) replace(all []listedReplica) {
	s.generation++
	gone := s.byID
	s.byID = make(map[string]int, len(all))
	s.byAddress = nil
	var fresh []listedReplica
	for _, l := range all {
		n, ok := gone[l.id]
		if !ok {
			fresh = append(fresh, l)
			continue
		}
		delete(gone, l.id)
		s.byID[l.id] = n
		s.update(s.slots[n], l)
	}
	for _, n := range gone {
		s.d.endpoints.leave(s.slots[n].endpoint, s.pool)
		s.slots[n], s.input.Endpoints[n] = nil, picker.Endpoint{}
		s.memory.forget(n)
	}
	n := 0
	for _, l := range fresh {
		if _, twice := s.byID[l.id]; twice {
			continue
		}
		for n < len(s.slots) && s.slots[n] != nil {
			n++
		}
		if n == len(s.slots) {
			s.slots = append(s.slots, nil)
			s.input.Endpoints = append(s.input.Endpoints, picker.Endpoint{})
			s.memory.residency = append(s.memory.residency, nil)
		}
		x := &slot{set: s, number: n, endpoint: s.d.endpoints.join(l.id, l.ID, s.pool)}
		s.slots[n], s.byID[l.id] = x, n
		s.update(x, l)
	}
	s.recount()
}

// update takes a new configuration. A process that has just become ready starts with a
// clean record and knows no prompts.
func (s *endpointSet) update(x *slot, l listedReplica) {
	address, rank := l.place()
	if l.Serving() && (x.phase != l.Phase || x.address != address) {
		x.endpoint.breaker.reset()
		s.memory.forget(x.number)
	}
	x.phase, x.message, x.address, x.grpc, x.rank = l.Phase, l.Message, address, l.GRPC, rank
	if x.name = address; rank != "" {
		x.name = replica.RankID(address, l.rank)
	}
	x.limit, x.config, x.demand = l.limit, l.config, l.demand
	x.encodes = l.config.encodes(l.Replica)
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
		if x.mayServe() {
			s.alive++
		}
		if len(x.endpoint.listedBy()) > 1 || x.limit > 0 && x.endpoint.id != x.endpoint.server.replica {
			s.shared = append(s.shared, n)
		}
		s.refresh(x)
	}
}

// refresh shows the picker the endpoint as it is now.
func (s *endpointSet) refresh(x *slot) {
	if s.slots[x.number] != x { // of a request from before the endpoint left; it may be listed anew
		n, ok := s.byID[x.endpoint.id]
		if !ok {
			return
		}
		x = s.slots[n]
	}
	ep := &s.input.Endpoints[x.number]
	n := int(x.endpoint.inFlight.Load())
	if ep.Name != x.name {
		ep.Name, ep.Hash = x.name, picker.NameHash(x.name)
	}
	ep.InFlight, ep.Tokens = n, x.endpoint.tokens.Load()
	ep.Open = x.accepts() && !x.full()
	if now := x.endpoint.report.Load(); now != x.report {
		x.report = now
		l := now.load
		if l != nil && (ep.Load == nil || l.At.Sub(ep.Load.At) >= s.policy.Config().Stale) {
			ep.Heard = l.At
		}
		ep.Load, ep.AtLoad = l, now.inFlight
		if l != nil {
			s.memory.observe(x.number, l, x.endpoint.events.Load())
		}
	}
	ep.Resident = s.memory.residency[x.number]
}

// refreshShared does so with those endpoints that other pools use too.
func (s *endpointSet) refreshShared() {
	for _, n := range s.shared {
		s.refresh(s.slots[n])
	}
}

// at are the slots of an address: more than one where ranks share it.
func (s *endpointSet) at(address string) []int {
	if s.byAddress == nil {
		s.byAddress = make(map[string][]int, len(s.slots))
		for n, x := range s.slots {
			if x == nil {
				continue
			}
			s.byAddress[x.address] = append(s.byAddress[x.address], n)
			if x.grpc != x.address {
				s.byAddress[x.grpc] = append(s.byAddress[x.grpc], n)
			}
		}
	}
	if address == "" {
		return nil
	}
	return s.byAddress[address]
}

// lookup is the slot of an address, of ranks the one with the fewest requests; nil
// when there is none.
func (s *endpointSet) lookup(address string) (best *slot) {
	for _, n := range s.at(address) {
		x := s.slots[n]
		if best == nil || x.accepts() && (!best.accepts() || x.endpoint.inFlight.Load() < best.endpoint.inFlight.Load()) {
			best = x
		}
	}
	return best
}

// lookupRank is the slot of a rank at an address; nil when there is none.
func (s *endpointSet) lookupRank(address, rank string) *slot {
	for _, n := range s.at(address) {
		if s.slots[n].rank == rank {
			return s.slots[n]
		}
	}
	return nil
}

// release gives a place back; it returns the endpoint if other pools have use for it.
func (s *endpointSet) release(x *slot) *endpoint {
	x.endpoint.release()
	s.refresh(x)
	ps := x.endpoint.listedBy()
	if len(ps) == 0 {
		s.d.endpoints.forgetIdle(x.endpoint)
		return nil
	}
	if len(ps) > 1 || ps[0] != s.pool {
		return x.endpoint
	}
	return nil
}

// load is what the saturation of an endpoint is worked out from.
func (s *endpointSet) load(x *slot) admission.Endpoint {
	ep := &s.input.Endpoints[x.number]
	n := int(x.endpoint.inFlight.Load())
	return admission.Endpoint{Load: ep.Load, InFlight: n, Others: int(x.endpoint.server.inFlight.Load()) - n, AtLoad: ep.AtLoad, Limit: x.limit}
}

// saturation is the least of the endpoints', or of those among; nil is all. 0
// without any. Where the policy sheds by itself only places count.
func (s *endpointSet) saturation(c *admission.Config, among picker.Set, now time.Time) float64 {
	least, some := 0.0, false
	for n, x := range s.slots {
		if x == nil || !x.accepts() || among != nil && !among.Has(n) {
			continue
		}
		e := s.load(x)
		if s.policy.Sheds() {
			e.Load = nil
		}
		if v := c.Saturation(&e, now); !some || v < least {
			least, some = v, true
		}
	}
	return least
}
