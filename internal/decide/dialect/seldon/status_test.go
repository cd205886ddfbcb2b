package seldon

import (
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestSeldonState shows which of Seldon's words each stage of a service is.
func TestSeldonState(t *testing.T) {
	ready := func(status, message string) []service.Condition {
		return []service.Condition{{Type: service.ConditionReady, Status: status, Message: message}}
	}
	for _, c := range []struct {
		name               string
		st                 service.Status
		state, description string
	}{
		{"unknown", service.Status{}, "Creating", ""},
		{"starting", service.Status{Conditions: ready("False", "0 of 1 ready")}, "Creating", "0 of 1 ready"},
		{"ready", service.Status{Conditions: ready("True", "")}, "Available", ""},
		{"ready with an older failure", service.Status{Conditions: ready("True", ""),
			Model: service.ModelStatus{Transition: service.UpToDate, LastFailure: &service.Failure{Message: "no such file"}}}, "Available", ""},
		{"no runtime", service.Status{Conditions: ready("False", "no runtime"),
			Model: service.ModelStatus{Transition: service.InvalidSpec}}, "Failed", "no runtime"},
		{"failed to load", service.Status{Conditions: ready("False", "not ready"),
			Model: service.ModelStatus{Transition: service.BlockedByFailedLoad, LastFailure: &service.Failure{Message: "no such file"}}}, "Failed", "no such file"},
	} {
		if state, description := state(c.st); state != c.state || description != c.description {
			t.Errorf("%s: %s %q, want %s %q", c.name, state, description, c.state, c.description)
		}
	}
}
