package scaling

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

func pool(startup time.Duration) Pool {
	return Pool{Slots: 8, Max: 64, Queue: 100_000, Startup: Startup{Low: startup, High: startup}, Seed: 1}
}

func limits() service.Limits {
	return service.Limits{Max: 64, Target: 8, Metric: service.MetricConcurrency, ScaleToZeroAfter: time.Minute}
}

func generate(t *testing.T, name string, a Asked) *Trace {
	t.Helper()
	w, err := FindWorkload(name)
	if err != nil {
		t.Fatal(err)
	}
	trace, err := w.Generate(a)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

func replay(t *testing.T, c Contestant, p Pool, trace *Trace) (*Result, Scaler) {
	t.Helper()
	s, err := c.New(Case{Pool: p, Trace: trace, Limits: limits()})
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(p, trace, s)
	if err != nil {
		t.Fatal(err)
	}
	return r, s
}

// part is the length of a workload's traffic for a test: no longer than most, but
// with requests.
func part(w Workload, most time.Duration) time.Duration {
	if w.Name == "office-hours" {
		most += 9 * time.Hour
	}
	return min(w.Length, most)
}

// Nobody waits less than under the clairvoyant, which costs no less than its
// bound; every request is served, and a replay repeats. Without -full one seed has the
// startup of 30 s, and the other those of none and two minutes.
func TestEveryPolicyOnEveryWorkload(t *testing.T) {
	for _, w := range Workloads() {
		for seed := range uint64(2) {
			for _, startup := range []Startup{{Low: 0, High: 0}, {Low: 30 * time.Second, High: 30 * time.Second}, {Low: 2 * time.Minute, High: 2 * time.Minute}} {
				if !*full && (seed == 0) != (startup.Low == 30*time.Second) {
					continue
				}
				trace := generate(t, w.Name, Asked{Seed: seed, Length: part(w, 2*time.Hour)})
				p := pool(0)
				p.Startup, p.Seed = startup, seed
				know, err := FindContestant("clairvoyant")
				if err != nil {
					t.Fatal(err)
				}
				best, plan := replay(t, know, p, trace)
				if bound := plan.(*Clairvoyant).Bound; best.ReplicaSeconds < bound-1e-3 || startup.Low > 0 && best.ReplicaSeconds > 1.3*bound {
					t.Errorf("%s, startup %v: the clairvoyant costs %.1f, its bound is %.1f", w.Name, startup, best.ReplicaSeconds, bound)
				}
				goal := 2 * time.Second
				patient, err := Case{Pool: p, Trace: trace, Limits: limits(), Goal: goal}.Replay(know)
				if err != nil {
					t.Fatal(err)
				}
				if patient.Summarize(goal).Late > best.Summarize(goal).Late || patient.ReplicaSeconds > best.ReplicaSeconds {
					t.Errorf("%s, startup %v: waits up to the goal make it %.4f late at %.1f, from %.4f at %.1f", w.Name, startup,
						patient.Summarize(goal).Late, patient.ReplicaSeconds, best.Summarize(goal).Late, best.ReplicaSeconds)
				}
				for _, c := range Contestants() {
					r, _ := replay(t, c, p, trace)
					again, _ := replay(t, c, p, trace)
					if !slices.Equal(r.Waits, again.Waits) || r.ReplicaSeconds != again.ReplicaSeconds || r.Starts != again.Starts {
						t.Errorf("%s, %s: a second replay differs", w.Name, c.Name)
					}
					for i, wait := range r.Waits {
						if wait < best.Waits[i] {
							t.Fatalf("%s, %s, startup %v: request %d waits %v (-1ns: refused), %v under the clairvoyant", w.Name, c.Name, startup, i, wait, best.Waits[i])
						}
					}
					if r.BusySeconds > r.ReplicaSeconds {
						t.Errorf("%s, %s: %.1f busy of %.1f replica-seconds", w.Name, c.Name, r.BusySeconds, r.ReplicaSeconds)
					}
				}
			}
		}
	}
}

// scripted decides by a script: the count from each time on.
type scripted struct {
	at     []time.Duration
	counts []int
}

func (s *scripted) Step(v *View) Decision {
	count := len(v.Replicas)
	for len(s.at) > 0 && s.at[0] <= v.Now {
		count, s.at, s.counts = s.counts[0], s.at[1:], s.counts[1:]
	}
	d := Decision{Count: count}
	if len(s.at) > 0 {
		d.Again = s.at[0]
	}
	return d
}

func (s *scripted) Reacts(Event) (time.Duration, bool) { return 0, false }

// One slot, two replicas from 10 s on, requests of 4 s: computed by hand.
func TestReplayByHand(t *testing.T) {
	second := time.Second
	p := Pool{Slots: 1, Max: 4, Queue: 2, Startup: Startup{Low: 5 * second, High: 5 * second}}
	trace := &Trace{Length: 40 * second, Requests: []Request{
		{At: 1 * second, Service: 4 * second},  // waits for the first replica, ready at 5: ends at 9
		{At: 2 * second, Service: 10 * second}, // at 9: ends at 19
		{At: 3 * second, Service: second},      // refused: two wait
		{At: 12 * second, Service: 4 * second}, // at 15, when the second is ready: ends at 19
		{At: 18 * second, Service: 4 * second}, // at 19
	}}
	r, err := Run(p, trace, &scripted{at: []time.Duration{0, 10 * second, 20 * second, 21 * second}, counts: []int{1, 2, 0, 1}})
	if err != nil {
		t.Fatal(err)
	}
	if want := []time.Duration{4 * second, 7 * second, never, 3 * second, second}; !slices.Equal(r.Waits, want) {
		t.Errorf("waits %v, want %v", r.Waits, want)
	}
	// The first from 0 to 23, with its last request; the second from 10 to 20;
	// the third from 21 to 40.
	if r.ReplicaSeconds != 23+10+19 {
		t.Errorf("%v replica-seconds, want 52", r.ReplicaSeconds)
	}
	if r.Starts != 3 || r.Flaps != 1 {
		t.Errorf("%d starts, %d flaps; want 3 and 1", r.Starts, r.Flaps)
	}
	if r.BusySeconds != 4+10+4+4 {
		t.Errorf("%v busy seconds, want 22", r.BusySeconds)
	}
	m := r.Summarize(3 * second)
	if m.Late != 3.0/5 || m.Refused != 1 || m.P50 != 3 || m.P99 != 4 {
		t.Errorf("%+v: want 3 of 5 late, 1 refused, p50 3, p99 4", m)
	}
}

// What waits for ever is refused, and a replay ends.
func TestNothingIsEverStarted(t *testing.T) {
	trace := generate(t, "cron", Asked{Seed: 1, Length: time.Hour})
	r, err := Run(pool(time.Second), trace, fixed(0))
	if err != nil {
		t.Fatal(err)
	}
	if m := r.Summarize(time.Second); m.Late != 1 || m.Refused != len(trace.Requests) || r.ReplicaSeconds != 0 {
		t.Errorf("%+v, %v replica-seconds", m, r.ReplicaSeconds)
	}
}

func TestEventsComeInOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var q events
	for range 1000 {
		q.push(event{at: time.Duration(random.IntN(100))})
	}
	last := event{at: -1}
	for range 1000 {
		e := q.pop()
		if e.before(last) {
			t.Fatalf("%v came after %v", e, last)
		}
		last = e
	}
	if _, ok := q.next(); ok {
		t.Error("an event is left")
	}
}
