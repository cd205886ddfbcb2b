// Package replay sends a trace of requests to simulated engines in virtual
// time and tells what its callers would have seen. The decisions are the
// product's own (packages picker and admission), the engines are
// simulate.Schedulers, and what the picker knows of them is what it scraped,
// as old as that is.
package replay

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/decide/picker"
	"roundhouse.dev/roundhouse/internal/edge/simulate"
)

// Config is one replay. Start from DefaultConfig.
type Config struct {
	Engines int
	Physics simulate.Physics // of each engine
	Policy  string           // a preset of package picker
	// Picker takes the place of Policy where it is not nil.
	Picker *picker.Config
	// Scrape is the time between two looks at the engines' metrics.
	Scrape time.Duration
	// Concurrency has so many callers ask one after the other, whatever the
	// trace's times; 0 sends each request at its time.
	Concurrency int
	// Gateways is how many take the requests by turns. Each knows only what it sent
	// itself, and with Share what the others sent a ShareDelay before.
	Gateways   int
	Share      bool
	ShareDelay time.Duration
	// Events has the engines tell which blocks they hold (KV events).
	Events bool
	// Target is how long requests may take to the first token, where the policy goes
	// by predictions; 0 is no bound.
	Target time.Duration
	Seed   uint64 // of the picker's draws
}

// DefaultConfig is eight engines, scraped ten times a second.
func DefaultConfig() Config {
	return Config{Engines: 8, Physics: simulate.DefaultPhysics(), Policy: picker.Default, Scrape: 100 * time.Millisecond, Gateways: 1, ShareDelay: time.Second, Seed: 1}
}

// maxEngines bounds Config.Engines.
const maxEngines = 4096

// maxGateways bounds Config.Gateways.
const maxGateways = 64

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
	if c.Gateways < 1 || c.Gateways > maxGateways {
		errs = append(errs, fmt.Errorf("gateways is %d: want 1 to %d", c.Gateways, maxGateways))
	}
	if c.ShareDelay < 0 {
		errs = append(errs, fmt.Errorf("the delay of sharing is %v: want 0 or more", c.ShareDelay))
	}
	_, err := c.policy()
	return errors.Join(append(errs, err)...)
}

// policy is what the gateways pick by.
func (c Config) policy() (*picker.Policy, error) {
	if c.Picker != nil {
		return picker.New(*c.Picker)
	}
	preset, err := picker.Preset(c.Policy)
	if err != nil {
		return nil, err
	}
	return picker.New(preset)
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
	// Followed requests go on from an earlier prompt; Kept of them went to the engine
	// that had answered it.
	Kept, Followed int
	// AdapterLoads and Preemptions are the engines' totals.
	AdapterLoads, Preemptions uint64
}

// run is a replay under way.
type run struct {
	cfg      Config
	trace    *Trace
	gateways []*gateway
	engines  []*simulate.Scheduler
	held     []map[uint64]bool // keys, by engine, where engines tell
	flights  []flight          // by the request's place in the trace
	answers  []Answer
	shared   []shared // in the order in which they are due
	next     int      // the next request to send
	open     int      // requests that wait or are on engines
	begun    time.Time
	end      time.Duration
}

// flight is a request that waits or is on its engine.
type flight struct {
	by       *gateway
	came     time.Duration
	sent     time.Duration
	uncached int64
	answered bool
	forecast picker.Forecast
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
	r := &run{cfg: cfg, trace: trace, flights: make([]flight, len(trace.Requests)), answers: make([]Answer, len(trace.Requests)), begun: time.Unix(0, 0)}
	random := rand.New(rand.NewPCG(cfg.Seed, 0x726f75746e67))
	for range cfg.Gateways {
		g, err := newGateway(r, random)
		if err != nil {
			return nil, err
		}
		r.gateways = append(r.gateways, g)
	}
	for range cfg.Engines {
		r.engines = append(r.engines, simulate.NewScheduler(cfg.Physics))
	}
	if cfg.Events {
		r.watch()
	}
	return r, nil
}

