// Package sim runs the control and the request path in virtual time: the real
// fleet, dispatcher, autoscaler, picker, admission, scraper and records, with a
// simulated machine, engines, users and faults, all drawn from a seed. Its
// invariants are checked after every event.
//
// It has tests alone, so that no program can link it.
package sim

import (
	"cmp"
	"container/heap"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
)

// loop runs events at their virtual times, one at a time: between two of them it
// waits until every other goroutine of the bubble is blocked. What other
// goroutines have to tell they post, and it is delivered in an order that does not
// depend on the scheduler. So one seed gives one run.
type loop struct {
	mu      sync.Mutex
	events  eventHeap
	posted  []letter
	kick    chan struct{} // capacity 1
	stopped bool
	handled int
	timer   *time.Timer // of run; one for all its pauses
}

type event struct {
	at    time.Time
	order uint64 // among those of one instant
	run   func()
	index int // in the heap; -1 outside
}

// letter is what a goroutine tells the loop.
type letter struct {
	from uint64
	read func()
}

func newLoop() *loop { return &loop{kick: make(chan struct{}, 1)} }

// lane is a source of events. Each has a sequence of its own, since which of two
// goroutines sets its timer first is the scheduler's to say.
type lane struct {
	*loop
	name uint64
	set  *uint64 // events so far
}

func (l *loop) lane(name uint64) lane { return lane{l, name << 32, new(uint64)} }

// apart is how many nanoseconds are between two instants at which one source of
// timers is due. Each has an instant of its own there, since which of two goroutines
// goes first that wake at the same one is the scheduler's to say.
const apart = 64

// The sources: those that there are several of take the instants after theirs.
const (
	ofLoop     = 0
	ofFleet    = 1
	ofScrapers = 2  // by gateway
	ofNetworks = 8  // by gateway and controller
	ofPools    = 16 // by gateway
	ofSleepers = 24
	ofServers  = 32 // of controllers
	ofClients  = 40 // of gateways
)

// delayed is the instant of a source that comes after d.
func delayed(d time.Duration, source int64) time.Time {
	at := time.Now().Add(d)
	return at.Add(time.Duration((source - at.UnixNano()%apart + apart) % apart))
}

// pause sleeps for d, until an instant of a source.
func pause(d time.Duration, source int64) { time.Sleep(time.Until(delayed(d, source))) }

// after runs f in the loop's goroutine after d, and up to a microsecond later: what is
// planned for the same instant comes apart.
func (l lane) after(d time.Duration, f func()) (stop func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*l.set++
	order := l.name + *l.set
	e := &event{at: delayed(max(d, 0)+time.Duration(1+(order*0x9E3779B97F4A7C15)>>54), ofLoop), order: order, run: f}
	heap.Push(&l.events, e)
	if e.index == 0 {
		l.wake()
	}
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		if e.index < 0 {
			return false
		}
		heap.Remove(&l.events, e.index)
		return true
	}
}

// post has read called by the loop. Letters that come together are read in the
// order of their senders.
func (l *loop) post(from uint64, read func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.posted = append(l.posted, letter{from, read})
	l.wake()
}

func (l *loop) wake() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// run lives until an instant, or until it is stopped, and calls check after
// everything that happens.
func (l *loop) run(until time.Time, check func()) {
	for !l.stopped {
		synctest.Wait()
		if l.deliver() {
			continue
		}
		check()
		e, wait := l.next(until)
		switch {
		case e != nil:
			l.handled++
			e.run()
			continue
		case wait <= 0:
			return
		}
		if l.timer == nil {
			l.timer = time.NewTimer(wait)
		} else {
			l.timer.Reset(wait)
		}
		select {
		case <-l.timer.C:
		case <-l.kick:
			l.timer.Stop()
		}
	}
}

// deliver reads what was posted; false when nothing was.
func (l *loop) deliver() bool {
	l.mu.Lock()
	letters := l.posted
	l.posted = nil
	l.mu.Unlock()
	slices.SortStableFunc(letters, func(a, b letter) int { return cmp.Compare(a.from, b.from) })
	for i, m := range letters {
		if i > 0 {
			synctest.Wait() // whoever the one before has woken
		}
		m.read()
	}
	return len(letters) > 0
}

// next takes the event that is due, or returns how long none is.
func (l *loop) next(until time.Time) (*event, time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if len(l.events) > 0 {
		if e := l.events[0]; !e.at.After(now) && !e.at.After(until) {
			heap.Pop(&l.events)
			return e, 0
		}
		if e := l.events[0]; e.at.Before(until) {
			return nil, e.at.Sub(now)
		}
	}
	return nil, until.Sub(now)
}

// clock is a lane as the clock that the product's parts live by.
type clock struct {
	lane
	now func() time.Time
}

func (c clock) Now() time.Time { return c.now() }

func (c clock) AfterFunc(d time.Duration, f func()) func() bool { return c.after(d, f) }

// shifted is t, a time of the bubble, as a wall clock shows it that was set by so
// many seconds. As after a jump of a machine's clock, its wall time differs, and its
// monotonic time goes on: those of a bubble have none.
func shifted(t time.Time, seconds int64) time.Time {
	const monotonic, from1885 = 1 << 63, 2682288000 // of time.Time: 1 bit, 33 of seconds, 30 of nanoseconds
	fields := (*struct {
		wall uint64
		ext  int64
	})(unsafe.Pointer(&t))
	wall := monotonic | uint64(t.Unix()+seconds+from1885)<<30 | uint64(t.Nanosecond())
	fields.ext = t.UnixNano()
	fields.wall = wall
	return t
}

// TestShifted: the clocks of a jump are as they are after a real one.
func TestShifted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := shifted(time.Now(), 0)
		if !began.Round(0).Equal(time.Now()) {
			t.Fatalf("%v, want %v", began.Round(0), time.Now())
		}
		time.Sleep(time.Minute)
		for _, by := range []int64{7200, -300} {
			now := shifted(time.Now(), by)
			if d := now.Sub(began); d != time.Minute {
				t.Errorf("%v have passed, want a minute", d)
			}
			if d := now.Round(0).Sub(began.Round(0)); d != time.Minute+time.Duration(by)*time.Second {
				t.Errorf("the wall clock has gone by %v", d)
			}
		}
	})
}

// eventHeap is ordered by time.
type eventHeap []*event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return cmp.Or(h[i].at.Compare(h[j].at), cmp.Compare(h[i].order, h[j].order)) < 0
}
func (h eventHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *eventHeap) Push(x any) {
	e := x.(*event)
	e.index = len(*h)
	*h = append(*h, e)
}
func (h *eventHeap) Pop() any {
	e := (*h)[len(*h)-1]
	e.index = -1
	*h = (*h)[:len(*h)-1]
	return e
}
