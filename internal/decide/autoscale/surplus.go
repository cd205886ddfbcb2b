package autoscale

import (
	"math"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

const (
	// settle is the least time between two falls of a count.
	settle = 30 * time.Second
	// A replica that the load does not need stays for holdLeast seconds and holdPart of
	// a startup time, as long as little is known of when it is needed again.
	holdLeast = 15
	holdPart  = 0.5
	// A replica that was ended too early costs priceLeast replica-seconds and pricePart
	// of a startup time: its start, and those that are started beside it for what has
	// waited meanwhile.
	priceLeast = 130
	pricePart  = 2
	// pauses is how many of its last pauses are remembered of each replica of the first
	// ranks, and pausesLeast how many must have been seen. What is shorter than
	// pauseLeast is none.
	pauses      = 12
	pausesLeast = 2
	pauseLeast  = 10 * time.Second
	ranks       = 64
	// present is how many prices the pause counts for that may be the next: a long one.
	present = 2
	// beyond is by how much a replica is kept for longer than the pauses that it is to
	// outlast.
	beyond = 1.3
	// Whatever its pauses, a replica is kept for no longer than holdMost seconds and
	// holdMostPart startup times, and then, while requests wait, for waitMost seconds and
	// a startup time.
	holdMost     = 120
	holdMostPart = 3
	waitMost     = 30
)

// pausing is when the load needs how many replicas: the replica of rank i is needed
// where more than i are.
type pausing struct {
	since []time.Time // since when each is not needed; zero while it is
	// held is since when the count would fall; zero while it would not.
	held time.Time
}

// needs is p after a step at which the load needs so many of count, with the pauses
// that have been seen by then.
func (p pausing) needs(need, count int, seen [][]float64, now time.Time) (pausing, [][]float64) {
	same := len(p.since) >= count && !slices.ContainsFunc(p.since[:min(need, len(p.since))], func(t time.Time) bool { return !t.IsZero() }) &&
		!slices.ContainsFunc(p.since[min(need, len(p.since)):], func(t time.Time) bool { return t.IsZero() || t.After(now) })
	if same {
		return p, seen // most steps change nothing
	}
	since := make([]time.Time, max(count, min(len(p.since), ranks)))
	copy(since, p.since)
	for i := range since {
		switch {
		case i >= need && (since[i].IsZero() || since[i].After(now)):
			since[i] = now
		case i < need && !since[i].IsZero():
			if took := now.Sub(since[i]); i < ranks && took >= pauseLeast {
				seen = slices.Clone(seen)
				seen = append(seen, make([][]float64, max(0, i+1-len(seen)))...)
				kept := seen[i][max(0, len(seen[i])-pauses+1):]
				seen[i] = append(slices.Clone(kept), took.Seconds())
			}
			since[i] = time.Time{}
		}
	}
	p.since = since
	return p, seen
}

// hold is for how many seconds the replica of a rank is kept that is not needed: as
// long as would have cost least over its last pauses. To keep it costs the time, and
// to end it the price of a new start.
func (l Learned) hold(rank int, startup float64) float64 {
	if rank >= len(l.Pauses) || len(l.Pauses[rank]) < pausesLeast {
		return holdLeast + holdPart*startup
	}
	price := priceLeast + pricePart*startup
	seen := append(slices.Clone(l.Pauses[rank]), present*price)
	best, least := 0.0, math.Inf(1)
	for _, hold := range append(slices.Clone(l.Pauses[rank]), pauseLeast.Seconds()) {
		cost := 0.0
		for _, took := range seen {
			if cost += min(took, hold); took > hold {
				cost += price
			}
		}
		if cost < least || cost == least && hold > best {
			best, least = hold, cost
		}
	}
	return min(beyond*best, holdMost+holdMostPart*startup)
}

// fall is the count where want would do, of which the load needs some: the others are
// for its backlog. While requests wait none is ended, for a time in which a backlog
// should be gone.
func fall(next *State, need, want int, in Input, now time.Time) int {
	next.pausing, next.Learned.Pauses = next.pausing.needs(max(min(need, want), 1), max(next.Count, want), next.Learned.Pauses, now)
	count, startup := want, next.Learned.startup(median)
	for i := want; i < next.Count; i++ {
		if now.Sub(next.pausing.since[i]).Seconds() < next.Learned.hold(i, startup) {
			count = i + 1
		}
	}
	if count >= next.Count {
		next.pausing.held = time.Time{}
		return count
	}
	if held := next.pausing.held; held.IsZero() || held.After(now) {
		next.pausing.held = now
	}
	waits := in.Demand.Queued > 0 && now.Sub(next.pausing.held).Seconds() < waitMost+startup
	if waits || now.Sub(next.Fell) < settle {
		return next.Count
	}
	next.Fell, next.pausing.held = now, time.Time{}
	return count
}

// forLoad is how many of want are for the load: all but those for its backlog.
func forLoad(in Input, num Numbers, want int) int {
	if in.Limits.Metric != service.MetricConcurrency {
		return want
	}
	n := max(num.Base, in.AtLeast)
	for _, s := range num.Signals {
		n = max(n, s.Wanted)
	}
	return min(n, want)
}
