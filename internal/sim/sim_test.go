package sim

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
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
	brief   = flag.Bool("brief", false, "TestSeed lives through its plan as the fixed set does, in less time")
	length  = flag.Duration("length", 0, "how much of its plan TestSeed lives through; 0 is all")
	forTime = flag.Duration("for", 0, "how long TestSeeds tries seeds, from -from on")
	from    = flag.Uint64("from", 1, "the first seed of TestSeeds")
	to      = flag.Uint64("to", 0, "the last seed of TestSeeds with -for; 0 is none")
)

// TestMain has the collector run seldom: worlds are small, and it takes a tenth of
// the time otherwise.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

// TestSameSeedSameRun: a seed is a run, to the nanosecond.
func TestSameSeedSameRun(t *testing.T) {
	for _, seed := range []uint64{102, 103, 104, 106, 110, 114, 146} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			p := newPlan(seed)
			p.Length, p.Traced = 13*time.Minute, true
			same(t, p.run(t).log, p.run(t).log)
		})
	}
}

// same compares the logs of two runs.
func same(t *testing.T, a, b []string) {
	t.Helper()
	if len(a) < 20 {
		t.Fatalf("only %d lines: nothing happened", len(a))
	}
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			t.Fatalf("line %d is\n%s\nand then\n%s\nafter\n%s", i, a[i], b[i], strings.Join(a[max(0, i-8):i], "\n"))
		}
	}
	if len(a) != len(b) {
		t.Errorf("%d lines and then %d", len(a), len(b))
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

// fixed are the seeds without -for: each plan there is, but wakes. They are brief.
var fixed = []uint64{1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 14, 18, 24, 27}

// inBrief is the plan in less than half an hour, with all of its faults.
func (p *Plan) inBrief() *Plan {
	const briefly = 25 * time.Minute
	q := *p
	q.Length, q.Faults = min(p.Length/2, briefly), slices.Clone(p.Faults)
	for i := range q.Faults {
		f := &q.Faults[i]
		f.At = time.Duration(float64(f.At) * float64(q.Length) / float64(p.Length))
	}
	return &q
}

// TestFixedSetHasEveryFault: what `make test` lives through has each kind of fault
// that is drawn.
func TestFixedSetHasEveryFault(t *testing.T) {
	seen := map[string]bool{}
	for _, seed := range fixed {
		p := newPlan(seed).inBrief()
		for _, f := range p.Faults {
			seen[f.Kind] = seen[f.Kind] || f.At < p.Length
		}
	}
	for kind := range kinds {
		if !seen[kind] && !strings.HasPrefix(kind, "edit when") { // those are of wakes, in TestRegressions
			t.Errorf("no seed of the fixed set has the fault %q", kind)
		}
	}
}

// take is the next seed; false when enough were tried.
func (s *search) take() (uint64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || *forTime == 0 && s.next >= *from+uint64(len(fixed)) || *forTime > 0 && (time.Since(s.began) > *forTime || *to > 0 && s.next > *to) {
		return 0, false
	}
	s.next++
	if *forTime == 0 {
		return fixed[s.next-1-*from], true
	}
	return s.next - 1, true
}

// repeatEvery is how many seeds there are for each that is lived through twice.
const repeatEvery = 16

// try lives through one seed.
func (s *search) try(t *testing.T, seed uint64) {
	p, as := newPlan(seed), ""
	if *forTime == 0 {
		p, as = p.inBrief(), " -brief"
	}
	r := p.run(t)
	if *forTime > 0 && seed%repeatEvery == 0 && len(r.violations) == 0 {
		if again := p.run(t); again.events != r.events || !maps.Equal(again.calls, r.calls) {
			t.Errorf("seed %d: a second run differs: %d events with requests %v, and then %d with %v", seed, r.events, r.calls, again.events, again.calls)
		}
	}
	if len(r.violations) > 0 {
		v := r.violations[0]
		t.Errorf("seed %d: %v\nrepeat with: go test ./internal/sim -run 'TestSeed$' -v -seed %d%s -length %v%s", seed, v, seed, as, p.Length, p.reduced(t, v))
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
		{"six requests within two seconds, of forty seconds each, were a load of fourteen", newPlan, 1000, 24 * time.Hour},
		{"a pool at zero was started again for the average of the minute before", newPlan, 5042, 2 * time.Hour},
	} {
		t.Run(fmt.Sprint(r.seed), func(t *testing.T) {
			if r.length > time.Hour && *forTime == 0 {
				t.Skipf("%v of a day take too long for `make test`; `make sim` lives through them", r.length)
			}
			t.Parallel()
			p := r.plan(r.seed)
			p.Length = r.length
			for _, v := range p.run(t).violations {
				t.Errorf("%s: %v", r.what, v)
			}
		})
	}
}

// TestSeed repeats one seed and prints what happened.
func TestSeed(t *testing.T) {
	if *oneSeed == 0 {
		t.Skip("-seed names the seed to repeat")
	}
	p := newPlan(*oneSeed)
	if *brief {
		p = p.inBrief()
	}
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
