package backend

import (
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
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
		{"InferencePool", "Unknown", routing.ReasonPending, "no HTTPRoute refers to it", 0, true, ""},
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
