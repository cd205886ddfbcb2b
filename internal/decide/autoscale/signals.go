package autoscale

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

const (
	// fresh is how old a reading may be to count.
	fresh = 45 * time.Second
	// apart is the least time between two readings that confirm each other.
	apart = time.Second
	// scan is how often measurements are looked at while there are no requests.
	scan = 5 * time.Second
	// tolerance is by which part a value may differ from its target without effect,
	// as a HorizontalPodAutoscaler has it.
	tolerance = 0.1
	// twice and more are how many replicas a measurement may ask for, by those that
	// are ready: twice as many, or so many more. Also a HorizontalPodAutoscaler's.
	twice = 2
	more  = 4
)

// Reading is a value and when it was read. The zero Reading is none.
type Reading struct {
	At    time.Time
	Value float64
	// Problem is why there is no newer one.
	Problem string
}

// Signal is what a metric showed at a decision.
type Signal struct {
	Metric string  `json:"metric"`
	Target float64 `json:"target"`
	// Value is per replica, but the sum where the metric is external.
	Value float64 `json:"value"`
	// Wanted is the count that it asks for.
	Wanted int `json:"wanted"`
	// Problem is why the value does not count, "" where it does.
	Problem string `json:"problem,omitempty"`

	unit string
	idle bool // nothing is to be known
}

// String is the signal for people: "kv 93 % of 80 %".
func (s Signal) String() string {
	if s.Problem != "" {
		return s.Metric + ": " + s.Problem
	}
	return fmt.Sprintf("%s %s%s of %s%s", s.Metric, number(s.Value), s.unit, number(s.Target), s.unit)
}

// confirmed is what the last readings of a metric asked for.
type confirmed struct {
	at     time.Time // of the newest
	counts [2]int    // by the two last ones, the newest last
	n      int
	slots  float64 // requests that an engine computes at a time, as far as was seen
}

// take adds what a reading asks for, unless it is too near to the one before.
func (c confirmed) take(at time.Time, count int) confirmed {
	if c.n > 0 && at.Sub(c.at) < apart && !at.Before(c.at) {
		return c
	}
	c.at, c.counts, c.n = at, [2]int{c.counts[1], count}, min(c.n+1, len(c.counts))
	return c
}

// count is what two readings in a row ask for: of more than now the less, of fewer
// the more, and now where they contradict each other.
func (c confirmed) count(now int) int {
	low, high := min(c.counts[0], c.counts[1]), max(c.counts[0], c.counts[1])
	switch {
	case c.n < len(c.counts):
		return now
	case low > now:
		return low
	case high < now:
		return high
	}
	return now
}

// signals is the count that the measured metrics of a component ask for: the
// highest of them. A metric that is not known, or whose value cannot be, asks for
// what there is. What it asks for must be confirmed by a second reading, and is at
// most twice the replicas that are ready, or four more.
func signals(s State, next *State, in Input, now time.Time) (int, []Signal) {
	metrics := in.Limits.Measured()
	if len(metrics) == 0 {
		return 0, nil
	}
	kept := map[string]confirmed{}
	out := make([]Signal, 0, len(metrics))
	most := 0
	for _, m := range metrics {
		seen := s.signals[m.Name()]
		v, problem := in.value(m, now)
		sig := Signal{Metric: m.Name(), Target: m.Target, Problem: problem}
		if m.Metric.Percent() {
			sig.unit = " %"
		}
		switch {
		case problem == "":
			sig.Value = v.value
			if m.Metric == service.MetricQueue {
				seen.slots = v.slots(seen.slots)
			}
			seen = seen.take(v.at, needed(m, &v, seen.slots))
			sig.Wanted = min(seen.count(next.Count), max(twice*v.ready, v.ready+more))
		case in.idle(m):
			sig.idle = true
		default:
			if sig.Wanted = next.Count; sig.Wanted > 0 {
				sig.Problem += "; the count stays"
			}
		}
		if in.idle(m) && m.Metric.Resource() { // a model takes memory without any work
			sig.Wanted = 0
		}
		kept[m.Name()] = seen
		out, most = append(out, sig), max(most, sig.Wanted)
	}
	if !maps.Equal(kept, s.signals) {
		next.signals = kept
	}
	return most, out
}

// slotted is how many replicas the requests of now fill, where a replica takes a
// limited number of them.
func slotted(in Input) int {
	if in.Limits.MaxConcurrency <= 0 {
		return 0
	}
	return ceil(float64(in.Demand.Queued+in.Demand.Running) / float64(in.Limits.MaxConcurrency))
}

// explained adds to a reason the signals that ask for count, and those that are not
// known.
func explained(signals []Signal, count int, why string) string {
	var parts []string
	if why != "" {
		parts = append(parts, why)
	}
	for _, s := range signals {
		if s.Problem != "" && (s.Wanted > 0 || !s.idle) || s.Problem == "" && s.Wanted >= count && s.Wanted > 0 {
			parts = append(parts, s.String())
		}
	}
	return strings.Join(parts, "; ")
}

// idle reports whether a metric that is not known says nothing of a component: an
// engine without requests is not read, but what is external may have work for it.
func (in *Input) idle(m service.MetricTarget) bool {
	return !busy(*in) && m.Metric != service.MetricExternal
}

// measurement is the value of a metric over the replicas.
type measurement struct {
	at    time.Time
	value float64 // per replica, or the sum of what is external
	ready int
	// told and missing are how many of the ready replicas tell it, and do not.
	told, missing int
	// waiting and running are the requests in engines, peak the most that one
	// computes, and full the most that one with a queue does.
	waiting, running, peak, full float64
}

