package fleet_test

import (
	"errors"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// history is that of a service with one component.
func (r *rig) history(name string) []fleet.ScaleDecision {
	r.t.Helper()
	all, err := r.ScaleHistory(key(name))
	if err != nil || len(all) != 1 || all[0].Component != service.RoleEngine || all[0].Canary {
		r.t.Fatalf("%+v (%v)", all, err)
	}
	return all[0].Decisions
}

// TestScaleHistory: each change of the counts is kept with what it was decided by.
func TestScaleHistory(t *testing.T) {
	r := newRig(t)
	r.apply(serviceYAML("a", "scaling: {minReplicas: 0, maxReplicas: 3}"))
	if all, err := r.ScaleHistory(key("a")); err != nil || len(all) != 0 {
		t.Errorf("before the first decision: %+v (%v)", all, err)
	}
	r.reconcile("a")
	r.now = r.now.Add(time.Second)
	r.traffic.demand = autoscale.Demand{Queued: 25, Arrived: 25}
	r.reconcile("a") // starts three
	r.now = r.now.Add(time.Second)
	r.reconcile("a") // sees them
	got := r.history("a")
	counts := []fleet.ReplicaCounts{{}, {Desired: 3}, {Desired: 3, Ready: 3}}
	if len(got) != len(counts) {
		t.Fatalf("want %d decisions, got %+v", len(counts), got)
	}
	for i, want := range counts {
		if d := got[i]; d.ReplicaCounts != want || !d.Time.Equal(epoch.Add(time.Duration(i)*time.Second)) {
			t.Errorf("decision %d is %+v, want %+v", i, d, want)
		}
	}
	if d := got[1]; d.Queued != 25 || d.Inputs.Load != 25 || d.Why != "25 in flight, target 10 each" {
		t.Errorf("decided by %+v", d)
	}
	got[1].Desired = 9
	if r.history("a")[1].Desired != 3 {
		t.Error("a reader changed the history")
	}
	var missing *fleet.NotFoundError
	if _, err := r.ScaleHistory(key("nobody")); !errors.As(err, &missing) {
		t.Errorf("of nobody: %v", err)
	}
	r.cluster = true
	r.restart()
	r.reconcile("a")
	if _, err := r.ScaleHistory(key("a")); !errors.Is(err, fleet.ErrNoScaleHistory) {
		t.Errorf("on a cluster: %v", err)
	}
}

// TestScaleHistoryIsBounded: decisions that change nothing are thinned out, the
// newest is always there, and however many change something, 120 are kept.
func TestScaleHistoryIsBounded(t *testing.T) {
	r := newRig(t)
	r.apply(serviceYAML("a", "scaling: {minReplicas: 1, maxReplicas: 3}"))
	step := func() {
		r.now = r.now.Add(time.Second)
		r.reconcile("a")
	}
	for range 62 { // the first starts a replica, the second sees it
		step()
	}
	got := r.history("a")
	if len(got) != 8 || !got[len(got)-1].Time.Equal(r.now) {
		t.Errorf("want 8 of 62 s with one change, got %d until %s of %s: %+v", len(got), got[len(got)-1].Time, r.now, got)
	}
	hash := r.platform.revisions[key("a")].Hash
	for i := range 500 {
		x := replica.Replica{ID: "a-0", Service: key("a"), Role: service.RoleEngine, Revision: hash, Phase: replica.Ready, PID: 100}
		if i%2 > 0 {
			x.Phase = replica.Starting
		}
		r.platform.replicas[key("a")] = []replica.Replica{x}
		step()
	}
	got = r.history("a")
	if len(got) != 120 || !got[119].Time.Equal(r.now) || !got[0].Time.Equal(r.now.Add(-119*time.Second)) {
		t.Errorf("want the last 120, got %d from %s to %s", len(got), got[0].Time, got[len(got)-1].Time)
	}
	if got[119].Starting != 1 || got[118].Ready != 1 {
		t.Errorf("the last two are %+v", got[118:])
	}
}
