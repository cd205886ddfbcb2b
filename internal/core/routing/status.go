package routing

import "roundhouse.dev/roundhouse/internal/core/service"

// ID names a routing object.
type ID struct {
	Kind Kind
	service.Key
}

// IDOf is the object's.
func IDOf(o Object) ID { return ID{o.RoutingKind(), o.Common().Key} }

// The conditions of routing objects: Ready is Roundhouse's own, the others are
// the Gateway API's.
const (
	ConditionReady        = "Ready"
	ConditionAccepted     = "Accepted"
	ConditionResolvedRefs = "ResolvedRefs"
)

// The reasons of those conditions.
const (
	ReasonAccepted        = "Accepted"
	ReasonResolvedRefs    = "ResolvedRefs"
	ReasonPending         = "Pending"
	ReasonModelNameInUse  = "ModelNameInUse"
	ReasonBackendNotFound = "BackendNotFound"
	ReasonNoEndpoints     = "NoEndpoints"
	ReasonRouted          = "Routed"
	ReasonDegraded        = "Degraded" // ready, and something is wrong all the same
)

// Degradation is what is wrong with the addresses of a pool; the zero value is
// nothing.
type Degradation struct {
	Message string
	// Down: none of the addresses leads to a server that is healthy.
	Down bool
}

// Status is what is true of a routing object now. It can always be recomputed
// from all objects and services.
type Status struct {
	// Conditions has Ready first, which sums up the others for people.
	Conditions []service.Condition `json:"conditions"`
	// Parents are the gateways an HTTPRoute names, or those whose HTTPRoutes
	// name a pool.
	Parents []Parent `json:"parents,omitempty"`
	// Members are the services a pool selects, sorted.
	Members []service.Key `json:"members,omitempty"`
}

// Ready is the first condition, zero when there is none.
func (s Status) Ready() service.Condition {
	if len(s.Conditions) == 0 {
		return service.Condition{}
	}
	return s.Conditions[0]
}
