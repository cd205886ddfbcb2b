package ome

import (
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/kserve"
)

// words are OME's; the form of its status is KServe's.
var words = kserve.Words{
	Components: map[service.Role]string{service.RoleEngine: "engine", service.RoleDecoder: "decoder", service.RoleRouter: "router"},
	Conditions: map[string]string{service.ConditionSelected: "", service.ConditionPredictorReady: "EngineReady"},
	States:     "modelRevisionStates", Copies: "modelCopies",
}

// Status is a service's status in OME's words.
func Status(st service.Status) map[string]any { return words.Status(st) }

// ReadStatus is the other way of Status.
func ReadStatus(status any) service.Status { return words.ReadStatus(status) }
