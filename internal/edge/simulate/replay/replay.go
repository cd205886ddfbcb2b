// Package replay sends a trace of requests to simulated engines in virtual
// time and tells what its callers would have seen. The decisions are the
// product's own (packages picker and admission), the engines are
// simulate.Schedulers, and what the picker knows of them is what it scraped,
// as old as that is.
package replay

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/decide/admission"
	"roundhouse.dev/roundhouse/internal/decide/picker"
	"roundhouse.dev/roundhouse/internal/edge/simulate"
)

// Config is one replay. Start from DefaultConfig.
type Config struct {
	Engines int
	Physics simulate.Physics // of each engine
	Policy  string           // a preset of package picker
	// Scrape is the time between two looks at the engines' metrics.
	Scrape time.Duration
	// Concurrency has so many callers ask one after the other, whatever the
	// trace's times; 0 sends each request at its time.
	Concurrency int
	Seed        uint64 // of the picker's draws
}

// DefaultConfig is eight engines, scraped ten times a second.
func DefaultConfig() Config {
	return Config{Engines: 8, Physics: simulate.DefaultPhysics(), Policy: picker.Default, Scrape: 100 * time.Millisecond, Seed: 1}
}

// maxEngines bounds Config.Engines.
const maxEngines = 4096

// Validate reports every field that is out of range.
func (c Config) Validate() error {
	errs := []error{c.Physics.Validate()}
	if c.Engines < 1 || c.Engines > maxEngines {
		errs = append(errs, fmt.Errorf("engines is %d: want 1 to %d", c.Engines, maxEngines))
	}
	if c.Scrape <= 0 {
		errs = append(errs, fmt.Errorf("scrape is %v: want more than 0", c.Scrape))
	}
	if c.Concurrency < 0 {
		errs = append(errs, fmt.Errorf("concurrency is %d: want 0 or more", c.Concurrency))
	}
	_, err := picker.Preset(c.Policy)
	return errors.Join(append(errs, err)...)
}

// Answer is what became of one request.
type Answer struct {
	Priority int32
	Engine   int // -1 when it was shed
	// First is the time from arrival to the first token, Total to the last;
	// both are 0 for a request that was shed or refused.
	First, Total time.Duration
	Tokens       int // of output
}

// Result is a whole replay.
type Result struct {
	Answers []Answer // in the trace's order
	// Elapsed is the virtual time from the first arrival to the last token.
	Elapsed time.Duration
	// Hits of Queries prompt tokens were in an engine's prefix cache.
	Hits, Queries uint64
	// AdapterLoads and Preemptions are the engines' totals.
	AdapterLoads, Preemptions uint64
}

// run is a replay under way.
type run struct {
	cfg     Config
	trace   *Trace
	policy  *picker.Policy
	index   *picker.Index
	in      picker.Input
	choice  picker.Choice
	machine *admission.Machine

	engines []*simulate.Scheduler
	flights []flight // by the request's place in the trace
	answers []Answer
	next    int // the next request to send
	open    int // requests on engines
	begun   time.Time
	end     time.Duration
}

// flight is a request on its engine.
type flight struct {
	sent     time.Duration
	uncached int64
	answered bool
}

// Run replays a trace.
func Run(cfg Config, trace *Trace) (*Result, error) {
	if err := errors.Join(cfg.Validate(), trace.Validate()); err != nil {
		return nil, err
	}
	r, err := newRun(cfg, trace)
	if err != nil {
		return nil, err
	}
	r.loop()
	return r.result(), nil
}

func newRun(cfg Config, trace *Trace) (*run, error) {
	preset, err := picker.Preset(cfg.Policy)
	if err != nil {
		return nil, err
	}
	policy, err := picker.New(preset)
	if err != nil {
		return nil, err
	}
	index, err := picker.NewIndex(picker.DefaultIndexConfig())
	if err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(cfg.Seed, 0x726f75746e67))
	r := &run{cfg: cfg, trace: trace, policy: policy, index: index, machine: admission.New(admission.DefaultConfig()),
		flights: make([]flight, len(trace.Requests)), answers: make([]Answer, len(trace.Requests)), begun: time.Unix(0, 0)}
	r.in.Random = func(n uint32) uint32 { return random.Uint32N(n) }
	for i := range cfg.Engines {
		r.engines = append(r.engines, simulate.NewScheduler(cfg.Physics))
		r.in.Endpoints = append(r.in.Endpoints, picker.Endpoint{Name: fmt.Sprintf("engine-%d", i), Open: true, Resident: &picker.Residency{}})
	}
	return r, nil
}

