package autoscale

import (
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// byKnative is a service that Knative's autoscaler scales, with its demand.
type byKnative struct {
	state State
	in    Input
	made  Decision
	at    time.Time
}

// step lets time pass, with as many requests in flight all the time as there are now.
func (b *byKnative) step(after time.Duration) int {
	b.at = b.at.Add(after)
	b.in.Demand.LoadSeconds += float64(b.in.Demand.Queued+b.in.Demand.Running) * after.Seconds()
	b.state, b.made = Step(b.state, b.in, b.at)
	return b.made.Count
}

func knativeLimits(most int, stated service.Knative) service.Limits {
	none, bound := 0, 10
	return service.Scaling{Preset: service.PresetKnative, Knative: &stated, MinReplicas: &none, MaxReplicas: &most, MaxConcurrency: &bound}.Settled()
}

func TestKnativePreset(t *testing.T) {
	none := 0
	b := &byKnative{at: t0, in: Input{Limits: knativeLimits(4, service.Knative{InitialScale: &none})}}
	expect := func(what string, n, want int, why string) {
		t.Helper()
		if got := b.made.Reason(b.at); n != want || why != "" && got != why {
			t.Errorf("%s: %d replicas, %q; want %d, %q", what, n, got, want, why)
		}
	}
	expect("at first", b.step(0), 0, "knative: no data yet")
	if b.made.Again != 0 {
		t.Errorf("an idle service is looked at again after %s", b.made.Again)
	}
	b.in.Demand.Queued = 1
	expect("a first request", b.step(time.Hour+300*time.Millisecond), 1, "knative: stable 1 in flight over 1m0s, panic 1 over 6s, target 7 each")
	if b.made.Again != 700*time.Millisecond {
		t.Errorf("the next step is after %s, want the end of the second", b.made.Again)
	}
	b.in.Replicas, b.in.Demand.Running = ready(0, "a"), 40
	for range 10 {
		b.step(time.Second)
	}
	expect("a burst", b.made.Count, 4, "")
	if got, want := b.made.Reason(b.at), "knative: stable 36.41 in flight over 1m0s, panic 41 over 6s, target 7 each; in panic mode, last over 200 % 0s ago; maxReplicas 4"; got != want {
		t.Errorf("the reason is %q, want %q", got, want)
	}
	b.in.Demand.Unknown, b.in.Demand.Running, b.in.Demand.Queued = true, 0, 0
	expect("unknown", b.step(2*time.Minute), 4, "demand unknown until every gateway has told")
	b.in.Demand.Unknown = false
	b.in.Demand.LoadSeconds += 1e6
	for range 10 {
		b.step(time.Second)
	}
	expect("what came while it was unknown is no load", b.made.Count, 1, "")
	b.in.Stopped = true
	expect("stopped", b.step(time.Second), 0, "stopped by its owner")
	b.in.Stopped, b.in.Replicas = false, nil
	expect("no longer", b.step(time.Second), 0, "knative: no data yet")
	b.in.Wake = 1
	expect("woken", b.step(time.Second), 1, "knative: stable 1 in flight over 1m0s, panic 1 over 6s, target 7 each")
	b.in.Wake, b.in.AtLeast = 0, 3
	expect("the ratio to another component", b.step(time.Second), 3, "")
}

// A restart begins the windows anew, and starts nothing where the component was
// started before.
func TestKnativeRestart(t *testing.T) {
	b := &byKnative{at: t0, in: Input{Limits: knativeLimits(4, service.Knative{})}}
	if n := b.step(0); n != 1 {
		t.Fatalf("%d replicas, want the initial one", n)
	}
	b = &byKnative{at: t0, in: Input{Limits: knativeLimits(4, service.Knative{})}}
	b.state.Learned.Startups = []float64{30}
	if n := b.step(0); n != 0 {
		t.Errorf("%d replicas, want none: it was started before", n)
	}
	b = &byKnative{at: t0, in: Input{Limits: knativeLimits(4, service.Knative{}), Replicas: ready(0, "a", "b", "c")}}
	b.state.Learned.Startups = []float64{30}
	for range 59 {
		if n := b.step(time.Second); n != 3 {
			t.Fatalf("%d replicas, want the 3 that run: it begins in panic", n)
		}
	}
	for range 10 {
		b.step(time.Second)
	}
	if b.made.Count != 1 {
		t.Errorf("%d replicas, want 1", b.made.Count)
	}
}

// The initial scale is that of each revision: an edit has it reached again, once, and
// by replicas of the new revision. A restart, a stop and an eviction do not.
func TestKnativeInitialScale(t *testing.T) {
	three := 3
	b := &byKnative{at: t0, in: Input{Limits: knativeLimits(8, service.Knative{InitialScale: &three}), Revision: "one"}}
	expect := func(what string, want int) {
		t.Helper()
		if got := b.step(time.Second); got != want {
			t.Errorf("%s: %d replicas, want %d: %s", what, got, want, b.made.Reason(b.at))
		}
	}
	sleep := func() {
		for range 300 {
			b.step(time.Second)
			b.in.Replicas = b.in.Replicas[:min(len(b.in.Replicas), b.made.Count)]
		}
		expect("idle", 0)
	}
	expect("the first start", 3)
	b.in.Replicas = ready(0, "a", "b")
	expect("two of three", 3)
	b.in.Replicas = ready(0, "a", "b", "c")
	b.step(time.Second)
	sleep()
	b.state = State{Learned: b.state.Learned}
	expect("a restart", 0)
	b.in.Stopped = true
	expect("stopped", 0)
	b.in.Stopped = false
	expect("no longer", 0)
	b.in.Revision = "two"
	expect("an edit", 3)
	b.state = State{Learned: b.state.Learned}
	expect("a restart before it was reached", 3)
	b.in.Replicas, b.in.Before = ready(0, "a", "b", "c"), true
	expect("replicas of the revision before", 3)
	b.in.Revision = "three"
	for range 200 {
		expect("replicas of the revision before do not reach it", 3)
	}
	b.in.Before = false
	b.step(time.Second)
	sleep()
}
