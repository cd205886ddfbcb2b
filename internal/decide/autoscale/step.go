package autoscale

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

const (
	// tick is how often a busy pool is looked at again.
	tick = time.Second
	// settle is how long fewer replicas must have been enough before any is
	// ended; the highest count wanted within it is what remains. Half of
	// Knative's stable window, since the load is measured, not sampled.
	settle = 30 * time.Second
	// window is what arrivals are counted over for a rate: a burst of it is no
	// more per second than its tenth.
	window = 10 * time.Second
	// measured is what counts of an average: one that is a hundredth over what the
	// replicas take is not more than they take, but read a moment late.
	measured = 0.99
)

// forced returns why no replica may run whatever the demand, "" when some may.
func forced(in Input) string {
	switch {
	case in.Stopped:
		return "stopped by its owner"
	case in.Unloaded:
		return "unloaded by a request"
	}
	return ""
}

// Step decides the count. It is ceil(load / target) within [min, max], where
// load is the greater of the average of the last tick or more and what is queued
// and in flight right now, so that growth is answered at once; from zero it is
// therefore ceil(queued / target). With MetricRPS load is the arrivals of the
// last window, per second, and no less than what would have the requests that
// wait gone within a window. A count falls only after settle, and to zero only
// when the pool has been idle for ScaleToZeroAfter, counted from the last
// completion, wake or first readiness of a replica, never during a first
// startup; replicas that only wait for what they need go after settle. While the demand is unknown a count only grows, and the idle clock
// stands still.
func Step(s State, in Input, now time.Time) (State, Decision) {
	next := begin(s, in, now)
	if why := forced(in); why != "" {
		next.Count = 0
		return next, decide(next, in, 0, why)
	}
	want, why := wanted(s, &next, in, now)
	if in.Demand.Unknown {
		next.Count = held(next.Count, want, in)
		return next, decide(next, in, 0, "demand unknown until every gateway has told")
	}
	wait := time.Duration(0)
	// More than the least may be wanted for the average alone, of requests that
	// are gone: nothing else would have it looked at again.
	if busy(in) || want > in.Limits.Min || next.Count > max(in.Limits.Min, 1) || next.IdleSince.IsZero() || counting(in, now) {
		wait = tick
	}
	idle, stops := want == 0 && next.Count > 0 && !next.IdleSince.IsZero(), stopsAfter(in)
	if want == 0 && next.Count > 0 {
		left := stops - now.Sub(next.IdleSince)
		switch {
		case !idle:
			want, why = 1, "starting"
		case left <= 0:
			next.Count = 0
			d := decide(next, in, 0, "")
			d.IdleSince = next.IdleSince
			return next, d
		default:
			want = 1
			if wait == 0 || left < wait {
				wait = left
			}
		}
	}
	if want < next.Count {
		next.Count = min(fall(s, &next, want, now), in.Limits.Max) // a lower bound holds at once
	} else {
		next.Count = want
	}
	d := decide(next, in, wait, why)
	if idle {
		d.Why, d.IdleSince, d.StopsAfter = "", next.IdleSince, stops
	}
	return next, d
}

// begin is the state after a step that leaves the count as it is.
func begin(s State, in Input, now time.Time) State {
	next := State{Last: now, Averaged: s.Averaged, LastLoad: s.LastLoad, LastSeen: in.Demand.Arrived,
		IdleSince: idleSince(s, in, now), Unknown: in.Demand.Unknown, Count: s.Count, Arrivals: arrivals(s, in, now)}
	if s.Last.IsZero() {
		next.Count = len(in.Replicas) // a returning owner starts from what runs
	}
	if s.Last.IsZero() || s.Unknown || in.Demand.Unknown || now.Sub(s.Averaged) >= tick {
		next.Averaged, next.LastLoad = now, in.Demand.LoadSeconds
	}
	return next
}

// stopsAfter is the idle time after which none is left. One that has got
// nothing yet, as it waits for an accelerator or a node, is not worth keeping
// for requests to come: what it waits for would be lost to others.
func stopsAfter(in Input) time.Duration {
	if len(in.Replicas) > 0 && !slices.ContainsFunc(in.Replicas, func(r Replica) bool { return !r.Waiting }) {
		return min(in.Limits.ScaleToZeroAfter, settle)
	}
	return in.Limits.ScaleToZeroAfter
}

// wanted is the count the load alone calls for, within the limits.
func wanted(s State, next *State, in Input, now time.Time) (int, string) {
	l := in.Limits
	if l.Metric.Resource() {
		l.Target = service.DefaultScaleTarget // a percentage is no number of requests
	}
	load, unit := float64(in.Demand.Queued+in.Demand.Running), "in flight"
	switch dt := now.Sub(s.Averaged); {
	case l.Metric == service.MetricRPS:
		load, unit = max(next.Arrivals.rate(now), float64(in.Demand.Queued)/window.Seconds()), "per second"
	// What came to be known since the last step happened at an unknown time.
	// Nor is an average taken over less than a tick: the demand and the time of
	// the step are read one after the other, which a gap of milliseconds would
	// turn into requests that never were.
	case !s.Last.IsZero() && !s.Unknown && !in.Demand.Unknown && dt >= tick:
		load = max(load, measured*(in.Demand.LoadSeconds-s.LastLoad)/dt.Seconds())
	}
	n := int(min(math.Ceil(load/l.Target), 1<<20))
	// The average of a short gap rounds a finished request up to a replica;
	// with nothing there now, that is no reason to keep one awake.
	if !busy(in) && n <= 1 {
		n = 0
	}
	if busy(in) {
		n = max(n, 1)
	}
	why := fmt.Sprintf("%s %s, target %s each", number(load), unit, number(l.Target))
	switch bounded := min(max(n, l.Min, in.Wake), l.Max); {
	case bounded > n && in.Wake > max(n, l.Min):
		return bounded, "asked to wake"
	case bounded > n:
		return bounded, fmt.Sprintf("minReplicas %d", l.Min)
	case bounded < n:
		return bounded, fmt.Sprintf("maxReplicas %d (%s)", l.Max, why)
	default:
		return bounded, why
	}
}

