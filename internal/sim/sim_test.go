package sim

import (
	"cmp"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	oneSeed = flag.Uint64("seed", 0, "the one seed that TestSeed repeats, with its trace")
	without = flag.String("without", "", "what TestSeed leaves out of its plan, such as s2,u0,f3: services, users and faults by number")
	only    = flag.String("invariant", "", "the one invariant that is looked at; \"\" is all")
	once    = flag.Bool("once", false, "TestSeeds ends with the first seed that fails")
	length  = flag.Duration("length", 0, "how much of its plan TestSeed lives through; 0 is all")
	forTime = flag.Duration("for", 0, "how long TestSeeds tries seeds, from -from on")
	from    = flag.Uint64("from", 1, "the first seed of TestSeeds")
)

// TestSameSeedSameRun: a seed is a run, to the nanosecond.
func TestSameSeedSameRun(t *testing.T) {
	for _, seed := range []uint64{102, 103, 104, 106, 110, 114, 146} {
		p := newPlan(seed)
		p.Length, p.Traced = 30*time.Minute, true
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
// there is time for: one world on each core.
func TestSeeds(t *testing.T) {
	s := &search{began: time.Now(), next: *from, ended: map[string]int{}}
	t.Run("worlds", func(t *testing.T) {
		for i := range runtime.GOMAXPROCS(0) {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				for {
					seed, ok := s.take()
					if !ok {
						return
					}
					s.try(t, seed)
				}
			})
		}
	})
	took := time.Since(s.began)
	t.Logf("%d runs, %.0f service-hours, %d events, requests %v in %v: %.0f service-hours and %.0f events a minute",
		s.runs, s.hours, s.events, s.ended, took.Round(time.Second), s.hours/took.Minutes(), float64(s.events)/took.Minutes())
}

// search is the seeds that were tried and are to be.
type search struct {
	began time.Time

	mu     sync.Mutex
	next   uint64
	over   bool
	runs   int
	hours  float64
	events int
	ended  map[string]int
}

// fixed are the seeds without -for: each plan there is, but wakes.
var fixed = []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 14, 18}

// take is the next seed; false when enough were tried.
func (s *search) take() (uint64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || *forTime == 0 && s.next >= *from+uint64(len(fixed)) || *forTime > 0 && time.Since(s.began) > *forTime {
		return 0, false
	}
	s.next++
	if *forTime == 0 {
		return fixed[s.next-1-*from], true
	}
	return s.next - 1, true
}

// try lives through one seed.
func (s *search) try(t *testing.T, seed uint64) {
	p := newPlan(seed)
	if *forTime == 0 {
		p.Length = min(p.Length/2, 40*time.Minute)
	}
	r := p.run(t)
	if len(r.violations) > 0 {
		v := r.violations[0]
		t.Errorf("seed %d: %v\nrepeat with: go test ./internal/sim -run 'TestSeed$' -v -seed %d -length %v%s", seed, v, seed, p.Length, p.reduced(t, v))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs++
	s.hours += r.hours
	s.events += r.events
	for how, n := range r.calls {
		s.ended[how] += n
	}
	s.over = s.over || *once && len(r.violations) > 0
}

// TestRegressions lives through what once broke an invariant.
func TestRegressions(t *testing.T) {
	for _, r := range []struct {
		what   string
		plan   func(seed uint64) *Plan // as it was drawn then
		seed   uint64
		length time.Duration
	}{
		{"a service that was stopped for another was started again for the load before", general, 5006, 10 * time.Minute},
		{"idle services kept GPUs that others waited for, since the simulated machine was not shared", wakes, 22, 5 * time.Minute},
		{"requests that left before they ran taught that one runs for no time", general, 40052, 14 * time.Hour},
	} {
		p := r.plan(r.seed)
		p.Length = r.length
		for _, v := range p.run(t).violations {
			t.Errorf("%s: seed %d: %v", r.what, r.seed, v)
		}
	}
}

// TestSeed repeats one seed and prints what happened.
func TestSeed(t *testing.T) {
	if *oneSeed == 0 {
		t.Skip("-seed names the seed to repeat")
	}
	p := newPlan(*oneSeed)
	p.Length, p.Traced = cmp.Or(*length, p.Length), true
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
