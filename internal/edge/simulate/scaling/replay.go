// Package scaling replays a trace of requests through scaling decisions in
// virtual time and counts what callers waited and what the replicas cost. The
// product's own decision is package autoscale itself, not a copy; the others
// are known autoscalers to compare it with, and a clairvoyant that knows the
// trace.
package scaling

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Replica is what a scaler sees of one replica that it has not ended.
type Replica struct {
	ID       int
	Began    time.Duration // when it was started
	ReadyAt  time.Duration // zero while it starts
	Ready    bool
	InFlight int

	rank  int // of a planned replica: lower ones get requests first
	ended bool
}

// View is what a scaler may know at a time: the demand up to then, in the form
// in which gateways report it, and the replicas, oldest first.
type View struct {
	Now             time.Duration
	Queued, Running int
	Arrived, Done   uint64
	// LoadSeconds is the integral of Queued + Running over time, BusySeconds that
	// of Running.
	LoadSeconds, BusySeconds float64

	LastDone time.Duration // -1 when none is done
	Replicas []*Replica    // starting and ready ones; the scaler must not change them
}

// Ready counts the ready replicas.
func (v *View) Ready() int {
	n := 0
	for _, r := range v.Replicas {
		if r.Ready {
			n++
		}
	}
	return n
}

// Decision is a scaler's answer.
type Decision struct {
	Count   int
	Victims []int         // the replicas to end first; nil for the newest, those that start before those that serve
	Again   time.Duration // the next step is at this time at the latest; 0 for none
	// Starts are the startup times of the replicas to start, for a scaler that
	// knows them; nil to draw them.
	Starts []PlannedStart
}

// PlannedStart is a start whose duration is known.
type PlannedStart struct {
	Takes time.Duration
	Rank  int // ready replicas of a lower rank get requests first
}

// Event is what may make a scaler step before its next time.
type Event int

// The events that a scaler hears of.
const (
	Idle    Event = iota // a first request came, and nothing else was asked
	Changed              // a request came or ended
	Turned               // a replica became ready or was gone
)

// Scaler decides the count of replicas over a replay. One Scaler serves one
// replay.
type Scaler interface {
	// Step decides at v.Now.
	Step(v *View) Decision
	// Reacts returns how long after an event a step follows; false for none.
	Reacts(e Event) (time.Duration, bool)
}

// Pool describes the replicas that all contestants scale.
type Pool struct {
	// Slots is how many requests a replica runs at once; more wait.
	Slots int
	// Max bounds the replicas; whatever a scaler wants, no more are started.
	Max     int
	Startup Startup
	// Queue is the most requests that wait; more are refused.
	Queue int
	Seed  uint64 // of the startup times
}

// Bounds of a pool.
const (
	MaxSlots    = 4096
	MaxReplicas = 1024
	MaxQueue    = 1_000_000
)

// Validate returns what is out of range.
func (p Pool) Validate() error {
	switch {
	case p.Slots < 1 || p.Slots > MaxSlots:
		return fmt.Errorf("slots is %d: want 1 to %d", p.Slots, MaxSlots)
	case p.Max < 1 || p.Max > MaxReplicas:
		return fmt.Errorf("the most replicas are %d: want 1 to %d", p.Max, MaxReplicas)
	case p.Queue < 1 || p.Queue > MaxQueue:
		return fmt.Errorf("the queue holds %d: want 1 to %d", p.Queue, MaxQueue)
	}
	return p.Startup.Validate()
}

// Result is one replay.
type Result struct {
	// Waits are the times from arrival to a slot, in the trace's order; -1 for
	// a refused request.
	Waits []time.Duration
	// ReplicaSeconds counts every replica from its start to its end, with its
	// startup and its draining, until the trace and its last request end.
	ReplicaSeconds float64
	// BusySeconds is the time of the slots that ran requests, divided by the slots.
	BusySeconds float64
	Starts      int
	// Flaps are starts less than a mean startup after another replica was
	// ended: to keep that one would have cost less.
	Flaps   int
	Peak    int // the most replicas at a time
	Elapsed time.Duration
	Counts  []Point // the replicas over time, starting and draining ones included
}

// Point is the state from a time on.
type Point struct {
	At              time.Duration
	Ready, Replicas int // Replicas counts those that start and drain too
	Load            int // requests that wait or run
}

// maxPoints bounds Result.Counts: of more changes, every other one is dropped.
const maxPoints = 4096

