// Package selection ranks serving runtimes for a model and explains why: a pure
// function of the service, its model's attributes, the runtimes and what the
// host can run. It follows the promises of both the KServe and the OME guide
// in one total order (docs/runtime-selection.md).
package selection

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Host is what a platform can run. The zero Host runs nothing.
type Host struct {
	// Cluster: replicas are pods, so any image runs and Programs is unused.
	Cluster bool
	// Programs are the names found on PATH; "roundhouse" is always among them.
	// A Python module that can be run is there too, in the form Program gives
	// ("python3 -m vllm"): for a command with an install line the interpreter
	// alone is not enough.
	Programs map[string]bool
	// Answers are the host's to what was asked of it (Checks). What is not
	// among them counts as there.
	Answers map[Check]Answer
	// Containers is what runs images here.
	Containers Containers
	// Accelerators is how many GPUs there are in all, busy or not.
	Accelerators int
	// GPUs describes them; none where nothing but their number is known.
	GPUs []GPU
	// MemoryBytes is the machine's memory; 0 means unknown.
	MemoryBytes int64
}

// Request is what to select for. Attributes are the model's, with what was
// read from its files already filled in (service.Attributes.Fill).
type Request struct {
	Service    *service.Service
	Attributes service.Attributes
	// Classes are the accelerator classes that were applied.
	Classes []service.AcceleratorClass
}

// The rules in the order they are checked and printed.
const (
	RuleEnabled     = "enabled"
	RuleMultiModel  = "multiModel"
	RuleFormat      = "format"
	RuleAutoSelect  = "autoSelect"
	RuleShape       = "shape"
	RuleAccelerator = "accelerator"
	RuleSize        = "size"
	RuleProtocol    = "protocol"
	RuleAdapters    = "adapters" // of services that have some
	RuleHost        = "host"
)

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
	Entry int `json:"entry"`
	// Classes are the accelerator classes that its roles would run on.
	Classes service.RoleClasses `json:"classes,omitzero"`
	Rules   []Rule              `json:"rules"`
	// Why is the reason for a ranked candidate's rank.
	Why string `json:"why,omitempty"`
}

// Eligible reports whether every rule passed.
func (c *Candidate) Eligible() bool { return c.Rank > 0 }

// Failure reasons, KServe's words.
const (
	RuntimeNotRecognized = "RuntimeNotRecognized"
	RuntimeDisabled      = "RuntimeDisabled"
	NoSupportingRuntime  = "NoSupportingRuntime"
)

// Result is every candidate, ranked ones first, and the choice. It keeps its
// sense through JSON: Explain prints the same on both sides.
type Result struct {
	// Service and Attributes are what was asked for.
	Service    service.Key        `json:"service"`
	Attributes service.Attributes `json:"attributes"`
	// Named is the runtime the service asks for by name, "" when one is chosen.
	Named string `json:"named,omitempty"`
	// NotNeeded: the service brings its own containers. Nothing is chosen and
	// Reason is empty; Host is whether the host can run them, and how.
	NotNeeded bool  `json:"notNeeded,omitempty"`
	Host      *Rule `json:"host,omitempty"`
	// Chosen is nil when no runtime matches; Reason and Message then explain why.
	// It points into Candidates.
	Chosen *Candidate `json:"chosen,omitempty"`
	// Protocol is settled: asked for, else the default, else the runtime's
	// best, else "" for a runtime that lists none.
	Protocol service.Protocol `json:"protocol,omitempty"`
	// Candidates holds the ranked in order, then the failed: those with the
	// fewest failed rules first, so that the nearest miss leads.
	Candidates []Candidate `json:"candidates"`
	Reason     string      `json:"reason,omitempty"`
	Message    string      `json:"message,omitempty"` // one line: what is lacking and what to do
}

// Choose ranks the runtimes for the request and takes the first. Runtimes of
// other namespaces are no candidates; names are unique within a scope. The
// order of runtimes has no influence. Nothing given is changed, and the
// result's Candidate.Runtime points into runtimes.
func Choose(req Request, runtimes []service.Runtime, host Host) Result {
	res, mended := choose(req, runtimes, host)
	if res.Chosen != nil {
		return res
	}
	if other, ok := alternative(req, host); ok {
		// What pip can mend is nearer than what needs another server, or a GPU.
		if free, easier := choose(other, runtimes, host); free.Chosen != nil || easier && (!mended || req.Service.RuntimeYields && host.Accelerators == 0) {
			return free
		}
	}
	return res
}

