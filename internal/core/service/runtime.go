package service

import "slices"

// Scope is where a runtime was defined; selection prefers them in this order.
type Scope string

// The scopes, nearest first.
const (
	ScopeNamespace Scope = "namespace"
	ScopeCluster   Scope = "cluster"
	ScopeCatalog   Scope = "catalog" // shipped with the binary; last and oldest
)

// Runtime is what every dialect's runtime kind is read into: what it can
// serve and how it runs.
type Runtime struct {
	Meta       `json:",inline"`
	Scope      Scope             `json:"scope"`
	Disabled   bool              `json:"disabled,omitempty"`
	MultiModel bool              `json:"multiModel,omitempty"`
	Formats    []SupportedFormat `json:"formats,omitempty"`
	// Protocols it speaks; empty means any.
	Protocols []Protocol `json:"protocols,omitempty"`
	// Size is the range of parameter counts it is meant for; nil means any.
	Size *SizeRange `json:"size,omitempty"`
	// AutoSelectAny: any entry's autoSelect admits the runtime (OME's words),
	// not only the matched entry's (KServe's).
	AutoSelectAny bool `json:"autoSelectAny,omitempty"`
	// AcceleratorClasses it runs on; without one it serves no service that asks for one.
	AcceleratorClasses []string `json:"acceleratorClasses,omitempty"`
	// StorageHelperDisabled: the model URI goes to the runtime verbatim.
	StorageHelperDisabled bool `json:"storageHelperDisabled,omitempty"`
	// Disaggregation is what its engines expect where a decoder stands beside
	// them; "" means DisaggregationHeader.
	Disaggregation Disaggregation `json:"disaggregation,omitempty"`
	// MultiNode says the runtime is for leader / worker services (KServe's
	// workerSpec; OME's leader and worker).
	MultiNode bool `json:"multiNode,omitempty"`
	// Adapters is how its engine is told of LoRA adapters; nil means that it
	// takes none.
	Adapters *AdapterArgs `json:"adapters,omitempty"`
	// AdaptersDerived reports that nobody wrote Adapters: a runtime of the catalog
	// with the same image has them, and they are no part of what the object says.
	AdaptersDerived bool       `json:"-"`
	Components      Components `json:"components,omitzero"`
}

// Speaks are the protocols that r speaks, all of them; nil where its list does
// not tell. Lists of KServe's kind may be silent on OpenAI's: KServe's own
// server of language models, which speaks it, lists v1 and v2.
func (r *Runtime) Speaks() []Protocol {
	if r.Origin.Dialect() == DialectKServe && !slices.ContainsFunc(r.Protocols, Protocol.language) {
		return nil
	}
	return r.Protocols
}

// SupportedFormat is one entry of what a runtime supports. Attributes it
// omits match any model, less specifically.
type SupportedFormat struct {
	Format       NamedVersion `json:"format,omitzero"`
	Framework    NamedVersion `json:"framework,omitzero"`
	Architecture string       `json:"architecture,omitempty"`
	Quantization string       `json:"quantization,omitempty"`
	// FormatOperator and FrameworkOperator compare the runtime's version with
	// the model's; "" means OperatorEqual.
	FormatOperator    Operator `json:"formatOperator,omitempty"`
	FrameworkOperator Operator `json:"frameworkOperator,omitempty"`
	AutoSelect        bool     `json:"autoSelect,omitempty"`
	// Priority is nil when unset; a set one is > 0 and beats every unset one.
	Priority *int `json:"priority,omitempty"`
}

// Operator compares a runtime's version with a model's.
type Operator string

// OME's version operators: runtime = / > / >= model.
const (
	OperatorEqual              Operator = "Equal"
	OperatorGreaterThan        Operator = "GreaterThan"
	OperatorGreaterThanOrEqual Operator = "GreaterThanOrEqual"
)

// SizeRange bounds a parameter count, inclusive; 0 leaves a side open.
type SizeRange struct {
	Min int64 `json:"min,omitempty"`
	Max int64 `json:"max,omitempty"`
}

// Contains reports whether n parameters lie in the range.
func (r SizeRange) Contains(n int64) bool {
	return (r.Min == 0 || n >= r.Min) && (r.Max == 0 || n <= r.Max)
}
