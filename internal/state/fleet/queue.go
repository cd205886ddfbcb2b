package fleet

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// queue hands out keys to reconcile. A key is queued at most once and worked
// on by one worker at a time, so its length is bounded by the number of
// services; a key added while it is worked on comes again.
type queue struct {
	mu struct {
		sync.Mutex
		order  []service.Key
		queued map[service.Key]time.Time // since when
		active map[service.Key]bool
		timers map[service.Key]*time.Timer
		rests  map[service.Key]time.Time // when those that failed may be handed out again
		tries  map[service.Key]int       // that failed in a row
		closed bool
	}
	ready *sync.Cond
}

func newQueue() *queue {
	q := &queue{}
	q.mu.queued = map[service.Key]time.Time{}
	q.mu.active = map[service.Key]bool{}
	q.mu.timers = map[service.Key]*time.Timer{}
	q.mu.rests = map[service.Key]time.Time{}
	q.mu.tries = map[service.Key]int{}
	q.ready = sync.NewCond(&q.mu.Mutex)
	return q
}

// fresh adds a key for what has been changed by hand: its failures were of what
// it was before.
func (q *queue) fresh(k service.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.mu.rests, k)
	delete(q.mu.tries, k)
	q.addLocked(k)
}

func (q *queue) add(k service.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.addLocked(k)
}

// addLocked is add with q.mu held.
func (q *queue) addLocked(k service.Key) {
	if t := q.mu.timers[k]; t != nil {
		t.Stop()
		delete(q.mu.timers, k)
	}
	if _, queued := q.mu.queued[k]; queued || q.mu.closed {
		return
	}
	if wait := time.Until(q.mu.rests[k]); wait > 0 {
		q.later(k, wait)
		return
	}
	q.mu.queued[k] = time.Now()
	q.mu.order = append(q.mu.order, k)
	q.ready.Signal()
}

// next waits for a key that nobody works on; ok is false once closed.
func (q *queue) next() (k service.Key, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if q.mu.closed {
			return k, false
		}
		for i, k := range q.mu.order {
			if q.mu.active[k] {
				continue
			}
			q.mu.order = append(q.mu.order[:i], q.mu.order[i+1:]...)
			delete(q.mu.queued, k)
			q.mu.active[k] = true
			return k, true
		}
		q.ready.Wait()
	}
}

// outcome notes whether a key failed, and returns how often it has in a row.
func (q *queue) outcome(k service.Key, failed bool) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !failed {
		delete(q.mu.tries, k)
		return 0
	}
	q.mu.tries[k]++
	return q.mu.tries[k]
}

// done gives a key back and, with again > 0, has it come again by then. One
// that failed comes no sooner than after its rest, whatever changes: what is
// failing may itself be what changes it, and would be tried without a pause.
func (q *queue) done(k service.Key, again, rest time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.mu.active, k)
	delete(q.mu.rests, k)
	_, queued := q.mu.queued[k]
	switch {
	case rest > 0 && !q.mu.closed:
		q.mu.rests[k] = time.Now().Add(rest)
		if queued {
			delete(q.mu.queued, k)
			q.mu.order = slices.DeleteFunc(q.mu.order, func(o service.Key) bool { return o == k })
			again = rest
		}
	case queued:
		q.ready.Signal()
		return
	}
	if again > 0 && !q.mu.closed {
		q.later(k, again)
	}
}

// later adds a key after a while; q.mu is held, and k has no timer.
func (q *queue) later(k service.Key, after time.Duration) {
	q.mu.timers[k] = time.AfterFunc(after, func() { q.add(k) })
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.closed = true
	for _, t := range q.mu.timers {
		t.Stop()
	}
	q.ready.Broadcast()
}

// loop reconciles what a queue hands out.
type loop struct {
	queue     *queue
	changed   <-chan service.Key // added to the queue
	reconcile func(context.Context, service.Key) (again time.Duration, err error)
	jitter    func(time.Duration) time.Duration
	log       *slog.Logger
}

// run reconciles with so many workers at once until ctx ends, and never one key
// twice at a time. A key whose reconcile failed is tried again.
func (l loop) run(ctx context.Context, workers int) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case k := <-l.changed:
				l.queue.add(k)
			case <-ctx.Done():
				l.queue.close()
				return
			}
		}
	})
	for range max(workers, 1) {
		wg.Go(func() {
			for {
				k, ok := l.queue.next()
				if !ok {
					return
				}
				again, err := l.reconcile(ctx, k)
				rest := time.Duration(0)
				if tries := l.queue.outcome(k, err != nil); err != nil && ctx.Err() == nil {
					again, rest = l.backoff(tries)
					l.log.Error("reconcile failed, will be tried again", "service", k.String(), "error", err, "after", again.Round(time.Millisecond))
				}
				l.queue.done(k, again, rest)
			}
		})
	}
	wg.Wait()
}

// backoff is when a reconcile that has failed so often in a row is tried again,
// and how long its service is left alone, whatever of it changes but what is
// desired. Many that fail for one cause do not come again together.
func (l loop) backoff(tries int) (again, rest time.Duration) {
	again = min(retryAfter<<min(tries-1, 8), maxFailAfter)
	return l.jitter(again), min(restAfter<<min(tries-1, 8), maxRestAfter)
}

// spread adds up to a fifth.
func spread(d time.Duration) time.Duration {
	return d + time.Duration(rand.Int64N(int64(d)/5+1))
}

// A failed reconcile is tried again after retryAfter, and twice as long each
// time up to maxFailAfter; a service that cannot be resolved likewise, up to
// maxRetryAfter.
const (
	retryAfter   = 5 * time.Second
	maxFailAfter = 5 * time.Minute
)

// restAfter is for how long a service is left alone whose reconcile failed, also
// where something of it changes meanwhile; it doubles up to maxRestAfter.
const (
	restAfter    = time.Second
	maxRestAfter = 16 * time.Second
)

// Backlog is what a fleet has yet to do.
type Backlog struct {
	// Waiting services are to be reconciled, Active ones are being reconciled;
	// one may be both.
	Waiting, Active int
	// Oldest is for how long the first of those that wait has waited; 0 where
	// none does.
	Oldest time.Duration
}

func (q *queue) backlog(now time.Time) Backlog {
	q.mu.Lock()
	defer q.mu.Unlock()
	b := Backlog{Waiting: len(q.mu.queued), Active: len(q.mu.active)}
	for _, since := range q.mu.queued {
		b.Oldest = max(b.Oldest, now.Sub(since))
	}
	return b
}
