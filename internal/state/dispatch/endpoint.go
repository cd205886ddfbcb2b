package dispatch

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/decide/breaker"
)

// server is what the data-parallel ranks of a replica have in common, and a replica
// without ranks alone.
type server struct {
	replica string // its ID
	// inFlight are the requests of all ranks: a limit holds for the replica.
	inFlight atomic.Int64
	ranks    []*endpoint // in no order; the registry's mutex guards it
}

// endpoint is one replica, one data-parallel rank of it, or one server by its address,
// as all the pools that list it share it: what is in flight there counts whichever pool it came
// through.
type endpoint struct {
	id       string
	server   *server // the replica, of which it may be a data-parallel rank
	registry *registry
	inFlight atomic.Int64 // >= 0
	// tokens are the uncached prompt tokens of the requests in flight that
	// have not begun to answer.
	tokens atomic.Int64
	report atomic.Pointer[loadReport]
	// draining stays set unless the replica, put to sleep, is woken.
	draining atomic.Bool
	breaker  circuit
	silence  silence
	record   record
	// events: its engine tells what its prefix cache holds.
	events atomic.Bool
	// pools are those that list it. The slice is replaced, not changed.
	pools atomic.Pointer[[]*pool]
	turn  atomic.Uint32 // which pool is told of a change first

	mu   sync.Mutex
	idle chan struct{} // closed when inFlight falls to 0; nil when nobody waits
}

// record is what became of the requests that were sent to an endpoint.
type record struct {
	results [breaker.Silent + 1]atomic.Uint64
	// firstBytes and seconds are how many answers have begun, and the sum of how long
	// that took, in nanoseconds.
	firstBytes, seconds atomic.Uint64
}

// answered notes that an answer began so long after it was asked for.
func (r *record) answered(after time.Duration) {
	r.results[breaker.Answered].Add(1)
	r.firstBytes.Add(1)
	r.seconds.Add(uint64(max(0, after)))
}

// now is the record at this moment.
func (r *record) now() (out Record) {
	for i := range r.results {
		if n := r.results[i].Load(); n > 0 {
			if out.Results == nil {
				out.Results = map[string]uint64{}
			}
			out.Results[breaker.Result(i).String()] = n
		}
	}
	out.FirstBytes = r.firstBytes.Load()
	out.Seconds = time.Duration(r.seconds.Load()).Seconds()
	return out
}

// loadReport is what an endpoint has said of itself.
type loadReport struct {
	load *replica.Load
	// inFlight is how many of our requests it had then.
	inFlight int
}

// reserve takes a place if the endpoint's server has fewer than limit requests (0: any
// number) and the endpoint is not draining.
func (e *endpoint) reserve(limit int) bool {
	for {
		n := e.server.inFlight.Load()
		if limit > 0 && n >= int64(limit) {
			return false
		}
		if e.server.inFlight.CompareAndSwap(n, n+1) {
			break
		}
	}
	e.inFlight.Add(1)
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
	e.server.inFlight.Add(-1)
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

// drain closes the endpoint. The channel is closed once it has
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

// claim takes a place for a request, unless the endpoint's limit or its breaker
// forbids that. An endpoint on trial takes one.
func (e *endpoint) claim(limit int) bool {
	if !e.reserve(limit) {
		return false
	}
	switch e.breaker.gate.Load() {
	case gateClosed:
		return true
	case gateTrial:
		if e.try() {
			return true
		}
	}
	e.release()
	return false
}

// try has one request try the endpoint. Others may do so when it has no answer
// after a while.
func (e *endpoint) try() bool {
	c := &e.breaker
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gate.CompareAndSwap(gateTrial, gateOnTrial) {
		return false
	}
	round, patience := c.round, e.registry.breaker.Trial
	if c.state.Last == breaker.Silent { // each request sent there may be lost
		patience = e.registry.breaker.Silence
	}
	e.registry.clock.AfterFunc(patience, func() {
		c.mu.Lock()
		retry := c.round == round && c.gate.CompareAndSwap(gateOnTrial, gateTrial)
		c.mu.Unlock()
		if retry {
			e.notifyPools()
		}
	})
	return true
}

// notifyPools tells every pool that lists the endpoint that it has changed, each
// time another one first. No pool's mutex is held.
func (e *endpoint) notifyPools() {
	ps := e.listedBy()
	first := int(e.turn.Add(1))
	for i := range ps {
		ps[(first+i)%len(ps)].endpointChanged(e)
	}
}

// registry holds the endpoints of all pools, and those that no pool lists any
// more while they are busy.
type registry struct {
	clock   Clock
	breaker breaker.Config

	mu      sync.Mutex
	byID    map[string]*endpoint
	servers map[string]*server // by the replica's ID; each has an endpoint
}

// join adds p to those that list an endpoint of a replica, which is made if need be.
func (r *registry) join(id, replica string, p *pool) *endpoint {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.byID[id]
	if e == nil {
		s := r.servers[replica]
		if s == nil {
			s = &server{replica: replica}
			r.servers[replica] = s
		}
		e = &endpoint{id: id, server: s, registry: r}
		s.ranks = append(s.ranks, e)
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
		s := e.server
		if s.ranks = slices.DeleteFunc(s.ranks, func(o *endpoint) bool { return o == e }); len(s.ranks) == 0 {
			delete(r.servers, s.replica)
		}
	}
}

func (r *registry) get(id string) *endpoint {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byID[id]
}

// of are the endpoints of a replica, itself or its ranks, or the endpoint of that ID;
// none where there is none.
func (r *registry) of(id string) []*endpoint {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.servers[id]; s != nil {
		return slices.Clone(s.ranks)
	}
	if e := r.byID[id]; e != nil {
		return []*endpoint{e}
	}
	return nil
}

// among reports whether one of tried is of the endpoint's server.
func (e *endpoint) among(tried []*endpoint) bool {
	return slices.ContainsFunc(tried, func(o *endpoint) bool { return o.server == e.server })
}
