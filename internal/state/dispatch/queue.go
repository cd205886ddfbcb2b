package dispatch

import (
	"cmp"
	"fmt"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/admission"
	"roundhouse.dev/roundhouse/internal/decide/latency"
	"roundhouse.dev/roundhouse/internal/decide/picker"
)

// queue holds the requests that wait for one of a pool's endpoints. The pool's
// mutex guards it.
type queue struct {
	*admission.Machine
	entry *endpointSet
	clock Clock
	every time.Duration // between two looks at requests that are held
	due   func()        // called without the mutex when the timer ends
	timer deadlineTimer
	// pacing: requests are held, and let go as fast as the endpoints work.
	pacing bool
	// deferring: requests wait that no endpoint is predicted to answer in time.
	deferring bool
	// external: an external endpoint picker picks, so that no request waits in
	// the queue.
	external bool
	answer   float64 // how many tokens answers have, on average
	// fault is what is wrong with the pool's own bounds, so that the defaults
	// hold; "" when nothing is.
	fault string
}

// deadlineTimer is the timer of the earliest deadline.
type deadlineTimer struct {
	at   time.Time // zero when not set
	stop func() bool
}

// setBounds lays a pool's own bounds over the defaults.
func (q *queue) setBounds(b routing.Bounds, defaults admission.Config) {
	c := defaults
	if b.MaxQueue != 0 {
		c.MaxQueue = b.MaxQueue
	}
	if b.MaxQueueBytes != 0 {
		c.MaxQueueBytes = b.MaxQueueBytes
	}
	c.ByTokens = b.Fairness == service.FairTokens
	c.QueueDepth = cmp.Or(b.Saturation.QueueDepth, c.QueueDepth)
	c.KVUsage = cmp.Or(b.Saturation.KVUsage, c.KVUsage)
	q.fault = ""
	if err := c.Validate(); err != nil {
		q.fault = err.Error()
		c = defaults
	}
	q.Configure(c)
}

// state is the pool's state for a request that arrives.
func (q *queue) state(g *Grant, now time.Time) admission.State {
	s := admission.State{Starting: q.entry.ready == 0}
	if s.Starting || g.ordered { // its external picker has decided that it goes on
		return s
	}
	s.Paced = q.saturated(now)
	if g.waiter.Priority < 0 {
		var among picker.Set
		if g.subset != nil {
			among = q.entry.allowedSlots(g)
		}
		if s.Saturation = q.entry.saturation(q.Config(), among, now); s.Paced { // what capacity comes is for those that wait
			s.Saturation = max(s.Saturation, 1)
		}
	}
	return s
}

// saturated reports whether requests are held because no endpoint has capacity:
// while some are held already, capacity for more than it was sent since it last
// reported. It is false where breakers keep all requests out: those wait for
// other reasons. Where the pool's policy sheds by itself, or an external picker
// picks, those decide.
func (q *queue) saturated(now time.Time) bool {
	if q.Config().HoldAt <= 0 || q.entry.policy.Sheds() || q.external {
		return false
	}
	some := false
	for _, x := range q.entry.slots {
		if x != nil && x.accepts() {
			if some = true; q.hasCapacity(x, now) {
				return false
			}
		}
	}
	return some
}

// hasCapacity reports whether an endpoint has capacity; its limit is another
// matter.
func (q *queue) hasCapacity(x *slot, now time.Time) bool {
	c, e := q.Config(), q.entry.load(x)
	e.Limit = 0
	if q.pacing {
		return !c.Holds(c.Pace(&e, now))
	}
	return !c.Holds(c.Saturation(&e, now))
}

// usualAnswer is how many tokens an answer is taken to have before any has ended.
const usualAnswer = 256

// estimate is what a request will cost in tokens: its prompt, and an answer as long as
// others have been.
func (q *queue) estimate(g *Grant) int64 { return g.tokens + int64(q.answer) }

// cost is what the request of g has cost in tokens; nothing without an answer.
func (q *queue) cost(g *Grant, o *Outcome) int64 {
	if !g.answered {
		return 0
	}
	generated := max(o.Usage.Completion, o.Tokens)
	if generated > 0 {
		q.answer += (min(float64(generated), 1e6) - q.answer) / 64
	}
	return cmp.Or(o.Usage.Prompt, g.tokens) + generated
}

// start has g, already in the queue, wait.
func (q *queue) start(g *Grant, now time.Time) {
	g.since = now
	if g.result == nil {
		g.result = make(chan error, 1)
	}
	q.setTimer(now)
}

