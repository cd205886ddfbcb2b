package dispatch

import (
	"context"
	"fmt"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/admission"
	"roundhouse.dev/roundhouse/internal/decide/picker"
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

// timeoutError returns why a request has waited in vain: ErrBusy if there are replicas
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

// waitReason returns what the waiting requests wait for.
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

// saturationReason returns what keeps ready replicas from taking requests.
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

// admissionState is the pool's state for a request that arrives.
func (p *pool) admissionState(g *Grant, now time.Time) admission.State {
	s := admission.State{Starting: p.entry.ready == 0}
	if s.Starting || g.ordered { // its picker has decided that it goes on
		return s
	}
	s.Held = p.holdsRequests() && !p.hasCapacity(now)
	if g.waiter.Priority < 0 {
		var among picker.Set
		if g.subset != nil {
			among = p.entry.allowedSlots(g)
		}
		if s.Saturation = p.saturation(among, now); s.Held { // what capacity comes is for those that wait
			s.Saturation = max(s.Saturation, 1)
		}
	}
	return s
}

// holdsRequests reports whether requests are held while no endpoint has capacity. Where
// the pool's policy sheds by itself, or an endpoint picker says where requests
// go, those decide.
func (p *pool) holdsRequests() bool {
	return p.queue.Config().HoldAt > 0 && !p.entry.policy.Sheds() && p.config.External.Name == ""
}

// hasCapacity reports whether some endpoint has capacity; while requests are held,
// for more than it was sent since it last spoke. It is true where breakers keep
// all requests out: those wait for other reasons.
func (p *pool) hasCapacity(now time.Time) bool {
	some := false
	for n, x := range p.entry.slots {
		if x != nil && x.serves() && x.endpoint.breaker.allows() {
			if some = true; p.endpointHasCapacity(n, x, now) {
				return true
			}
		}
	}
	return !some
}

// endpointHasCapacity is capacity of one endpoint; its limit is another matter.
func (p *pool) endpointHasCapacity(n int, x *slot, now time.Time) bool {
	c, e := p.queue.Config(), p.loadOf(n, x)
	e.Limit = 0
	if p.pacing {
		return !c.Holds(c.Pace(&e, now))
	}
	return !c.Holds(c.Saturation(&e, now))
}

// loadOf is what the saturation of an endpoint is worked out from.
func (p *pool) loadOf(n int, x *slot) admission.Endpoint {
	ep := &p.entry.input.Endpoints[n]
	return admission.Endpoint{Load: ep.Load, InFlight: int(x.endpoint.inFlight.Load()), AtLoad: ep.AtLoad, Limit: x.limit}
}

// saturation is the least of the endpoints', or of those among; nil is all. 0
// without any. Where the policy sheds by itself only places count.
func (p *pool) saturation(among picker.Set, now time.Time) float64 {
	least, some := 0.0, false
	c, sheds := p.queue.Config(), p.entry.policy.Sheds()
	for n, x := range p.entry.slots {
		if x == nil || !x.serves() || !x.endpoint.breaker.allows() || among != nil && !among.Has(n) {
			continue
		}
		e := p.loadOf(n, x)
		if sheds {
			e.Load = nil
		}
		if v := c.Saturation(&e, now); !some || v < least {
			least, some = v, true
		}
	}
	return least
}

// findEligible finds the endpoints that may be given a request that waits.
func (p *pool) findEligible(now time.Time) {
	s := &p.entry
	for _, n := range s.shared {
		s.refresh(s.slots[n])
	}
	clear(s.eligible[:cap(s.eligible)])
	s.eligible = s.eligible[:0]
	if s.eligible == nil {
		s.eligible = picker.Set{}
	}
	for n, x := range s.slots {
		if x != nil && s.input.Endpoints[n].Open && (!p.pacing || p.endpointHasCapacity(n, x, now)) {
			s.eligible = s.eligible.Add(n)
		}
	}
}

// canReach reports whether g may go to one of the takers.
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
