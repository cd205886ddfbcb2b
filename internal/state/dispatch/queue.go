package dispatch

import (
	"context"
	"fmt"
	"math"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/admission"
)

// alarm is the timer of a pool's earliest deadline.
type alarm struct {
	at   time.Time // zero when not set
	stop func() bool
}

// enqueued has g, already in the queue, wait.
func (p *pool) enqueued(g *Grant, now time.Time) {
	g.since = now
	if g.left == nil {
		g.left = make(chan error, 1)
	}
	p.setAlarm(now)
	p.wakeIfNeeded()
	p.growing(g, now)
}

// growing tells at once of a queue that has come to call for one replica more
// while none is ready, so that those of a burst start together.
func (p *pool) growing(g *Grant, now time.Time) {
	m := p.starter
	if m == nil || p.main.ready > 0 {
		return
	}
	n := p.wanted(m)
	if n > max(p.waking.told, 1) {
		p.account.urge(now)
		g.member.urge(now)
	}
	p.waking.told = n
}

// again makes g wait before all others of its priority.
func (p *pool) again(g *Grant, now time.Time) {
	if g.left == nil { // it has never waited before
		g.waiter.Deadline = now.Add(p.patience())
		if !g.until.IsZero() && g.until.Before(g.waiter.Deadline) {
			g.waiter.Deadline = g.until
		}
	}
	p.queue.Return(&g.waiter)
	p.enqueued(g, now)
}

// patience is the longest a request waits.
func (p *pool) patience() time.Duration {
	d := p.d.cfg.MaxWait
	if w := p.facts.Bounds.MaxWait; w > 0 {
		d = w
	}
	if m := p.starter; m != nil && m.Limits.StartupTimeout > 0 {
		d = min(d, m.Limits.StartupTimeout)
	}
	return d
}

// setAlarm sees that ring is called when the first deadline is over, and soon
// while requests are held, since what holds them fades with time.
func (p *pool) setAlarm(now time.Time) {
	at := p.queue.Deadline()
	if at.IsZero() {
		return
	}
	if p.pacing {
		if soon := now.Add(p.d.cfg.ReportEvery); soon.Before(at) {
			at = soon
		}
	}
	a := &p.alarm
	if a.stop != nil {
		if !at.Before(a.at) {
			return
		}
		a.stop()
	}
	a.at = at
	a.stop = p.d.clock.AfterFunc(max(0, at.Sub(now)), p.ring)
}

// ring ends the waiting of those whose deadline is over. While requests are
// held, it has their endpoints' loads read on.
func (p *pool) ring() {
	if p.due() && p.d.cfg.Asked != nil {
		p.d.cfg.Asked(p.ref)
	}
}

// due is ring's work with the pool; held reports whether requests are held.
func (p *pool) due() (held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.d.clock.Now()
	p.alarm = alarm{}
	for w := p.queue.Due(now); w != nil; w = p.queue.Due(now) {
		g := w.Owner.(*Grant)
		p.end(g, p.overdue(g, w.Deadline.Sub(g.since)), now)
	}
	p.pump(now)
	p.setAlarm(now)
	return p.pacing
}

// wait blocks until g has left the queue.
func (p *pool) wait(ctx context.Context, g *Grant) error {
	select {
	case err := <-g.left:
		return err
	case <-ctx.Done():
		return p.abandon(g, ctx.Err())
	}
}

// abandon takes g out because its client is gone; a place it was given just
// now goes to the next.
func (p *pool) abandon(g *Grant, why error) error {
	p.mu.Lock()
	now := p.d.clock.Now()
	if g.waiter.Waiting() {
		p.queue.Leave(&g.waiter)
		g.waited += now.Sub(g.since)
	}
	var freed freed
	if g.at != nil {
		freed = p.release(g)
	}
	p.settle(g, now)
	p.pump(now)
	p.mu.Unlock()
	freed.offer()
	return why
}

// end tells g, which has left the queue, that it gets no place.
func (p *pool) end(g *Grant, why error, now time.Time) {
	g.waited += now.Sub(g.since)
	p.settle(g, now)
	g.left <- why
}

