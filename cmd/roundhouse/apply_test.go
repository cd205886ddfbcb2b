package main

import (
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// TestWhatIsSaid: a change that cannot be run, or does not yet, is said although
// the revision before goes on serving.
func TestWhatIsSaid(t *testing.T) {
	for _, c := range []struct {
		name, status, reason, message string
		transition                    service.Transition
		settled, taken                bool
		line, short                   string
	}{
		{"serving", "True", "Serving", "", service.UpToDate, true, true, "on r, ready", "Serving"},
		{"asleep", "True", "Asleep", service.WakesAtRequest, service.UpToDate, true, true, "on r, asleep, starts at the first request", "Asleep"},
		{"of a dialect without the state", "True", "Serving", "", "", true, true, "on r, ready", "Serving"},
		{"replaced", "True", "Serving", "revision b is not ready, the one before goes on serving", service.InProgress, false, false,
			"on r, ready, but revision b is not ready, the one before goes on serving", "Serving: revision b is not ready, the one before goes on serving"},
		{"its change has no model", "True", "Asleep", "no such file" + service.BeforeServes, service.BlockedByFailedLoad, true, false,
			"on r, ready, but no such file; the revision before goes on serving", "Asleep: no such file; the revision before goes on serving"},
		{"its change has no runtime", "True", "Serving", "none" + service.BeforeServes, service.InvalidSpec, true, false,
			"on r, ready, but none; the revision before goes on serving", "Serving: none; the revision before goes on serving"},
		{"starting", "False", "Starting", "engine: 0 of 1 ready", service.InProgress, false, false, "on r, not ready: engine: 0 of 1 ready", "Starting: engine: 0 of 1 ready"},
	} {
		s := admin.Service{Generation: 2, Status: service.Status{Generation: 2, Runtime: service.RuntimeChoice{Name: "r"},
			Conditions: []service.Condition{{Type: service.ConditionReady, Status: c.status, Reason: c.reason, Message: c.message}},
			Model:      service.ModelStatus{Transition: c.transition}}}
		if settled(s) != c.settled || taken(s) != c.taken {
			t.Errorf("%s: settled %t, taken %t", c.name, settled(s), taken(s))
		}
		if got := statusLine(s); got != c.line {
			t.Errorf("%s: apply says %q, want %q", c.name, got, c.line)
		}
		if got := shortStatus(s); got != c.short {
			t.Errorf("%s: get says %q, want %q", c.name, got, c.short)
		}
	}
}

// TestWhatIsSaidOfRoutes: one that nobody has looked at is not said to be wrong.
func TestWhatIsSaidOfRoutes(t *testing.T) {
	for want, ready := range map[string]service.Condition{
		"not yet looked at":        {},
		"not ready: Pending":       {Type: "Ready", Status: "False", Reason: "Pending"},
		"not ready: no such model": {Type: "Ready", Status: "False", Reason: "Invalid", Message: "no such model"},
		"ready":                    {Type: "Ready", Status: "True", Reason: "Ready"},
	} {
		var o admin.RoutingObject
		if ready.Type != "" {
			o.Status.Conditions = append(o.Status.Conditions, ready)
		}
		if got := routingLine(o); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