// watch has every gateway's index follow what the engines hold, of the text
// that the gateway has seen: of other text it does not know the tokens. Where a
// block of the picker ends, so does one of the engine's, with the same key.
func (r *run) watch() {
	r.held = make([]map[uint64]bool, len(r.engines))
	for i, e := range r.engines {
		held := map[uint64]bool{}
		r.held[i] = held
		e.Watch(func(key uint64, stored bool) {
			if held[key] = true; !stored {
				delete(held, key)
			}
			for _, g := range r.gateways {
				switch {
				case !g.seen[key]:
				case stored:
					g.index.Stored(i, []uint64{key})
				default:
					g.index.Removed(i, []uint64{key})
				}
			}
		})
	}
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
		if scrape <= at || !what { // without an event, requests are held
			now = max(now, scrape)
			r.scrape(now)
			scrape = now + r.cfg.Scrape
			continue
		}
		now = max(now, at)
		if engine >= 0 {
			r.hear(now)
			r.effects(engine, r.engines[engine].Step(simulate.Tick{}, now))
			for _, g := range r.gateways {
				if g.freed {
					g.pump(now)
				}
			}
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
	r.hear(now)
	for i, e := range r.engines {
		st := e.Stats()
		load := &replica.Load{At: r.begun.Add(now), Waiting: st.Waiting, Running: st.Running,
			KV: float64(st.BlocksUsed) / float64(st.BlocksTotal), Blocks: st.BlocksTotal, BlockTokens: simulate.BlockTokens}
		if r.cfg.Physics.MaxAdapters > 0 {
			load.Adapters = &replica.Adapters{Running: st.RunningAdapters, Waiting: st.WaitingAdapters, Max: r.cfg.Physics.MaxAdapters}
		}
		for _, g := range r.gateways {
			g.said(i, load)
		}
	}
	for _, g := range r.gateways {
		g.pump(now)
	}
}

// send has a gateway take the next request.
func (r *run) send(now time.Duration) {
	r.hear(now)
	n := r.next
	r.next++
	g := r.gateways[n%len(r.gateways)]
	r.answers[n] = Answer{Priority: r.trace.Requests[n].Priority, Engine: -1}
	r.flights[n] = flight{by: g, came: now}
	r.end = max(r.end, now)
	g.arrive(n, now)
}

// forward gives a request to an engine.
func (r *run) forward(n, engine int, now time.Duration) {
	q := &r.trace.Requests[n]
	r.answers[n].Engine = engine
	r.effects(engine, r.engines[engine].Step(simulate.Arrive{Sequence: simulate.Sequence{ID: uint64(n), PromptTokens: q.Prompt,
		OutputTokens: q.Output, Keys: q.Keys, Adapter: q.Adapter}}, now))
}

// effects notes what an engine did.
func (r *run) effects(engine int, all []simulate.Effect) {
	for _, e := range all {
		f, a := &r.flights[e.ID], &r.answers[e.ID]
		ep := &f.by.in.Endpoints[engine]
		r.end = max(r.end, e.At)
		switch e.Kind {
		case simulate.Token:
			if !f.answered {
				f.answered, a.First = true, e.At-f.came
				ep.Tokens -= f.uncached
				f.by.answered(engine, f, e.At)
				r.tell(int(e.ID), engine, e.At)
			}
		case simulate.Finished:
			a.Total, a.Tokens = e.At-f.came, e.Tokens
			f.by.finished(engine, f, a.Total-a.First, e.Tokens)
		case simulate.RejectedFull, simulate.RejectedTooLong:
			a.Engine = -1
			ep.Tokens -= f.uncached
		default:
			continue
		}
		if e.Kind != simulate.Token {
			ep.InFlight--
			r.open--
			f.by.freed = true
		}
	}
}

func (r *run) result() *Result {
	out := &Result{Answers: r.answers, Elapsed: r.end - r.trace.Requests[0].At}
	out.Kept, out.Followed = r.kept()
	for _, e := range r.engines {
		t := e.Stats().Totals
		out.Hits += t.PrefixHits
		out.Queries += t.PrefixQueries
		out.AdapterLoads += t.AdapterLoads
		out.Preemptions += t.Preemptions
	}
	return out
}

// Summary is a replay in figures.
type Summary struct {
	Requests int `json:"requests"`
	Answered int `json:"answered"`
	Shed     int `json:"shed"` // by the gateway, or by an engine whose queue was full
	// First are the quantiles of the time to the first token, of answered
	// requests.
	First Quantiles `json:"ttftSeconds"`
	// PerToken is the mean time between two tokens of an answer, over answers.
	PerToken float64 `json:"timePerOutputTokenSeconds"`
	// HitRate is the part of prompt tokens found in an engine's prefix cache.
	HitRate float64 `json:"hitRate"`
	// Kept is the part of the follow-up requests, as the turns of a conversation are,
	// that went to the engine that had answered the one before; 0 without any.
	Kept float64 `json:"followUpsKept"`
	// Good are the requests a second whose first token came within the goal,
	// by criticality.
	Good map[string]float64 `json:"goodput"`
	// InTime is the part of all requests whose first token came within the goal.
	InTime float64 `json:"inTime"`
	// Most is the largest part of the answered requests that one engine had.
	Most         float64 `json:"mostOfOneEngine"`
	TokensASec   float64 `json:"outputTokensPerSecond"`
	AdapterLoads uint64  `json:"adapterLoads"`
	Preemptions  uint64  `json:"preemptions"`
}

// Quantiles are in seconds.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

// Criticalities are the keys of Summary.Good.
var Criticalities = []string{"critical", "standard", "sheddable"}

func criticality(priority int32) string { return Criticalities[1-cmp.Compare(priority, 0)] }

// Summarize counts a replay; goal is the time to the first token that makes an
// answer a good one.
func (r *Result) Summarize(goal time.Duration) Summary {
	s := Summary{Requests: len(r.Answers), Good: map[string]float64{}, AdapterLoads: r.AdapterLoads, Preemptions: r.Preemptions}
	for _, c := range Criticalities {
		s.Good[c] = 0
	}
	var first []float64
	perEngine := map[int]int{}
	tokens, perToken, several := 0, 0.0, 0
	for _, a := range r.Answers {
		if a.Total == 0 {
			s.Shed++
			continue
		}
		s.Answered++
		perEngine[a.Engine]++
		tokens += a.Tokens
		first = append(first, a.First.Seconds())
		if a.Tokens > 1 {
			perToken += (a.Total - a.First).Seconds() / float64(a.Tokens-1)
			several++
		}
		if a.First <= goal {
			s.Good[criticality(a.Priority)]++
			s.InTime += 1 / float64(len(r.Answers))
		}
	}
	slices.Sort(first)
	s.First = Quantiles{P50: quantile(first, 0.5), P90: quantile(first, 0.9), P99: quantile(first, 0.99)}
	if seconds := r.Elapsed.Seconds(); seconds > 0 {
		for c := range s.Good {
			s.Good[c] /= seconds
		}
		s.TokensASec = float64(tokens) / seconds
	}
	if several > 0 {
		s.PerToken = perToken / float64(several)
	}
	if r.Queries > 0 {
		s.HitRate = float64(r.Hits) / float64(r.Queries)
	}
	if r.Followed > 0 {
		s.Kept = float64(r.Kept) / float64(r.Followed)
	}
	for _, n := range perEngine {
		s.Most = max(s.Most, float64(n)/float64(s.Answered))
	}
	return s
}

// quantile is of sorted values, the lower one of two; 0 without any.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(q*float64(len(sorted)-1))]
}
