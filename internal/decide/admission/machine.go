package admission

import (
	"container/heap"
	"slices"
	"time"
)

// Waiter is one request. Its fields are the caller's to set before Arrive, and
// not to be changed while it waits.
type Waiter struct {
	Priority int32
	// Fairness is the id that shares of turns are counted by; "" is an id like
	// any other.
	Fairness string
	Bytes    int64     // >= 0; what it holds in memory while it waits
	Deadline time.Time // of waiting; zero for none
	// Tokens is what the request will cost, estimated: its prompt's and its answer's.
	// It counts where fairness ids share by tokens.
	Tokens int64
	Owner  any // the caller's own

	seq        uint64 // of its arrival
	flow       *flow  // nil while it does not wait
	prev, next *Waiter
	at         int // its index in Machine.due, if it has a deadline

	account *account // that it was charged to; nil for none
	charged int64
}

// Waiting reports whether the request is in a queue.
func (w *Waiter) Waiting() bool { return w.flow != nil }

// Counts tells requests apart by what became of them. At all times
//
//	Arrived + Returned == Admitted + Shed + Evicted + Overdue + Abandoned + Queued
type Counts struct {
	Arrived   uint64 `json:"arrived"`
	Returned  uint64 `json:"returned"` // by Return
	Admitted  uint64 `json:"admitted"` // at once or by Next
	Shed      uint64 `json:"shed"`     // when they came
	Evicted   uint64 `json:"evicted"`
	Overdue   uint64 `json:"overdue"`
	Abandoned uint64 `json:"abandoned"` // by Leave
}

// Machine is one pool's queue. It is not for concurrent use.
//
// After every call:
//
//	bands are sorted by priority, highest first, and none is empty
//	a band's flows are not empty, and each waits in one band
//	queued, bytes are sums over bands; due holds those with a deadline, earliest first
type Machine struct {
	config Config
	bands  []*band
	due    deadlines
	flows  int // in all bands
	queued int
	bytes  int64
	seq    uint64
	// passed is how many requests have gone on in a row while a lower
	// priority waited.
	passed  int
	counts  Counts
	evicted []*Waiter
	ledger  ledger
}

// New is a Machine without requests. The Config must be valid.
func New(c Config) *Machine { return &Machine{config: c} }

// Configure replaces the bounds; who waits already goes on waiting. The Config
// must be valid.
func (m *Machine) Configure(c Config) {
	m.config = c
	if c.ByTokens {
		m.countTokens()
	}
}

// Config is what the machine decides by. Not to be changed.
func (m *Machine) Config() *Config { return &m.config }

// Len is how many requests wait.
func (m *Machine) Len() int { return m.queued }

// Bytes is what the waiting requests hold in memory.
func (m *Machine) Bytes() int64 { return m.bytes }

// Counts is what became of the requests so far.
func (m *Machine) Counts() Counts { return m.counts }

// Band is what waits of one priority.
type Band struct {
	Priority int32 `json:"priority"`
	Queued   int   `json:"queued"`
	Bytes    int64 `json:"bytes"`
	Flows    int   `json:"flows"` // fairness ids
}

// Bands lists what waits, highest priority first.
func (m *Machine) Bands() []Band {
	out := make([]Band, len(m.bands))
	for i, b := range m.bands {
		out[i] = Band{b.priority, b.queued, b.bytes, len(b.flows)}
	}
	return out
}

// Judge returns what Arrive would decide, and changes nothing.
func (m *Machine) Judge(w *Waiter, s State, now time.Time) (Decision, Reason) {
	c := &m.config
	below, bytesBelow := m.below(w.Priority)
	switch {
	case !w.Deadline.IsZero() && !now.Before(w.Deadline):
		return Shed, Overdue
	case w.Priority < 0 && !s.Starting && s.Saturation >= 1:
		return Shed, Saturated
	case w.Priority < 0 && s.Late:
		return Shed, Late
	case s.Available && !s.Paced && !s.Late:
		return Admit, Available
	case m.queued-below >= c.MaxQueue:
		return Shed, QueueFull
	case m.bytes-bytesBelow+w.Bytes > c.MaxQueueBytes:
		return Shed, BytesFull
	case s.Starting:
		return Queue, Starting
	case s.Late:
		return Queue, Deferred
	case s.Available:
		return Queue, Paced
	}
	return Queue, NoCapacity
}

// Arrive takes a request that comes now. On Queue it waits until Next, Due,
// Drain or Leave takes it out.
func (m *Machine) Arrive(w *Waiter, s State, now time.Time) Verdict {
	m.counts.Arrived++
	m.seq++
	w.seq = m.seq
	v := Verdict{}
	v.Decision, v.Reason = m.Judge(w, s, now)
	switch v.Decision {
	case Admit:
		m.counts.Admitted++
		m.went(w.Priority)
		m.began(w)
	case Shed:
		m.counts.Shed++
	case Queue:
		v.Evicted = m.evict(w)
		m.put(w, false)
	}
	return v
}

