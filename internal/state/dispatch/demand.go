package dispatch

import (
	"context"
	"math"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/autoscale"
)

// stage is where a request is in its life.
type stage uint8

const (
	uncounted stage = iota // not counted yet
	queued
	running
	done
	transferred // to another service's counter: no more here, and not the end
)

// demandCounter counts one service's requests, whichever pools they come through,
// and integrates their number over time. Its mutex is taken last, with a
// pool's held or without.
//
//	arrived == done + queued + running
type demandCounter struct {
	d      *Dispatcher
	id     string // the service; "" for what nobody asks about
	turn   chan struct{}
	mu     sync.Mutex
	counts counts
	pace   reportPace
}

type counts struct {
	queued, running int
	arrived, done   uint64
	seconds         float64   // integral of queued + running up to since
	since           time.Time // of the last change
	lastDone        time.Time
}

// reportPace is that of a demand counter's reports. A change leads to a report at most
// Config.ReportEvery later; bursts share one.
type reportPace struct {
	last    time.Time
	pending bool // a paced report is due
	urgent  bool // an immediate report is under way
}

func newDemandCounter(d *Dispatcher, id string) *demandCounter {
	a := &demandCounter{d: d, id: id, turn: make(chan struct{}, 1)}
	a.counts.since = d.clock.Now()
	return a
}

func (c *counts) advance(now time.Time) {
	if d := now.Sub(c.since); d > 0 {
		c.seconds += float64(c.queued+c.running) * d.Seconds()
	}
	c.since = now
}

// move takes one request from a stage to another and sees that it is told.
func (a *demandCounter) move(from, to stage, now time.Time) {
	if a == nil || from == to {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	c := &a.counts
	c.advance(now)
	c.shift(from, -1)
	c.shift(to, 1)
	if from == uncounted {
		c.arrived++
	}
	if from == running && to == done { // one that gave up waiting used nothing
		c.lastDone = now
	}
	a.changed(now, from == uncounted && to == queued && c.queued == 1)
}

func (c *counts) shift(s stage, by int) {
	switch s {
	case queued:
		c.queued += by
	case running:
		c.running += by
	case done, transferred:
		c.done++
	case uncounted:
	}
}

// reportNow has the demand told at once.
func (a *demandCounter) reportNow(now time.Time) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.changed(now, true)
}

// demand is what has been counted up to now.
func (a *demandCounter) demand(now time.Time) autoscale.Demand {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.counts.demand(now)
}

func (c *counts) demand(now time.Time) autoscale.Demand {
	c.advance(now)
	return autoscale.Demand{Queued: c.queued, Running: c.running, Arrived: c.arrived, Done: c.done,
		LoadSeconds: c.seconds, LastDone: c.lastDone}
}

// meanTime is how long a request has taken on average, from its arrival.
func (a *demandCounter) meanTime() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.counts.done == 0 {
		return 0
	}
	return time.Duration(a.counts.seconds / float64(a.counts.done) * float64(time.Second))
}

// changed paces a report. The counter's mutex is held.
func (a *demandCounter) changed(now time.Time, urgent bool) {
	if a.id == "" {
		return
	}
	r := &a.pace
	if urgent && !r.urgent {
		r.urgent = true
		a.d.clock.AfterFunc(0, func() { a.report(true) })
		return
	}
	if r.pending || r.urgent {
		return
	}
	r.pending = true
	every := a.d.cfg.ReportEvery
	a.d.clock.AfterFunc(min(every, max(0, r.last.Add(every).Sub(now))), func() { a.report(false) })
}

// report makes one report, after the one before it, of the demand as it is
// when its turn comes.
func (a *demandCounter) report(urgent bool) {
	a.turn <- struct{}{}
	defer func() { <-a.turn }()

	a.mu.Lock()
	now := a.d.clock.Now()
	r := &a.pace
	r.last = now
	if urgent {
		r.urgent = false
	} else {
		r.pending = false
	}
	d := a.counts.demand(now)
	if d.Queued+d.Running > 0 && !r.pending {
		r.pending = true
		a.d.clock.AfterFunc(a.d.cfg.ReportEvery, func() { a.report(false) })
	}
	a.mu.Unlock()
	a.d.demand.Report(a.id, d)
}

// wakeState is the state of asking for a first replica.
type wakeState struct {
	asked          bool   // asked, and WakeRetry is not over
	round          uint64 // tells the retry of this round from older ones
	err            error  // of the last call
	wantedReplicas int    // how many replicas those that wait have called for
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
