package autoscale

import (
	"math/rand/v2"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func limits(lo, hi int, target float64) service.Limits {
	return service.Limits{Min: lo, Max: hi, Target: target, Metric: service.MetricConcurrency, ScaleToZeroAfter: time.Minute}
}

func ready(at time.Duration, ids ...string) []Replica {
	var out []Replica
	for _, id := range ids {
		out = append(out, Replica{ID: id, Ready: true, ReadyAt: t0.Add(at)})
	}
	return out
}

func TestFromZero(t *testing.T) {
	for _, c := range []struct {
		name   string
		queued int
		limits service.Limits
		wake   int
		want   int
	}{
		{"nothing asked, min 0", 0, limits(0, 5, 10), 0, 0},
		{"nothing asked, min 2", 0, limits(2, 5, 10), 0, 2},
		{"one queued", 1, limits(0, 5, 10), 0, 1},
		{"ceil of queued over target", 31, limits(0, 5, 10), 0, 4},
		{"bounded by max", 1000, limits(0, 5, 10), 0, 5},
		{"asked to wake", 0, limits(0, 5, 10), 1, 1},
		{"wake is bounded by max", 0, limits(0, 1, 10), 7, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, d := Step(State{}, Input{Demand: Demand{Queued: c.queued, Arrived: uint64(c.queued)}, Limits: c.limits, Wake: c.wake}, t0)
			if d.Count != c.want {
				t.Fatalf("count %d (%s), want %d", d.Count, d.Why, c.want)
			}
		})
	}
}

func TestIdleClockStartsAtReadinessAndLastCompletion(t *testing.T) {
	l := limits(0, 3, 10)
	s, d := Step(State{}, Input{Demand: Demand{Queued: 1, Arrived: 1}, Limits: l}, t0)
	// Ten minutes of startup: never idle.
	starting := []Replica{{ID: "a", Starting: true}}
	for m := 1; m <= 10; m++ {
		if s, d = Step(s, Input{Limits: l, Replicas: starting}, t0.Add(time.Duration(m)*time.Minute)); d.Count != 1 {
			t.Fatalf("minute %d of startup: count %d (%s)", m, d.Count, d.Why)
		}
	}
	up := ready(10*time.Minute, "a")
	s, d = Step(s, Input{Limits: l, Replicas: up}, t0.Add(10*time.Minute+59*time.Second))
	if d.Count != 1 || d.Again != time.Second {
		t.Fatalf("59 s after readiness: %+v", d)
	}
	done := t0.Add(10*time.Minute + 59*time.Second + 500*time.Millisecond)
	demand := Demand{Arrived: 2, Done: 2, LastDone: done, LoadSeconds: 0.01}
	s, d = Step(s, Input{Limits: l, Replicas: up, Demand: demand}, t0.Add(11*time.Minute))
	if d.Count != 1 {
		t.Fatalf("a completion did not restart the clock: %+v", d)
	}
	s, d = Step(s, Input{Limits: l, Replicas: up, Demand: demand}, done.Add(time.Minute))
	if d.Count != 0 || len(d.Victims) != 1 {
		t.Fatalf("idle for a minute: %+v", d)
	}
	if _, d = Step(s, Input{Limits: l, Demand: demand}, done.Add(2*time.Minute)); d.Count != 0 || d.Again != 0 {
		t.Fatalf("asleep: %+v", d)
	}
}

// TestClocksOfOthers: the time at which a replica was ready is by another
// machine's clock. However far that is off, idleness lasts as long as is said.
func TestClocksOfOthers(t *testing.T) {
	for _, skew := range []time.Duration{-time.Hour, -2 * time.Second, 0, 2 * time.Second, time.Hour} {
		l := service.Limits{Min: 0, Max: 1, Target: 1, ScaleToZeroAfter: time.Minute}
		now := t0
		s, _ := Step(State{}, Input{Limits: l}, now)
		now = now.Add(time.Second)
		s, d := Step(s, Input{Limits: l, Wake: 1}, now)
		if d.Count != 1 {
			t.Fatalf("%v: woken to %d", skew, d.Count)
		}
		for range 5 {
			now = now.Add(time.Second)
			s, _ = Step(s, Input{Limits: l, Replicas: []Replica{{ID: "a", Starting: true}}}, now)
		}
		ready, at := []Replica{{ID: "a", Ready: true, ReadyAt: now.Add(skew)}}, now
		for d.Count == 1 && now.Sub(at) < 3*time.Hour {
			now = now.Add(time.Second)
			s, d = Step(s, Input{Limits: l, Replicas: ready}, now)
		}
		if lasted := now.Sub(at); lasted < time.Minute || lasted > time.Minute+3*time.Second {
			t.Errorf("a clock that is off by %v: slept after %v", skew, lasted)
		}
	}
}

