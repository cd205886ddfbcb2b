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

// NewClairvoyant makes the plan for a trace: the cheaper of two. In one every
// request starts as early as it could if all replicas ran; in the other a
// replica more is had only for those that would wait longer than goal, while
// nobody waits longer for it than goal who would not in the first. A goal of 0
// is the first plan.
func NewClairvoyant(pool Pool, trace *Trace, goal time.Duration) (*Clairvoyant, error) {
	best, err := Run(pool, trace, fixed(pool.Max))
	if err != nil {
		return nil, err
	}
	first := plan(pool, trace, best.Waits)
	if goal <= 0 {
		return first, nil
	}
	second := plan(pool, trace, patient(pool, trace, best.Waits, goal))
	second.Bound = first.Bound
	tried, err := Run(pool, trace, second.clone())
	if err != nil {
		return nil, err
	}
	again, err := Run(pool, trace, first.clone())
	if err != nil {
		return nil, err
	}
	if tried.ReplicaSeconds >= again.ReplicaSeconds || tried.Summarize(goal).Late > best.Summarize(goal).Late {
		return first, nil
	}
	return second, nil
}

// clone is the same plan, to be replayed from its beginning.
func (c *Clairvoyant) clone() *Clairvoyant {
	out := *c
	return &out
}

// patient are waits of requests that start in their order, in a free slot of a
// replica in use, else when they have waited for the goal. Requests near a time
// at which all replicas are busy are not made to wait.
func patient(pool Pool, trace *Trace, best []time.Duration, goal time.Duration) []time.Duration {
	waits := make([]time.Duration, len(best))
	short := scarce(trace, best, goal)
	var ends events
	running, now := 0, time.Duration(0)
	for n, wait := range best {
		if wait < 0 {
			waits[n] = never
			continue
		}
		at := trace.Requests[n].At
		latest := at + wait
		if !short[n] {
			latest = at + max(wait, goal)
		}
		now = max(now, at)
		for due, some := ends.next(); some && due <= now; due, some = ends.next() {
			ends.pop()
			running--
		}
		if running%pool.Slots == 0 { // every replica in use is full
			due, some := ends.next()
			if some && (due <= latest || running == pool.Max*pool.Slots) {
				now = due
				ends.pop()
				running--
			} else {
				now = max(now, latest)
			}
		}
		waits[n] = now - at
		ends.push(event{at: now + trace.Requests[n].Service})
		running++
	}
	return waits
}

// scarce marks the requests that come so shortly before one that has to wait
// that a delay of theirs could be its.
func scarce(trace *Trace, best []time.Duration, goal time.Duration) []bool {
	longest := time.Duration(0)
	for _, r := range trace.Requests {
		longest = max(longest, r.Service)
	}
	out := make([]bool, len(best))
	next := time.Duration(never)
	for n := len(best) - 1; n >= 0; n-- {
		at := trace.Requests[n].At
		if best[n] != 0 {
			next = at
		}
		out[n] = next >= 0 && next-at <= goal+longest
	}
	return out
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
