package dispatch

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/breaker"
)

// circuit is an endpoint's circuit breaker. Ejections are ended by timers and
// not by comparing times, so that a clock that jumps cannot keep an endpoint
// out.
type circuit struct {
	// gate, tendency and well are what is read without the mutex. well reports
	// whether an answer would change nothing.
	gate     atomic.Int32
	tendency atomic.Int32
	well     atomic.Bool

	recalls atomic.Bool // a timer to try the ejected others runs

	mu    sync.Mutex
	state breaker.Circuit
	round uint64 // of its ejections and trials
}

// The gates of a circuit.
const (
	gateClosed  int32 = iota // requests pass
	gateOpen                 // none does
	gateTrial                // one may
	gateOnTrial              // one did, and has no answer yet
)

// The tendencies of an endpoint's answers.
const (
	unheard int32 = iota
	answering
	refusing
)

// allows reports whether a request may be sent.
func (c *circuit) allows() bool {
	g := c.gate.Load()
	return g == gateClosed || g == gateTrial
}

// setState makes s the circuit's state; the mutex is held.
func (c *circuit) setState(s breaker.Circuit) {
	if s.State != c.state.State {
		c.round++
		c.gate.Store([...]int32{breaker.Closed: gateClosed, breaker.Open: gateOpen, breaker.Trial: gateTrial}[s.State])
	} else if s.State == breaker.Trial { // its request has an answer
		c.gate.Store(gateTrial)
	}
	c.state = s
	c.well.Store(s.Well())
	switch {
	case s.Refuses():
		c.tendency.Store(refusing)
	case s.Heard:
		c.tendency.Store(answering)
	default:
		c.tendency.Store(unheard)
	}
}

// endEjection ends the ejection of a round, unless that has ended already.
func (c *circuit) endEjection(round uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.round == round {
		c.setState(c.state.Rested())
	}
}

// recall ends an ejection, unless the endpoint asked for it.
func (c *circuit) recall() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.Last != breaker.Busy {
		c.setState(c.state.Rested())
	}
}

// spared reports whether the endpoint fails and is not ejected.
func (c *circuit) spared(p breaker.Peers, cfg breaker.Config) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.Spared(p, cfg)
}

// reset gives a process that has just become ready a clean record.
func (c *circuit) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.round++
	c.setState(breaker.Circuit{})
}

// ejected returns why the endpoint gets no requests; "" when it gets them.
func (c *circuit) ejected() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.state
	switch {
	case s.State == breaker.Closed:
		return ""
	case s.Last == breaker.Busy:
		return "it is busy"
	case s.Last == breaker.Silent:
		return "it has requests and answers none"
	case s.Last == breaker.Lost:
		return "it gave no answer"
	}
	return fmt.Sprintf("it %s %d requests in a row", s.Last, s.Failures)
}

// silence tells an endpoint that takes requests and answers none from one that
// has nothing to do.
type silence struct {
	awaiting atomic.Int64  // requests there whose answers have not begun
	answers  atomic.Uint64 // that have begun
	idle     atomic.Uint64 // times that awaiting fell to 0
	watched  atomic.Bool   // a timer runs
}

// observe tells the breaker of x's endpoint what became of a request there, and returns
// the states that this led from and to.
func (s *endpointSet) observe(x *slot, r breaker.Result, retryAfter time.Duration) (from, to breaker.State) {
	c, e := &x.endpoint.breaker, x.endpoint
	if r != breaker.Answered { // which FirstByte counts
		e.record.results[r].Add(1)
	}
	if lost := s.d.cfg.Lost; lost != nil && (r == breaker.Lost || r == breaker.Silent) {
		s.d.clock.AfterFunc(0, func() { lost(e.server.replica) }) // no mutex is held then
	}
	if r == breaker.Answered && c.well.Load() {
		return breaker.Closed, breaker.Closed
	}
	var peers breaker.Peers
	if r != breaker.Answered && r != breaker.Lost { // which are the endpoint's own
		if peers = s.peers(x); s != &s.pool.entry {
			peers.Serving = math.MaxInt32 // the pool can do without: all of them may rest
		}
	}
	c.mu.Lock()
	before := c.gate.Load()
	from = c.state.State
	next, ejection := c.state.After(r, retryAfter, peers, s.d.cfg.Breaker)
	c.setState(next)
	gate, round := c.gate.Load(), c.round
	c.mu.Unlock()
	if next.Spared(peers, s.d.cfg.Breaker) {
		s.recallOthers(x)
	}
	if gate == before {
		return from, next.State
	}
	s.refresh(x)
	switch {
	case ejection > 0:
		s.d.clock.AfterFunc(ejection, func() {
			c.endEjection(round)
			e.notifyPools()
		})
	case c.allows():
		s.d.clock.AfterFunc(0, e.notifyPools) // which takes pools' mutexes
	}
	return from, next.State
}

