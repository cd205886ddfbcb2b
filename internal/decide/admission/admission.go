// Package admission decides what becomes of a request that has found its
// pool: it goes on at once, waits, or is shed.
//
// A Machine holds one pool's waiting requests. It takes events with the time
// they happen at and gives verdicts with reasons; it has no clock and does no
// I/O.
//
// # Policy
//
// A request has a priority: an InferenceObjective's number, or what stands for
// an InferenceModel's criticality. Unset is 0, and what is negative is
// sheddable.
//
//   - Whoever finds room goes on at once, past those only for whom there is
//     none (they may be bound to other endpoints).
//   - A pool is saturated when each of its endpoints is: an endpoint that has
//     capacity is enough. A sheddable request is shed then, any other is held:
//     it waits here, where priority and turns count, and not in an engine's
//     queue. A pool without a ready replica is not saturated: a request of any
//     priority waits there, and so keeps the pool's wake-up going.
//   - A request with a target that no endpoint is predicted to meet is shed if it
//     is sheddable, else deferred: it waits, and who can be answered in time goes
//     past it. The caller says so for as long as the target lies ahead.
//   - Everybody else waits, within bounds of requests and bytes. At a bound, a
//     request of higher priority takes the places of the newest ones of the
//     lowest priority; without such it is shed.
//
// Capacity goes to the highest priority that waits. Within one priority the
// fairness ids take turns, and the requests of one id go in the order they
// came. Where Config.ByTokens asks for it, the ids share tokens, not turns: next is who
// was served the fewest. A lower priority is passed over at most Config.MaxPassed times in a
// row; then its oldest request goes, so that it always moves, if slowly.
//
// The order of bands, turns and arrival is that of the flow control of the
// Gateway API Inference Extension; what saturates an endpoint is its
// detector's.
package admission

import (
	"errors"
	"fmt"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// Config has a Machine's limits, and when a pool is saturated. Start from
// DefaultConfig.
type Config struct {
	// MaxQueue and MaxQueueBytes bound what waits, in requests and in bytes.
	MaxQueue      int
	MaxQueueBytes int64
	// MaxFlows is how many fairness ids are told apart at a time; those beyond
	// share one turn.
	MaxFlows int
	// ByTokens has the fairness ids of a priority share by tokens, not by requests.
	ByTokens bool
	// MaxPassed is how often in a row a priority that waits is passed over by
	// higher ones; 0 for any number.
	MaxPassed int
	// HoldAt is the saturation from which requests wait here, where priority
	// and turns count, and not in the endpoints' own queues; 0 for never.
	HoldAt float64
	// QueueDepth and KVUsage are what one endpoint's queue and memory for keys
	// and values are at when it is saturated.
	QueueDepth float64
	KVUsage    float64
	// LoadStale is the age up to which an endpoint's word counts in full; it
	// fades until twice that.
	LoadStale time.Duration
}

// DefaultConfig holds 1,000 requests or 256 MiB, and calls an endpoint
// saturated where the endpoint picker of the Gateway API Inference Extension
// does.
func DefaultConfig() Config {
	return Config{MaxQueue: 1000, MaxQueueBytes: 256 << 20, MaxFlows: 1024, MaxPassed: 20, HoldAt: 1,
		QueueDepth: 5, KVUsage: 0.8, LoadStale: 5 * time.Second}
}

// Validate reports every field that is out of range.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, field, want string, is any) {
		if !ok {
			errs = append(errs, fmt.Errorf("admission: %s must be %s, is %v", field, want, is))
		}
	}
	check(c.MaxQueue > 0, "MaxQueue", "more than 0", c.MaxQueue)
	check(c.MaxQueueBytes > 0, "MaxQueueBytes", "more than 0", c.MaxQueueBytes)
	check(c.MaxFlows > 0, "MaxFlows", "more than 0", c.MaxFlows)
	check(c.MaxPassed >= 0, "MaxPassed", "0 or more", c.MaxPassed)
	check(c.HoldAt >= 0, "HoldAt", "0 or more", c.HoldAt)
	check(c.QueueDepth > 0, "QueueDepth", "more than 0", c.QueueDepth)
	check(c.KVUsage > 0 && c.KVUsage <= 1, "KVUsage", "more than 0 and at most 1", c.KVUsage)
	check(c.LoadStale > 0, "LoadStale", "more than 0", c.LoadStale)
	return errors.Join(errs...)
}

// Decision is what becomes of a request.
type Decision string

// The decisions.
const (
	Admit Decision = "Admit"
	Queue Decision = "Queue"
	Shed  Decision = "Shed"
)

// Reason is why, in one CamelCase word.
type Reason string

// The reasons. Admit has Available; Queue has NoCapacity, Starting, Paced or Deferred;
// Shed has the others.
const (
	Available  Reason = "Available"  // an endpoint can take it
	NoCapacity Reason = "NoCapacity" // every endpoint it may go to is at its limit or suspect
	Starting   Reason = "Starting"   // no replica is ready
	Paced      Reason = "Paced"      // saturated: it waits here instead of in an endpoint's queue
	Saturated  Reason = "Saturated"  // saturated, and the request is sheddable
	Deferred   Reason = "Deferred"   // none is predicted to answer it in time: those that can be answered in time go first
	Late       Reason = "Late"       // none is predicted to answer it in time, and the request is sheddable
	QueueFull  Reason = "QueueFull"  // the queue is full, without a request of a lower priority
	BytesFull  Reason = "BytesFull"  // the bodies of waiting requests are at their limit
	Evicted    Reason = "Evicted"    // a request of a higher priority took its place in the queue
	Overdue    Reason = "Overdue"    // its deadline is over
)

