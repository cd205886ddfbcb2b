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
		name            string
		cluster, follow bool
		reason          string
		within          time.Duration // 0: never
	}{
		{"more accelerators than the machine has", false, false, replica.ReasonUnschedulable, 30 * time.Second},
		{"accelerators in use", false, false, "InsufficientGPUs", 0},
		{"no node takes it", true, false, replica.ReasonUnschedulable, 2 * time.Minute},
		{"a quota", true, false, replica.ReasonQuotaExceeded, 30 * time.Second},
		{"the cluster refuses its pod", true, false, replica.ReasonPodRefused, 30 * time.Second},
		{"it is being created", true, false, "Creating", 0},
		{"no node takes it, as a gateway hears", false, true, replica.ReasonUnschedulable, 2 * time.Minute},
		{"a quota, as a gateway hears", false, true, replica.ReasonQuotaExceeded, 30 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.apply(serviceYAML("a", one))
			r.reconcile("a")
			record := r.store.records[key("a")]
			if r.cluster, r.follow = c.cluster, c.follow; c.cluster || c.follow {
				r.restart()
			}
			r.platform.replicas[key("a")] = []replica.Replica{{ID: "a-0", Role: service.RoleEngine, Revision: r.platform.revisions[key("a")].Hash,
				Phase: replica.Pending, Reason: c.reason, Message: words}}
			if c.follow {
				r.platform.replicas[key("a")] = []replica.Replica{}
				r.Followed(key("a"), fleet.Decided{Record: &record, Failure: &service.Failure{Reason: c.reason, Message: words}})
			}
			begun := r.now
			for r.now.Sub(begun) < 10*time.Minute {
				again := r.reconcile("a")
				v, gone := r.traffic.views[key("a")], r.now.Sub(begun)
				if denied := c.within > 0 && gone >= c.within; v.Blocked != denied || denied != (v.RetryAfter > 0) || v.Cause != words {
					t.Fatalf("after %s: %+v", gone, v)
				}
				if c.within > gone && (again <= 0 || again > c.within-gone) {
					t.Fatalf("after %s it is looked at again in %s", gone, again)
				}
				r.now = r.now.Add(10 * time.Second)
			}
			delete(r.platform.replicas, key("a"))
			r.Followed(key("a"), fleet.Decided{Record: &record})
			r.reconcile("a")
			if v := r.traffic.views[key("a")]; v.Blocked {
				t.Errorf("ready: %+v", v)
			}
		})
	}
}