func TestReturningOwnerHoldsTheClock(t *testing.T) {
	l := limits(0, 3, 10)
	s, d := Step(State{}, Input{Limits: l, Replicas: ready(-time.Hour, "a", "b")}, t0)
	if d.Count != 2 {
		t.Fatalf("first step of a new owner: %+v", d)
	}
	if _, d = Step(s, Input{Limits: l, Replicas: ready(-time.Hour, "a", "b")}, t0.Add(time.Minute)); d.Count != 0 {
		t.Fatalf("a minute after it came: %+v", d)
	}
}

// TestKeepsASurplus: replicas that are not needed stay for half a startup time and 15 s
// more, as long as nothing is known of their pauses, and longer if they are needed in
// between. While requests wait they stay for a startup time and 30 s more.
func TestKeepsASurplus(t *testing.T) {
	for _, c := range []struct {
		startup  float64
		needed   int // seconds for which three are needed, 15 s after five were
		waits    int // requests
		at, left int // when the count falls, and to what
	}{
		{0.2, 0, 0, 16, 2}, {20, 0, 0, 25, 2}, {60, 0, 0, 45, 2}, {60, 1, 0, 45, 3}, {400, 0, 0, 215, 2},
		{0.2, 0, 1, 47, 3}, {60, 0, 1, 135, 3},
	} {
		s, d := State{Learned: Learned{Startups: []float64{c.startup}}}, Decision{}
		in := Input{Limits: limits(1, 10, 1), Replicas: ready(0, "a", "b", "c", "d", "e"), Demand: Demand{Running: 5}}
		in.Replicas[0].InFlight, in.Replicas[1].InFlight = 1, 1
		at := 0
		for ; at < 1000 && (at == 0 || d.Count == 5); at++ {
			switch {
			case at > 15 && at <= 15+c.needed:
				in.Demand.Running = 3
			case at > 0:
				in.Demand.Running, in.Demand.Queued = 2, c.waits
			}
			in.Demand.LoadSeconds += float64(in.Demand.Running + in.Demand.Queued)
			s, d = Step(s, in, t0.Add(time.Duration(at)*time.Second))
		}
		if at-1 < c.at || at-1 > c.at+1 || d.Count != c.left || len(d.Victims) != 5-c.left {
			t.Errorf("a start takes %v s, %d wait: after %d s %+v, want %d after %d s", c.startup, c.waits, at-1, d, c.left, c.at)
		}
		for _, v := range d.Victims {
			if v == "a" || v == "b" {
				t.Errorf("a busy replica is a victim: %v", d.Victims)
			}
		}
		in.Demand.Running, in.Demand.Queued = 9, 0
		if _, d = Step(s, in, t0.Add(time.Duration(at)*time.Second)); d.Count != 9 {
			t.Errorf("growth waits: %+v", d)
		}
	}
}

// TestFailedStartKeepsNothing: a replica that has failed and is started over is
// given up soon after the last that asked for it, however long the idle time is.
func TestFailedStartKeepsNothing(t *testing.T) {
	l := limits(0, 1, 1)
	l.ScaleToZeroAfter = time.Hour
	s, _ := Step(State{}, Input{Limits: l, Demand: Demand{Queued: 1, Arrived: 1}}, t0)
	in := Input{Limits: l, Demand: Demand{Arrived: 1, Done: 1}, Replicas: []Replica{{ID: "a", Starting: true, Failed: true}}}
	s, d := Step(s, in, t0.Add(time.Second))
	if d.Count != 1 {
		t.Fatalf("a second after: %+v", d)
	}
	if _, d = Step(s, in, t0.Add(time.Second+settle)); d.Count != 0 {
		t.Errorf("after %v: %+v", settle, d)
	}
	in.BeforeServes = true
	if _, d = Step(s, in, t0.Add(time.Second+settle)); d.Count != 1 {
		t.Errorf("the older revision that serves is stopped with it: %+v", d)
	}
}

// TestBurstThatEndsIsLookedAtAgain: the step after a burst sees an average over
// what the one replica takes and nothing in flight. It is not the last one, or the
// replica would stay until the next request.
func TestBurstThatEndsIsLookedAtAgain(t *testing.T) {
	in := Input{Demand: Demand{Running: 15, Arrived: 15}, Limits: limits(0, 1, 10), Replicas: ready(0, "a")}
	s, d := Step(State{}, in, t0)
	in.Demand = Demand{Arrived: 15, Done: 15, LoadSeconds: 14, LastDone: t0.Add(900 * time.Millisecond)}
	for now := t0.Add(time.Second); d.Count > 0; now = now.Add(d.Again) {
		if s, d = Step(s, in, now); d.Count > 0 && d.Again == 0 {
			t.Fatalf("nobody looks again after %v: %+v", now.Sub(t0), d)
		}
		if now.Sub(t0) > 2*time.Minute {
			t.Fatalf("it is there after %v: %+v", now.Sub(t0), d)
		}
	}
}