// choose is the choice for a request as it stands, and whether pip could mend what is
// lacking for one.
func choose(req Request, runtimes []service.Runtime, host Host) (res Result, mended bool) {
	s := newSubject(req, host)
	res = Result{Service: s.svc.Key, Attributes: s.model}
	if s.svc.Custom {
		res.NotNeeded = true
		if !host.Cluster && s.svc.Components != (service.Components{}) {
			rule := HostRule(s.svc.Components, host)
			res.Host = &rule
		}
		res.Protocol = cmp.Or(s.svc.Protocol, s.svc.ProtocolDefault)
		return res, false
	}
	all := inNamespace(runtimes, s.namespace)
	if s.svc.Runtime != nil {
		ref := s.svc.Runtime.In(s.svc.Origin.Dialect())
		s.named = true
		res.Named = ref.Name
		rt := lookup(all, ref)
		if rt == nil {
			res.Reason, res.Message = RuntimeNotRecognized, s.unrecognized(ref, runtimes)
			return res, false
		}
		all = []*service.Runtime{rt}
	}
	ranked := s.assess(all)
	res.Candidates = make([]Candidate, len(ranked))
	for i := range ranked {
		res.Candidates[i] = ranked[i].Candidate
	}
	if len(ranked) > 0 && ranked[0].Eligible() {
		res.Chosen = &res.Candidates[0]
		res.Protocol = s.protocol(res.Chosen.Runtime)
		return res, false
	}
	res.Reason, res.Message = s.lacking(ranked)
	return res, slices.ContainsFunc(ranked, s.mended)
}

// alternative is the request without its runtime, where that may be another: where its
// manifest only implies it and one machine lacks its server, or where it yields.
func alternative(req Request, host Host) (Request, bool) {
	s := req.Service
	if s == nil || s.Runtime == nil || !s.RuntimeYields && (!s.Runtime.Implied || host.Cluster) {
		return req, false
	}
	free := *s
	free.Runtime = nil
	return Request{Service: &free, Attributes: req.Attributes, Classes: req.Classes}, true
}

// subject is the request, settled once for all runtimes.
type subject struct {
	svc       *service.Service
	model     service.Attributes
	format    asked // the versions of model
	framework asked
	namespace string
	named     bool // the runtime was asked for by name
	shape     shape
	host      Host
	classes   []service.AcceleratorClass
}

func newSubject(req Request, host Host) *subject {
	s := &subject{svc: req.Service, model: req.Attributes, host: host, classes: req.Classes}
	if s.svc == nil {
		s.svc = &service.Service{}
	}
	s.format, s.framework = ask(s.model.Format.Version), ask(s.model.Framework.Version)
	s.namespace = cmp.Or(s.svc.Namespace, service.DefaultNamespace)
	s.shape = shapeOf(s.svc.Components)
	return s
}

// inNamespace keeps what a service in namespace may use.
func inNamespace(runtimes []service.Runtime, namespace string) []*service.Runtime {
	out := make([]*service.Runtime, 0, len(runtimes))
	for i := range runtimes {
		rt := &runtimes[i]
		if rt.Scope != service.ScopeNamespace || cmp.Or(rt.Namespace, service.DefaultNamespace) == namespace {
			out = append(out, rt)
		}
	}
	return out
}

// lookup finds a runtime by name: the namespace's, else the cluster's, else
// the catalog's. A reference's kind narrows the search.
func lookup(runtimes []*service.Runtime, ref service.ObjectRef) *service.Runtime {
	var found *service.Runtime
	for _, rt := range runtimes {
		namespaced := rt.Scope == service.ScopeNamespace
		if rt.Name != ref.Name || ref.Kind == "ServingRuntime" && !namespaced || ref.Kind == "ClusterServingRuntime" && namespaced {
			continue
		}
		if found == nil || scopeRank(rt.Scope) < scopeRank(found.Scope) {
			found = rt
		}
	}
	return found
}

