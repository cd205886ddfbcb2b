// Package selection ranks serving runtimes for a model and says why: a pure
// function of the service, its model's attributes, the runtimes and what the
// host can run. It follows the promises of both the KServe and the OME guide
// in one total order (docs/runtime-selection.md).
package selection

import "roundhouse.dev/roundhouse/internal/core/service"

// Host is what a platform can run. The zero Host runs nothing.
type Host struct {
	// Cluster: replicas are pods, so any image runs and Programs is unused.
	Cluster bool
	// Programs are the names found on PATH; "roundhouse" is always among them.
	Programs map[string]bool
	// Accelerators is how many GPUs there are in all, busy or not.
	Accelerators int
	// MemoryBytes is the machine's memory; 0 means unknown.
	MemoryBytes int64
}

// Request is what to select for. Attributes are the model's, with what was
// read from its files already filled in (service.Attributes.Fill).
type Request struct {
	Service    *service.Service
	Attributes service.Attributes
}

// Rule is one check of one runtime, passed or failed, with the reason in
// words.
type Rule struct {
	Name string `json:"name"`
	Pass bool   `json:"pass"`
	Why  string `json:"why"`
}

// Candidate is one runtime's result.
type Candidate struct {
	Runtime *service.Runtime `json:"-"`
	Name    string           `json:"name"`
	Scope   service.Scope    `json:"scope"`
	// Rank is 1 for the first choice; 0 for a runtime that failed a rule.
	Rank int `json:"rank,omitempty"`
	// Entry is the index of the matched supported format, -1 when none.
	Entry int    `json:"entry"`
	Rules []Rule `json:"rules"`
	// Why says, for a ranked candidate, what placed it where it is.
	Why string `json:"why,omitempty"`
}

// Eligible says whether every rule passed.
func (c *Candidate) Eligible() bool { return c.Rank > 0 }

// Failure reasons, KServe's words.
const (
	RuntimeNotRecognized = "RuntimeNotRecognized"
	RuntimeDisabled      = "RuntimeDisabled"
	NoSupportingRuntime  = "NoSupportingRuntime"
)

// Result is every candidate, ranked ones first, and the choice.
type Result struct {
	// Chosen is nil when no runtime will do; Reason and Message then say why.
	Chosen     *Candidate       `json:"chosen,omitempty"`
	Protocol   service.Protocol `json:"protocol,omitempty"` // settled: asked for, else the default, else the runtime's best
	Candidates []Candidate      `json:"candidates"`
	Reason     string           `json:"reason,omitempty"`
	Message    string           `json:"message,omitempty"` // one line: what is lacking and what to do
}