// Verdict is a decision on a request that arrives.
type Verdict struct {
	Decision Decision
	Reason   Reason
	// Evicted are those who lost their place to it: they are out of the queue
	// and shed. The slice is the machine's, good until its next call.
	Evicted []*Waiter
}

// State is the pool at the time of an event.
type State struct {
	// Available: some endpoint can take the request now.
	Available bool
	// Starting: no replica is ready, so that Saturation says nothing.
	Starting bool
	// Saturation is the pool's: that of the endpoint that has the most
	// capacity, 1 where none has any. It is read only for sheddable requests.
	Saturation float64
	// Paced: no endpoint is to be sent more than it has capacity for.
	Paced bool
	// Late: no endpoint is predicted to answer the request within its target.
	Late bool
}

// Endpoint is what the saturation of an endpoint is worked out from.
type Endpoint struct {
	Load     *replica.Load // what it last said; nil when unknown
	InFlight int           // requests of ours there now
	AtLoad   int           // and when Load was said
	Others   int           // requests of ours at other ranks of its server
	Limit    int           // of the server's; 0 for none
}

// Saturation is an endpoint's, 1 for saturated. Where requests wait there, each
// that was sent since waits too. An endpoint of which nothing is known counts
// as idle, and so does the memory of one that has nothing to do: what it holds
// is only cached.
func (c *Config) Saturation(e *Endpoint, now time.Time) float64 {
	return c.saturation(e, now, e.Load != nil && e.Load.Waiting > 0)
}

// Queues reports whether requests are known to wait in an engine's own queue. Those of
// a server that collects batches do not count.
func (c *Config) Queues(l *replica.Load, now time.Time) bool {
	return l != nil && !l.Batches && l.Waiting > 0 && c.weight(now.Sub(l.At)) > 0
}

// Pace is the saturation of an endpoint while requests are held: each that was
// sent there since it last spoke is taken to wait, so that those held are let
// go as fast as the endpoint works, and not all at its first word of capacity.
func (c *Config) Pace(e *Endpoint, now time.Time) float64 { return c.saturation(e, now, true) }

func (c *Config) saturation(e *Endpoint, now time.Time, sentWait bool) float64 {
	value := 0.0
	if e.Limit > 0 {
		value = float64(e.InFlight+e.Others) / float64(e.Limit)
	}
	if e.Load == nil || e.Load.Batches { // a server without a queue has nothing to batch
		return value
	}
	w := c.weight(now.Sub(e.Load.At))
	if w == 0 {
		return value
	}
	waiting := e.Load.Waiting
	if sentWait {
		waiting += e.InFlight - e.AtLoad
	}
	value = max(value, w*float64(waiting)/c.QueueDepth)
	if e.InFlight > 0 || e.Load.Running > 0 || e.Load.Waiting > 0 {
		value = max(value, w*e.Load.KV/c.KVUsage)
	}
	return value
}

// Holds reports whether requests are held at a saturation.
func (c *Config) Holds(saturation float64) bool { return c.HoldAt > 0 && saturation >= c.HoldAt }

// weight is how much a word of this age counts, from 1 down to 0. One of the
// future, as when a clock was set back, is as doubtful as one of the past.
func (c *Config) weight(age time.Duration) float64 {
	age = max(age, -age, 0)
	switch {
	case age <= c.LoadStale:
		return 1
	case age >= 2*c.LoadStale:
		return 0
	}
	return 1 - float64(age-c.LoadStale)/float64(c.LoadStale)
}

// budgetWindow is the time over which a Budget is kept.
const budgetWindow = 10 * time.Second

// Budget bounds retries to a share of the recent requests, so that a pool that
// fails is not asked many times over. The bound is on the last 5 to 10
// seconds. The zero Budget allows none.
type Budget struct {
	// Ratio is how many retries one request pays for, Rate how many a second
	// are allowed beside.
	Ratio, Rate float64

	since             time.Time  // of the present half window
	requests, retries [2]float64 // in the present half and the one before
}

// Request notes a request that was admitted.
func (b *Budget) Request(now time.Time) {
	b.turn(now)
	b.requests[0]++
}

// Take counts a retry and reports whether the budget allows it; a retry that it
// does not allow is not counted.
func (b *Budget) Take(now time.Time) bool {
	if !b.Allows(now) {
		return false
	}
	b.retries[0]++
	return true
}

// Allows reports whether there is a retry left.
func (b *Budget) Allows(now time.Time) bool {
	b.turn(now)
	return b.retries[0]+b.retries[1]+1 <= b.Ratio*(b.requests[0]+b.requests[1])+b.Rate*budgetWindow.Seconds()
}

func (b *Budget) turn(now time.Time) {
	const half = budgetWindow / 2
	switch d := now.Sub(b.since); {
	case d < half: // a clock that goes back stays in the half
	case d < 2*half:
		b.since = b.since.Add(half)
		b.requests = [2]float64{0, b.requests[0]}
		b.retries = [2]float64{0, b.retries[0]}
	default:
		b.since = now
		b.requests, b.retries = [2]float64{}, [2]float64{}
	}
}
