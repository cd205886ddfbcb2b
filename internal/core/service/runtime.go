package service

import (
	"slices"
	"strings"
)

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
	// AcceleratorNeeds are what the class that it runs on must have.
	AcceleratorNeeds AcceleratorNeeds `json:"acceleratorNeeds,omitzero"`
	// StorageHelperDisabled: the model URI goes to the runtime verbatim.
	StorageHelperDisabled bool `json:"storageHelperDisabled,omitempty"`
	// Disaggregation is what its engines expect where a decoder stands beside
	// them; "" means DisaggregationHeader.
	Disaggregation Disaggregation `json:"disaggregation,omitempty"`
	// MultiNode marks a runtime for leader / worker services (KServe's
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
	if r.Origin.Dialect() == DialectKServe && !slices.ContainsFunc(r.Protocols, Protocol.Language) {
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
	// Diffusion is what a model's pipeline must have; nil takes models with any, or
	// none.
	Diffusion *DiffusionPipeline `json:"diffusion,omitempty"`
	// FormatOperator and FrameworkOperator compare the runtime's version with
	// the model's; "" means OperatorEqual.
	FormatOperator    Operator `json:"formatOperator,omitempty"`
	FrameworkOperator Operator `json:"frameworkOperator,omitempty"`
	AutoSelect        bool     `json:"autoSelect,omitempty"`
	// Priority is nil when unset; a set one is > 0 and beats every unset one.
	Priority *int `json:"priority,omitempty"`
	// Accelerators are what is changed on classes of accelerators, by their names.
	Accelerators map[string]AcceleratorConfig `json:"accelerators,omitempty"`
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

// Protocol is what a server speaks, in one vocabulary for all dialects.
type Protocol string

// The protocols. OME's openInference-v1 and -v2 are v1 and v2.
const (
	ProtocolV1     Protocol = "v1"
	ProtocolV2     Protocol = "v2"
	ProtocolGRPCV1 Protocol = "grpc-v1"
	ProtocolGRPCV2 Protocol = "grpc-v2"
	ProtocolOpenAI Protocol = "openAI"
	ProtocolCohere Protocol = "cohere"
)

// Protocols lists every protocol by rank, best first (KServe's order, then
// those it does not rank).
var Protocols = []Protocol{ProtocolV1, ProtocolV2, ProtocolGRPCV1, ProtocolGRPCV2, ProtocolOpenAI, ProtocolCohere}

// ParseProtocol reads a protocol in any dialect's spelling; ok is false for
// an unknown one. The empty string is "" and ok.
func ParseProtocol(s string) (p Protocol, ok bool) {
	switch strings.ToLower(s) {
	case "":
		return "", true
	case "openinference-v1":
		return ProtocolV1, true
	case "openinference-v2", "kfserving", "open-inference":
		return ProtocolV2, true
	}
	for _, p := range Protocols {
		if strings.EqualFold(string(p), s) {
			return p, true
		}
	}
	return "", false
}

// Rank is the protocol's place in Protocols; unknown and none rank last.
func (p Protocol) Rank() int {
	for i, q := range Protocols {
		if p == q {
			return i
		}
	}
	return len(Protocols)
}

// Language reports whether p is one of the APIs of language models, which
// OpenAI stands for: engines have Anthropic's and others beside it.
func (p Protocol) Language() bool { return p == ProtocolOpenAI || p == ProtocolCohere }

// AnsweredBy reports whether a server that speaks these protocols may answer a
// call of p; where none are known, any may. Only the two families are told
// apart: servers that list one of KServe's protocols often speak the others
// too, and engines that list OpenAI's have calls of other APIs beside it.
func (p Protocol) AnsweredBy(speaks []Protocol) bool {
	return p == "" || len(speaks) == 0 || slices.ContainsFunc(speaks, func(q Protocol) bool { return q.Language() == p.Language() })
}

// Disaggregation is how whoever passes a request on has one replica of a
// service compute the prompt and another the answer. It is the engines' to
// say: each has a protocol of its own.
type Disaggregation string

// The protocols of prefill and decode apart.
const (
	// DisaggregationHeader names the prefill replica in the header
	// x-prefiller-host-port, for llm-d's routing sidecar before the decode
	// replica. It is the default.
	DisaggregationHeader Disaggregation = "header"
	// DisaggregationVLLM asks the prefill replica for one token first and hands
	// the kv_transfer_params of its answer to the decode replica, as vLLM's
	// connectors that transfer after the prefill expect (NIXL).
	DisaggregationVLLM Disaggregation = "vllm"
	// DisaggregationSGLang sends every request to both at once, each naming
	// the bootstrap server of the prefill replica and one random room.
	DisaggregationSGLang Disaggregation = "sglang"
)

// Disaggregations lists every protocol, the default first.
var Disaggregations = []Disaggregation{DisaggregationHeader, DisaggregationVLLM, DisaggregationSGLang}