// Return makes a request wait again that has arrived and gone on: before all
// others of its priority, whatever the bounds.
func (m *Machine) Return(w *Waiter) {
	m.counts.Returned++
	m.Settle(w, 0)
	m.put(w, true)
}

// Trial is what a caller of Next finds on trying to place a request.
type Trial int

// The trials' outcomes.
const (
	Done    Trial = iota // it goes on
	Blocked              // no room for it; others may have some
	Full                 // no room for anybody
)

// Next offers the waiting requests, in order, to place until one is Placed; it
// is taken out of the queue and returned. nil when nobody can go on. able
// tells cheaply who cannot, so that any number of those are passed over.
func (m *Machine) Next(able func(*Waiter) bool, try func(*Waiter) Trial) *Waiter {
	if w := m.overlooked(able); w != nil {
		switch try(w) {
		case Done:
			m.admit(w)
			m.passed = 0
			return w
		case Full:
			return nil
		case Blocked:
		}
	}
	for _, b := range m.bands {
		for _, f := range b.flows {
			for w := f.first; w != nil; w = w.next {
				if !able(w) {
					continue
				}
				switch try(w) {
				case Done:
					m.admit(w)
					return w
				case Full:
					return nil
				case Blocked:
				}
			}
		}
	}
	return nil
}

// admit takes w out of the queue, since it goes on.
func (m *Machine) admit(w *Waiter) {
	m.counts.Admitted++
	m.went(w.Priority)
	m.began(w)
	m.take(w, true)
}

// All iterates over the waiting requests, which must not change meanwhile.
func (m *Machine) All(yield func(*Waiter) bool) {
	for _, b := range m.bands {
		for _, f := range b.flows {
			for w := f.first; w != nil; w = w.next {
				if !yield(w) {
					return
				}
			}
		}
	}
}

// went notes that a request of a priority goes on.
func (m *Machine) went(priority int32) {
	if n := len(m.bands); n > 0 && m.bands[n-1].priority < priority {
		m.passed++
	} else {
		m.passed = 0
	}
}

// overlooked is the oldest request of the lower priorities that is able to go
// on, when they have been passed over too often.
func (m *Machine) overlooked(able func(*Waiter) bool) *Waiter {
	if m.config.MaxPassed == 0 || m.passed < m.config.MaxPassed || len(m.bands) < 2 {
		return nil
	}
	var oldest *Waiter
	for _, b := range m.bands[1:] {
		for _, f := range b.flows {
			w := f.first
			for w != nil && !able(w) {
				w = w.next
			}
			if w != nil && (oldest == nil || w.seq < oldest.seq) {
				oldest = w
			}
		}
	}
	return oldest
}

// Deadline is when Due next has something to tell; zero for never.
func (m *Machine) Deadline() time.Time {
	if len(m.due) == 0 {
		return time.Time{}
	}
	return m.due[0].Deadline
}

// Due takes out one request whose deadline is over; nil when there is none.
func (m *Machine) Due(now time.Time) *Waiter {
	if len(m.due) == 0 || now.Before(m.due[0].Deadline) {
		return nil
	}
	w := m.due[0]
	m.counts.Overdue++
	m.take(w, false)
	return w
}

// Leave takes out a request whose client is gone, if it waits.
func (m *Machine) Leave(w *Waiter) {
	if !w.Waiting() {
		return
	}
	m.counts.Abandoned++
	m.take(w, false)
}

// Drain takes out any request, highest priority first; nil when none waits.
func (m *Machine) Drain() *Waiter {
	if len(m.bands) == 0 {
		return nil
	}
	w := m.bands[0].flows[0].first
	m.counts.Abandoned++
	m.take(w, false)
	return w
}

// evict takes out the newest requests of the lowest priorities until w fits
// the bounds, as Judge has found it can.
func (m *Machine) evict(w *Waiter) []*Waiter {
	clear(m.evicted) // not kept alive by the slice
	m.evicted = m.evicted[:0]
	for m.queued >= m.config.MaxQueue || m.bytes+w.Bytes > m.config.MaxQueueBytes {
		out := m.bands[len(m.bands)-1].newest()
		m.counts.Evicted++
		m.take(out, false)
		m.evicted = append(m.evicted, out)
	}
	return m.evicted
}

// below is what waits of lower priorities.
func (m *Machine) below(priority int32) (n int, bytes int64) {
	for _, b := range slices.Backward(m.bands) {
		if b.priority >= priority {
			break
		}
		n += b.queued
		bytes += b.bytes
	}
	return n, bytes
}

// deadlines is a heap of waiters.
type deadlines []*Waiter

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].Deadline.Before(d[j].Deadline) }
func (d deadlines) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].at, d[j].at = i, j
}
func (d *deadlines) Push(x any) {
	w := x.(*Waiter)
	w.at = len(*d)
	*d = append(*d, w)
}
func (d *deadlines) Pop() any {
	old := *d
	w := old[len(old)-1]
	old[len(old)-1] = nil
	*d = old[:len(old)-1]
	return w
}

var _ heap.Interface = (*deadlines)(nil)
