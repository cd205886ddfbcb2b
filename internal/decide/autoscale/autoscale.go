// Package autoscale decides how many replicas a component should have: a pure
// step over cumulative demand, the present replicas and the time.
package autoscale

import (
	"fmt"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// Demand is what gateways have seen for one pool. Counters are cumulative
// since the reporter started, so a lost report loses nothing.
type Demand struct {
	// Queued and Running are requests waiting for a replica and in flight now.
	Queued  int `json:"queued"`
	Running int `json:"running"`
	// Arrived and Done count requests ever admitted and ever finished.
	Arrived uint64 `json:"arrived"`
	Done    uint64 `json:"done"`
	// Left counts those of Done that ended without having run, such as those whose
	// callers gave up.
	Left uint64 `json:"left,omitempty"`
	// LoadSeconds is the integral of queued + running over time.
	LoadSeconds float64 `json:"loadSeconds"`
	// BusySeconds is the integral of running over time.
	BusySeconds float64 `json:"busySeconds,omitempty"`
	// LastDone is when the last request finished; zero when none has.
	LastDone time.Time `json:"lastDone,omitzero"`
	// Unknown reports that a gateway that takes requests has not told yet what is
	// asked of it, so that there may be more than the counts say.
	Unknown bool `json:"unknown,omitempty"`
}

// Replica is what the decision needs of one replica.
type Replica struct {
	ID       string
	Ready    bool
	Starting bool // neither ready nor failed
	// Failed: it has ended before, and was started again. Its starts do not
	// count as activity.
	Failed bool
	// Waiting: it has not begun to start for want of something.
	Waiting  bool
	InFlight int
	Started  time.Time // of the present process
	ReadyAt  time.Time
	// Load is what its engine last told, and Use what its process takes; nil
	// where that is not known.
	Load *replica.Load
	Use  *replica.Use
	Woke *replica.Woke // its last waking; nil without one
}

// Input is everything one step looks at besides its state.
type Input struct {
	Demand   Demand
	Replicas []Replica // alive ones: starting and ready
	Limits   service.Limits
	// Wake is the least count a gateway has asked for; 0 for none.
	Wake int
	// Stopped and Unloaded force zero: by the manifest, or by a request to
	// unload the model.
	Stopped, Unloaded bool
	// External are the readings of Limits' external metrics, by their names.
	External map[string]Reading
	// AtLeast is the count that the ratio to another component asks for.
	AtLeast int
	// BeforeServes: none of Replicas serves yet, an older revision does.
	BeforeServes bool
	// Revision is what is to run, and Before reports that Replicas are still those of
	// the one before.
	Revision string
	Before   bool

	// least and most are why Limits are not the component's own: of the schedule.
	least, most string
	// active: measurements tell of work, whether gateways sent it or not.
	active bool
}

// State is carried from step to step; the zero State is a fresh start.
type State struct {
	Count     int       // last decided
	Last      time.Time // of the last step
	Window    Window    // of demand
	IdleSince time.Time // when nothing was queued, in flight or starting any more; zero while busy
	Unknown   bool      // Demand.Unknown at the last step
	Fell      time.Time // when the count last fell
	Learned   Learned
	// Quiet is when the last request came, where Prewarm needs it, and
	// Ahead reports whether the count is for requests that are yet to come.
	Quiet time.Time
	Ahead bool

	seen     seen // by Learned
	pausing  pausing
	rises    rises
	schedule schedule
	knative  knative
	// signals are what measured metrics asked for, by their names.
	signals map[string]confirmed
	usual   returns
	arrived uint64    // at the last step
	done    time.Time // Demand.LastDone at the last step
	open    bool      // at the last step requests waited or ran
	emptied uint64    // Demand.Arrived when the pool, idle, went to zero
}

// Decision is what should happen and why.
type Decision struct {
	Count   int
	Least   int           // what the limits and the schedule ask for at least
	Victims []string      // replicas to end first, when Count is fewer than now
	Again   time.Duration // when to step again if nothing happens before; 0 for never
	// Why is the reason, but of one that is idle: that is since IdleSince, and
	// the last replica stops after StopsAfter of it.
	Why        string
	IdleSince  time.Time
	StopsAfter time.Duration
	// Prewarm is when a replica is started ahead of requests, or why none is; ""
	// where that is not asked for.
	Prewarm string
	Numbers Numbers
	// Need is the count that the component itself asks for, within its limits,
	// whatever its ratio to another.
	Need int
}

// Reason is why the count is what it is, as of now.
func (d Decision) Reason(now time.Time) string {
	switch idle := max(0, now.Sub(d.IdleSince)).Truncate(time.Second); {
	case d.IdleSince.IsZero():
		return d.Why
	case d.StopsAfter == 0 && d.Prewarm != "":
		return "stopped, idle since " + d.IdleSince.UTC().Format(time.RFC3339) + "; prewarm: " + d.Prewarm
	case d.StopsAfter == 0:
		return "stopped, idle since " + d.IdleSince.UTC().Format(time.RFC3339)
	default:
		return fmt.Sprintf("idle for %s, stops after %s", idle, d.StopsAfter)
	}
}
