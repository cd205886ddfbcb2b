package scaling

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Clairvoyant knows the trace and each startup time. Nobody waits longer than
// if all the replicas of the pool ran from the beginning, which no scaler can
// improve on, and of the ways to get there it takes the cheapest: the k-th
// replica runs while more than k-1 are needed, and over a gap only if a new
// start would cost more.
type Clairvoyant struct {
	starts, ends []planned
	// Bound is the replica-seconds below which no scaler has waits this short,
	// if all startups take equally long: those of the plan, without draining.
	Bound float64
}

// planned is a start or an end of the replica of a rank.
type planned struct {
	at    time.Duration
	rank  int
	takes time.Duration
}

// interval is when the replica of a rank is needed.
type interval struct {
	on, off time.Duration
	used    bool
}

// NewClairvoyant makes the plan for a trace.
func NewClairvoyant(pool Pool, trace *Trace) (*Clairvoyant, error) {
	best, err := Run(pool, trace, fixed(pool.Max))
	if err != nil {
		return nil, err
	}
	return plan(pool, trace, best.Waits), nil
}

// fixed always wants so many.
type fixed int

// Step implements Scaler.
func (f fixed) Step(*View) Decision { return Decision{Count: int(f)} }

// Reacts implements Scaler.
func (fixed) Reacts(Event) (time.Duration, bool) { return 0, false }

// plan covers the replicas that requests need which wait so long.
func plan(pool Pool, trace *Trace, waits []time.Duration) *Clairvoyant {
	random := rand.New(rand.NewPCG(pool.Seed, startupStream))
	draws := make([]time.Duration, pool.Max) // those of the run that had all replicas: the k-th is ready then
	for i := range draws {
		draws[i] = pool.Startup.draw(random)
	}
	slices.Sort(draws)
	c := &Clairvoyant{}
	open := make([]interval, pool.Max)
	takes := draws
	closed := func(rank int) { // the replica of the rank is not needed any more
		o := &open[rank]
		c.starts = append(c.starts, planned{at: max(0, o.on-takes[rank]), rank: rank, takes: takes[rank]})
		c.ends = append(c.ends, planned{at: o.off, rank: rank})
		c.Bound += (o.off - o.on + takes[rank]).Seconds()
	}
	var next []time.Duration // of each rank: the startup time of its next start
	levels(pool, trace, waits, func(at time.Duration, rank int, up bool) {
		o := &open[rank]
		if !up {
			o.off = at
			return
		}
		switch {
		case !o.used:
		case at-o.off <= next[rank]:
			return // kept over the gap
		default:
			closed(rank)
			takes[rank] = next[rank]
		}
		if next == nil {
			next = make([]time.Duration, pool.Max)
		}
		next[rank] = pool.Startup.draw(random)
		*o = interval{on: at, used: true}
	})
	for rank := range open {
		if open[rank].used {
			closed(rank)
		}
	}
	earlier := func(a, b planned) int { return int(a.at - b.at) }
	slices.SortStableFunc(c.starts, earlier)
	slices.SortStableFunc(c.ends, earlier)
	return c
}

// levels calls change whenever one more or one fewer replica is needed for the
// requests that run: rank counts from 0.
func levels(pool Pool, trace *Trace, waits []time.Duration, change func(at time.Duration, rank int, up bool)) {
	begins := make([]time.Duration, 0, len(waits))
	ends := make([]time.Duration, 0, len(waits))
	for i, w := range waits {
		if w >= 0 {
			begins = append(begins, trace.Requests[i].At+w)
			ends = append(ends, trace.Requests[i].At+w+trace.Requests[i].Service)
		}
	}
	slices.Sort(begins)
	slices.Sort(ends)
	running, b := 0, 0
	for _, end := range ends {
		for ; b < len(begins) && begins[b] < end; b++ {
			if running%pool.Slots == 0 {
				change(begins[b], running/pool.Slots, true)
			}
			running++
		}
		if running--; running%pool.Slots == 0 {
			change(end, running/pool.Slots, false)
		}
	}
}

// Step implements Scaler. Starts come before the ends of the same time, which
// follow at once.
func (c *Clairvoyant) Step(v *View) Decision {
	d := Decision{Count: len(v.Replicas)}
	for len(c.starts) > 0 && c.starts[0].at <= v.Now {
		d.Starts = append(d.Starts, PlannedStart{Takes: c.starts[0].takes, Rank: c.starts[0].rank})
		d.Count++
		c.starts = c.starts[1:]
	}
	for len(d.Starts) == 0 && len(c.ends) > 0 && c.ends[0].at <= v.Now {
		i := slices.IndexFunc(v.Replicas, func(r *Replica) bool { return r.rank == c.ends[0].rank })
		c.ends = c.ends[1:]
		if i >= 0 {
			d.Victims = append(d.Victims, v.Replicas[i].ID)
			d.Count--
		}
	}
	for _, next := range [][]planned{c.starts, c.ends} {
		if len(next) > 0 && (d.Again == 0 || next[0].at < d.Again) {
			d.Again = max(next[0].at, v.Now+1)
		}
	}
	return d
}

// Reacts implements Scaler.
func (c *Clairvoyant) Reacts(Event) (time.Duration, bool) { return 0, false }
