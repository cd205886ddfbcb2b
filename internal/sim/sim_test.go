package sim

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	oneSeed = flag.Uint64("seed", 0, "the one seed that TestSeed repeats, with its trace")
	without = flag.String("without", "", "what TestSeed leaves out of its plan, such as s2,u0,f3: services, users and faults by number")
	once    = flag.Bool("once", false, "TestSeeds ends with the first seed that fails")
	length  = flag.Duration("length", 2*time.Hour, "how much of its plan TestSeed lives through")
	forTime = flag.Duration("for", 0, "how long TestSeeds tries seeds, from -from on")
	from    = flag.Uint64("from", 1, "the first seed of TestSeeds")
)

// newPlan draws a plan from a seed.
func newPlan(seed uint64) *Plan {
	rng := rand.New(rand.NewPCG(seed, 0x706c616e))
	between := func(a, b time.Duration) time.Duration { return a + time.Duration(rng.Int64N(int64(b-a)+1)) }
	p := &Plan{Seed: seed, GPUs: 1 + rng.IntN(6), Length: 2 * time.Hour}
	for i := range 1 + rng.IntN(6) {
		s := ServicePlan{Seed: rng.Uint64(), Name: fmt.Sprintf("svc-%d", i), Min: max(0, rng.IntN(4)-2), Target: float64(1 + rng.IntN(8)), ToZero: between(30*time.Second, 10*time.Minute),
			Startup: between(time.Second, 90*time.Second), GPUs: max(0, rng.IntN(4)-1)}
		s.GPUs = min(s.GPUs, p.GPUs)
		s.Max = max(1, s.Min) + rng.IntN(4)
		if rng.IntN(2) == 0 {
			s.MaxConcurrency = int(s.Target) + rng.IntN(4)
		}
		p.Services = append(p.Services, s)
	}
	name := func() string { return p.Services[rng.IntN(len(p.Services))].Name }
	for range 1 + rng.IntN(8) {
		p.Users = append(p.Users, UserPlan{Seed: rng.Uint64(), Service: name(), From: between(0, 10*time.Minute), For: between(time.Second, 20*time.Minute),
			Pause: between(time.Minute, 40*time.Minute), Every: between(100*time.Millisecond, 10*time.Second), Patience: between(5*time.Second, 6*time.Minute),
			Retries: rng.IntN(4), Tokens: 1 + rng.IntN(40)})
	}
	all := allKinds()
	for range rng.IntN(12) {
		p.Faults = append(p.Faults, FaultPlan{Seed: rng.Uint64(), Kind: all[rng.IntN(len(all))], Service: name(), At: between(0, p.Length-20*time.Minute), For: between(time.Second, 5*time.Minute)})
	}
	slices.SortStableFunc(p.Faults, func(a, b FaultPlan) int { return int(a.At - b.At) })
	return p
}

// TestSameSeedSameRun: a seed is a run, to the nanosecond.
func TestSameSeedSameRun(t *testing.T) {
	for seed := range uint64(4) {
		p := newPlan(100 + seed)
		p.Length = 40 * time.Minute
		a, b := p.run(t), p.run(t)
		if len(a.log) < 20 {
			t.Fatalf("seed %d: only %d lines: nothing happened", seed, len(a.log))
		}
		for i := range min(len(a.log), len(b.log)) {
			if a.log[i] != b.log[i] {
				t.Fatalf("seed %d: line %d is\n%s\nand then\n%s\nafter\n%s", seed, i, a.log[i], b.log[i], strings.Join(a.log[max(0, i-8):i], "\n"))
			}
		}
		if len(a.log) != len(b.log) {
			t.Errorf("seed %d: %d lines and then %d", seed, len(a.log), len(b.log))
		}
	}
}

// TestSeeds lives through a fixed set of seeds, or with -for through as many as
// there is time for.
func TestSeeds(t *testing.T) {
	began, hours, events, runs := time.Now(), 0.0, 0, 0
	ended := map[string]int{}
	for seed := *from; ; seed++ {
		if *forTime == 0 && seed >= *from+12 || *forTime > 0 && time.Since(began) > *forTime {
			break
		}
		p := newPlan(seed)
		if *forTime == 0 {
			p.Length = time.Hour
		}
		r := p.run(t)
		runs++
		hours += r.hours
		events += r.events
		for how, n := range r.calls {
			ended[how] += n
		}
		if len(r.violations) > 0 {
			v := r.violations[0]
			t.Errorf("seed %d: %v\nrepeat with: go test ./internal/sim -run 'TestSeed$' -v -seed %d -length %v%s", seed, v, seed, p.Length, p.reduced(t, v))
			if *once {
				break
			}
		}
	}
	took := time.Since(began)
	t.Logf("%d runs, %.0f service-hours, %d events, requests %v in %v: %.0f service-hours a minute", runs, hours, events, ended, took.Round(time.Second), hours/took.Minutes())
}

// TestSeed repeats one seed and prints what happened.
func TestSeed(t *testing.T) {
	if *oneSeed == 0 {
		t.Skip("-seed names the seed to repeat")
	}
	p := newPlan(*oneSeed)
	p.Length = *length
	for what := range strings.SplitSeq(*without, ",") {
		p = p.leaveOut(what)
	}
	t.Logf("%+v", *p)
	r := p.run(t)
	for _, line := range r.log {
		t.Log(line)
	}
	for _, v := range r.violations {
		t.Error(v)
	}
}

// leaveOut is the plan without a service, a user or a fault.
func (p *Plan) leaveOut(what string) *Plan {
	q := *p
	var n int
	if _, err := fmt.Sscanf(what, "s%d", &n); err == nil && n < len(p.Services) {
		q.Services = slices.Clone(p.Services)
		q.Services[n].Left = true
	} else if _, err := fmt.Sscanf(what, "u%d", &n); err == nil && n < len(p.Users) {
		q.Users = slices.Clone(p.Users)
		q.Users[n].Left = true
	} else if _, err := fmt.Sscanf(what, "f%d", &n); err == nil && n < len(p.Faults) {
		q.Faults = slices.Clone(p.Faults)
		q.Faults[n].Left = true
	}
	return &q
}

// reduced leaves out of a plan what an invariant breaks without as well, and
// returns the flag that does so.
func (p *Plan) reduced(t *testing.T, v Violation) string {
	began, q := time.Now(), *p
	q.Length = min(p.Length, v.At+time.Minute)
	var out, parts []string
	for i := range p.Faults {
		parts = append(parts, fmt.Sprintf("f%d", i))
	}
	for i := range p.Services {
		parts = append(parts, fmt.Sprintf("s%d", i))
	}
	for i := range p.Users {
		parts = append(parts, fmt.Sprintf("u%d", i))
	}
	for _, what := range parts {
		less := q.leaveOut(what)
		if time.Since(began) > reduceFor || *once {
			break
		}
		if r := less.run(t); len(r.violations) > 0 && r.violations[0].Name == v.Name {
			q, out = *less, append(out, what)
		}
	}
	if len(out) == 0 {
		return ""
	}
	return " -without " + strings.Join(out, ",")
}

// reduceFor is how long a plan is reduced, at most.
const reduceFor = 30 * time.Second
