package dispatch

import (
	"context"
	"fmt"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// Wait is what a request waits for.
type Wait struct {
	// Phase is that of the replica which is the nearest to ready: Ready where all
	// that are ready are at their limits; "" while there is none.
	Phase replica.Phase
	// Waking reports that the replica was asleep, and Expected is of that.
	Waking bool
	// NoRoom reports that the replica waits for an accelerator or for memory.
	NoRoom bool
	// Progress is that of a download; nil without.
	Progress *replica.Progress
	// Elapsed is how long the replica has been in its phase; of one that has not
	// begun to start, how long the request has waited.
	Elapsed time.Duration
	// Expected is how long a start usually takes; 0 where that is not known.
	Expected time.Duration
}

// String is the wait in a few words: "starting, 12 s of about 30 s".
func (w Wait) String() string {
	seconds := func(d time.Duration) int64 { return int64(d.Round(time.Second) / time.Second) }
	var what string
	switch {
	case w.NoRoom:
		what = "waiting for room"
	case w.Phase == replica.Fetching:
		what = "downloading"
		if p := w.Progress; p != nil && p.Total > 0 {
			what += fmt.Sprintf(" %d %%", min(100, 100*p.Done/p.Total))
		}
	case w.Phase == replica.Ready:
		what = "queued"
	case w.Phase == replica.Failed:
		what = "restarting"
	default:
		if what = "starting"; w.Waking {
			what = "waking"
		}
		if w.Expected > 0 {
			return fmt.Sprintf("%s, %d s of about %d s", what, seconds(w.Elapsed), max(1, seconds(w.Expected)))
		}
	}
	return fmt.Sprintf("%s, %d s", what, seconds(w.Elapsed))
}

// Wait returns what a request waits for that has waited since some time.
func (f *PoolConfig) Wait(since, now time.Time) Wait {
	w := Wait{Elapsed: max(0, now.Sub(since)), Expected: f.Startup}
	best := f.nearest()
	if best == nil {
		return w
	}
	w.Phase, w.Progress, w.Waking = best.Phase, best.Progress, best.Standby > 0
	switch best.Phase {
	case replica.Starting:
		if !best.Started.IsZero() && !w.Waking {
			w.Elapsed = max(0, now.Sub(best.Started))
		}
	case replica.Pending:
		w.NoRoom = best.Reason == replica.ReasonInsufficientGPUs || best.Reason == replica.ReasonInsufficientMemory
	case replica.Fetching, replica.Ready, replica.Asleep, replica.Draining, replica.Failed:
	}
	return w
}

// nearness orders phases by how near to ready a replica is.
var nearness = map[replica.Phase]int{replica.Ready: 5, replica.Starting: 4, replica.Fetching: 3, replica.Pending: 2, replica.Failed: 1}

// nearest is the replica of the entry role that is the nearest to ready; nil
// without any.
func (f *PoolConfig) nearest() (best *replica.Replica) {
	for m := range f.configs {
		for i := range m.Replicas {
			r := &m.Replicas[i]
			if m.roleOf(r) != m.Entry || !r.Alive() {
				continue
			}
			if best == nil || nearness[r.Phase] > nearness[best.Phase] || r.Phase == best.Phase && r.Started.Before(best.Started) {
				best = r
			}
		}
	}
	return best
}

// retryAfter estimates when the next try may succeed: while nothing is ready, what
// is left of the usual startup time, else when the queue has moved. It is from a
// second to a minute, as clients' libraries honour it. The pool's mutex is held.
func (p *pool) retryAfter(now time.Time) time.Duration {
	if p.entry.ready == 0 && p.scalable != nil && p.scalable.Startup > 0 {
		left := p.scalable.Startup
		if r := p.config.Load().nearest(); r != nil && r.Phase == replica.Starting && r.Standby == 0 && !r.Started.IsZero() {
			left -= now.Sub(r.Started)
		}
		return min(max(left.Round(time.Second), time.Second), maxRetryAfter)
	}
	return p.demand.retryAfter()
}

// maxRetryAfter bounds what clients are told. OpenAI's and Anthropic's libraries
// ignore longer times.
const maxRetryAfter = time.Minute

// await blocks until g has its result, or its client leaves: then it returns
// false. Meanwhile it calls Request.Waiting.
func (p *pool) await(ctx context.Context, g *Grant) (ok bool, err error) {
	var due chan struct{}
	stop := func() bool { return true }
	next := func() {
		p.mu.Lock()
		w := p.config.Load().Wait(g.since, p.d.clock.Now())
		if p.scalable != nil {
			w.Expected = p.scalable.Startup
		}
		p.mu.Unlock()
		if again := g.waiting(w); again > 0 {
			stop = p.d.clock.AfterFunc(again, func() { due <- struct{}{} })
		}
	}
	if g.waiting != nil {
		due = make(chan struct{}, 1)
		next()
		defer func() { stop() }()
	}
	for {
		select {
		case err := <-g.result:
			return true, err
		case <-ctx.Done():
			return false, nil
		case <-due:
			next()
		}
	}
}
