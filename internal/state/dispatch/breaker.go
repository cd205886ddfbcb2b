package dispatch

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/breaker"
)

// circuit is an endpoint's circuit breaker. Ejections are ended by timers and
// not by comparing times, so that a clock that jumps cannot keep an endpoint
// out.
type circuit struct {
	// gate, tendency and well are what is read without the mutex. well says
	// that an answer would change nothing.
	gate     atomic.Int32
	tendency atomic.Int32
	well     atomic.Bool

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

// claim takes a place on an endpoint for a request, unless its limit or its
// breaker forbids that. An endpoint on trial takes one.
func (d *Dispatcher) claim(e *endpoint, limit int) bool {
	if !e.reserve(limit) {
		return false
	}
	c := &e.breaker
	switch c.gate.Load() {
	case gateClosed:
		return true
	case gateTrial:
		if d.try(e) {
			return true
		}
	}
	e.release()
	return false
}

// try has one request try an endpoint. Others may do so when it has no answer
// after a while.
func (d *Dispatcher) try(e *endpoint) bool {
	c := &e.breaker
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gate.CompareAndSwap(gateTrial, gateOnTrial) {
		return false
	}
	round, patience := c.round, d.cfg.Breaker.Trial
	if c.state.Last == breaker.Silent { // each request sent there may be lost
		patience = d.cfg.Breaker.Silence
	}
	d.clock.AfterFunc(patience, func() {
		c.mu.Lock()
		again := c.round == round && c.gate.CompareAndSwap(gateOnTrial, gateTrial)
		c.mu.Unlock()
		if again {
			e.notifyPools()
		}
	})
	return true
}

// observe tells the breaker of x's endpoint what became of a request there.
// The pool's mutex is held.
func (p *pool) observe(s *endpointSet, x *slot, r breaker.Result, asked time.Duration) {
	c, e := &x.endpoint.breaker, x.endpoint
	if lost := p.d.cfg.Lost; lost != nil && (r == breaker.Lost || r == breaker.Silent) {
		p.d.clock.AfterFunc(0, func() { lost(e.id) }) // no mutex is held then
	}
	if r == breaker.Answered && c.well.Load() {
		return
	}
	var peers breaker.Peers
	if r != breaker.Answered && r != breaker.Lost { // which are the endpoint's own
		peers = s.peers(x)
	}
	c.mu.Lock()
	before := c.gate.Load()
	next, rest := c.state.After(r, asked, peers, p.d.cfg.Breaker)
	c.setState(next)
	gate, round := c.gate.Load(), c.round
	c.mu.Unlock()
	if gate == before {
		return
	}
	s.refresh(x)
	switch {
	case rest > 0:
		p.d.clock.AfterFunc(rest, func() {
			c.endEjection(round)
			e.notifyPools()
		})
	case c.allows():
		p.d.clock.AfterFunc(0, e.notifyPools) // which takes pools' mutexes
	}
}

// peers are the endpoints of the set that serve, beside x's.
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

// Answer is what a replica answered that did not do the work.
type Answer struct {
	Result breaker.Result
	// RetryAfter is how long the replica asks to be left alone; 0 when it does
	// not say.
	RetryAfter time.Duration
	// Again reports that the request may be sent to another replica.
	Again bool
}

// Answered tells the breaker of an answer that did not do the work, before
// FirstByte. The prompt is not taken to be in the replica's cache. moved says
// that the request is on another replica now, to be sent again: if a says that
// it may be, the replica failed or is busy, another is ready, and the pool's
// budget for retries allows it. Otherwise the answer is the request's.
func (g *Grant) Answered(a Answer) (moved bool) {
	p := g.pool
	p.mu.Lock()
	if g.stage != running || g.answered || g.slot == nil {
		p.mu.Unlock()
		return false
	}
	now := p.d.clock.Now()
	g.judged = true
	from := g.cachedBlocks
	if a.Result == breaker.Failed {
		from = 0
		g.sent++
	}
	p.forgetPrompt(g, from)
	p.observe(&p.entry, g.slot, a.Result, a.RetryAfter)
	var x *slot
	if a.Again && (a.Result == breaker.Failed || a.Result == breaker.Busy) {
		x = p.pickAnother(g, now)
	}
	if x == nil {
		p.mu.Unlock()
		return false
	}
	freed := p.release(g)
	p.moveTo(g, queued, now)
	p.reserve(g, x, now)
	p.serveQueue(now)
	p.mu.Unlock()
	freed.notifyPools()
	return true
}

// pickAnother takes a place for g on an endpoint that it was not sent to; nil if
// there is none now, or it may not be sent again.
func (p *pool) pickAnother(g *Grant, now time.Time) *slot {
	if p.closed != "" || p.queue.Len() > 0 || g.sent >= p.sends(g) || len(g.tried)+1 >= p.d.cfg.MaxTries {
		return nil
	}
	if !p.budget.Allows(now) {
		p.counts.RetriesRefused++
		return nil
	}
	tried := append(slices.Clone(g.tried), g.slot.endpoint)
	x, _ := p.entry.pick(g, tried, now)
	if x == nil {
		return nil
	}
	g.tried = tried
	p.budget.Take(now)
	p.counts.Retries++
	return x
}

// sends is how many replicas may be sent g that then fail. One that may not be
// repeated goes to one other: it might be what breaks them, and each may have
// done a part of the work.
func (p *pool) sends(g *Grant) int {
	if g.idempotent {
		return p.d.cfg.MaxTries
	}
	return min(maxSends, p.d.cfg.MaxTries)
}

const (
	// maxSends is how many replicas a request that may not be repeated is sent
	// to.
	maxSends = 2
	// maxLost is how many replicas a request may be sent to whose connection
	// then ends before they answer, as it does when a request ends its server.
	maxLost = 2
)

// forgetPrompt forgets that the replica of g holds its prompt, but for so many
// leading blocks.
func (p *pool) forgetPrompt(g *Grant, from int) {
	s, n := &p.entry, g.slot.number
	if s.index != nil && g.hash != nil && from < len(g.hash.blocks) && s.slots[n] == g.slot {
		s.index.ForgetBlocks(n, g.hash.blocks[from:])
	}
}

// silence is by what an endpoint that takes requests and answers none is told
// from one that has nothing to do.
type silence struct {
	awaiting atomic.Int64  // requests there whose answers have not begun
	answers  atomic.Uint64 // that have begun
	idle     atomic.Uint64 // times that awaiting fell to 0
	watched  atomic.Bool   // a look is due
}

// await notes that g waits for an answer of its endpoint. The pool's mutex is
// held.
func (p *pool) await(g *Grant) {
	g.awaits = true
	s := &g.slot.endpoint.silence
	s.awaiting.Add(1)
	if s.watched.CompareAndSwap(false, true) {
		p.listen(g.slot)
	}
}

// begun notes that the answer has begun, or that g waits no longer.
func (g *Grant) begun(answered bool) {
	s := &g.slot.endpoint.silence
	if answered {
		s.answers.Add(1)
	}
	if !g.awaits {
		return
	}
	g.awaits = false
	if s.awaiting.Add(-1) == 0 {
		s.idle.Add(1)
	}
}

// listen looks again and again, while an endpoint owes answers, at whether any
// has begun, and whether others of the pool have answered meanwhile: where none
// has, the requests are what takes long. The pool's mutex is held.
func (p *pool) listen(x *slot) {
	s := &x.endpoint.silence
	answers, idle, others := s.answers.Load(), s.idle.Load(), p.entry.answers(x)
	p.d.clock.AfterFunc(p.d.cfg.Breaker.Silence, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if s.awaiting.Load() == 0 {
			if s.watched.Store(false); s.awaiting.Load() == 0 || !s.watched.CompareAndSwap(false, true) {
				return
			}
		}
		if s.answers.Load() == answers && s.idle.Load() == idle && p.entry.answers(x) != others {
			p.observe(&p.entry, x, breaker.Silent, 0)
		}
		p.listen(x)
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