// Run replays a trace. The trace and the pool must be valid.
func Run(pool Pool, trace *Trace, scaler Scaler) (*Result, error) {
	if err := pool.Validate(); err != nil {
		return nil, err
	}
	if err := trace.Validate(); err != nil {
		return nil, err
	}
	r := &run{pool: pool, trace: trace, scaler: scaler, startups: rand.New(rand.NewPCG(pool.Seed, startupStream)),
		result: &Result{Waits: make([]time.Duration, len(trace.Requests))}, view: View{LastDone: -1}, stepAt: 0}
	r.loop()
	return r.finish(), nil
}

// run is a replay under way.
type run struct {
	pool     Pool
	trace    *Trace
	scaler   Scaler
	startups *rand.Rand
	result   *Result
	view     View // the live replicas and the demand
	events   events
	next     int     // the next request to arrive
	queue    []int32 // requests that wait, from head on
	head     int
	free     int   // slots of live ready replicas without a request
	all      int   // replicas that cost: live and draining
	stepAt   int64 // the next step; never when negative
	ended    []time.Duration
	every    int // of Counts: one change of so many is kept
	skipped  int
}

// startupStream is the random stream of startup times.
const startupStream = 0x7374617274

const never = -1

// loop lives through the trace: at every turn the earliest of what is due.
// What ends comes before what arrives, and a step comes last.
func (r *run) loop() {
	for r.next < len(r.trace.Requests) || r.view.Queued+r.view.Running > 0 {
		at, what := int64(never), 0
		if due, ok := r.events.next(); ok {
			at, what = int64(due), 1
		}
		if r.next < len(r.trace.Requests) {
			if t := int64(r.trace.Requests[r.next].At); at < 0 || t < at {
				at, what = t, 2
			}
		}
		if r.stepAt >= 0 && (at < 0 || r.stepAt < at) {
			at, what = r.stepAt, 3
		}
		if at < 0 { // requests wait, and the scaler never looks again
			r.refuseAll()
			return
		}
		r.advance(time.Duration(at))
		switch what {
		case 1:
			r.event(r.events.pop())
		case 2:
			r.arrive()
		case 3:
			r.step()
		}
	}
	r.idleUntil(r.trace.Length)
}

// idleUntil lets the scaler go on after the last request, until the trace ends.
func (r *run) idleUntil(end time.Duration) {
	for {
		at, step := int64(never), false
		if due, ok := r.events.next(); ok {
			at = int64(due)
		}
		if r.stepAt >= 0 && (at < 0 || r.stepAt < at) {
			at, step = r.stepAt, true
		}
		if at < 0 || at >= int64(end) {
			r.advance(max(end, r.view.Now))
			return
		}
		r.advance(time.Duration(at))
		if step {
			r.step()
		} else {
			r.event(r.events.pop())
		}
	}
}

// advance takes the clock to now.
func (r *run) advance(now time.Duration) {
	if d := (now - r.view.Now).Seconds(); d > 0 {
		r.view.LoadSeconds += float64(r.view.Queued+r.view.Running) * d
		r.view.BusySeconds += float64(r.view.Running) * d
		r.result.ReplicaSeconds += float64(r.all) * d
		r.result.BusySeconds += float64(r.view.Running) * d / float64(r.pool.Slots)
		r.view.Now = now
	}
}

func (r *run) arrive() {
	n := r.next
	r.next++
	if len(r.queue)-r.head >= r.pool.Queue && r.free == 0 {
		r.result.Waits[n] = never
		return
	}
	r.view.Arrived++
	r.view.Queued++
	idle := r.view.Queued+r.view.Running == 1
	r.queue = append(r.queue, int32(n))
	r.dispatch()
	r.note()
	if idle && r.view.Queued == 1 {
		r.hear(Idle)
	}
	r.hear(Changed)
}

// dispatch gives slots to those that wait longest.
func (r *run) dispatch() {
	for r.free > 0 && r.head < len(r.queue) {
		n := r.queue[r.head]
		r.head++
		replica := r.pick()
		replica.InFlight++
		r.free--
		r.view.Queued--
		r.view.Running++
		q := &r.trace.Requests[n]
		r.result.Waits[n] = r.view.Now - q.At
		r.events.push(event{at: r.view.Now + q.Service, kind: finished, replica: replica})
	}
	if r.head == len(r.queue) {
		r.queue, r.head = r.queue[:0], 0
	} else if r.head > 1024 && r.head > len(r.queue)/2 {
		r.queue = append(r.queue[:0], r.queue[r.head:]...)
		r.head = 0
	}
}