// number is x for people: without an exponent, with two decimals at most.
func number(x float64) string {
	if x >= 100 {
		x = math.Round(x)
	}
	return strconv.FormatFloat(math.Round(x*100)/100, 'f', -1, 64)
}

// Arrivals counts requests over a window that slides, in two halves of
// bounded size: those of the present window, and those of the one before it,
// of which a part still counts.
type Arrivals struct {
	Since        time.Time // the present window's begin
	Now, Earlier float64
}

// arrivals adds what has come since the last step. That is told soon after it
// comes, so it is of the present, however long ago the last step was. What came
// before this owner did, or at an unknown time, does not count, except that it
// still waits.
func arrivals(s State, in Input, now time.Time) Arrivals {
	a := s.Arrivals
	switch gone := now.Sub(a.Since); {
	case gone < 0 || gone >= 2*window: // the first, or long ago
		a = Arrivals{Since: now}
	case gone >= window:
		a = Arrivals{Since: a.Since.Add(window), Earlier: a.Now}
	}
	if !s.Last.IsZero() && !s.Unknown && !in.Demand.Unknown && in.Demand.Arrived > s.LastSeen {
		a.Now += float64(in.Demand.Arrived - s.LastSeen)
	}
	return a
}

// rate is how many came per second over the last window.
func (a Arrivals) rate(now time.Time) float64 {
	left := 1 - now.Sub(a.Since).Seconds()/window.Seconds()
	return (a.Now + a.Earlier*min(max(left, 0), 1)) / window.Seconds()
}

// counting reports whether a rate may yet change although nothing comes.
func counting(in Input, now time.Time) bool {
	return in.Limits.Metric == service.MetricRPS && now.Sub(in.Demand.LastDone) < window
}

// held is the count while the demand is unknown: no less than before, and one
// where a gateway has started a replica by itself.
func held(count, want int, in Input) int {
	if count == 0 && len(in.Replicas) > 0 {
		count = min(1, in.Limits.Max)
	}
	return max(count, want)
}

// fall is the count after a wish for fewer: the present one until fewer has
// been enough for settle, then the most that was wanted meanwhile.
func fall(s State, next *State, want int, now time.Time) int {
	next.LowSince, next.LowPeak = s.LowSince, max(s.LowPeak, want)
	if s.LowSince.IsZero() {
		next.LowSince, next.LowPeak = now, want
	}
	if now.Sub(next.LowSince) < settle {
		return next.Count
	}
	count := min(next.LowPeak, next.Count)
	next.LowSince, next.LowPeak = time.Time{}, 0
	return count
}

func busy(in Input) bool { return in.Demand.Queued+in.Demand.Running > 0 }

// idleSince is when the pool fell idle; zero while it is busy or starting. The
// clocks that replicas' times are by may be off from ours: they tell no later
// time than now, and none before the last step if the pool was not idle then.
func idleSince(s State, in Input, now time.Time) time.Time {
	if busy(in) {
		return time.Time{}
	}
	newest := in.Demand.LastDone
	if in.Wake > 0 {
		newest = now
	}
	for _, r := range in.Replicas {
		if r.Failed { // else one that never stays up would be kept for ever
			continue
		}
		if r.Starting {
			return time.Time{}
		}
		at := r.ReadyAt
		if at.After(now) {
			if at = now; !s.IdleSince.IsZero() {
				continue // it was there before
			}
		}
		if at.After(newest) {
			newest = at
		}
	}
	if s.IdleSince.IsZero() && s.Last.After(newest) {
		newest = s.Last
	}
	// What happened before this owner came says nothing of the demand since:
	// the clock holds from its first step that knows the demand.
	if s.Last.IsZero() || s.Unknown || in.Demand.Unknown || newest.IsZero() && s.IdleSince.IsZero() {
		return now
	}
	if s.IdleSince.After(newest) {
		return s.IdleSince
	}
	return newest
}

func decide(s State, in Input, again time.Duration, why string) Decision {
	d := Decision{Count: s.Count, Again: again, Why: why}
	if n := len(in.Replicas) - s.Count; n > 0 {
		d.Victims = victims(in.Replicas, n)
	}
	return d
}

// victims are the n replicas whose end costs least: not yet ready, then fewest
// in flight, then the youngest, whose caches are coldest.
func victims(rs []Replica, n int) []string {
	order := slices.Clone(rs)
	slices.SortStableFunc(order, func(a, b Replica) int {
		if a.Ready != b.Ready {
			if b.Ready {
				return -1
			}
			return 1
		}
		if a.InFlight != b.InFlight {
			return a.InFlight - b.InFlight
		}
		return b.ReadyAt.Compare(a.ReadyAt)
	})
	out := make([]string, n)
	for i := range out {
		out[i] = order[i].ID
	}
	return out
}
