package dispatch

import (
	"container/list"
	"context"
	"fmt"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/route"
)

// pool is the live state of one service. mu guards everything below it and is
// never held while something is waited for.
type pool struct {
	d  *Dispatcher
	id string // "namespace/name"

	mu        sync.Mutex
	facts     *Pool
	endpoints []*endpoint          // of the entry role, in the order of the facts
	byID      map[string]*endpoint // those and what is gone but still busy
	next      int                  // where the next pick starts, so that ties rotate
	closed    string               // why no request is taken any more; "" while open

	queue       list.List // of *waiter, oldest first
	queuedBytes int64

	load    load
	reports reports
	waking  waking
}

// waiter is a request in the queue.
type waiter struct {
	g     *Grant
	since time.Time
	place *list.Element // nil once it has left the queue
	// left receives nil once g holds a place, else why it never will. Its
	// buffer of one is filled exactly once, by whoever takes the waiter out of
	// the queue.
	left chan error
}

func newPool(d *Dispatcher, id string) *pool {
	p := &pool{d: d, id: id, facts: &Pool{}, byID: map[string]*endpoint{}, next: -1}
	p.load.since = d.clock.Now()
	p.reports.turn = make(chan struct{}, 1)
	return p
}

func (p *pool) host() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.facts.Host
}

// set replaces the facts and lets go on whoever can.
func (p *pool) set(f *Pool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.d.clock.Now()
	p.facts = f
	for _, e := range p.endpoints {
		e.gone = true
	}
	p.endpoints = p.endpoints[:0:0]
	for _, r := range f.entries() {
		e := p.byID[r.ID]
		if e == nil {
			e = &endpoint{id: r.ID}
			p.byID[r.ID] = e
		}
		e.update(r)
		p.endpoints = append(p.endpoints, e)
	}
	for id, e := range p.byID {
		if e.gone && e.inFlight == 0 {
			delete(p.byID, id)
		}
	}
	if p.alive() > 0 {
		p.waking.started()
	}
	p.pump(now)
	if why := p.hopeless(); why != "" {
		p.flush(why, 0, now)
	}
	p.wakeIfNeeded()
}

// remove refuses all waiting and later requests and says whether some are
// still in flight.
func (p *pool) remove(why string) (busy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = why
	p.flush(why, 0, p.d.clock.Now())
	return p.load.running > 0
}

// admit gives g a place, now or after waiting.
func (p *pool) admit(ctx context.Context, g *Grant) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.mu.Lock()
	now := p.d.clock.Now()
	if p.closed == "" && p.queue.Len() == 0 {
		if e := p.pick(now, nil); e != nil {
			p.load.arrive(now)
			p.reserve(g, e, now)
			p.changed(now, false)
			p.mu.Unlock()
			return nil
		}
	}
	if err := p.refuse(g); err != nil {
		p.mu.Unlock()
		return err
	}
	p.load.arrive(now)
	w := p.enqueue(g, now, false)
	p.mu.Unlock()
	return p.wait(ctx, w)
}

// refuse says why g may not wait.
func (p *pool) refuse(g *Grant) error {
	if p.closed != "" {
		return p.unavailable(p.closed, nil)
	}
	if why := p.hopeless(); why != "" {
		return p.unavailable(why, nil)
	}
	cfg, n := p.d.cfg, p.queue.Len()
	if n >= cfg.MaxQueue {
		return p.busy(fmt.Sprintf("%d requests are waiting, as many as may", n))
	}
	if p.queuedBytes+g.bytes > cfg.MaxQueueBytes {
		return p.busy(fmt.Sprintf("waiting requests hold %d bytes, with this one's %d more than the %d that may wait",
			p.queuedBytes, g.bytes, cfg.MaxQueueBytes))
	}
	return nil
}

