package routing

import "roundhouse.dev/roundhouse/internal/core/service"

// HTTPRoute is the Gateway API's: what requests look like and where they go.
type HTTPRoute struct {
	service.Meta `json:",inline"`
	// Hostnames are exact names or "*.suffix", lower-case; none means any.
	Hostnames []string   `json:"hostnames,omitempty"`
	Rules     []HTTPRule `json:"rules,omitempty"`
	// Parents are the gateways it names, which status speaks to.
	Parents []Parent `json:"parents,omitempty"`
	// AfterNames: where it asks for no host, requests that belong to other
	// namespaces by the host they were sent to, which a service has or an
	// HTTPRoute asks for, or by the model they name, are not its.
	AfterNames bool `json:"-"`
}

// Parent is a gateway as an HTTPRoute names it.
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
}

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

// RoutingKind is KindHTTPRoute.
func (*HTTPRoute) RoutingKind() Kind { return KindHTTPRoute }

// Common is the metadata.
func (o *HTTPRoute) Common() *service.Meta { return &o.Meta }
