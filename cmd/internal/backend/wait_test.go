package backend

import (
	"testing"

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