// acquit takes back what is held against a helper.
func (s *endpointSet) acquit(b blame) {
	c, e := &b.helper.endpoint.breaker, b.helper.endpoint
	c.mu.Lock()
	before := c.gate.Load()
	c.setState(c.state.Acquitted(b.before, b.after, s.d.cfg.Breaker))
	gate := c.gate.Load()
	c.mu.Unlock()
	if gate == before {
		return
	}
	if s.refresh(b.helper); c.allows() {
		s.d.clock.AfterFunc(0, e.notifyPools)
	}
}

// recallOthers tries the ejected others, a while from now, if x is spared for their
// sake then too.
func (s *endpointSet) recallOthers(x *slot) {
	c := &x.endpoint.breaker
	if !c.recalls.CompareAndSwap(false, true) {
		return
	}
	s.d.clock.AfterFunc(s.d.cfg.Breaker.Rest, func() {
		c.recalls.Store(false)
		for _, e := range s.ejectedBeside(x) {
			e.breaker.recall()
			e.notifyPools()
		}
	})
}

// ejectedBeside are the ejected endpoints for whose sake x is spared.
func (s *endpointSet) ejectedBeside(x *slot) (es []*endpoint) {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if !x.endpoint.breaker.spared(s.peers(x), s.d.cfg.Breaker) {
		return nil
	}
	for _, y := range s.slots {
		if y != nil && y.serves() && y.endpoint.breaker.gate.Load() == gateOpen {
			es = append(es, y.endpoint)
		}
	}
	return es
}

// peers are the endpoints of the set that serve, apart from x's.
func (s *endpointSet) peers(x *slot) (p breaker.Peers) {
	for _, y := range s.slots {
		if y == nil || !y.serves() {
			continue
		}
		p.Serving++
		if y.endpoint == x.endpoint {
			continue
		}
		c := &y.endpoint.breaker
		if c.gate.Load() != gateClosed {
			p.Ejected++
		}
		switch c.tendency.Load() {
		case refusing:
			p.Refusing++
		case answering:
			p.Answering++
		}
	}
	return p
}

// await notes that a request waits for an answer of x's endpoint.
func (s *endpointSet) await(x *slot) {
	x.endpoint.silence.awaiting.Add(1)
	if x.endpoint.silence.watched.CompareAndSwap(false, true) {
		s.watch(x)
	}
}

// watch looks now and then, while an endpoint owes answers, at whether any
// has begun, and whether others of the set have answered meanwhile: where none
// has, the requests are what takes long.
func (s *endpointSet) watch(x *slot) {
	q := &x.endpoint.silence
	answers, idle, others := q.answers.Load(), q.idle.Load(), s.answers(x)
	s.d.clock.AfterFunc(s.d.cfg.Breaker.Silence, func() {
		s.pool.mu.Lock()
		defer s.pool.mu.Unlock()
		if q.awaiting.Load() == 0 {
			if q.watched.Store(false); q.awaiting.Load() == 0 || !q.watched.CompareAndSwap(false, true) {
				return
			}
		}
		if q.answers.Load() == answers && q.idle.Load() == idle && s.answers(x) != others {
			s.observe(x, breaker.Silent, 0)
		}
		s.watch(x)
	})
}

// answers is how many answers of the set's endpoints but x's have begun.
func (s *endpointSet) answers(x *slot) (n uint64) {
	for _, y := range s.slots {
		if y != nil && y.endpoint != x.endpoint {
			n += y.endpoint.silence.answers.Load()
		}
	}
	return n
}