// slots is how many requests an engine computes at a time: as many as one with a
// queue does, and else no less than one was seen to.
func (v *measurement) slots(before float64) float64 {
	if v.full > 0 {
		return v.full
	}
	return max(before, v.peak)
}

// needed is the count that brings a value to its target.
func needed(m service.MetricTarget, v *measurement, slots float64) int {
	switch m.Metric {
	case service.MetricExternal:
		return ceil(v.value / m.Target)
	case service.MetricTokens:
		return ceil(v.value * float64(v.ready) / m.Target)
	case service.MetricQueue:
		return v.missing + ceil((v.running+v.waiting)/max(slots+m.Target, 1))
	}
	ratio := v.value / m.Target
	if math.Abs(ratio-1) <= tolerance {
		return v.ready
	}
	return ceil(ratio * float64(v.ready))
}

// value is what a metric shows, and why it shows nothing.
func (in *Input) value(m service.MetricTarget, now time.Time) (measurement, string) {
	if m.Metric == service.MetricExternal {
		r := in.External[m.Name()]
		v := measurement{at: r.At, value: r.Value, ready: in.ready()}
		switch {
		case r.At.IsZero():
			return v, cmp.Or(r.Problem, "not read yet")
		case now.Sub(r.At) > fresh:
			return v, strings.TrimSuffix(fmt.Sprintf("last read %s ago: %s", now.Sub(r.At).Truncate(time.Second), r.Problem), ": ")
		}
		return v, impossible(r.Value)
	}
	v, sum, problem := measurement{ready: in.ready()}, 0.0, "no replica is ready"
	for i := range in.Replicas {
		r := &in.Replicas[i]
		if !r.Ready {
			continue
		}
		x, at, why := r.value(m.Metric)
		if why == "" && now.Sub(at) > fresh {
			why = fmt.Sprintf("last read %s ago", now.Sub(at).Truncate(time.Second))
		}
		if why = cmp.Or(why, impossible(x)); why != "" {
			if v.missing++; v.missing == 1 {
				problem = r.ID + ": " + why
			}
			continue
		}
		sum += x
		v.add(r, m.Metric, at)
	}
	if v.told == 0 {
		return v, problem
	}
	// Those that do not tell have nothing where the others have more than their
	// target, and their target where they have less.
	if sum/float64(v.told) < m.Target {
		sum += float64(v.missing) * m.Target
	}
	v.value = sum / float64(v.told+v.missing)
	return v, ""
}

// add counts a replica that tells its value.
func (v *measurement) add(r *Replica, m service.ScaleMetric, at time.Time) {
	v.told++
	if at.After(v.at) {
		v.at = at
	}
	if m != service.MetricQueue {
		return
	}
	waiting, running := float64(r.Load.Waiting), float64(r.Load.Running)
	v.waiting, v.running, v.peak = v.waiting+waiting, v.running+running, max(v.peak, running)
	if waiting > 0 {
		v.full = max(v.full, running)
	}
}

func (in *Input) ready() (n int) {
	for i := range in.Replicas {
		if in.Replicas[i].Ready {
			n++
		}
	}
	return n
}

// value is a metric of one replica, and when it was read.
func (r *Replica) value(m service.ScaleMetric) (float64, time.Time, string) {
	const untold = "its engine does not tell it"
	switch {
	case m.Resource():
		if r.Use == nil || r.Use.At.IsZero() {
			problem := ""
			if r.Use != nil {
				problem = r.Use.Problem
			}
			return 0, time.Time{}, cmp.Or(problem, "not measured")
		}
		x := r.Use.Memory
		if m == service.MetricCPU {
			x = r.Use.CPU
		}
		if x < 0 { // of this resource nothing is known
			return 0, time.Time{}, cmp.Or(r.Use.Problem, "not measured")
		}
		return x, r.Use.At, ""
	case r.Load == nil:
		return 0, time.Time{}, "its engine's metrics are not read"
	case m == service.MetricQueue && r.Load.Tells.Queue:
		return float64(r.Load.Waiting), r.Load.At, ""
	case m == service.MetricKV && r.Load.Tells.KV:
		return 100 * r.Load.KV, r.Load.At, ""
	case m == service.MetricTokens && r.Load.Tells.KV && r.Load.Blocks > 0 && r.Load.BlockTokens > 0:
		return r.Load.KV * float64(r.Load.Blocks) * float64(r.Load.BlockTokens), r.Load.At, ""
	}
	return 0, time.Time{}, untold
}

// impossible returns why a value is none, "" where it may be one.
func impossible(x float64) string {
	switch {
	case math.IsNaN(x):
		return "not a number"
	case math.IsInf(x, 0):
		return "infinite"
	case x < 0:
		return fmt.Sprintf("negative (%s)", number(x))
	}
	return ""
}

// working reports whether a measured metric tells of work that no gateway sent.
func (in *Input) working(now time.Time) bool {
	for _, m := range in.Limits.Measured() {
		if m.Metric == service.MetricExternal {
			if v, problem := in.value(m, now); problem == "" && v.value > 0 {
				return true
			}
			continue
		}
		if !m.Metric.Engine() {
			continue
		}
		for i := range in.Replicas {
			if l := in.Replicas[i].Load; l != nil && now.Sub(l.At) <= fresh && l.Waiting+l.Running > 0 {
				return true
			}
		}
	}
	return false
}