// assessed is a candidate with what places it.
type assessed struct {
	Candidate
	standing standing
	stranger bool // lists another format, whatever else it fails
	failed   int  // rules failed
	first    int  // index of the first failed rule
}

// order puts false before true.
func order(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// assess checks every runtime against every rule and sorts: the eligible by
// the total order, then the failed, nearest miss first: those of another format
// are further away than any other.
func (s *subject) assess(runtimes []*service.Runtime) []*assessed {
	applied := map[string]bool{}
	for _, rt := range runtimes {
		if rt.Scope != service.ScopeCatalog {
			applied[rt.Name] = true
		}
	}
	out := make([]*assessed, len(runtimes))
	for i, rt := range runtimes {
		shadowed := rt.Scope == service.ScopeCatalog && applied[rt.Name]
		out[i] = s.check(rt, shadowed)
	}
	slices.SortStableFunc(out, func(a, b *assessed) int {
		return cmp.Or(
			order(a.stranger, b.stranger),
			cmp.Compare(a.failed, b.failed),
			cmp.Compare(b.first, a.first),
			compare(&a.standing, &b.standing))
	})
	n := 0
	for n < len(out) && out[n].failed == 0 {
		n++
	}
	for i := range n {
		out[i].Rank = i + 1
		out[i].Why = s.reason(out[:n], i)
		if _, instead, ok := strings.Cut(out[i].Rules[len(out[i].Rules)-1].Why, runsHere+": "); ok {
			out[i].Why += "; runs " + instead
		}
	}
	return out
}

// InputsHash digests the parts of a service's spec that a choice of runtime
// answers to: the model as its author stated it, the runtime, protocol,
// multi-model and accelerator asked for, and the shape. While it stays the
// same a pinned choice stands. Runtimes, the host and what was read from the
// model's files are left out: a runtime that appears, a program that goes or a
// download that completes moves no running service. Fields that are not set
// leave no trace in it, so later versions may add some.
func InputsHash(req Request) string {
	svc := req.Service
	if svc == nil {
		svc = &service.Service{}
	}
	in := struct {
		Model           *service.ModelSource `json:"model,omitempty"`
		Runtime         *service.ObjectRef   `json:"runtime,omitempty"`
		Yields          bool                 `json:"runtimeYields,omitempty"`
		Protocol        service.Protocol     `json:"protocol,omitempty"`
		ProtocolDefault service.Protocol     `json:"protocolDefault,omitempty"`
		MultiModel      bool                 `json:"multiModel,omitempty"`
		Custom          bool                 `json:"custom,omitempty"`
		Accelerators    []string             `json:"acceleratorClass,omitempty"`
		Selectors       selectors            `json:"accelerators,omitempty"`
		Decoder         bool                 `json:"decoder,omitempty"`
		Workers         bool                 `json:"workers,omitempty"`
		Adapters        bool                 `json:"adapters,omitempty"` // which they are moves nothing
	}{
		Runtime: svc.Runtime, Yields: svc.RuntimeYields, Protocol: svc.Protocol, ProtocolDefault: svc.ProtocolDefault,
		MultiModel: svc.MultiModel, Custom: svc.Custom, Accelerators: svc.AcceleratorClass, Selectors: selectorsOf(svc),
	}
	if svc.Model != nil {
		m := *svc.Model
		m.From, m.Storage, m.Parts = nil, nil, nil // by which keys it is fetched, and what besides, moves nothing
		in.Adapters, m.Adapters = len(m.Adapters) > 0, nil
		in.Model = &m
	}
	sh := shapeOf(svc.Components)
	in.Decoder, in.Workers = sh.decoder, sh.workers
	// Plain structs of strings and numbers always encode.
	data, _ := json.Marshal(in)
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

type selectors map[service.Role]service.AcceleratorSelector

// selectorsOf are those that choose a class. One that names it is among those
// required.
func selectorsOf(svc *service.Service) selectors {
	out := selectors{}
	for role, sel := range svc.Accelerators {
		if sel.Chooses() {
			out[role] = sel
		}
	}
	return out
}