// end notes that g waits no longer.
func (q *queue) end(g *Grant, now time.Time) { g.waited += now.Sub(g.since) }

// setTimer has due called when the first deadline is over, and soon while
// requests are held, since what holds them fades with time.
func (q *queue) setTimer(now time.Time) {
	at := q.Deadline()
	if at.IsZero() {
		return
	}
	if q.pacing {
		at = earlier(at, now.Add(q.every))
	}
	if q.deferring {
		at = earlier(at, now.Add(deferEvery))
	}
	t := &q.timer
	if t.stop != nil {
		if !at.Before(t.at) {
			return
		}
		t.stop()
	}
	t.at = at
	t.stop = q.clock.AfterFunc(max(0, at.Sub(now)), q.due)
}

// serve hands free places to the waiting requests: each that gets one, and has
// left the queue, to place, and each that the policy sheds to drop. It stops
// pacing them once nobody is held any more.
func (q *queue) serve(now time.Time, reserve func(*Grant, *slot), drop func(*Grant)) {
	for q.Len() > 0 {
		q.findEligible(now)
		if len(q.entry.eligible) == 0 {
			return
		}
		var x *slot
		var shed *Grant
		full, late := false, 0
		w := q.Next(
			func(w *admission.Waiter) bool { // those whose targets cannot be met hold up none that has none
				g := w.Owner.(*Grant)
				return q.entry.canReach(g) && (late < maxLate || g.pace.left(now) == latency.Target{})
			},
			func(w *admission.Waiter) admission.Trial {
				g := w.Owner.(*Grant)
				var dropped bool
				switch x, dropped = q.entry.pick(g, nil, now); {
				case x != nil:
					return admission.Done
				case dropped:
					shed = g
				case q.entry.choice.Late:
					late++
					return admission.Blocked
				case g.subset != nil:
					return admission.Blocked
				}
				full = true
				return admission.Full
			})
		switch {
		case w != nil:
			reserve(w.Owner.(*Grant), x)
		case shed != nil:
			q.Leave(&shed.waiter)
			drop(shed)
		default:
			q.pacing, q.deferring = q.pacing && full, late > 0
			return
		}
	}
	q.pacing, q.deferring = false, false
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// findEligible finds the endpoints that may be given a request that waits.
func (q *queue) findEligible(now time.Time) {
	s := q.entry
	s.refreshShared()
	clear(s.eligible[:cap(s.eligible)])
	s.eligible = s.eligible[:0]
	if s.eligible == nil {
		s.eligible = picker.Set{}
	}
	for n, x := range s.slots {
		if x != nil && s.input.Endpoints[n].Open && (!q.pacing || q.hasCapacity(x, now)) {
			s.eligible = s.eligible.Add(n)
		}
	}
}

// unreachable takes out the requests whose every endpoint has gone.
func (q *queue) unreachable() (out []*Grant) {
	for w := range q.All {
		if g := w.Owner.(*Grant); g.subset != nil {
			if q.entry.allowedSlots(g); q.entry.allowedCount == 0 && !g.openToAll() {
				out = append(out, g)
			}
		}
	}
	for _, g := range out {
		q.Leave(&g.waiter)
	}
	return out
}

// shedReason tells people why a request gets no place.
func (q *queue) shedReason(w *admission.Waiter, why admission.Reason) string {
	switch why {
	case admission.QueueFull:
		return fmt.Sprintf("the queue is full (%d requests)", q.Len())
	case admission.BytesFull:
		return fmt.Sprintf("the queue is full: its requests hold %d bytes and this one has %d, of at most %d", q.Bytes(), w.Bytes, q.Config().MaxQueueBytes)
	case admission.Saturated:
		return fmt.Sprintf("no replica has capacity, so requests of priority %d are refused", w.Priority)
	case admission.Late:
		return q.entry.lateReason(w.Priority)
	case admission.Evicted:
		return fmt.Sprintf("the queue is full, and a request of a priority above %d took the place", w.Priority)
	}
	return "the request's deadline is over"
}

// saturationReason is what keeps ready replicas from taking requests.
func (q *queue) saturationReason(limit int) string {
	switch c := q.Config(); {
	case q.saturated(q.clock.Now()):
		return fmt.Sprintf("no ready replica has capacity: each has %g requests in its own queue, or %g of its KV memory in use, or more", c.QueueDepth, c.KVUsage)
	case limit > 0:
		return fmt.Sprintf("every ready replica is at maxConcurrency %d, or ejected after failures", limit)
	}
	return "every ready replica is at its limit, or ejected after failures"
}
