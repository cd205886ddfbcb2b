package autoscale

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// arrival is a request of a replay: when it comes, and for how long it runs.
type request struct{ at, runs float64 }

// arrivalsOf draws a Poisson process of a rate that changes with time.
func arrivalsOf(rng *rand.Rand, seconds, top float64, rate func(t float64) float64, runs func() float64) (out []request) {
	for t := rng.ExpFloat64() / top; t < seconds; t += rng.ExpFloat64() / top {
		if rng.Float64()*top < rate(t) {
			out = append(out, request{t, runs()})
		}
	}
	return out
}

func lognormal(rng *rand.Rand, mean, sigma float64) func() float64 {
	return func() float64 { return mean * math.Exp(sigma*rng.NormFloat64()-sigma*sigma/2) }
}

// loads are what the decision is judged by.
var loads = []struct {
	name string
	make func(rng *rand.Rand) []request
}{
	{"bursty", func(rng *rand.Rand) []request {
		until, burst := 0.0, false
		return arrivalsOf(rng, 7200, 40, func(t float64) float64 {
			for t > until {
				burst = !burst
				until += rng.ExpFloat64() * map[bool]float64{true: 60, false: 240}[burst]
			}
			if burst {
				return 40
			}
			return 2
		}, lognormal(rng, 2, 0.8))
	}},
	{"onoff", func(rng *rand.Rand) []request {
		return arrivalsOf(rng, 7200, 20, func(t float64) float64 {
			if math.Mod(t, 600) < 120 {
				return 20
			}
			return 0
		}, lognormal(rng, 2, 0.8))
	}},
	{"diurnal", func(rng *rand.Rand) []request {
		return arrivalsOf(rng, 14400, 20, func(t float64) float64 {
			return 10.5 - 9.5*math.Cos(2*math.Pi*t/7200)
		}, lognormal(rng, 4, 0.8))
	}},
	{"conversation", func(rng *rand.Rand) []request {
		x, until := 0.0, 0.0
		return arrivalsOf(rng, 3500, 16, func(t float64) float64 {
			for t > until {
				x = 0.98*x + 0.2*0.25*rng.NormFloat64()
				until++
			}
			return min(16, 5.5*math.Exp(x))
		}, lognormal(rng, 6, 0.9))
	}},
	{"code", func(rng *rand.Rand) []request {
		until, burst := 0.0, false
		return arrivalsOf(rng, 3500, 40, func(t float64) float64 {
			for t > until {
				burst = !burst
				until += rng.ExpFloat64() * map[bool]float64{true: 12, false: 130}[burst]
			}
			if burst {
				return 30
			}
			return 0.3
		}, lognormal(rng, 1.5, 0.6))
	}},
}

type box struct {
	created, readyAt float64
	ready, drains    bool
	busy             int
}

type ends []struct {
	at float64
	on *box
}

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].at < e[j].at }
func (e ends) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *ends) Push(x any) {
	*e = append(*e, x.(struct {
		at float64
		on *box
	}))
}
func (e *ends) Pop() any { x := (*e)[len(*e)-1]; *e = (*e)[:len(*e)-1]; return x }

// cluster replays arrivals to replicas of hard slots.
type cluster struct {
	slots   int
	start   func() float64
	now     float64
	boxes   []*box
	queue   []request
	running ends
	demand  Demand
	waits   []float64
	cost    float64
	starts  int
}

func (c *cluster) to(t float64) {
	dt := t - c.now
	c.demand.LoadSeconds += float64(c.demand.Queued+c.demand.Running) * dt
	c.demand.BusySeconds += float64(c.demand.Running) * dt
	c.cost += float64(len(c.boxes)) * dt
	c.now = t
}

func (c *cluster) admit() {
	for len(c.queue) > 0 {
		var on *box
		for _, b := range c.boxes {
			if b.ready && !b.drains && b.busy < c.slots && (on == nil || b.busy < on.busy) {
				on = b
			}
		}
		if on == nil {
			return
		}
		a := c.queue[0]
		c.queue = c.queue[1:]
		c.demand.Queued--
		c.demand.Running++
		on.busy++
		c.waits = append(c.waits, c.now-a.at)
		heap.Push(&c.running, struct {
			at float64
			on *box
		}{c.now + a.runs, on})
	}
}

