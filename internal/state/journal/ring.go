// Package journal keeps the last of what happened: the requests that ended, in
// memory, and the events of services, which are stored too. Readers can follow
// both.
package journal

import "sync"

// Ring keeps the last items that were added and numbers them from 1 on. It is safe
// for concurrent use.
type Ring[T any] struct {
	mu struct {
		sync.Mutex
		items   []T    // item n is at n % len
		before  uint64 // the number before the first item's
		last    uint64 // the newest item's number
		changed chan struct{}
	}
}

// NewRing makes a ring that keeps size items.
func NewRing[T any](size int) *Ring[T] {
	r := &Ring[T]{}
	r.mu.items = make([]T, size)
	return r
}

// add adds an item, in place of the oldest when the ring is full, and returns its
// number.
func (r *Ring[T]) add(item T) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.last++
	r.mu.items[r.mu.last%uint64(len(r.mu.items))] = item
	if r.mu.changed != nil {
		close(r.mu.changed)
		r.mu.changed = nil
	}
	return r.mu.last
}

// begin has the first item numbered n+1; there is none yet.
func (r *Ring[T]) begin(n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.before, r.mu.last = n, n
}

// Page is a part of what a ring keeps.
type Page[T any] struct {
	Items []T
	// First is the number of the first of Items; the next page comes after Last.
	First, Last uint64
	// Missed is how many items after the requested number are no longer kept.
	Missed uint64
}

// After returns the items that were added after number n, the oldest first, at most
// limit of them. A number that the ring has not reached is of another ring; then
// everything is returned.
func (r *Ring[T]) After(n uint64, limit int) Page[T] {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n > r.mu.last {
		n = r.mu.before
	}
	oldest := r.mu.before // the number before the oldest that is kept
	if size := uint64(len(r.mu.items)); r.mu.last-oldest > size {
		oldest = r.mu.last - size
	}
	p := Page[T]{First: max(n, oldest) + 1, Missed: max(n, oldest) - max(n, r.mu.before)}
	p.Last = min(r.mu.last, p.First+uint64(limit)-1)
	for i := p.First; i <= p.Last; i++ {
		p.Items = append(p.Items, r.mu.items[i%uint64(len(r.mu.items))])
	}
	return p
}

// Newest returns the last items, at most limit of them, the oldest first.
func (r *Ring[T]) Newest(limit int) Page[T] {
	r.mu.Lock()
	kept := min(r.mu.last-r.mu.before, uint64(len(r.mu.items)))
	n := r.mu.last - min(kept, uint64(limit))
	r.mu.Unlock()
	return r.After(n, limit)
}

// Changed returns a channel that is closed when there are items after number n, at
// once if there are.
func (r *Ring[T]) Changed(n uint64) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.changed == nil {
		r.mu.changed = make(chan struct{})
	}
	c := r.mu.changed
	if n < r.mu.last {
		close(c)
		r.mu.changed = nil
	}
	return c
}
