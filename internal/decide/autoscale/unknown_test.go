package autoscale

import (
	"testing"
	"time"
)

// TestUnknownDemandNeverFalls: while a gateway has not told, a count only
// grows, and what is told late starts no replicas for what is long over.
func TestUnknownDemandNeverFalls(t *testing.T) {
	known, unknown := Demand{}, Demand{Unknown: true}
	asked := func(n int) Demand { return Demand{Unknown: true, Queued: n} }
	l := limits(0, 5, 10)
	for _, c := range []struct {
		name     string
		state    State
		demand   Demand
		replicas []Replica
		want     int
	}{
		{"nothing runs and nothing is asked", State{Last: t0}, unknown, nil, 0},
		{"a returning owner keeps what runs", State{}, unknown, ready(-time.Hour, "a", "b"), 2},
		{"idle for long", State{Last: t0, Count: 1, IdleSince: t0}, unknown, ready(0, "a"), 1},
		{"fewer have been enough for long", State{Last: t0, Count: 4}, asked(1), ready(0, "a", "b", "c", "d"), 4},
		{"what is known to wait is enough to grow", State{Last: t0, Count: 1}, asked(25), ready(0, "a"), 3},
		{"within the limits", State{Last: t0, Count: 1}, asked(1000), ready(0, "a"), 5},
		{"a gateway started one by itself", State{Last: t0}, unknown, []Replica{{ID: "a", Starting: true}}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, d := Step(c.state, Input{Demand: c.demand, Limits: l, Replicas: c.replicas}, t0.Add(time.Hour))
			if d.Count != c.want || len(d.Victims) > 0 || s.Count != c.want {
				t.Fatalf("%+v, want count %d and no victims", d, c.want)
			}
			if d.Again != 0 {
				t.Errorf("looked at again after %s, though nothing changes until a gateway tells", d.Again)
			}
		})
	}
	// Stopped is stopped.
	if _, d := Step(State{Last: t0, Count: 2}, Input{Demand: unknown, Limits: l, Stopped: true, Replicas: ready(0, "a", "b")}, t0); d.Count != 0 {
		t.Errorf("stopped: %+v", d)
	}
	// The clock runs from the first step that knows, and a history that became
	// known at once is no load of that moment.
	late := t0.Add(time.Hour)
	s, _ := Step(State{}, Input{Demand: unknown, Limits: l, Replicas: ready(0, "a")}, t0)
	known.LoadSeconds, known.Arrived, known.Done = 1e6, 1e6, 1e6
	s, d := Step(s, Input{Demand: known, Limits: l, Replicas: ready(0, "a")}, late)
	if d.Count != 1 {
		t.Fatalf("the first step that knows: %+v", d)
	}
	if s, d = Step(s, Input{Demand: known, Limits: l, Replicas: ready(0, "a")}, late.Add(59*time.Second)); d.Count != 1 {
		t.Fatalf("59 s later: %+v", d)
	}
	if _, d = Step(s, Input{Demand: known, Limits: l, Replicas: ready(0, "a")}, late.Add(time.Minute)); d.Count != 0 {
		t.Fatalf("a minute later: %+v", d)
	}
}