// hopeless says why waiting makes no sense; "" when it does.
func (p *pool) hopeless() string {
	if !p.facts.Cause.Permanent {
		return ""
	}
	for _, e := range p.endpoints {
		if e.ready() {
			return ""
		}
	}
	return p.facts.Cause.text()
}

// pick chooses, among the replicas that are open and not in tried, one with
// the fewest requests in flight; nil if there is none. Ties rotate, from a
// random start so that several gateways do not move in step.
func (p *pool) pick(now time.Time, tried []*endpoint) *endpoint {
	n := len(p.endpoints)
	if n == 0 {
		return nil
	}
	if p.next < 0 {
		p.next = p.d.random(n)
	}
	var best *endpoint
	at, limit := p.next%n, p.facts.Limits.MaxConcurrency
	chosen := at
	for range n {
		e := p.endpoints[at]
		if (best == nil || e.inFlight < best.inFlight) && e.open(limit, now) && !hasTried(tried, e) {
			best, chosen = e, at
			if e.inFlight == 0 {
				break
			}
		}
		if at++; at == n {
			at = 0
		}
	}
	if best != nil {
		p.next = chosen + 1
	}
	return best
}

// reserve puts g, counted as queued, in flight on e.
func (p *pool) reserve(g *Grant, e *endpoint, now time.Time) {
	p.load.start(now)
	e.inFlight++
	g.at, g.replica, g.address, g.grpc, g.facts = e, e.id, e.address, e.grpc, p.facts
}

// release takes g off its replica; it is counted as queued again until it is
// reserved or settled.
func (p *pool) release(g *Grant, now time.Time) {
	e := g.at
	g.at = nil
	p.load.stop(now)
	e.inFlight--
	if e.inFlight > 0 {
		return
	}
	if e.idle != nil {
		close(e.idle)
		e.idle = nil
	}
	if e.gone {
		delete(p.byID, e.id)
	}
}

// settle counts g, off its replica and out of the queue, as done.
func (p *pool) settle(g *Grant, now time.Time) {
	if g.settled {
		return
	}
	g.settled = true
	p.load.finish(now)
	p.changed(now, false)
}

// fail makes a replica suspect and sees that the queue moves on afterwards.
func (p *pool) fail(e *endpoint, now time.Time) {
	d := e.suspect(p.d.cfg, now)
	p.d.clock.AfterFunc(d, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.pump(p.d.clock.Now())
	})
}

// enqueue makes g wait, before all others if first.
func (p *pool) enqueue(g *Grant, now time.Time, first bool) *waiter {
	if g.deadline.IsZero() {
		g.deadline = now.Add(p.budget())
	}
	w := &waiter{g: g, since: now, left: make(chan error, 1)}
	if first {
		w.place = p.queue.PushFront(w)
	} else {
		w.place = p.queue.PushBack(w)
	}
	p.queuedBytes += g.bytes
	p.changed(now, p.queue.Len() == 1)
	p.wakeIfNeeded()
	return w
}

func (p *pool) budget() time.Duration {
	if t := p.facts.Limits.StartupTimeout; t > 0 {
		return min(t, p.d.cfg.MaxWait)
	}
	return p.d.cfg.MaxWait
}

// wait blocks until w has left the queue, at its deadline at the latest.
func (p *pool) wait(ctx context.Context, w *waiter) error {
	stop := p.d.clock.AfterFunc(w.g.deadline.Sub(w.since), func() { p.expire(w) })
	defer stop()
	select {
	case err := <-w.left:
		return err
	case <-ctx.Done():
		return p.abandon(w, ctx.Err())
	}
}

// expire ends the waiting of w with what stands in its way.
func (p *pool) expire(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.place == nil {
		return
	}
	now := p.d.clock.Now()
	err := p.unavailable(fmt.Sprintf("no replica took the request within %v: %s", p.budget(), p.obstacle()), p.waking.err)
	err.RetryAfter = p.retryAfter()
	p.leave(w, now, err)
	p.settle(w.g, now)
}

