package autoscale

import (
	"fmt"
	"math"
	"slices"
	"time"
)

const (
	// gaps is how many idle gaps are remembered, and leastGaps how many must have
	// been seen.
	gaps      = 64
	leastGaps = 4
	// steady is the greatest coefficient of variation of the gaps for which a
	// replica is started ahead. Random arrivals have 1.
	steady = 0.25
	// beyondChance is by how many standard deviations of a fair coin more than half
	// of the gaps must agree: of a few random ones, half often do.
	beyondChance = 1.5
	// leadQuantile is the quantile of the startup times by which a replica is
	// started ahead.
	leadQuantile = 0.75
	// widen is by what part of its length the usual time of return is taken to begin
	// earlier and to end later, and widenLeast for how long at least.
	widen      = 0.25
	widenLeast = 2
)

// returns is when the requests of a service that has fallen idle usually come back.
type returns struct {
	// seen, startup and idle are what it was computed of.
	seen    uint64
	startup float64
	idle    float64
	// head and tail are seconds since the last request; tail is 0 where there is no
	// usual time.
	head, tail float64
	hits, of   int // so many of the gaps seen end between them
	why        string
}

// idled learns the length of an idle gap that has ended.
func (l Learned) idled(gap time.Duration) Learned {
	kept := l.Gaps[max(0, len(l.Gaps)-gaps+1):]
	l.Gaps, l.Returns = append(slices.Clone(kept), math.Round(gap.Seconds())), l.Returns+1
	return l
}

// returns is computed anew when a gap or a startup time has been learned.
//
// Head and tail are those of the gaps between which a replica that is kept ready
// saves most: each start that nobody waits for is worth what a surplus replica is
// kept for, and costs the idle time until the request. Each gap that lasts longer
// costs the start and the whole time. They hold only if most gaps end between
// them, more than chance explains, and if these vary little beyond the idle seconds that a replica is kept
// for anyhow: else they are chance.
func (l Learned) returns(before returns, idle float64) returns {
	startup := l.startup(leadQuantile)
	if before.seen == l.Returns && before.startup == startup && before.idle == idle && (before.why != "" || before.tail > 0) {
		return before
	}
	r := returns{seen: l.Returns, startup: startup, idle: idle, of: len(l.Gaps)}
	if r.of < leastGaps {
		r.why = fmt.Sprintf("%d of %d idle gaps seen", r.of, leastGaps)
		return r
	}
	sorted := slices.Sorted(slices.Values(l.Gaps))
	price, most, majority := startup+settle.Seconds(), 0.0, float64(r.of)/2+beyondChance*math.Sqrt(float64(r.of))/2
	for i, head := range sorted {
		spent, sum, squares := 0.0, 0.0, 0.0
		for j := i; j < len(sorted); j++ {
			tail := sorted[j]
			spent, sum, squares = spent+tail-head, sum+tail, squares+tail*tail
			hits, misses := float64(j-i+1), float64(len(sorted)-1-j)
			saved := hits*price - spent - misses*(startup+tail-head)
			mean := sum / hits
			varies := math.Sqrt(max(0, squares/hits-mean*mean)) / max(mean-idle, 1)
			if saved > most && hits > majority && varies <= steady {
				most, r.head, r.tail, r.hits = saved, head, tail, j-i+1
			}
		}
	}
	if r.tail == 0 {
		r.why = fmt.Sprintf("the last %d idle gaps (%s to %s) vary too much for a start ahead to pay", r.of, seconds(sorted[0]), seconds(sorted[r.of-1]))
	}
	return r
}

// span is from when to when a replica is kept for a return, in seconds since the
// last request: it is ready a little before the head.
func (r returns) span() (from, to float64) {
	margin := max(widenLeast, widen*(r.tail-r.head))
	return max(0, r.head-margin-r.startup), r.tail + margin
}

func seconds(s float64) time.Duration { return time.Duration(math.Round(s)) * time.Second }

// rests keeps when the last request came, and learns from it when one comes after
// an idle gap. A gap counts from the last arrival, since how long that one took
// depends on whether it waited for a start.
func (s *State) rests(in Input, now time.Time) {
	if !in.Limits.Prewarm || in.Demand.Unknown || s.Unknown || s.Last.IsZero() {
		s.Quiet, s.Ahead = time.Time{}, false
		s.met(in.Demand)
		return
	}
	if grown(s.arrived, in.Demand.Arrived) > 0 {
		// After less idle time its replica was there anyhow. The requests of a burst
		// that wait for the start end one gap, the first of them.
		if !s.open && !s.Quiet.IsZero() && !s.done.IsZero() && min(now.Sub(s.done), now.Sub(s.Quiet)) > in.Limits.ScaleToZeroAfter {
			s.Learned = s.Learned.idled(now.Sub(s.Quiet))
		}
		s.Quiet, s.Ahead = now, false
	}
	s.met(in.Demand)
}

// met keeps what the next step compares the demand with.
func (s *State) met(d Demand) {
	s.arrived, s.done, s.open = d.Arrived, d.LastDone, d.Queued+d.Running > 0
}

// ahead is what prewarming says of an idle service.
type ahead struct {
	want bool          // a replica is wanted for the usual return
	over bool          // one was started for a return that has not come
	wait time.Duration // until that changes; 0 for never
	why  string
}

// ahead reports whether a replica is wanted although nothing is asked.
func (s *State) ahead(in Input, now time.Time) (a ahead) {
	if !in.Limits.Prewarm || busy(in) || in.Demand.Unknown || in.Limits.Min > 0 {
		return a
	}
	s.usual = s.Learned.returns(s.usual, in.Limits.ScaleToZeroAfter.Seconds())
	if s.usual.tail == 0 || s.Quiet.IsZero() {
		return ahead{why: s.usual.why, over: s.Ahead}
	}
	from, to := s.usual.span()
	begin, end := s.Quiet.Add(seconds(from)), s.Quiet.Add(seconds(to))
	usual := seconds(s.usual.head).String()
	if s.usual.tail > s.usual.head {
		usual += " to " + seconds(s.usual.tail).String()
	}
	text := fmt.Sprintf("requests usually return %s after the last (%d of %d times)", usual, s.usual.hits, s.usual.of)
	switch {
	case now.Before(begin):
		return ahead{wait: begin.Sub(now), why: "starts at " + begin.UTC().Format(time.RFC3339) + ": " + text}
	case now.Before(end):
		return ahead{want: true, wait: end.Sub(now), why: "started ahead: " + text}
	}
	return ahead{over: s.Ahead, why: "this time requests have not returned when they usually do"}
}