// loop lives through the trace: at every step the earliest of what is due.
func (r *run) loop() {
	var now, scrape time.Duration
	for r.next < len(r.trace.Requests) || r.open > 0 {
		at, what := r.arrival(now)
		engine := -1
		for i, e := range r.engines {
			if due, ok := e.Next(); ok && (!what || due < at) {
				at, what, engine = due, true, i
			}
		}
		if !what {
			return // only the shed are left; cannot be, but must not hang
		}
		if scrape <= at {
			now = max(now, scrape)
			r.scrape(now)
			scrape = now + r.cfg.Scrape
			continue
		}
		now = max(now, at)
		if engine >= 0 {
			r.effects(engine, r.engines[engine].Step(simulate.Tick{}, now))
		} else {
			r.send(now)
		}
	}
}

// arrival is when the next request comes; false when none is due before
// another ends.
func (r *run) arrival(now time.Duration) (time.Duration, bool) {
	switch {
	case r.next == len(r.trace.Requests):
		return 0, false
	case r.cfg.Concurrency > 0:
		return now, r.open < r.cfg.Concurrency
	}
	return r.trace.Requests[r.next].At, true
}

// scrape reads every engine's metrics.
func (r *run) scrape(now time.Duration) {
	for i, e := range r.engines {
		st := e.Stats()
		load := &replica.Load{At: r.begun.Add(now), Waiting: st.Waiting, Running: st.Running,
			KV: float64(st.BlocksHeld) / float64(st.BlocksTotal), Blocks: st.BlocksTotal, BlockTokens: simulate.BlockTokens}
		if r.cfg.Physics.MaxAdapters > 0 {
			load.Adapters = &replica.Adapters{Running: st.RunningAdapters, Waiting: st.WaitingAdapters, Max: r.cfg.Physics.MaxAdapters}
		}
		ep := &r.in.Endpoints[i]
		ep.Load, ep.AtLoad = load, ep.InFlight
		ep.Resident.Observe(load.Adapters)
	}
}

// send admits the next request and gives it to an engine.
func (r *run) send(now time.Duration) {
	n := r.next
	r.next++
	q := &r.trace.Requests[n]
	r.answers[n] = Answer{Priority: q.Priority, Engine: -1}
	r.end = max(r.end, now)
	clock := r.begun.Add(now)
	if decision, _ := r.machine.Judge(&admission.Waiter{Priority: q.Priority}, r.state(clock), clock); decision == admission.Shed {
		return
	}
	r.in.Now, r.in.Adapter, r.in.Session = clock, q.Adapter, q.Session
	r.in.Priority, r.in.Critical = int(q.Priority), q.Priority > 0
	r.in.Blocks, r.in.Tokens = q.pickerBlocks(), int64(q.Prompt)
	r.policy.Pick(&r.in, r.index, &r.choice)
	r.in.Turn++
	if r.choice.Outcome != picker.Picked {
		return
	}
	slot := r.choice.Slot
	ep := &r.in.Endpoints[slot]
	r.index.Sent(slot, r.in.Blocks)
	ep.Resident.Used(q.Adapter)
	ep.InFlight++
	ep.Tokens += r.choice.Uncached
	r.open++
	r.answers[n].Engine, r.flights[n] = slot, flight{sent: now, uncached: r.choice.Uncached}
	r.effects(slot, r.engines[slot].Step(simulate.Arrive{Sequence: simulate.Sequence{ID: uint64(n), PromptTokens: q.Prompt,
		OutputTokens: q.Output, Keys: q.Keys, Adapter: q.Adapter}}, now))
}

// state is what admission asks of a pool.
func (r *run) state(now time.Time) admission.State {
	var s admission.Saturation
	for i := range r.in.Endpoints {
		ep := &r.in.Endpoints[i]
		s.Add(r.machine.Config(), ep.Load, ep.InFlight, 0, now)
	}
	return admission.State{Room: true, Saturation: s.Mean()}
}

// effects notes what an engine did.
func (r *run) effects(engine int, all []simulate.Effect) {
	ep := &r.in.Endpoints[engine]
	for _, e := range all {
		f, a := &r.flights[e.ID], &r.answers[e.ID]
		r.end = max(r.end, e.At)
		switch e.Kind {
		case simulate.Token:
			if !f.answered {
				f.answered, a.First = true, e.At-f.sent
				ep.Tokens -= f.uncached
			}
		case simulate.Finished:
			a.Total, a.Tokens = e.At-f.sent, e.Tokens
		case simulate.RejectedFull, simulate.RejectedTooLong:
			a.Engine = -1
			ep.Tokens -= f.uncached
		default:
			continue
		}
		if e.Kind != simulate.Token {
			ep.InFlight--
			r.open--
		}
	}
}

func (r *run) result() *Result {
	out := &Result{Answers: r.answers, Elapsed: r.end - r.trace.Requests[0].At}
	for _, e := range r.engines {
		t := e.Stats().Totals
		out.Hits += t.PrefixHits
		out.Queries += t.PrefixQueries
		out.AdapterLoads += t.AdapterLoads
		out.Preemptions += t.Preemptions
	}
	return out
}
