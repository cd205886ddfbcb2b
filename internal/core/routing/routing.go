// Package routing has the types for how requests find replicas: pools, and the
// objects that route requests to them. Every dialect's routing kinds are read
// into them. It holds no behaviour beyond their own invariants.
package routing

import (
	"roundhouse.dev/roundhouse/internal/core/service"
)

// Kind is one of the hub's routing kinds.
type Kind string

// The kinds.
const (
	KindPool      Kind = "Pool"
	KindRoute     Kind = "Route"
	KindHTTPRoute Kind = "HTTPRoute"
	KindGRPCRoute Kind = "GRPCRoute"
	KindModel     Kind = "InferenceModel"
	KindObjective Kind = "InferenceObjective"
	KindRewrite   Kind = "InferenceModelRewrite"
	KindGraph     Kind = "InferenceGraph"
)

// Kinds lists every kind in the order they are printed.
var Kinds = []Kind{KindPool, KindRoute, KindHTTPRoute, KindGRPCRoute, KindModel, KindObjective, KindRewrite, KindGraph}

// Object is a *Pool, *Route, *HTTPRoute, *Model, *Objective, *Rewrite or *Graph.
type Object interface {
	RoutingKind() Kind
	// Common is the object's metadata, for whoever made the object to set.
	Common() *service.Meta
}

// Ref names what requests are sent to: a service, or a pool over several.
type Ref struct {
	// Pool reports that a pool is meant, otherwise a service.
	Pool        bool `json:"pool,omitempty"`
	service.Key `json:",inline"`
}

// Service is the reference of a service.
func Service(k service.Key) Ref { return Ref{Key: k} }

// PoolRef is the reference of a pool.
func PoolRef(k service.Key) Ref { return Ref{Pool: true, Key: k} }

// String is "service namespace/name" or "pool namespace/name".
func (r Ref) String() string {
	if r.Pool {
		return "pool " + r.Key.String()
	}
	return "service " + r.Key.String()
}

// The priorities of InferenceModel's criticalities. Requests above 0 are
// critical, those below may be shed.
const (
	PriorityCritical  = 1
	PriorityStandard  = 0
	PrioritySheddable = -1
)

// DefaultWeight is the weight of a backend or target that states none.
const DefaultWeight = 1

// WeightedModel is a model name for a replica, and its share.
type WeightedModel struct {
	Name   string `json:"name"`
	Weight uint32 `json:"weight"`
}

// Model is an InferenceModel: one name that a pool answers to.
type Model struct {
	service.Meta `json:",inline"`
	// ModelName is what requests name.
	ModelName string      `json:"modelName"`
	Pool      service.Key `json:"pool"`
	// Targets are what replicas are asked for; none leaves the name as it is.
	Targets     []WeightedModel `json:"targets,omitempty"`
	Criticality string          `json:"criticality,omitempty"` // Critical, Standard, Sheddable or ""
	Priority    int32           `json:"priority,omitempty"`
}

// Objective is an InferenceObjective: a priority that requests ask for by the
// object's name.
type Objective struct {
	service.Meta `json:",inline"`
	Pool         service.Key `json:"pool"`
	Priority     int32       `json:"priority"`
	// Target is how long answers to such requests may take.
	Target LatencyTarget `json:"target,omitzero"`
}

// Rewrite is an InferenceModelRewrite: model names of requests to a pool and
// what they become.
type Rewrite struct {
	service.Meta `json:",inline"`
	Pool         service.Key   `json:"pool"`
	Rules        []RewriteRule `json:"rules"`
}

// RewriteRule replaces the names it lists, or every name if it lists none.
type RewriteRule struct {
	Models  []string        `json:"models,omitempty"`
	Targets []WeightedModel `json:"targets"`
}

// Route is Roundhouse's own: model names and where requests for them go.
type Route struct {
	service.Meta `json:",inline"`
	// Models are the names requests may use; never empty.
	Models   []string `json:"models"`
	Targets  []Target `json:"targets"`
	Priority int32    `json:"priority,omitempty"`
	// Latency is how long answers may take.
	Latency  LatencyTarget `json:"latency,omitzero"`
	Handling Handling      `json:"handling,omitzero"`
}

// Target is one of several places a Route's requests go.
type Target struct {
	Ref `json:"ref"`
	// Model is what the replica is asked for, an adapter perhaps; "" is the
	// service's own name, or for a pool the name in the request.
	Model  string `json:"model,omitempty"`
	Weight uint32 `json:"weight"`
}

// RoutingKind is KindModel.
func (*Model) RoutingKind() Kind { return KindModel }

// RoutingKind is KindObjective.
func (*Objective) RoutingKind() Kind { return KindObjective }

// RoutingKind is KindRewrite.
func (*Rewrite) RoutingKind() Kind { return KindRewrite }

// RoutingKind is KindRoute.
func (*Route) RoutingKind() Kind { return KindRoute }

// Common is the metadata.
func (o *Model) Common() *service.Meta { return &o.Meta }

// Common is the metadata.
func (o *Objective) Common() *service.Meta { return &o.Meta }

// Common is the metadata.
func (o *Rewrite) Common() *service.Meta { return &o.Meta }

// Common is the metadata.
func (o *Route) Common() *service.Meta { return &o.Meta }

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
	ReasonDegraded        = "Degraded" // ready, but a part does not serve
	ReasonChecking        = "Checking" // not known yet: servers are being checked
	ReasonInvalidKind     = "InvalidKind"
	ReasonUnsupported     = "UnsupportedValue"
)