// TestLowerBoundHoldsAtOnce: who lowers maxReplicas does not wait for the load to
// settle.
func TestLowerBoundHoldsAtOnce(t *testing.T) {
	in := Input{Demand: Demand{Running: 40, Arrived: 40}, Limits: limits(0, 4, 10), Replicas: ready(0, "a", "b", "c", "d")}
	s, _ := Step(State{}, in, t0)
	in.Limits.Max = 2
	if _, d := Step(s, in, t0.Add(time.Second)); d.Count != 2 || len(d.Victims) != 2 {
		t.Errorf("of at most 2: %+v", d)
	}
}

// TestStaysAtZero: what the average of the last minute asked for is not started again
// after the pool has gone to zero, however often it is looked at; a request starts it.
func TestStaysAtZero(t *testing.T) {
	l := service.Limits{Max: 4, Target: 2, Metric: service.MetricConcurrency, ScaleToZeroAfter: 30 * time.Second}
	now, d, s := t0, Demand{}, State{}
	step := func(r []Replica) (got Decision) {
		s, got = Step(s, Input{Limits: l, Demand: d, Replicas: r}, now)
		return got
	}
	for range 120 { // two a second, each of which runs for 3 s
		d.Arrived, d.Done, d.LastDone = d.Arrived+1, d.Done+1, now
		d.BusySeconds, d.LoadSeconds = d.BusySeconds+3, d.LoadSeconds+3
		step(ready(0, "a", "b"))
		now = now.Add(500 * time.Millisecond)
	}
	for step(ready(0, "a", "b")).Count > 0 {
		if now = now.Add(time.Second); now.Sub(d.LastDone) > time.Minute {
			t.Fatal("it does not go to zero")
		}
	}
	for range 120 {
		now = now.Add(700 * time.Millisecond)
		if got := step(nil); got.Count != 0 {
			t.Fatalf("%v after the last request, at zero: %+v", now.Sub(d.LastDone), got)
		}
	}
	d.Arrived, d.Queued = d.Arrived+1, 1
	if got := step(nil); got.Count == 0 {
		t.Errorf("a request waits: %+v", got)
	}
}

// TestCrashLoopSleeps: starts and crashes of a replica that has ended before
// are no activity.
func TestCrashLoopSleeps(t *testing.T) {
	l := limits(0, 1, 1)
	now := t0
	s, d := Step(State{}, Input{Limits: l, Demand: Demand{Queued: 1, Arrived: 1}}, now)
	gone := Demand{Arrived: 1, Done: 1}
	for i := 1; d.Count > 0; i++ {
		for _, r := range []Replica{
			{ID: "a", Starting: true, Failed: i > 1},
			{ID: "a", Ready: true, ReadyAt: now.Add(time.Second), Failed: i > 1},
			{ID: "a", Failed: true},
		} {
			now = now.Add(time.Second)
			s, d = Step(s, Input{Limits: l, Demand: gone, Replicas: []Replica{r}}, now)
		}
		if now.Sub(t0) > 2*time.Minute {
			t.Fatalf("awake after %s: %+v", now.Sub(t0), d)
		}
	}
	if slept := now.Sub(t0); slept < settle {
		t.Errorf("slept after %s", slept)
	}
}

// TestUnaskedWaiterGivesUp: a replica that waits for an accelerator is kept for
// those who ask, and not for those who might.
func TestUnaskedWaiterGivesUp(t *testing.T) {
	l := limits(0, 1, 1)
	l.ScaleToZeroAfter = time.Hour
	waiting := []Replica{{ID: "a", Waiting: true}}
	asked := Demand{Queued: 1, Arrived: 1}
	s, _ := Step(State{}, Input{Limits: l, Demand: asked}, t0)
	s, d := Step(s, Input{Limits: l, Demand: asked, Replicas: waiting}, t0.Add(10*time.Minute))
	if d.Count != 1 {
		t.Fatalf("while a request waits: %+v", d)
	}
	left := Demand{Arrived: 1, Done: 1}
	s, d = Step(s, Input{Limits: l, Demand: left, Replicas: waiting}, t0.Add(10*time.Minute+time.Second))
	if d.Count != 1 || d.Again > settle {
		t.Fatalf("as its client leaves: %+v", d)
	}
	if _, d = Step(s, Input{Limits: l, Demand: left, Replicas: waiting}, t0.Add(10*time.Minute+2*settle)); d.Count != 0 {
		t.Fatalf("a minute after its client left: %+v", d)
	}
	l.Min = 1
	if _, d = Step(s, Input{Limits: l, Demand: left, Replicas: waiting}, t0.Add(10*time.Minute+2*settle)); d.Count != 1 {
		t.Fatalf("with minReplicas 1: %+v", d)
	}
}