// pick is the ready replica with the fewest requests, the oldest of several;
// of planned ones that with the lowest rank.
func (r *run) pick() *Replica {
	var best *Replica
	for _, c := range r.view.Replicas {
		if !c.Ready || c.InFlight >= r.pool.Slots {
			continue
		}
		if best == nil || c.rank < best.rank || c.rank == best.rank && c.InFlight < best.InFlight {
			best = c
		}
	}
	return best
}

func (r *run) event(e event) {
	switch e.kind {
	case finished:
		e.replica.InFlight--
		r.view.Running--
		r.view.Done++
		r.view.LastDone = r.view.Now
		if e.replica.ended {
			if e.replica.InFlight == 0 {
				r.all--
			}
		} else {
			r.free++
			r.dispatch()
		}
		r.note()
		r.hear(Changed)
	case ready:
		if e.replica.ended {
			return
		}
		e.replica.Ready, e.replica.ReadyAt = true, r.view.Now
		r.free += r.pool.Slots
		r.dispatch()
		r.note()
		r.hear(Turned)
	}
}

// hear brings the next step forward if the scaler reacts to an event.
func (r *run) hear(e Event) {
	if after, reacts := r.scaler.Reacts(e); reacts {
		if at := int64(r.view.Now + after); r.stepAt < 0 || at < r.stepAt {
			r.stepAt = at
		}
	}
}

func (r *run) step() {
	r.stepAt = never
	d := r.scaler.Step(&r.view)
	if d.Again > 0 {
		r.stepAt = int64(max(d.Again, r.view.Now+1))
	}
	count := min(max(d.Count, 0), r.pool.Max)
	for _, id := range d.Victims {
		if len(r.view.Replicas) > count {
			r.end(slices.IndexFunc(r.view.Replicas, func(c *Replica) bool { return c.ID == id }))
		}
	}
	for len(r.view.Replicas) > count {
		r.end(newest(r.view.Replicas))
	}
	for n := 0; len(r.view.Replicas) < count; n++ {
		start := PlannedStart{}
		if n < len(d.Starts) {
			start = d.Starts[n]
		} else {
			start.Takes = r.pool.Startup.draw(r.startups)
		}
		r.start(start)
	}
}

// newest is the index of the youngest that starts, else of the youngest.
func newest(rs []*Replica) int {
	for i := len(rs) - 1; i >= 0; i-- {
		if !rs[i].Ready {
			return i
		}
	}
	return len(rs) - 1
}

func (r *run) start(s PlannedStart) {
	c := &Replica{ID: r.result.Starts, Began: r.view.Now, rank: s.Rank}
	r.result.Starts++
	r.all++
	r.result.Peak = max(r.result.Peak, r.all)
	if n := len(r.ended); n > 0 {
		if r.view.Now-r.ended[n-1] < r.pool.Startup.Mean() {
			r.result.Flaps++
		}
		r.ended = r.ended[:n-1]
	}
	r.view.Replicas = append(r.view.Replicas, c)
	r.events.push(event{at: r.view.Now + s.Takes, kind: ready, replica: c})
	r.note()
}

// end takes a live replica out; its requests go on to their end.
func (r *run) end(i int) {
	if i < 0 {
		return
	}
	c := r.view.Replicas[i]
	r.view.Replicas = slices.Delete(r.view.Replicas, i, i+1)
	c.ended = true
	r.ended = append(r.ended, r.view.Now)
	if c.Ready {
		r.free -= r.pool.Slots - c.InFlight
	}
	if c.InFlight == 0 {
		r.all--
	}
	r.note()
}

// note keeps a point of the chart.
func (r *run) note() {
	r.skipped++
	if r.skipped < r.every {
		return
	}
	r.skipped = 0
	p := Point{At: r.view.Now, Ready: r.view.Ready(), Replicas: r.all, Load: r.view.Queued + r.view.Running}
	counts := r.result.Counts
	if n := len(counts); n > 0 && counts[n-1].At == p.At {
		counts[n-1] = p
		return
	}
	if len(counts) == maxPoints {
		for i := range maxPoints / 2 {
			counts[i] = counts[2*i]
		}
		counts = counts[:maxPoints/2]
		r.every = max(2*r.every, 2)
	}
	r.result.Counts = append(counts, p)
}

// refuseAll gives up requests that nothing will ever serve.
func (r *run) refuseAll() {
	for _, n := range r.queue[r.head:] {
		r.result.Waits[n] = never
	}
	for n := r.next; n < len(r.trace.Requests); n++ {
		r.result.Waits[n] = never
	}
	r.advance(max(r.trace.Length, r.view.Now))
}

func (r *run) finish() *Result {
	r.result.Elapsed = r.view.Now
	return r.result
}
