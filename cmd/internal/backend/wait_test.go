package backend

import (
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// TestSettled: a change that cannot be run, or does not yet, is said although
// the previous revision keeps serving.
func TestSettled(t *testing.T) {
	for _, c := range []struct {
		name, status, reason, message string
		transition                    service.Transition
		settled, taken                bool
	}{
		{"serving", "True", "Serving", "", service.UpToDate, true, true},
		{"asleep", "True", "Asleep", service.WakesAtRequest, service.UpToDate, true, true},
		{"of a dialect without the state", "True", "Serving", "", "", true, true},
		{"replaced", "True", "Serving", "revision b is not ready, the previous one keeps serving", service.InProgress, false, false},
		{"its change has no model", "True", "Asleep", "no such file" + service.BeforeServes, service.BlockedByFailedLoad, true, false},
		{"its change has no runtime", "True", "Serving", "none" + service.BeforeServes, service.InvalidSpec, true, false},
		{"starting", "False", "Starting", "engine: 0 of 1 ready", service.InProgress, false, false},
	} {
		s := admin.Service{Generation: 2, Status: service.Status{Generation: 2, Runtime: service.RuntimeChoice{Name: "r"},
			Conditions: []service.Condition{{Type: service.ConditionReady, Status: c.status, Reason: c.reason, Message: c.message}},
			Model:      service.ModelStatus{Transition: c.transition}}}
		if Settled(s) != c.settled || UpToDate(s) != c.taken {
			t.Errorf("%s: settled %t, taken %t", c.name, Settled(s), UpToDate(s))
		}
	}
}

// TestRolledOut: a service whose new revision serves is rolled out once the replicas
// of others have ended; one that cannot get there is at once.
func TestRolledOut(t *testing.T) {
	for _, c := range []struct {
		name, replicas string // the hash of each one's revision
		canary         string
		transition     service.Transition
		superseded     int
		done           bool
	}{
		{"serving", "aaaaaaaa1 aaaaaaaa1", "", service.UpToDate, 0, true},
		{"the earlier one ends", "aaaaaaaa1 bbbbbbbb1", "", service.UpToDate, 1, false},
		{"with a canary", "aaaaaaaa1 bbbbbbbb1 cccccccc1", "s-bbbbbbbb", service.UpToDate, 1, false},
		{"on pods that tell no revision", "-", "", service.UpToDate, 0, true},
		{"failed", "aaaaaaaa1 bbbbbbbb1", "", service.BlockedByFailedLoad, 1, true},
		{"under way", "aaaaaaaa1", "", service.InProgress, 0, false},
	} {
		s := admin.Service{Name: "s", Generation: 1, Status: service.Status{Generation: 1, Revision: workload.RevisionName("s", "aaaaaaaa1"),
			Conditions: []service.Condition{{Type: service.ConditionReady, Status: "True"}}, Model: service.ModelStatus{Transition: c.transition}}}
		if c.canary != "" {
			s.Status.Canary = &service.CanaryStatus{Revision: c.canary}
		}
		for _, hash := range strings.Fields(c.replicas) {
			s.Replicas = append(s.Replicas, replica.Replica{Revision: strings.Trim(hash, "-")})
		}
		if s.Superseded() != c.superseded || RolledOut(s) != c.done {
			t.Errorf("%s: %d superseded, done %t", c.name, s.Superseded(), RolledOut(s))
		}
	}
}

// TestRoutesAndPools: what is waited for, and what fails.
func TestRoutesAndPools(t *testing.T) {
	for _, c := range []struct {
		kind, status, reason, message string
		waited                        time.Duration
		known                         bool
		unready                       string
	}{
		{"Pool", "True", routing.ReasonAccepted, "1 address", 0, true, ""},
		{"Pool", "True", routing.ReasonDegraded, "1 of 2 servers is not healthy", 0, true, ""},
		{"Pool", "Unknown", routing.ReasonChecking, "not checked", time.Hour, false, "not checked"},
		{"Route", "False", routing.ReasonBackendNotFound, "there is no service a/b", 0, true, "there is no service a/b"},
		{"Route", "", "", "", 0, false, "no controller has reported its state"},
		{"Route", "", "", "", time.Minute, true, "no controller has reported its state"},
		{"InferencePool", "", "", "", time.Minute, true, ""},
		{"InferencePool", "Unknown", routing.ReasonPending, "no HTTPRoute or GRPCRoute refers to it", 0, true, ""},
	} {
		o := admin.RoutingObject{Kind: c.kind}
		if c.status != "" {
			o.Status.Conditions = []service.Condition{{Type: routing.ConditionReady, Status: c.status, Reason: c.reason, Message: c.message}}
		}
		if Known(o, c.waited) != c.known || Unready(o) != c.unready {
			t.Errorf("%+v: known %t, unready %q", c, Known(o, c.waited), Unready(o))
		}
	}
}