// TestReasonIsOfNow: what is told of an idle service is true when it is asked.
func TestReasonIsOfNow(t *testing.T) {
	l := limits(0, 1, 1)
	s, _ := Step(State{}, Input{Limits: l, Demand: Demand{Running: 1}, Replicas: ready(0, "a")}, t0)
	s, d := Step(s, Input{Limits: l, Replicas: ready(0, "a")}, t0.Add(911*time.Millisecond))
	if got := d.Reason(t0.Add(31 * time.Second)); got != "idle for 31s, stops after 1m0s" {
		t.Errorf("%q", got)
	}
	if _, d = Step(s, Input{Limits: l, Replicas: ready(0, "a")}, t0.Add(time.Hour)); d.Reason(t0.Add(2*time.Hour)) != "stopped, idle since 2026-01-01T00:00:00Z" {
		t.Errorf("%q", d.Reason(t0.Add(time.Hour)))
	}
	l = limits(0, 1000, 1)
	_, d = Step(State{}, Input{Limits: l, Demand: Demand{Queued: 1050}}, t0)
	if got := d.Reason(t0); got != "maxReplicas 1000 (1050 in flight, target 1 each)" {
		t.Errorf("%q", got)
	}
}

func TestStoppedAndFailing(t *testing.T) {
	l := limits(2, 5, 1)
	if _, d := Step(State{}, Input{Limits: l, Stopped: true, Replicas: ready(0, "a"), Demand: Demand{Queued: 9}}, t0); d.Count != 0 || len(d.Victims) != 1 {
		t.Fatalf("stopped: %+v", d)
	}
	for in, want := range map[*Input]string{{Limits: l, Stopped: true}: "stopped by its owner", {Limits: l, Unloaded: true}: "unloaded by a request"} {
		if _, d := Step(State{Count: 1}, *in, t0); d.Count != 0 || d.Reason(t0) != want {
			t.Errorf("%+v, want %q", d, want)
		}
	}
	// A replica that only fails is idle too, and is given up in time.
	l = limits(0, 1, 1)
	failing := []Replica{{ID: "a"}}
	s, _ := Step(State{}, Input{Limits: l, Wake: 1}, t0)
	s, d := Step(s, Input{Limits: l, Replicas: failing}, t0.Add(time.Second))
	if d.Count != 1 {
		t.Fatal(d)
	}
	if _, d = Step(s, Input{Limits: l, Replicas: failing}, t0.Add(62*time.Second)); d.Count != 0 {
		t.Fatalf("never given up: %+v", d)
	}
}

// Whatever the demand, the count stays in its limits, never falls to zero
// while anything is asked, and the victims are distinct replicas.
func TestProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		lo := r.IntN(4)
		l := limits(lo, max(1, lo+r.IntN(5)), 1+float64(r.IntN(20)))
		s, now, demand := State{}, t0, Demand{}
		var rs []Replica
		for range 40 {
			now = now.Add(time.Duration(r.IntN(20_000)) * time.Millisecond)
			if r.IntN(2) == 0 {
				l.Metric = service.MetricRPS
			}
			demand.Arrived += uint64(r.IntN(100))
			demand.Queued, demand.Running = r.IntN(3)*r.IntN(50), r.IntN(3)*r.IntN(50)
			demand.LoadSeconds += r.Float64() * 10
			if r.IntN(3) == 0 {
				demand.Done, demand.LastDone = demand.Done+1, now
			}
			var d Decision
			s, d = Step(s, Input{Demand: demand, Limits: l, Replicas: rs}, now)
			if d.Count < l.Min || d.Count > l.Max {
				t.Fatalf("count %d outside [%d, %d]: %+v", d.Count, l.Min, l.Max, d)
			}
			if d.Count == 0 && demand.Queued+demand.Running > 0 {
				t.Fatalf("asleep with demand: %+v", d)
			}
			gone := map[string]bool{}
			for _, v := range d.Victims {
				if gone[v] {
					t.Fatalf("victim twice: %v", d.Victims)
				}
				gone[v] = true
			}
			var next []Replica
			for _, x := range rs {
				if !gone[x.ID] {
					x.Ready, x.Starting = true, false
					next = append(next, x)
				}
			}
			for i := len(next); i < d.Count; i++ {
				next = append(next, Replica{ID: now.String() + string(rune('a'+i)), Starting: r.IntN(2) == 0, Ready: false})
			}
			rs = next
		}
	}
}
