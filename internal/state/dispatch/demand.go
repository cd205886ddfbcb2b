package dispatch

import (
	"context"
	"math"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/autoscale"
)

// load counts one pool's requests and integrates their number over time.
// Invariant: arrived == done + queued + running.
type load struct {
	queued, running int
	arrived, done   uint64
	seconds         float64   // integral of queued + running up to since
	since           time.Time // of the last change
	lastDone        time.Time
}

func (l *load) advance(now time.Time) {
	if d := now.Sub(l.since); d > 0 {
		l.seconds += float64(l.queued+l.running) * d.Seconds()
		l.since = now
	}
}

func (l *load) arrive(now time.Time) {
	l.advance(now)
	l.arrived++
	l.queued++
}

func (l *load) start(now time.Time) {
	l.advance(now)
	l.queued--
	l.running++
}

func (l *load) stop(now time.Time) {
	l.advance(now)
	l.running--
	l.queued++
}

func (l *load) finish(now time.Time) {
	l.advance(now)
	l.queued--
	l.done++
	l.lastDone = now
}

func (l *load) demand(now time.Time) autoscale.Demand {
	l.advance(now)
	return autoscale.Demand{Queued: l.queued, Running: l.running, Arrived: l.arrived, Done: l.done,
		LoadSeconds: l.seconds, LastDone: l.lastDone}
}

// reports paces the reports of one pool. A change leads to a report at most
// Config.ReportEvery later; bursts share one.
type reports struct {
	last    time.Time
	pending bool          // a paced report is due
	urgent  bool          // an immediate report is under way
	turn    chan struct{} // holds a token while a report is being made
}

// changed notes that the demand has changed. The pool's mutex is held.
func (p *pool) changed(now time.Time, urgent bool) {
	r := &p.reports
	if urgent && !r.urgent {
		r.urgent = true
		p.d.clock.AfterFunc(0, func() { p.report(true) })
		return
	}
	if r.pending || r.urgent {
		return
	}
	r.pending = true
	p.d.clock.AfterFunc(max(0, r.last.Add(p.d.cfg.ReportEvery).Sub(now)), func() { p.report(false) })
}

// report makes one report, after the one before it, of the demand as it is
// when its turn comes.
func (p *pool) report(urgent bool) {
	p.reports.turn <- struct{}{}
	defer func() { <-p.reports.turn }()

	p.mu.Lock()
	now := p.d.clock.Now()
	r := &p.reports
	r.last = now
	if urgent {
		r.urgent = false
	} else {
		r.pending = false
	}
	d := p.load.demand(now)
	if d.Queued+d.Running > 0 && !r.pending {
		r.pending = true
		p.d.clock.AfterFunc(p.d.cfg.ReportEvery, func() { p.report(false) })
	}
	p.mu.Unlock()
	p.d.demand.Report(p.id, d)
}

// waking is the state of asking for a first replica.
type waking struct {
	asked bool   // asked, and WakeRetry is not over
	round uint64 // tells the retry of this round from older ones
	err   error  // of the last call
}

// started notes that replicas are there, so that a later wake is immediate.
func (w *waking) started() {
	w.asked, w.err = false, nil
	w.round++
}

// wakeIfNeeded asks for replicas if requests wait and none is alive. The
// pool's mutex is held.
func (p *pool) wakeIfNeeded() {
	w := &p.waking
	if w.asked || p.queue.Len() == 0 || p.alive() > 0 || p.closed != "" || p.facts.Cause.Permanent {
		return
	}
	w.asked = true
	w.round++
	round, n := w.round, p.wanted()
	p.d.clock.AfterFunc(0, func() { p.wake(round, n) })
}

// wanted is how many replicas the waiting requests call for, at least 1.
func (p *pool) wanted() int {
	n := 1
	if t := p.facts.Limits.Target; t > 0 {
		n = int(math.Ceil(float64(p.queue.Len()) / t))
	}
	return max(1, min(n, p.facts.Limits.Max))
}

func (p *pool) wake(round uint64, atLeast int) {
	ctx, cancel := context.WithTimeout(context.Background(), p.d.cfg.WakeTimeout)
	defer cancel()
	err := p.d.demand.Wake(ctx, p.id, atLeast)
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
