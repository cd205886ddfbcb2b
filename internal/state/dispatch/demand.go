package dispatch

import (
	"context"
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

// tally is where a request counts in demand.
type tally struct {
	stage  stage
	pool   *demandCounter // the pool's own
	member *demandCounter // in a shared pool that of the service it counts for; nil for none
}

// moveTo takes the request to another stage, in all counters it counts in.
func (t *tally) moveTo(to stage, now time.Time) {
	t.pool.move(t.stage, to, now)
	t.member.move(t.stage, to, now)
	t.stage = to
}

// countFor has the request count for another service of a shared pool.
func (t *tally) countFor(m *demandCounter, now time.Time) {
	if t.member == m {
		return
	}
	if t.stage != uncounted {
		t.member.move(t.stage, transferred, now)
		m.move(uncounted, t.stage, now)
	}
	t.member = m
}

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
	left            uint64    // of those done, without having run
	seconds, busy   float64   // integrals of queued + running and of running up to since
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
	dc := &demandCounter{d: d, id: id, turn: make(chan struct{}, 1)}
	dc.counts.since = d.clock.Now()
	return dc
}

func (c *counts) advance(now time.Time) {
	if d := now.Sub(c.since); d > 0 {
		c.seconds += float64(c.queued+c.running) * d.Seconds()
		c.busy += float64(c.running) * d.Seconds()
	}
	c.since = now
}

// move takes one request from a stage to another and sees that it is told.
func (dc *demandCounter) move(from, to stage, now time.Time) {
	if dc == nil || from == to {
		return
	}
	dc.mu.Lock()
	defer dc.mu.Unlock()
	c := &dc.counts
	c.advance(now)
	c.shift(from, -1)
	c.shift(to, 1)
	if from == uncounted {
		c.arrived++
	}
	switch {
	case from == running && to == done: // one that gave up waiting used nothing
		c.lastDone = now
	case from == queued && (to == done || to == transferred):
		c.left++
	}
	dc.changed(now, from == uncounted && to == queued && c.queued == 1)
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
func (dc *demandCounter) reportNow(now time.Time) {
	if dc == nil {
		return
	}
	dc.mu.Lock()
	defer dc.mu.Unlock()
	dc.changed(now, true)
}

// demand is what has been counted up to now.
func (dc *demandCounter) demand(now time.Time) autoscale.Demand {
	dc.mu.Lock()
	defer dc.mu.Unlock()
	return dc.counts.demand(now)
}

func (c *counts) demand(now time.Time) autoscale.Demand {
	c.advance(now)
	return autoscale.Demand{Queued: c.queued, Running: c.running, Arrived: c.arrived, Done: c.done, Left: c.left,
		LoadSeconds: c.seconds, BusySeconds: c.busy, LastDone: c.lastDone}
}

// retryAfter estimates when the queue has moved: a request's mean time from its
// arrival, in whole seconds from 1 to 60.
func (dc *demandCounter) retryAfter() time.Duration {
	dc.mu.Lock()
	defer dc.mu.Unlock()
	if dc.counts.done == 0 {
		return time.Second
	}
	mean := time.Duration(dc.counts.seconds / float64(dc.counts.done) * float64(time.Second))
	return min(max(mean.Truncate(time.Second), time.Second), time.Minute)
}

// changed paces a report. The counter's mutex is held.
func (dc *demandCounter) changed(now time.Time, urgent bool) {
	if dc.id == "" {
		return
	}
	r := &dc.pace
	if urgent && !r.urgent {
		r.urgent = true
		dc.d.clock.AfterFunc(0, func() { dc.report(true) })
		return
	}
	if r.pending || r.urgent {
		return
	}
	r.pending = true
	every := dc.d.cfg.ReportEvery
	dc.d.clock.AfterFunc(min(every, max(0, r.last.Add(every).Sub(now))), func() { dc.report(false) })
}

// report makes one report, after the one before it, of the demand as it is
// when its turn comes.
func (dc *demandCounter) report(urgent bool) {
	dc.turn <- struct{}{}
	defer func() { <-dc.turn }()

	dc.mu.Lock()
	now := dc.d.clock.Now()
	r := &dc.pace
	r.last = now
	if urgent {
		r.urgent = false
	} else {
		r.pending = false
	}
	d := dc.counts.demand(now)
	if d.Queued+d.Running > 0 && !r.pending {
		r.pending = true
		dc.d.clock.AfterFunc(dc.d.cfg.ReportEvery, func() { dc.report(false) })
	}
	dc.mu.Unlock()
	dc.d.demand.Report(dc.id, d)
}

// waker asks for the first replicas of a pool that has none. The pool's mutex
// guards it.
type waker struct {
	cfg    *Config
	demand Demand
	clock  Clock
	mu     *sync.Mutex // the pool's
	due    func()      // called with the mutex when it may be time to ask once more

	asked     bool   // asked, and WakeRetry is not over
	round     uint64 // tells the retry of this round from older ones
	err       error  // of the last call
	announced int    // how many replicas have been called for
}

// started notes that replicas are there, so that a later wake is immediate.
func (w *waker) started() {
	w.asked, w.err, w.announced = false, nil, 0
	w.round++
}

// ask asks for replicas of a service, unless that was done just now.
func (w *waker) ask(service string, replicas int) {
	if w.asked {
		return
	}
	w.asked = true
	w.round++
	round := w.round
	w.clock.AfterFunc(0, func() { w.wake(round, service, replicas) })
}

func (w *waker) wake(round uint64, service string, replicas int) {
	ctx, cancel := context.WithTimeout(context.Background(), w.cfg.WakeTimeout)
	defer cancel()
	err := w.demand.Wake(ctx, service, replicas)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.round != round {
		return
	}
	w.err = err
	w.clock.AfterFunc(w.cfg.WakeRetry, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.round == round {
			w.asked = false
			w.due()
		}
	})
}

// rises notes how many replicas are called for, and reports whether they are
// more than ever since the last start, the first aside.
func (w *waker) rises(replicas int) bool {
	rises := replicas > max(w.announced, 1)
	w.announced = replicas
	return rises
}
