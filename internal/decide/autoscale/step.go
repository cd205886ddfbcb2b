package autoscale

import (
	"cmp"
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
	// median is the quantile of the startup times that is reckoned with.
	median = 0.5
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

// Step decides the count, within [min, max]. The load is arrivals per second ×
// the seconds that one runs; a count that takes it, with some room for its
// variation, is the base. More are wanted while requests beyond the load would
// not be gone soon after a start; replicas that are starting count from when
// they will be ready. As long as nothing is known of how long a request runs, it
// is what is queued and in flight ÷ target. With MetricRPS the load is the
// arrivals of the last window, per second, and no less than what would have the
// requests that wait gone within a window.
//
// A replica that the load does not need stays as long as is cheaper than a new start,
// by the pauses after which it was needed again. To zero a count
// falls only when the pool has been idle for ScaleToZeroAfter, counted from the
// last completion, wake or first readiness of a replica, never during a first
// startup; replicas that only wait for what they need, or have failed, go after
// settle. While the demand is unknown a count only grows, and the idle clock
// stands still.
//
// While windows of the schedule are open, their bounds hold. The next step is no
// later than one opens or closes.
func Step(s State, in Input, now time.Time) (State, Decision) {
	open := s.schedule.at(in.Limits.Schedule, now)
	in.Limits, in.least, in.most = open.bounds(in.Limits, now)
	next, d := step(s, in, now)
	next.schedule, d.Least = open, in.Limits.Min
	if !open.until.IsZero() {
		d.Again = sooner(d.Again, open.until.Sub(now))
	}
	return next, d
}

// step decides within the bounds of the limits.
func step(s State, in Input, now time.Time) (State, Decision) {
	in.active = in.working(now)
	next := begin(s, in, now)
	if why := forced(in); why != "" {
		next.Count, next.pausing = 0, pausing{}
		next.Quiet, next.Ahead = time.Time{}, false // what was stopped is not started ahead
		// The load until now is no reason to start again.
		next.Window = Window{}
		next.Window.add(sampleOf(in.Demand, now))
		next.knative = knative{}
		return next, decide(next, in, 0, why)
	}
	if in.Limits.Knative != nil {
		return next.byKnative(in, now)
	}
	next.knative = knative{}
	need, want, why, num := wanted(s, &next, in, now)
	soon := next.ahead(in, now)
	if soon.want && want == 0 {
		need, want, why, next.Ahead = 1, 1, soon.why, next.Ahead || next.Count == 0
	}
	var d Decision
	if in.Demand.Unknown {
		next.Count = held(next.Count, want, in)
		d = decide(next, in, 0, "demand unknown until every gateway has told")
		need = next.Count
	} else {
		d = counted(&next, in, want, forLoad(in, num, want), why, soon, now)
	}
	d.Numbers, d.Need = num, need
	return next, d
}

// counted decides the count where want would do: when to go to zero, and how long
// to keep a surplus. The load needs some of want.
func counted(next *State, in Input, want, need int, why string, soon ahead, now time.Time) Decision {
	wait := sooner(next.again(in, want, now), soon.wait)
	idle, stops := want == 0 && next.Count > 0 && !next.IdleSince.IsZero(), stopsAfter(in)
	if want == 0 && next.Count > 0 {
		left := stops - now.Sub(next.IdleSince)
		switch {
		case !idle:
			want, why = 1, "starting"
		case left <= 0 || soon.over:
			next.Ahead = false
			next.Count, next.emptied = 0, in.Demand.Arrived
			d := decide(*next, in, sooner(next.again(in, 0, now), soon.wait), "")
			d.IdleSince, d.Prewarm = next.IdleSince, soon.why
			return d
		default:
			want = 1
			if wait == 0 || left < wait {
				wait = left
			}
		}
	}
	next.Count = min(fall(next, need, want, in, now), in.Limits.Max) // a lower bound holds at once
	d := decide(*next, in, wait, why)
	switch {
	case idle:
		d.Why, d.IdleSince, d.StopsAfter = "", next.IdleSince, stops
	case next.Count == 0 && soon.why != "":
		d.Why, d.IdleSince, d.Prewarm = "", next.IdleSince, soon.why
	}
	return d
}

// sooner is the shorter of two waits, of which 0 is never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// again is when the next step is due, if nothing happens before; 0 for never.
func (s *State) again(in Input, want int, now time.Time) time.Duration {
	// More than the least may be wanted for the average alone, of requests that
	// are gone: nothing else would have it looked at again.
	if busy(in) || want > in.Limits.Min || s.Count > max(in.Limits.Min, 1) || s.IdleSince.IsZero() || counting(in, now) {
		return tick
	}
	if len(in.Limits.Measured()) > 0 {
		return scan
	}
	return 0
}

// begin is the state after a step that leaves the count as it is.
func begin(s State, in Input, now time.Time) State {
	next := s
	next.rests(in, now)
	next.Last, next.Unknown = now, in.Demand.Unknown
	if !next.Ahead || busy(in) || in.Wake > 0 || s.IdleSince.IsZero() { // a start ahead of requests is no activity
		next.IdleSince = idleSince(s, in, now)
	}
	next.Learned, next.seen = next.Learned.woken(in.Replicas).started(in.Replicas, s.seen, now)
	if s.Last.IsZero() {
		next.Count = len(in.Replicas) // a returning owner starts from what runs
	}
	here := sampleOf(in.Demand, now)
	// What came to be known since the last step happened at an unknown time.
	if s.Last.IsZero() || s.Unknown || in.Demand.Unknown {
		next.Window = Window{}
	} else if before := next.Window.last(); next.Window.due(now) {
		next.Learned = next.Learned.served(before.until(here))
	}
	next.Window.add(here)
	next.Learned, next.rises = next.Learned.rose(next.rises, next.Window.since(window, here), next.Window.since(long, here), now)
	return next
}

// stopsAfter is the idle time after which none is left. One that has got
// nothing yet, as it waits for an accelerator or a node, and one that has failed
// are not worth keeping for requests to come: what they wait for or hold would be
// lost to others. Where an older revision serves, it would be stopped with them.
func stopsAfter(in Input) time.Duration {
	if !in.BeforeServes && len(in.Replicas) > 0 && !slices.ContainsFunc(in.Replicas, func(r Replica) bool { return r.Ready || !r.Waiting && !r.Failed }) {
		return min(in.Limits.ScaleToZeroAfter, settle)
	}
	return in.Limits.ScaleToZeroAfter
}

// wanted is the count the load calls for, within the limits, by the component
// itself and by its ratio to another.
func wanted(s State, next *State, in Input, now time.Time) (need, n int, why string, num Numbers) {
	l := in.Limits
	num, why = measure(s, next.Learned, in, l, now)
	n = num.Wanted
	if l.Metric.Measured() {
		n, why = slotted(in), "" // requests count by what may run at once alone
	}
	switch {
	case busy(in):
		n = max(n, 1)
	case n <= 1: // with nothing there now, its average is no reason to keep one awake
		n = 0
	case next.Count == 0 && in.Demand.Arrived == s.emptied: // or to start those again that were stopped
		n = 0
	}
	var most int
	if most, num.Signals = signals(s, next, in, now); busy(in) || most > 1 {
		n = max(n, most)
	}
	if why = explained(num.Signals, n, why); why == "" {
		why = "no measurement asks for more"
	}
	need = min(max(n, l.Min, in.Wake), l.Max)
	switch n, bounded := max(n, in.AtLeast), min(max(need, in.AtLeast), l.Max); {
	case bounded > need && bounded == in.AtLeast:
		return need, bounded, fmt.Sprintf("%d for the ratio to another component", in.AtLeast), num
	case bounded > n && in.Wake > max(n, l.Min):
		return need, bounded, "asked to wake", num
	case bounded > n:
		return need, bounded, cmp.Or(in.least, fmt.Sprintf("minReplicas %d", l.Min)), num
	case bounded < n:
		return need, bounded, fmt.Sprintf("%s (%s)", cmp.Or(in.most, fmt.Sprintf("maxReplicas %d", l.Max)), why), num
	default:
		return need, bounded, why, num
	}
}

// measure is what the load calls for, and what that is made of. The window is
// that of the last step: what has come since has just come.
func measure(s State, known Learned, in Input, l service.Limits, now time.Time) (Numbers, string) {
	w, here := s.Window, sampleOf(in.Demand, now)
	if s.Last.IsZero() || s.Unknown || in.Demand.Unknown {
		w = Window{} // what came to be known since happened at an unknown time
	}
	short, lasting := w.since(window, here), w.since(long, here)
	num := Numbers{Rate: rate(short, lasting), Startup: known.startup(median)}
	if l.Metric == service.MetricRPS {
		num.Rate, num.Backlog = short.arrived/short.seconds, float64(in.Demand.Queued)
		num.Load = max(num.Rate, num.Backlog/window.Seconds())
		num.Base = ceil(num.Rate / l.Target)
		num.Wanted = ceil(num.Load / l.Target)
		return num, fmt.Sprintf("%s per second, target %s each", number(num.Load), number(l.Target))
	}
	total := float64(in.Demand.Queued + in.Demand.Running)
	if num.Service = known.seconds(lasting); num.Service <= 0 {
		num.Load = unmeasured(&w, here, total)
		num.Base = ceil(num.Load / l.Target)
		num.Wanted = num.Base
		return num, fmt.Sprintf("%s in flight, target %s each", number(num.Load), number(l.Target))
	}
	num.Load = num.Rate * num.Service
	num.Backlog = max(0, total-num.Load)
	usual := lasting.arrived / lasting.seconds * num.Service
	p := plan{target: l.Target, slots: max(l.Target, float64(l.MaxConcurrency)), load: num.Load, service: num.Service, backlog: num.Backlog,
		rise: max(0, num.Load-usual), lasting: s.Learned.lasting(),
		ready: supply(in.Replicas, num.Startup, now), start: num.Startup, drain: max(drainLeast, drainPart*num.Startup, num.Service)}
	// While replicas start there may come as many requests as are there, but a rate that
	// a handful of arrivals tell is no reason to start for more. So a rise counts for no
	// more than twice the requests that are there or were just answered.
	num.Base = min(p.base(), max(p.baseOf(min(num.Load, usual)), ceil(2*(total+short.done)/l.Target)))
	num.Wanted = min(p.wanted(), max(num.Base, ceil(2*total/l.Target)))
	why := fmt.Sprintf("%s per second of %s s each are %s in flight, target %s each", number(num.Rate), number(num.Service), number(num.Load), number(l.Target))
	if num.Backlog >= 1 {
		why += fmt.Sprintf("; %s more wait", number(math.Floor(num.Backlog)))
	}
	return num, why
}

// unmeasured is the load as long as nothing is known of how long a request runs:
// the greater of what is there now and the average since the last sample, unless
// that is just now. The demand and the time of the step are read one after the
// other, which a gap of milliseconds would turn into requests that never were.
func unmeasured(w *Window, here sample, total float64) float64 {
	if w.n == 0 {
		return total
	}
	if f := w.last().until(here); f.seconds >= tick.Seconds() {
		return max(total, measured*f.load/f.seconds)
	}
	return total
}

// number is x for people: without an exponent, with two decimals at most.
func number(x float64) string {
	if x >= 100 {
		x = math.Round(x)
	}
	return strconv.FormatFloat(math.Round(x*100)/100, 'f', -1, 64)
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

func busy(in Input) bool { return in.Demand.Queued+in.Demand.Running > 0 || in.active }

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
