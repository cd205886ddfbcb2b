package dispatch

import (
	"context"
	"fmt"
	"math"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/admission"
)

// deadlineTimer is the timer of a pool's earliest deadline.
type deadlineTimer struct {
	at   time.Time // zero when not set
	stop func() bool
}

// startWaiting has g, already in the queue, wait.
func (p *pool) startWaiting(g *Grant, now time.Time) {
	g.since = now
	if g.result == nil {
		g.result = make(chan error, 1)
	}
	p.setTimer(now)
	p.wakeIfNeeded()
	p.wakeForBurst(g, now)
}

// wakeForBurst tells at once of a queue that has come to call for one replica more
// while none is ready, so that those of a burst start together.
func (p *pool) wakeForBurst(g *Grant, now time.Time) {
	m := p.scalable
	if m == nil || p.entry.ready > 0 {
		return
	}
	n := p.wantedReplicas(m)
	if n > max(p.wakes.wantedReplicas, 1) {
		p.demand.reportNow(now)
		g.memberDemand.reportNow(now)
	}
	p.wakes.wantedReplicas = n
}

// requeue makes g wait before all others of its priority.
func (p *pool) requeue(g *Grant, now time.Time) {
	if g.result == nil { // it has never waited before
		g.waiter.Deadline = now.Add(p.maxWait())
		if !g.until.IsZero() && g.until.Before(g.waiter.Deadline) {
			g.waiter.Deadline = g.until
		}
	}
	p.queue.Return(&g.waiter)
	p.startWaiting(g, now)
}

// maxWait is the longest a request waits.
func (p *pool) maxWait() time.Duration {
	d := p.d.cfg.MaxWait
	if w := p.config.Bounds.MaxWait; w > 0 {
		d = w
	}
	if m := p.scalable; m != nil && m.Limits.StartupTimeout > 0 {
		d = min(d, m.Limits.StartupTimeout)
	}
	return d
}

// setTimer sees that ring is called when the first deadline is over, and soon
// while requests are held, since what holds them fades with time.
func (p *pool) setTimer(now time.Time) {
	at := p.queue.Deadline()
	if at.IsZero() {
		return
	}
	if p.pacing {
		if soon := now.Add(p.d.cfg.ReportEvery); soon.Before(at) {
			at = soon
		}
	}
	a := &p.timer
	if a.stop != nil {
		if !at.Before(a.at) {
			return
		}
		a.stop()
	}
	a.at = at
	a.stop = p.d.clock.AfterFunc(max(0, at.Sub(now)), p.onTimer)
}

// onTimer ends the waiting of those whose deadline is over. While requests are
// held, it has their endpoints' loads read on.
func (p *pool) onTimer() {
	if p.expire() && p.d.cfg.Asked != nil {
		p.d.cfg.Asked(p.ref)
	}
}

// expire is ring's work with the pool; held reports whether requests are held.
func (p *pool) expire() (held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.d.clock.Now()
	p.timer = deadlineTimer{}
	for w := p.queue.Due(now); w != nil; w = p.queue.Due(now) {
		g := w.Owner.(*Grant)
		p.fail(g, p.timeoutError(g, w.Deadline.Sub(g.since)), now)
	}
	p.serveQueue(now)
	p.setTimer(now)
	return p.pacing
}

// wait blocks until g has left the queue.
func (p *pool) wait(ctx context.Context, g *Grant) error {
	select {
	case err := <-g.result:
		return err
	case <-ctx.Done():
		return p.cancel(g, ctx.Err())
	}
}

// cancel takes g out because its client is gone; a place it was given just
// now goes to the next.
func (p *pool) cancel(g *Grant, why error) error {
	p.mu.Lock()
	now := p.d.clock.Now()
	if g.waiter.Waiting() {
		p.queue.Leave(&g.waiter)
		g.waited += now.Sub(g.since)
	}
	var freed freedEndpoints
	if g.slot != nil {
		freed = p.release(g)
	}
	p.finish(g, now)
	p.serveQueue(now)
	p.mu.Unlock()
	freed.notifyPools()
	return why
}

// fail tells g, which has left the queue, that it gets no place.
func (p *pool) fail(g *Grant, why error, now time.Time) {
	g.waited += now.Sub(g.since)
	p.finish(g, now)
	g.result <- why
}

// timeoutError says why a request has waited in vain: ErrBusy if there are replicas
// that work, and others have had their places.
func (p *pool) timeoutError(g *Grant, waited time.Duration) *Error {
	why := p.waitReason()
	if g.failure != nil {
		why += "; the last try: " + g.failure.Error()
	}
	err := p.unavailableError(fmt.Sprintf("no replica took the request within %v: %s", waited.Round(time.Millisecond), why), p.wakes.err)
	for _, x := range p.entry.slots {
		if g.failure == nil && x != nil && x.serves() && x.endpoint.breaker.allows() {
			err.Kind, err.Cause = ErrBusy, nil
		}
	}
	err.RetryAfter, err.Reason = p.retryAfter(), admission.Overdue
	return err
}