// overdue says why a request has waited in vain: ErrBusy if there are replicas
// that work, and others have had their places.
func (p *pool) overdue(g *Grant, waited time.Duration) *Error {
	why := p.obstacle()
	if g.failure != nil {
		why += "; the last try: " + g.failure.Error()
	}
	err := p.unavailable(fmt.Sprintf("no replica took the request within %v: %s", waited.Round(time.Millisecond), why), p.waking.err)
	for _, x := range p.main.slots {
		if g.failure == nil && x != nil && x.serves() && x.e.breaker.passes() {
			err.Kind, err.Cause = ErrBusy, nil
		}
	}
	err.RetryAfter, err.Reason = p.retryAfter(), admission.Overdue
	return err
}

// pump hands free places to the waiting requests. It stops pacing them once
// nobody is held any more.
func (p *pool) pump(now time.Time) {
	for p.queue.Len() > 0 {
		p.survey(now)
		if len(p.main.takers) == 0 {
			return
		}
		var x *slot
		var shed *Grant
		full := false
		w := p.queue.Next(
			func(w *admission.Waiter) bool { return p.main.reaches(w.Owner.(*Grant)) },
			func(w *admission.Waiter) admission.Trial {
				g := w.Owner.(*Grant)
				var dropped bool
				switch x, dropped = p.main.take(g, nil, now); {
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
			g.left <- nil
		case shed != nil:
			p.counts.Dropped++
			p.queue.Leave(&shed.waiter)
			p.end(shed, p.dropped(), now)
		default:
			p.pacing = p.pacing && full
			return
		}
	}
	p.pacing = false
}

// strand ends the waiting of those whose every endpoint has gone.
func (p *pool) strand(now time.Time) {
	var lost []*Grant
	for w := range p.queue.All {
		if g := w.Owner.(*Grant); g.subset != nil {
			if p.main.allowed(g); p.main.within == 0 && !g.unbind() {
				lost = append(lost, g)
			}
		}
	}
	for _, g := range lost {
		p.queue.Leave(&g.waiter)
		p.end(g, p.outside(g), now)
	}
}

// flush ends the waiting of all.
func (p *pool) flush(why string, now time.Time) {
	for w := p.queue.Drain(); w != nil; w = p.queue.Drain() {
		p.end(w.Owner.(*Grant), p.denied(why), now)
	}
}

// obstacle says what the waiting requests wait for.
func (p *pool) obstacle() string {
	state, message := p.facts.state()
	switch {
	case state == StateReady:
		return p.crowded()
	case state == StateAsleep && p.waking.err != nil:
		return "it could not be started: " + p.waking.err.Error()
	case state == StateAsleep:
		return "it was asked to start, and no replica has appeared"
	default:
		return message
	}
}

// crowded says what keeps ready replicas from taking requests.
func (p *pool) crowded() string {
	if p.holds() && !p.capacity(p.d.clock.Now()) {
		c := p.queue.Config()
		return fmt.Sprintf("no ready replica has capacity: each has %g requests in its own queue, or %g of its KV memory in use, or more", c.QueueDepth, c.KVUsage)
	}
	if limit := p.facts.Limits.MaxConcurrency; limit > 0 {
		return fmt.Sprintf("every ready replica is at its limit of %d requests or has just failed", limit)
	}
	return "every ready replica is at its limit or has just failed"
}

// waking is the state of asking for a first replica.
type waking struct {
	asked bool   // asked, and WakeRetry is not over
	round uint64 // tells the retry of this round from older ones
	err   error  // of the last call
	told  int    // how many replicas those that wait have called for
}

// started notes that replicas are there, so that a later wake is immediate.
func (w *waking) started() {
	w.asked, w.err, w.told = false, nil, 0
	w.round++
}

// wakeIfNeeded asks for replicas if requests wait, of whatever priority, and
// no replica is alive. The pool's mutex is held.
func (p *pool) wakeIfNeeded() {
	w := &p.waking
	if w.asked || p.queue.Len() == 0 || p.main.alive > 0 || p.closed != "" {
		return
	}
	m := p.starter
	if m == nil {
		return
	}
	w.asked = true
	w.round++
	round, name, n := w.round, m.Key.String(), p.wanted(m)
	p.d.clock.AfterFunc(0, func() { p.wake(round, name, n) })
}

// wanted is how many replicas the waiting requests call for, at least 1.
func (p *pool) wanted(m *Pool) int {
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
	if p.waking.round != round {
		return
	}
	p.waking.err = err
	p.d.clock.AfterFunc(p.d.cfg.WakeRetry, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.waking.round == round {
			p.waking.asked = false
			p.wakeIfNeeded()
		}
	})
}
