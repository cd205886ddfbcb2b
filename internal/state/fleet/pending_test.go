package fleet_test

import (
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// TestRequestsHearThatNothingTakesIt: requests wait for a replica that no place
// takes for a while, and then are told why; those that may have a place soon
// are waited for.
func TestRequestsHearThatNothingTakesIt(t *testing.T) {
	const words = "needs what there is not"
	for _, c := range []struct {
		name    string
		cluster bool
		reason  string
		within  time.Duration // 0: never
	}{
		{"more accelerators than the machine has", false, replica.ReasonUnschedulable, 30 * time.Second},
		{"accelerators in use", false, "InsufficientGPUs", 0},
		{"no node takes it", true, replica.ReasonUnschedulable, 2 * time.Minute},
		{"a quota", true, replica.ReasonQuotaExceeded, 30 * time.Second},
		{"the cluster refuses its pod", true, replica.ReasonPodRefused, 30 * time.Second},
		{"it is being created", true, "Creating", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.apply(serviceYAML("a", one))
			r.reconcile("a")
			if r.cluster = c.cluster; c.cluster {
				r.restart()
			}
			r.platform.replicas[key("a")] = []replica.Replica{{ID: "a-0", Role: service.RoleEngine, Revision: r.platform.revisions[key("a")].Hash,
				Phase: replica.Pending, Reason: c.reason, Message: words}}
			r.deniedAfter(c.within, words, r.reconcile)
			delete(r.platform.replicas, key("a"))
			r.reconcile("a")
			if v := r.traffic.views[key("a")]; v.Blocked {
				t.Errorf("ready: %+v", v)
			}
		})
	}
}

// deniedAfter reconciles the service a for ten minutes: from within on, and not
// before, its requests are told why.
func (r *rig) deniedAfter(within time.Duration, why string, reconcile func(string) time.Duration) {
	r.t.Helper()
	begun := r.now
	for r.now.Sub(begun) < 10*time.Minute {
		again := reconcile("a")
		v, gone := r.traffic.views[key("a")], r.now.Sub(begun)
		if denied := within > 0 && gone >= within; v.Blocked != denied || denied != (v.RetryAfter > 0) || v.Cause != why {
			r.t.Fatalf("after %s: %+v", gone, v)
		}
		if within > gone && (again <= 0 || again > within-gone) {
			r.t.Fatalf("after %s it is looked at again in %s", gone, again)
		}
		r.now = r.now.Add(10 * time.Second)
	}
}

// TestRequestsOfFollowerHearThatNothingTakesIt: so they do where another process
// sees the replicas that have no place.
func TestRequestsOfFollowerHearThatNothingTakesIt(t *testing.T) {
	const words = "needs what there is not"
	leader := newRig(t)
	leader.apply(serviceYAML("a", one))
	leader.reconcile("a")
	record := leader.store.records[key("a")]
	for reason, within := range map[string]time.Duration{replica.ReasonUnschedulable: 2 * time.Minute, replica.ReasonQuotaExceeded: 30 * time.Second} {
		t.Run(reason, func(t *testing.T) {
			r := newFollower(t, serviceYAML("a", one))
			r.platform.replicas[key("a")] = []replica.Replica{}
			r.SetDecision(key("a"), fleet.Decision{Record: &record, Failure: &service.Failure{Reason: reason, Message: words}})
			r.deniedAfter(within, words, r.reconcile)
			r.SetDecision(key("a"), fleet.Decision{Record: &record})
			r.reconcile("a")
			if v := r.traffic.views[key("a")]; v.Blocked {
				t.Errorf("ready: %+v", v)
			}
		})
	}
}