// serveQueue hands free places to the waiting requests. It stops pacing them once
// nobody is held any more.
func (p *pool) serveQueue(now time.Time) {
	for p.queue.Len() > 0 {
		p.findEligible(now)
		if len(p.entry.eligible) == 0 {
			return
		}
		var x *slot
		var shed *Grant
		full := false
		w := p.queue.Next(
			func(w *admission.Waiter) bool { return p.entry.canReach(w.Owner.(*Grant)) },
			func(w *admission.Waiter) admission.Trial {
				g := w.Owner.(*Grant)
				var dropped bool
				switch x, dropped = p.entry.pick(g, nil, now); {
				case x != nil:
					return admission.Placed
				case dropped:
					shed = g
				case g.subset != nil:
					return admission.Blocked
				}
				full = true
				return admission.Full
			})
		switch {
		case w != nil:
			g := w.Owner.(*Grant)
			p.reserve(g, x, now)
			g.waited += now.Sub(g.since)
			g.result <- nil
		case shed != nil:
			p.counts.Dropped++
			p.queue.Leave(&shed.waiter)
			p.fail(shed, p.droppedError(), now)
		default:
			p.pacing = p.pacing && full
			return
		}
	}
	p.pacing = false
}

// failUnreachable ends the waiting of those whose every endpoint has gone.
func (p *pool) failUnreachable(now time.Time) {
	var lost []*Grant
	for w := range p.queue.All {
		if g := w.Owner.(*Grant); g.subset != nil {
			if p.entry.allowedSlots(g); p.entry.allowedCount == 0 && !g.openToAll() {
				lost = append(lost, g)
			}
		}
	}
	for _, g := range lost {
		p.queue.Leave(&g.waiter)
		p.fail(g, p.notAllowedError(g), now)
	}
}

// failQueue ends the waiting of all.
func (p *pool) failQueue(why string, now time.Time) {
	for w := p.queue.Drain(); w != nil; w = p.queue.Drain() {
		p.fail(w.Owner.(*Grant), p.refusedError(why), now)
	}
}

// waitReason says what the waiting requests wait for.
func (p *pool) waitReason() string {
	state, message := p.config.state()
	switch {
	case state == StateReady:
		return p.saturationReason()
	case state == StateAsleep && p.wakes.err != nil:
		return "it could not be started: " + p.wakes.err.Error()
	case state == StateAsleep:
		return "it was asked to start, and no replica has appeared"
	default:
		return message
	}
}

// saturationReason says what keeps ready replicas from taking requests.
func (p *pool) saturationReason() string {
	if p.holdsRequests() && !p.hasCapacity(p.d.clock.Now()) {
		c := p.queue.Config()
		return fmt.Sprintf("no ready replica has capacity: each has %g requests in its own queue, or %g of its KV memory in use, or more", c.QueueDepth, c.KVUsage)
	}
	if limit := p.config.Limits.MaxConcurrency; limit > 0 {
		return fmt.Sprintf("every ready replica is at its limit of %d requests or has just failed", limit)
	}
	return "every ready replica is at its limit or has just failed"
}

// wakeState is the state of asking for a first replica.
type wakeState struct {
	asked bool   // asked, and WakeRetry is not over
	round uint64 // tells the retry of this round from older ones
	err   error  // of the last call
	wantedReplicas  int    // how many replicas those that wait have called for
}

// started notes that replicas are there, so that a later wake is immediate.
func (w *wakeState) started() {
	w.asked, w.err, w.wantedReplicas = false, nil, 0
	w.round++
}

// wakeIfNeeded asks for replicas if requests wait, of whatever priority, and
// no replica is alive. The pool's mutex is held.
func (p *pool) wakeIfNeeded() {
	w := &p.wakes
	if w.asked || p.queue.Len() == 0 || p.entry.alive > 0 || p.closed != "" {
		return
	}
	m := p.scalable
	if m == nil {
		return
	}
	w.asked = true
	w.round++
	round, name, n := w.round, m.Key.String(), p.wantedReplicas(m)
	p.d.clock.AfterFunc(0, func() { p.wake(round, name, n) })
}

// wantedReplicas is how many replicas the waiting requests call for, at least 1.
func (p *pool) wantedReplicas(m *PoolConfig) int {
	n := 1
	if t := m.Limits.Target; t > 0 {
		n = int(math.Ceil(float64(p.queue.Len()) / t))
	}
	return max(1, min(n, m.Limits.Max))
}

func (p *pool) wake(round uint64, name string, atLeast int) {
	ctx, cancel := context.WithTimeout(context.Background(), p.d.cfg.WakeTimeout)
	defer cancel()
	err := p.d.demand.Wake(ctx, name, atLeast)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wakes.round != round {
		return
	}
	p.wakes.err = err
	p.d.clock.AfterFunc(p.d.cfg.WakeRetry, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.wakes.round == round {
			p.wakes.asked = false
			p.wakeIfNeeded()
		}
	})
}