// abandon takes w out because its client is gone; a place it was given just
// now goes to the next.
func (p *pool) abandon(w *waiter, why error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.d.clock.Now()
	if w.place != nil {
		p.leave(w, now, why)
	}
	if w.g.at != nil {
		p.release(w.g, now)
	}
	p.settle(w.g, now)
	p.pump(now)
	return why
}

// leave takes w out of the queue and tells it why.
func (p *pool) leave(w *waiter, now time.Time, why error) {
	p.queue.Remove(w.place)
	w.place = nil
	p.queuedBytes -= w.g.bytes
	w.g.waited += now.Sub(w.since)
	w.left <- why
}

// pump hands free places to the oldest waiting requests.
func (p *pool) pump(now time.Time) {
	for p.queue.Len() > 0 {
		e := p.pick(now, nil)
		if e == nil {
			return
		}
		w := p.queue.Front().Value.(*waiter)
		p.reserve(w.g, e, now)
		p.leave(w, now, nil)
		p.changed(now, false)
	}
}

// flush ends the waiting of all.
func (p *pool) flush(why string, retryAfter time.Duration, now time.Time) {
	for p.queue.Len() > 0 {
		w := p.queue.Front().Value.(*waiter)
		err := p.unavailable(why, nil)
		err.RetryAfter = retryAfter
		p.leave(w, now, err)
		p.settle(w.g, now)
	}
}

// obstacle says what the waiting requests wait for.
func (p *pool) obstacle() string {
	state, message := p.facts.state()
	switch {
	case state == StateReady:
		return fmt.Sprintf("every ready replica is at its limit of %d requests or has just failed", p.facts.Limits.MaxConcurrency)
	case state == StateAsleep && p.waking.err != nil:
		return "it could not be started: " + p.waking.err.Error()
	case state == StateAsleep:
		return "it was asked to start, and no replica has appeared"
	default:
		return message
	}
}

// retryAfter estimates when the queue has moved: a request's mean time here,
// in whole seconds from 1 to 60.
func (p *pool) retryAfter() time.Duration {
	mean := 0.0
	if p.load.done > 0 {
		mean = p.load.seconds / float64(p.load.done)
	}
	return time.Duration(min(max(mean, 1), 60)) * time.Second
}

func (p *pool) busy(message string) *Error {
	return &Error{Kind: ErrBusy, Pool: p.id, Message: message, RetryAfter: p.retryAfter()}
}

func (p *pool) unavailable(message string, cause error) *Error {
	return &Error{Kind: ErrUnavailable, Pool: p.id, Message: message, Cause: cause}
}

// alive counts the replicas that serve or will.
func (p *pool) alive() (n int) {
	for _, e := range p.endpoints {
		if e.alive() {
			n++
		}
	}
	return n
}

func (p *pool) inFlight(id string) (n int, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.byID[id]; e != nil {
		return e.inFlight, true
	}
	return 0, false
}

// drain closes a replica to new requests. The channel is closed once it has
// none in flight; nil if the pool does not know it.
func (p *pool) drain(id string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.byID[id]
	if e == nil {
		return nil
	}
	e.draining = true
	p.wakeIfNeeded()
	if e.idle == nil {
		idle := make(chan struct{})
		if e.inFlight == 0 {
			close(idle)
			return idle
		}
		e.idle = idle
	}
	return e.idle
}

func (p *pool) status(t *route.Table) Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.d.clock.Now()
	s := Status{Pool: p.facts, Name: t.Name(p.facts.Key), Demand: p.load.demand(now),
		InFlight: make(map[string]int, len(p.byID))}
	s.State, s.Message = p.facts.state()
	if s.State == StateAsleep && p.queue.Len() > 0 {
		s.State, s.Message = StateLoading, p.obstacle()
	}
	for id, e := range p.byID {
		s.InFlight[id] = e.inFlight
	}
	return s
}