// Degradation is what is wrong with the addresses of a pool; the zero value is
// nothing.
type Degradation struct {
	Message string
	// Down: none of the addresses leads to a server that is healthy.
	Down bool
	// Unchecked: no server is known to be healthy, and not all have been checked.
	Unchecked bool
}

// Status is what is true of a routing object now. It can always be recomputed
// from all objects and services.
type Status struct {
	// Conditions has Ready first, which sums up the others for people.
	Conditions []service.Condition `json:"conditions"`
	// Parents are the gateways that a route names, or those whose routes
	// name a pool.
	Parents []Parent `json:"parents,omitempty"`
	// Members are the services a pool selects, sorted.
	Members []service.Key `json:"members,omitempty"`
	// URL is where people reach a graph.
	URL string `json:"url,omitempty"`
}

// Ready is the first condition, zero when there is none.
func (s Status) Ready() service.Condition {
	if len(s.Conditions) == 0 {
		return service.Condition{}
	}
	return s.Conditions[0]
}

// HTTPRoute is the Gateway API's: what requests look like and where they go. A
// GRPCRoute is one, too, whose paths are those of calls.
type HTTPRoute struct {
	service.Meta `json:",inline"`
	// GRPC: it is a GRPCRoute. It takes calls over gRPC and no other requests.
	GRPC bool `json:"grpc,omitempty"`
	// Hostnames are exact names or "*.suffix", lower-case; none means any.
	Hostnames []string   `json:"hostnames,omitempty"`
	Rules     []HTTPRule `json:"rules,omitempty"`
	// Parents are the gateways it names, which status speaks to.
	Parents []Parent `json:"parents,omitempty"`
	// Scheme is "http" or "https" where requests of that alone are the route's.
	Scheme string `json:"-"`
	// AfterNames: where it asks for no host, requests that belong to other
	// namespaces by the host they were sent to, which a service has or an
	// HTTPRoute asks for, or by the model they name, are not its.
	AfterNames bool `json:"-"`
}

// Parent is a gateway as a route names it.
type Parent struct {
	Group       string `json:"group,omitempty"`
	Kind        string `json:"kind,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
	Name        string `json:"name"`
	SectionName string `json:"sectionName,omitempty"`
	Port        int32  `json:"port,omitempty"`
}

// HTTPRule sends what matches any of Matches to one of Backends.
type HTTPRule struct {
	Matches  []HTTPMatch `json:"matches"` // never empty
	Backends []Backend   `json:"backends,omitempty"`
	Handling Handling    `json:"handling,omitzero"`
	// Fault is why requests of the rule fail, FaultReason the word for it in its
	// route's status: a filter is none that is applied here; "" for no fault.
	Fault       string `json:"fault,omitempty"`
	FaultReason string `json:"faultReason,omitempty"`
}

// Backend is where requests of a rule go, and its share of them.
type Backend struct {
	Ref    `json:"ref"`
	Weight uint32 `json:"weight"`
	// Group and Kind are those that the reference states.
	Group string `json:"group,omitempty"`
	Kind  string `json:"kind,omitempty"`
	// Fault is why requests of this share fail: the kind is none that answers,
	// or its namespace does not allow the reference; "" for no fault.
	Fault string `json:"fault,omitempty"`
	// FaultReason is the word for a Fault in the route's status; "" is InvalidKind.
	FaultReason string `json:"faultReason,omitempty"`
	// Handling takes the place of the rule's, which it contains; nil leaves that.
	Handling *Handling `json:"handling,omitempty"`
	// Port is that which the reference states; 0 for none.
	Port int32 `json:"port,omitempty"`
	// Plain: Ref is a ServicePool. Requests go there as they are.
	Plain bool `json:"-"`
}

// KubernetesService reports whether a reference of a group and kind means a Service of
// a cluster's, or a service of ours that is written so.
func KubernetesService(group, kind string) bool { return group == "" && kind == "Service" }

// MatchType is how a value is compared.
type MatchType string

// The types of matches.
const (
	MatchExact  MatchType = "Exact"
	MatchPrefix MatchType = "PathPrefix" // whole elements of a path
	MatchRegexp MatchType = "RegularExpression"
)

// HTTPMatch is met when all of its parts are.
type HTTPMatch struct {
	Path    ValueMatch   `json:"path"`
	Headers []NamedMatch `json:"headers,omitempty"`
	Query   []NamedMatch `json:"query,omitempty"`
	Method  string       `json:"method,omitempty"` // "" is any
	// Call is what a GRPCRoute asks for, as Path says, too: by it one match comes before
	// another.
	Call CallMatch `json:"call,omitzero"`
}

// CallMatch compares the service and the method of a call over gRPC. A part without a
// type is met by every call.
type CallMatch struct {
	Service ValueMatch `json:"service,omitzero"`
	Method  ValueMatch `json:"method,omitzero"`
}

// ValueMatch compares one value.
type ValueMatch struct {
	Type  MatchType `json:"type"`
	Value string    `json:"value"`
}

// NamedMatch compares the first value of a header or query parameter.
type NamedMatch struct {
	Name       string `json:"name"`
	ValueMatch `json:",inline"`
}

// CatchAll reports whether the match is met by every request.
func (m HTTPMatch) CatchAll() bool {
	return m.Path.Type == MatchPrefix && m.Path.Value == "/" && len(m.Headers)+len(m.Query) == 0 && m.Method == ""
}

// RoutingKind is KindHTTPRoute, or KindGRPCRoute.
func (o *HTTPRoute) RoutingKind() Kind {
	if o.GRPC {
		return KindGRPCRoute
	}
	return KindHTTPRoute
}

// Common is the metadata.
func (o *HTTPRoute) Common() *service.Meta { return &o.Meta }