// scale brings the count to n, ending victims that the callback chooses.
func (c *cluster) scale(n int) {
	live := 0
	for _, b := range c.boxes {
		if !b.drains {
			live++
		}
	}
	for ; live < n; live++ {
		c.starts++
		c.boxes = append(c.boxes, &box{created: c.now, readyAt: c.now + c.start()})
	}
	for ; live > n; live-- {
		var victim *box
		for _, b := range c.boxes {
			if !b.drains && (victim == nil || cmp.Or(cmp.Compare(b2i(b.ready), b2i(victim.ready)), cmp.Compare(b.busy, victim.busy)) < 0) {
				victim = b
			}
		}
		victim.drains = true
	}
	c.boxes = slices.DeleteFunc(c.boxes, func(b *box) bool { return b.drains && b.busy == 0 })
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// scaler decides a count each second.
type scaler func(c *cluster) int

func (c *cluster) replay(as []request, decide scaler) {
	tick, i := 0.0, 0
	for i < len(as) || c.demand.Queued+c.demand.Running > 0 {
		t := tick
		if i < len(as) {
			t = min(t, as[i].at)
		}
		if len(c.running) > 0 {
			t = min(t, c.running[0].at)
		}
		for _, b := range c.boxes {
			if !b.ready {
				t = min(t, max(b.readyAt, c.now))
			}
		}
		c.to(t)
		for _, b := range c.boxes {
			if !b.ready && b.readyAt <= t {
				b.ready = true
			}
		}
		for len(c.running) > 0 && c.running[0].at <= t {
			e := heap.Pop(&c.running).(struct {
				at float64
				on *box
			})
			e.on.busy--
			c.demand.Running--
			c.demand.Done++
			c.demand.LastDone = t0.Add(time.Duration(t * 1e9))
		}
		first := false
		if i < len(as) && as[i].at <= t {
			c.queue = append(c.queue, as[i])
			c.demand.Queued++
			c.demand.Arrived++
			first = c.demand.Queued == 1
			i++
		}
		c.admit()
		if t >= tick || first && c.demand.Queued == 1 {
			if t >= tick {
				tick++
			}
			c.scale(decide(c))
			c.admit()
		}
		if tick > 1e6 {
			panic("never done")
		}
	}
}

// ours is the decision of this package.
func ours(target float64, slots int, idle time.Duration) scaler {
	var s State
	return func(c *cluster) int {
		now := t0.Add(time.Duration(c.now * 1e9))
		in := Input{Demand: c.demand, Limits: service.Limits{Min: 0, Max: 64, Target: target, Metric: service.MetricConcurrency, ScaleToZeroAfter: idle}}
		if float64(slots) != target {
			in.Limits.MaxConcurrency = slots
		}
		for k, b := range c.boxes {
			if b.drains {
				continue
			}
			r := Replica{ID: strconv.Itoa(k), Ready: b.ready, Starting: !b.ready, Started: t0.Add(time.Duration(b.created * 1e9)), InFlight: b.busy}
			if b.ready {
				r.ReadyAt = t0.Add(time.Duration(b.readyAt * 1e9))
			}
			in.Replicas = append(in.Replicas, r)
		}
		var d Decision
		s, d = Step(s, in, now)
		return d.Count
	}
}

// kpa is Knative's.
func kpa(slots int) scaler {
	var load [60]float64 // per second
	seen, last, next := 0, 0.0, 0.0
	panicAt, maxPanic, desired, idle := -1.0, 0, 0, 0.0
	return func(c *cluster) int {
		sec := int(c.now)
		if float64(sec) >= float64(seen) {
			load[seen%60] = c.demand.LoadSeconds - last
			last, seen = c.demand.LoadSeconds, sec+1
		}
		if desired == 0 && c.demand.Queued > 0 {
			desired = 1
			panicAt = c.now
			maxPanic = 1
		}
		if c.now < next {
			return desired
		}
		next = c.now + 2
		stable, pan := 0.0, 0.0
		n := min(seen, 60)
		for k := range n {
			stable += load[(seen-1-k+60*1000)%60]
			if k < 6 {
				pan += load[(seen-1-k+60*1000)%60]
			}
		}
		stable, pan = stable/60, pan/6
		target := 0.7 * float64(slots)
		ready := 0
		for _, b := range c.boxes {
			if b.ready && !b.drains {
				ready++
			}
		}
		r := float64(max(1, ready))
		S := int(max(min(math.Ceil(stable/target), 1000*r), math.Floor(r/2)))
		P := int(max(min(math.Ceil(pan/target), 1000*r), math.Floor(r/2)))
		over := math.Ceil(pan/target)/r >= 2
		switch {
		case over:
			panicAt = c.now
		case panicAt >= 0 && c.now > panicAt+60:
			panicAt, maxPanic = -1, 0
		}
		want := S
		if panicAt >= 0 {
			maxPanic = max(maxPanic, S, P)
			want = maxPanic
		}
		if want > 0 || c.demand.Queued+c.demand.Running > 0 {
			idle = c.now
		}
		if want == 0 && desired > 0 && c.now-idle < 30 {
			want = 1
		}
		desired = min(want, 64)
		return desired
	}
}

type figures struct {
	over, cost, p99 float64
	starts          int
}

func (c *cluster) figures() figures {
	over := 0
	for _, w := range c.waits {
		if w > 2 {
			over++
		}
	}
	slices.Sort(c.waits)
	return figures{float64(over) / float64(len(c.waits)), c.cost, c.waits[len(c.waits)*99/100], c.starts}
}

func run(as []request, slots int, start float64, seed uint64, d scaler) figures {
	rng := rand.New(rand.NewPCG(seed, 9))
	c := &cluster{slots: slots, start: func() float64 { return start * (0.8 + 0.4*rng.Float64()) }}
	c.replay(as, d)
	return c.figures()
}

func TestTune(t *testing.T) {
	for _, l := range loads {
		for _, start := range []float64{30, 60, 120} {
			var a, b figures
			const seeds = 3
			for seed := range uint64(seeds) {
				as := l.make(rand.New(rand.NewPCG(seed, 1)))
				x, y := run(as, 8, start, seed, kpa(8)), run(as, 8, start, seed, ours(8, 8, time.Minute))
				a.over, a.cost, a.p99, a.starts = a.over+x.over/seeds, a.cost+x.cost/seeds, a.p99+x.p99/seeds, a.starts+x.starts
				b.over, b.cost, b.p99, b.starts = b.over+y.over/seeds, b.cost+y.cost/seeds, b.p99+y.p99/seeds, b.starts+y.starts
			}
			fmt.Printf("%-13s %4.0f  kpa %5.1f%% p99 %5.1f %6.1fk %4d | ours %5.1f%% p99 %5.1f %6.1fk %4d  ratio %.2f\n", l.name, start,
				100*a.over, a.p99, a.cost/1000, a.starts, 100*b.over, b.p99, b.cost/1000, b.starts, b.cost/a.cost)
		}
	}
}
