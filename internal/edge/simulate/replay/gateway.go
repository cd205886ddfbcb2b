package replay

import (
	"fmt"
	"math/rand/v2"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/decide/admission"
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
	v := g.machine.Arrive(w, state, clock)
	g.r.open -= len(v.Evicted) // they have no answer, as if they had been shed
	switch v.Decision {
	case admission.Admit:
		g.r.open++
		if !g.admit(n, now) {
			g.r.open--
		}
	case admission.Queue:
		g.r.open++
		g.pacing = true
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
		w := g.machine.Next(func(*admission.Waiter) bool { return true }, func(*admission.Waiter) admission.Trial { return admission.Done })
		if n := w.Owner.(int); !g.admit(n, now) {
			g.r.open--
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

// admit sends a request to the engine that the policy chooses; false if it
// sheds the request.
func (g *gateway) admit(n int, now time.Duration) bool {
	q := &g.r.trace.Requests[n]
	g.in.Now, g.in.Adapter, g.in.Session = g.r.begun.Add(now), q.Adapter, q.Session
	g.in.Priority, g.in.Critical = int(q.Priority), q.Priority > 0
	g.in.Blocks, g.in.Tokens = q.pickerBlocks(), int64(q.Prompt)
	g.policy.Pick(&g.in, g.index, &g.choice)
	g.in.Turn++
	if g.choice.Outcome != picker.Picked {
		return false
	}
	slot := g.choice.Slot
	ep := &g.in.Endpoints[slot]
	g.index.Sent(slot, g.in.Blocks)
	if g.r.cfg.Events {
		g.learn(g.in.Blocks)
	}
	ep.Resident.Used(q.Adapter)
	ep.InFlight++
	ep.Tokens += g.choice.Uncached
	g.r.flights[n].uncached = g.choice.Uncached
	g.r.forward(n, slot, now)
	return true
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
