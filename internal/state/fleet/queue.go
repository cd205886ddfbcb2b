package fleet

import (
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
		queued map[service.Key]bool
		active map[service.Key]bool
		timers map[service.Key]*time.Timer
		closed bool
	}
	ready *sync.Cond
}

func newQueue() *queue {
	q := &queue{}
	q.mu.queued = map[service.Key]bool{}
	q.mu.active = map[service.Key]bool{}
	q.mu.timers = map[service.Key]*time.Timer{}
	q.ready = sync.NewCond(&q.mu.Mutex)
	return q
}

func (q *queue) add(k service.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t := q.mu.timers[k]; t != nil {
		t.Stop()
		delete(q.mu.timers, k)
	}
	if q.mu.queued[k] || q.mu.closed {
		return
	}
	q.mu.queued[k] = true
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

// done gives a key back and, with again > 0, has it come again by then.
func (q *queue) done(k service.Key, again time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.mu.active, k)
	if q.mu.queued[k] {
		q.ready.Signal()
		return
	}
	if again > 0 && !q.mu.closed {
		q.mu.timers[k] = time.AfterFunc(again, func() { q.add(k) })
	}
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
