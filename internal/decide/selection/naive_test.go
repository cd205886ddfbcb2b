package selection

import (
	"math/big"
	"regexp"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// This file is selection a second time, written from the sentences of
// docs/runtime-selection.md without regard to speed and sharing no code with
// Choose. The two are held against each other in fuzz_test.go.

// verdict is what the naive selection makes of one runtime.
type verdict struct {
	rt    service.Runtime
	rules map[string]bool
	entry int // -1: none matches
	rank  int // 0: fails a rule
	// engine and decoder are the classes of accelerators chosen.
	engine, decoder string
}

type naive struct {
	svc      service.Service
	model    service.Attributes
	host     Host
	explicit bool
	classes  []service.AcceleratorClass
}

// naiveChoose returns a verdict per candidate, the settled protocol of the
// first and the reason when there is none.
func naiveChoose(req Request, runtimes []service.Runtime, host Host) (vs []verdict, protocol service.Protocol, reason string) {
	n := naive{svc: *req.Service, model: req.Attributes, host: host, explicit: req.Service.Runtime != nil, classes: req.Classes}
	candidates := n.candidates(runtimes)
	if n.explicit && len(candidates) == 0 {
		return nil, "", "RuntimeNotRecognized"
	}
	for _, rt := range candidates {
		vs = append(vs, n.judge(rt, candidates))
	}
	reason = "NoSupportingRuntime"
	if n.explicit && vs[0].rt.Disabled {
		reason = "RuntimeDisabled"
	}
	for i := range vs {
		if !passes(vs[i]) {
			continue
		}
		vs[i].rank = 1
		for j := range vs {
			if j != i && passes(vs[j]) && n.before(vs[j], vs[i]) {
				vs[i].rank++
			}
		}
		if vs[i].rank == 1 {
			reason, protocol = "", n.settle(vs[i].rt)
		}
	}
	return vs, protocol, reason
}

func passes(v verdict) bool {
	for _, ok := range v.rules {
		if !ok {
			return false
		}
	}
	return true
}

// candidates: runtimes of other namespaces are not considered at all. By name,
// the namespace's of that name, else the cluster's, else the catalog's.
func (n naive) candidates(all []service.Runtime) []service.Runtime {
	var visible []service.Runtime
	for _, rt := range all {
		if rt.Scope == "namespace" && rt.Namespace != n.svc.Namespace {
			continue
		}
		visible = append(visible, rt)
	}
	if !n.explicit {
		return visible
	}
	scopes := []service.Scope{"namespace", "cluster", "catalog"}
	switch ome := strings.HasPrefix(n.svc.Origin.APIVersion, "ome.io/"); {
	case ome:
	case n.svc.Runtime.Kind == "ServingRuntime":
		scopes = scopes[:1]
	case n.svc.Runtime.Kind == "ClusterServingRuntime":
		scopes = scopes[1:]
	}
	for _, scope := range scopes {
		for _, rt := range visible {
			if rt.Scope == scope && rt.Name == n.svc.Runtime.Name {
				return []service.Runtime{rt}
			}
		}
	}
	return nil
}

func (n naive) judge(rt service.Runtime, candidates []service.Runtime) verdict {
	v := verdict{rt: rt, entry: n.entry(rt), rules: map[string]bool{}}

	v.rules["enabled"] = !rt.Disabled
	for _, other := range candidates {
		if rt.Scope == "catalog" && other.Scope != "catalog" && other.Name == rt.Name {
			v.rules["enabled"] = false
		}
	}
	v.rules["multiModel"] = rt.MultiModel == n.svc.MultiModel
	v.rules["format"] = v.entry >= 0
	v.rules["autoSelect"] = n.explicit || n.autoSelected(rt, v.entry)

	v.rules["shape"] = n.shaped(rt)
	v.rules["accelerator"] = n.accelerated(&v)
	lo, hi, bounded := n.sizeRange(rt)
	v.rules["size"] = !bounded || n.model.Parameters == 0 || lo <= n.model.Parameters && (hi < 0 || n.model.Parameters <= hi)

	asked := n.svc.Protocol
	if asked == "" && !n.explicit {
		asked = n.svc.ProtocolDefault
	}
	v.rules["protocol"] = asked == "" || speaks(rt, asked)
	if n.svc.Model != nil && len(n.svc.Model.Adapters) > 0 {
		v.rules["adapters"] = rt.Adapters != nil && !n.inShell(rt)
	}
	v.rules["host"] = n.runsHere(rt)
	return v
}

// shaped: one if and only if the other; by name the runtime may bring more.
func (n naive) shaped(rt service.Runtime) bool {
	decoder, workers := parts(rt.Components)
	workers = workers || rt.MultiNode
	wantDecoder, wantWorkers := parts(n.svc.Components)
	if n.explicit {
		return !(wantDecoder && !decoder) && !(wantWorkers && !workers)
	}
	return decoder == wantDecoder && workers == wantWorkers
}

func parts(c service.Components) (decoder, workers bool) {
	if c.Engine != nil && (c.Engine.Leader != nil || c.Engine.Worker != nil) {
		workers = true
	}
	if c.Decoder != nil && (c.Decoder.Leader != nil || c.Decoder.Worker != nil) {
		workers = true
	}
	return c.Decoder != nil, workers
}

func speaks(rt service.Runtime, p service.Protocol) bool {
	if len(rt.Protocols) == 0 {
		return true
	}
	for _, q := range rt.Protocols {
		if p == q {
			return true
		}
	}
	return false
}

// sizeRange: without a minimum it begins at 0; hi is -1 without a maximum.
func (n naive) sizeRange(rt service.Runtime) (lo, hi int64, bounded bool) {
	if rt.Size == nil || rt.Size.Min == 0 && rt.Size.Max == 0 {
		return 0, -1, false
	}
	hi = rt.Size.Max
	if hi == 0 {
		hi = -1
	}
	return rt.Size.Min, hi, true
}

// autoSelected: the matched entry's, or any entry's where the runtime says so;
// where none matches, any entry's.
func (n naive) autoSelected(rt service.Runtime, entry int) bool {
	if entry >= 0 && !rt.AutoSelectAny {
		return rt.Formats[entry].AutoSelect
	}
	for _, f := range rt.Formats {
		if f.AutoSelect {
			return true
		}
	}
	return false
}

// entry: of those that match, one with autoSelect before one without, then by
// priority, then by specificity, then the first listed.
func (n naive) entry(rt service.Runtime) int {
	chosen := -1
	for i, f := range rt.Formats {
		if _, ok := n.matches(f); !ok {
			continue
		}
		if chosen < 0 || n.entryBefore(rt, f, rt.Formats[chosen]) {
			chosen = i
		}
	}
	return chosen
}

func (n naive) entryBefore(rt service.Runtime, a, b service.SupportedFormat) bool {
	if a.AutoSelect != b.AutoSelect && !rt.AutoSelectAny {
		return a.AutoSelect
	}
	if pa, pb := naivePriority(a), naivePriority(b); pa != pb {
		return pa > pb
	}
	sa, _ := n.matches(a)
	sb, _ := n.matches(b)
	return sa > sb
}

// naivePriority: counts only on an entry with autoSelect and only above 0.
func naivePriority(f service.SupportedFormat) int {
	if !f.AutoSelect || f.Priority == nil || *f.Priority < 1 {
		return 0
	}
	return *f.Priority
}

// matches goes through the table of attributes and counts those met.
func (n naive) matches(f service.SupportedFormat) (met int, ok bool) {
	for _, pair := range [][2]string{
		{f.Format.Name, n.model.Format.Name},
		{f.Framework.Name, n.model.Framework.Name},
		{f.Architecture, n.model.Architecture},
		{f.Quantization, n.model.Quantization},
	} {
		entry, model := strings.ToLower(pair[0]), strings.ToLower(pair[1])
		switch {
		case entry == "":
		case model == "":
			if !n.explicit {
				return 0, false
			}
		case entry != model:
			return 0, false
		default:
			met++
		}
	}
	if f.Diffusion != nil && !(n.explicit && n.model.Diffusion == nil) {
		if !naivePipeline(*f.Diffusion, n.model.Diffusion) {
			return 0, false
		}
		met++
	}
	if n.model.Format.Version != "" {
		if f.Format.Version == "" || !naiveVersions(f.Format.Version, f.FormatOperator, n.model.Format.Version) {
			return 0, false
		}
		met++
	}
	if n.model.Framework.Version != "" && f.Framework.Version != "" {
		if !naiveVersions(f.Framework.Version, f.FrameworkOperator, n.model.Framework.Version) {
			return 0, false
		}
		met++
	}
	return met, true
}

var versionForm = regexp.MustCompile(`^(v?)([0-9]+(?:\.[0-9]+)*)(.*)$`)

// naiveVersions: 1 = 1.0 = v1; what follows the numbers must be the same, and
// leaves equality alone; only versions written alike are above or below; words
// are equal or not.
func naiveVersions(runtime string, op service.Operator, model string) bool {
	a, b := strings.ToLower(runtime), strings.ToLower(model)
	ma, mb := versionForm.FindStringSubmatch(a), versionForm.FindStringSubmatch(b)
	if ma == nil || mb == nil {
		return a == b && op != "GreaterThan"
	}
	c := 0
	na, nb := strings.Split(ma[2], "."), strings.Split(mb[2], ".")
	for i := 0; i < 10 && c == 0; i++ {
		x, y := new(big.Int), new(big.Int)
		if i < len(na) {
			x.SetString(na[i], 10)
		}
		if i < len(nb) {
			y.SetString(nb[i], 10)
		}
		c = x.Cmp(y)
	}
	if op == "" || op == "Equal" || ma[3]+mb[3] != "" {
		return c == 0 && ma[3] == mb[3]
	}
	if len(na) != len(nb) || ma[1] != mb[1] {
		return false
	}
	return c > 0 || c == 0 && op == "GreaterThanOrEqual"
}

// before is the order, line by line.
func (n naive) before(a, b verdict) bool {
	scope := map[service.Scope]int{"namespace": 1, "cluster": 2, "catalog": 3}
	if scope[a.rt.Scope] != scope[b.rt.Scope] {
		return scope[a.rt.Scope] < scope[b.rt.Scope]
	}
	if n.model.Parameters != 0 {
		if c := n.closer(a.rt, b.rt); c != 0 {
			return c > 0
		}
	}
	ea, eb := a.rt.Formats[a.entry], b.rt.Formats[b.entry]
	if pa, pb := naivePriority(ea), naivePriority(eb); pa != pb {
		return pa > pb
	}
	sa, _ := n.matches(ea)
	sb, _ := n.matches(eb)
	if sa != sb {
		return sa > sb
	}
	if ra, rb := protocolPlace(a.rt), protocolPlace(b.rt); ra != rb {
		return ra < rb
	}
	if !a.rt.Created.Equal(b.rt.Created) {
		return a.rt.Created.After(b.rt.Created)
	}
	return a.rt.Name < b.rt.Name
}

// closer is 1 when a's range lies closer around the model than b's, -1 for the
// opposite. Both contain it.
func (n naive) closer(a, b service.Runtime) int {
	grade := func(rt service.Runtime) (class int, distance *big.Int) {
		lo, hi, bounded := n.sizeRange(rt)
		size := big.NewInt(n.model.Parameters)
		below := new(big.Int).Sub(size, big.NewInt(lo))
		switch {
		case !bounded:
			return 3, new(big.Int)
		case hi < 0:
			return 2, below
		}
		above := new(big.Int).Sub(big.NewInt(hi), size)
		return 1, new(big.Int).Add(below.Abs(below), above.Abs(above))
	}
	ca, da := grade(a)
	cb, db := grade(b)
	if ca != cb {
		return cb - ca
	}
	return db.Cmp(da)
}

// protocolPlace is the place of the best protocol listed.
func protocolPlace(rt service.Runtime) int {
	for i, p := range []service.Protocol{"v1", "v2", "grpc-v1", "grpc-v2", "openAI", "cohere"} {
		for _, q := range rt.Protocols {
			if p == q {
				return i
			}
		}
	}
	return 6
}

// settle: asked for, else the default where the runtime speaks it, else the
// best that it speaks.
func (n naive) settle(rt service.Runtime) service.Protocol {
	if n.svc.Protocol != "" {
		return n.svc.Protocol
	}
	if n.svc.ProtocolDefault != "" && speaks(rt, n.svc.ProtocolDefault) {
		return n.svc.ProtocolDefault
	}
	if i := protocolPlace(rt); i < 6 {
		return []service.Protocol{"v1", "v2", "grpc-v1", "grpc-v2", "openAI", "cohere"}[i]
	}
	return ""
}

// runsHere: what the host can run. The generator gives every component one
// container and every node the component's own.
func (n naive) runsHere(rt service.Runtime) bool {
	if n.host.Cluster {
		for _, role := range service.Roles {
			a, b := rt.Components.Get(role), n.svc.Components.Get(role)
			commands, pods := 0, 0
			for _, c := range []*service.Component{a, b} {
				if c == nil {
					continue
				}
				if c.Local != nil {
					commands++
				}
				images := 0
				for _, in := range c.Pod.Containers {
					if in.Image != "" || c == a { // a service may only say what it needs
						images++
					}
				}
				if images > 0 || c.Leader != nil || c.Worker != nil {
					pods++
				}
			}
			if commands > 0 && pods == 0 {
				return false
			}
		}
		return true
	}
	var gpus, memory int64
	found := false
	for _, pair := range [][2]*service.Component{
		{rt.Components.Engine, n.svc.Components.Engine},
		{rt.Components.Decoder, n.svc.Components.Decoder},
		{rt.Components.Router, n.svc.Components.Router},
		{rt.Components.Transformer, n.svc.Components.Transformer},
	} {
		if pair[0] == nil && pair[1] == nil {
			continue
		}
		found = true
		g, m, ok := n.one(pair)
		if !ok {
			return false
		}
		gpus, memory = gpus+g, memory+m
	}
	return found && gpus <= int64(n.host.Accelerators) && (n.host.MemoryBytes == 0 || memory <= n.host.MemoryBytes)
}

// one component: the service's figures stand in place of the runtime's.
func (n naive) one(pair [2]*service.Component) (gpus, memory int64, ok bool) {
	var command []string
	install := ""
	for _, c := range pair {
		if c == nil {
			continue
		}
		if c.Leader != nil || c.Worker != nil {
			return 0, 0, false
		}
		if c.Local != nil {
			command, install = c.Local.Command, c.Local.Install
		}
		for _, k := range c.Pod.Containers {
			if q, ok := k.Resources.Limits["nvidia.com/gpu"]; ok {
				gpus = q.Value()
			}
			if q, ok := k.Resources.Requests["memory"]; ok {
				memory = q.Value()
			}
		}
	}
	return gpus, memory, n.present(command, install)
}

func (n naive) present(command []string, install string) bool {
	if len(command) == 0 {
		return false
	}
	line := strings.Join(command, " ")
	switch {
	case strings.HasPrefix(line, "/"):
		return true
	case strings.HasPrefix(line, "python3 -m "):
		return n.host.Programs[line] || install == "" && n.host.Programs["python3"]
	}
	return n.host.Programs[command[0]]
}

// inShell: what is added to the engine's command line goes to a shell alone.
func (n naive) inShell(rt service.Runtime) bool {
	e := rt.Components.Engine
	if e == nil {
		return false
	}
	line := ""
	for _, c := range e.Pod.Containers {
		if c.Name == e.Main && e.Leader == nil {
			line = strings.Join(append(append([]string{}, c.Command...), c.Args...), " ")
		}
	}
	if e.Leader != nil {
		for _, c := range e.Leader.Pod.Containers {
			if c.Name == e.Leader.Main {
				line = strings.Join(append(append([]string{}, c.Command...), c.Args...), " ")
			}
		}
	}
	if e.Local != nil && !n.host.Cluster {
		line = strings.Join(e.Local.Command, " ")
	}
	return strings.HasPrefix(line, "sh -c ") && !strings.Contains(line, "$@")
}
