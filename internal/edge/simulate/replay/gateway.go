package replay

import (
	"fmt"
	"math/rand/v2"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/decide/admission"
	"roundhouse.dev/roundhouse/internal/decide/latency"
	"roundhouse.dev/roundhouse/internal/decide/picker"
)

// gateway admits requests and picks an engine for each, as package dispatch
// does.
type gateway struct {
	r       *run
	policy  *picker.Policy
	seen    map[uint64]bool // blocks of prompts whose tokens are known
	index   *picker.Index
	in      picker.Input
	book    latency.Book
	choice  picker.Choice
	machine *admission.Machine
	pacing  bool       // requests are held
	takers  picker.Set // engines that may be given one that waits
	freed   bool       // one of its requests has ended since it last looked
}

func newGateway(r *run, random *rand.Rand) (*gateway, error) {
	policy, err := r.cfg.policy()
	if err != nil {
		return nil, err
	}
	index, err := picker.NewIndex(picker.DefaultIndexConfig())
	if err != nil {
		return nil, err
	}
	g := &gateway{r: r, policy: policy, index: index, machine: admission.New(admission.DefaultConfig()), seen: map[uint64]bool{}}
	g.in.Latency = &latency.Model{}
	g.in.Random = func(n uint32) uint32 { return random.Uint32N(n) }
	for i := range r.cfg.Engines {
		g.in.Endpoints = append(g.in.Endpoints, picker.Endpoint{Name: fmt.Sprintf("engine-%d", i), Open: true, Resident: &picker.Residency{}})
	}
	return g, nil
}

// said notes what an engine says of itself.
func (g *gateway) said(engine int, load *replica.Load) {
	ep := &g.in.Endpoints[engine]
	ep.Load, ep.AtLoad = load, ep.InFlight
	if !g.r.cfg.Events {
		g.index.Resize(engine, load.Blocks*load.BlockTokens)
	}
	ep.Resident.Observe(load.Adapters)
}

// arrive decides on a request that comes now.
func (g *gateway) arrive(n int, now time.Duration) {
	g.pump(now)
	clock := g.r.begun.Add(now)
	w := &admission.Waiter{Priority: g.r.trace.Requests[n].Priority, Owner: n}
	state := g.state(clock)
	if state.Paced && w.Priority < 0 {
		state.Saturation = 1
	}
	decision, _ := g.machine.Judge(w, state, clock)
	dropped := false
	if decision == admission.Admit {
		state.Late, dropped = g.pick(n, now)
	}
	if dropped { // by the policy
		return
	}
	v := g.machine.Arrive(w, state, clock)
	g.r.open -= len(v.Evicted) // they have no answer, as if they had been shed
	switch v.Decision {
	case admission.Admit:
		g.r.open++
		g.send(n, now)
	case admission.Queue:
		g.r.open++
		g.pacing = g.pacing || !state.Late
	case admission.Shed:
	}
}

// pump lets go on whoever is held and for whom an engine has capacity.
func (g *gateway) pump(now time.Duration) {
	g.freed = false
	for g.machine.Len() > 0 {
		if g.survey(g.r.begun.Add(now)); len(g.takers) == 0 {
			return
		}
		dropped := false
		w := g.machine.Next(func(*admission.Waiter) bool { return true }, func(w *admission.Waiter) admission.Trial {
			var late bool
			if late, dropped = g.pick(w.Owner.(int), now); late {
				return admission.Blocked
			}
			return admission.Done
		})
		switch {
		case w == nil: // all that wait would be late now
			g.pacing = false
			return
		case dropped:
			g.r.open--
		default:
			g.send(w.Owner.(int), now)
		}
	}
	g.pacing = false
}

// state is what admission asks of a pool.
func (g *gateway) state(now time.Time) admission.State {
	s := admission.State{Available: true}
	if g.policy.Sheds() {
		return s
	}
	c := g.machine.Config()
	for i := range g.in.Endpoints {
		e := g.endpoint(i)
		if v := c.Saturation(&e, now); i == 0 || v < s.Saturation {
			s.Saturation = v
		}
	}
	g.survey(now)
	s.Paced = len(g.takers) == 0
	return s
}

// survey finds the engines that have capacity; while requests are held, for
// more than they were sent since they last spoke.
func (g *gateway) survey(now time.Time) {
	c := g.machine.Config()
	clear(g.takers[:cap(g.takers)])
	g.takers = g.takers[:0]
	for i := range g.in.Endpoints {
		e := g.endpoint(i)
		value := c.Saturation(&e, now)
		if g.pacing {
			value = c.Pace(&e, now)
		}
		if !c.Holds(value) {
			g.takers = g.takers.Add(i)
		}
	}
}

func (g *gateway) endpoint(i int) admission.Endpoint {
	ep := &g.in.Endpoints[i]
	return admission.Endpoint{Load: ep.Load, InFlight: ep.InFlight, AtLoad: ep.AtLoad}
}

// pick has the policy choose an engine. late: none is predicted to answer in time,
// and others may go first; dropped: the policy sheds the request.
func (g *gateway) pick(n int, now time.Duration) (late, dropped bool) {
	q := &g.r.trace.Requests[n]
	g.in.Now, g.in.Adapter, g.in.Session = g.r.begun.Add(now), q.Adapter, q.Session
	g.in.Priority, g.in.Critical = int(q.Priority), q.Priority > 0
	g.in.Blocks, g.in.Whole, g.in.Tokens = q.pickerBlocks(), q.whole(), int64(q.Prompt)
	g.in.Target = latency.Target{}
	left := g.r.cfg.Target - (now - g.r.flights[n].came)
	if g.policy.Predicts() && left > 0 {
		g.in.Target.First = left.Seconds()
	}
	g.policy.Pick(&g.in, g.index, &g.choice)
	return g.choice.Late, g.choice.Outcome != picker.Picked
}

// send sends a request to the engine that was picked for it.
func (g *gateway) send(n int, now time.Duration) {
	q := &g.r.trace.Requests[n]
	g.in.Turn++
	slot := g.choice.Slot
	ep := &g.in.Endpoints[slot]
	g.index.Remember(g.in.Whole)
	g.index.Sent(slot, g.in.Blocks)
	if g.r.cfg.Events {
		g.learn(g.in.Blocks)
	}
	ep.Resident.Used(q.Adapter)
	ep.InFlight++
	ep.Tokens += g.choice.Uncached
	f := &g.r.flights[n]
	f.sent, f.uncached, f.forecast = now, g.choice.Uncached, g.choice.Forecast
	g.r.forward(n, slot, now)
}

// answered learns when an answer began.
func (g *gateway) answered(engine int, f *flight, at time.Duration) {
	l := g.book.First(latency.Place{Slot: engine}, &f.forecast.Work, f.forecast.First, (at - f.sent).Seconds())
	g.in.Latency.Take(&l)
}

// finished learns how long the tokens of an answer took, from its first on.
func (g *gateway) finished(engine int, f *flight, took time.Duration, tokens int) {
	if tokens > 1 {
		l := g.book.Each(latency.Place{Slot: engine}, &f.forecast.Work, f.forecast.Each, took.Seconds()/float64(tokens-1))
		g.in.Latency.Take(&l)
	}
}

// learn has the gateway know the tokens of a prompt, and with that which engines
// hold what of it.
func (g *gateway) learn(blocks []uint64) {
	for _, key := range blocks {
		if g.seen[key] {
			continue
		}
		g.seen[key] = true
		for i, held := range g.r.held {
			if held[key] {
				g.index.Stored(i, []uint64{key})
			}
		}
	}
}
