package selection

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// check holds one runtime against every rule. shadowed: an applied runtime
// bears this catalog runtime's name.
func (s *subject) check(rt *service.Runtime, shadowed bool) *assessed {
	m, ok := s.matched(rt)
	accelerator, classes := s.accelerator(rt, m.of(rt, ok))
	a := &assessed{Candidate: Candidate{Runtime: rt, Name: rt.Name, Scope: rt.Scope, Entry: -1, Classes: classes}}
	a.Rules = []Rule{
		enabled(rt, shadowed),
		s.multiModel(rt),
		s.formatRule(rt, m, ok),
		s.autoSelect(rt, m, ok),
		s.sameShape(rt),
		accelerator,
		s.size(rt),
		s.protocolRule(rt),
	}
	if len(s.svc.AdapterNames()) > 0 {
		a.Rules = append(a.Rules, s.adapters(rt))
	}
	a.Rules = append(a.Rules, s.runs(rt))
	if ok {
		a.Entry = m.entry
	} else {
		a.stranger = m.entry < 0 || m.faults&faultFormat != 0
		m = match{}
	}
	a.standing = s.standing(rt, m)
	for i := range a.Rules {
		if !a.Rules[i].Pass {
			if a.failed == 0 {
				a.first = i
			}
			a.failed++
		}
	}
	return a
}

func pass(name, why string) Rule { return Rule{Name: name, Pass: true, Why: why} }
func fail(name, why string) Rule { return Rule{Name: name, Why: why} }

func enabled(rt *service.Runtime, shadowed bool) Rule {
	switch {
	case rt.Disabled:
		return fail(RuleEnabled, "disabled")
	case shadowed:
		return fail(RuleEnabled, "an applied runtime of this name takes its place")
	}
	return pass(RuleEnabled, "not disabled")
}

func (s *subject) multiModel(rt *service.Runtime) Rule {
	switch {
	case rt.MultiModel && !s.svc.MultiModel:
		return fail(RuleMultiModel, "holds several models, the service asks for one")
	case !rt.MultiModel && s.svc.MultiModel:
		return fail(RuleMultiModel, "holds one model, the service asks for several")
	case rt.MultiModel:
		return pass(RuleMultiModel, "several models, as asked")
	}
	return pass(RuleMultiModel, "one model, as asked")
}

// formatRule: some entry agrees with all that is known of the model.
func (s *subject) formatRule(rt *service.Runtime, m match, ok bool) Rule {
	switch {
	case m.entry < 0:
		return fail(RuleFormat, "lists no supported format")
	case ok:
		return pass(RuleFormat, "lists "+listed(&rt.Formats[m.entry]))
	case m.faults&faultFormat != 0 && s.model.Format.Name != "":
		return fail(RuleFormat, "lists "+strings.Join(formatNames(rt), ", ")+", the model's format is "+s.model.Format.Name)
	}
	return fail(RuleFormat, s.differs(&rt.Formats[m.entry], m.faults))
}

// autoSelect: the matched entry must admit it, or any entry, in dialects that
// allow it. With no match, any entry will do.
func (s *subject) autoSelect(rt *service.Runtime, m match, ok bool) Rule {
	switch {
	case s.named:
		return pass(RuleAutoSelect, "not asked: the service names the runtime")
	case ok && m.admitted, !ok && autoSelects(rt):
		return pass(RuleAutoSelect, "on")
	case autoSelects(rt):
		return fail(RuleAutoSelect, "off for "+listed(&rt.Formats[m.entry]))
	}
	return fail(RuleAutoSelect, "off")
}

// shape is which parts a service or a runtime has.
type shape struct{ decoder, workers bool }

func shapeOf(c service.Components) shape {
	sh := shape{decoder: c.Decoder != nil}
	for _, part := range []*service.Component{c.Engine, c.Decoder} {
		sh.workers = sh.workers || part != nil && (part.Leader != nil || part.Worker != nil)
	}
	return sh
}

func runtimeShape(rt *service.Runtime) shape {
	sh := shapeOf(rt.Components)
	sh.workers = sh.workers || rt.MultiNode
	return sh
}

// covers reports whether a runtime of shape sh can be what its namer asks for: it
// may bring a decoder or workers that the service leaves to it.
func (sh shape) covers(want shape) bool {
	return (sh.decoder || !want.decoder) && (sh.workers || !want.workers)
}

func (sh shape) String() string {
	out := "an engine"
	if sh.decoder {
		out += " and a decoder"
	}
	if sh.workers {
		return out + " over several nodes"
	}
	return out
}

func (s *subject) sameShape(rt *service.Runtime) Rule {
	sh := runtimeShape(rt)
	if sh == s.shape || s.named && sh.covers(s.shape) {
		return pass(RuleShape, sh.String())
	}
	return fail(RuleShape, "runs "+sh.String()+", the service asks for "+s.shape.String())
}

func (s *subject) size(rt *service.Runtime) Rule {
	n := s.model.Parameters
	switch {
	case unbounded(rt.Size):
		return pass(RuleSize, "any")
	case n <= 0:
		return pass(RuleSize, "the model's size is not known, "+sizeWords(rt.Size)+" not checked")
	case rt.Size.Contains(n):
		return pass(RuleSize, service.FormatParameters(n)+" is within "+sizeWords(rt.Size))
	}
	return fail(RuleSize, service.FormatParameters(n)+" is outside "+sizeWords(rt.Size))
}

// wanted is the protocol that a runtime must speak, "" for any. A default is
// not a request: it does not bind a runtime that the service names.
func (s *subject) wanted() service.Protocol {
	if s.named {
		return s.svc.Protocol
	}
	return cmp.Or(s.svc.Protocol, s.svc.ProtocolDefault)
}

func (s *subject) protocolRule(rt *service.Runtime) Rule {
	want, how := s.wanted(), "by default"
	if s.svc.Protocol != "" {
		how = "asked for"
	}
	switch {
	case want == "":
		return pass(RuleProtocol, "none asked for")
	case len(rt.Protocols) == 0:
		return pass(RuleProtocol, "any")
	case slices.Contains(rt.Protocols, want):
		return pass(RuleProtocol, "speaks "+string(want)+", "+how)
	}
	speaks := make([]string, len(rt.Protocols))
	for i, p := range rt.Protocols {
		speaks[i] = string(p)
	}
	return fail(RuleProtocol, "speaks "+strings.Join(speaks, ", ")+", not "+string(want)+" ("+how+")")
}

// protocol settles what the chosen runtime speaks: what was asked for, else
// the dialect's default where the runtime has it, else the runtime's best.
func (s *subject) protocol(rt *service.Runtime) service.Protocol {
	for _, want := range []service.Protocol{s.wanted(), s.svc.ProtocolDefault} {
		if want != "" && (len(rt.Protocols) == 0 || slices.Contains(rt.Protocols, want)) {
			return want
		}
	}
	return best(rt.Protocols)
}

// adapters: the runtime takes the service's LoRA adapters.
func (s *subject) adapters(rt *service.Runtime) Rule {
	names := s.svc.AdapterNames()
	has := fmt.Sprintf("the service has %d: %s", len(names), strings.Join(names[:min(len(names), maxNamed)], ", "))
	if len(names) > maxNamed {
		has += ", …"
	}
	switch {
	case rt.Adapters == nil:
		return fail(RuleAdapters, "takes no LoRA adapters, "+has+"; where its engine does, say how in its spec.adapters")
	case s.scripted(rt.Components.Engine):
		return fail(RuleAdapters, "runs a shell script that hands no arguments to its engine, so none about LoRA adapters; "+has)
	}
	return pass(RuleAdapters, "takes LoRA adapters, "+has)
}

// maxNamed is how many adapters a reason names.
const maxNamed = 4

// scripted reports whether what is appended to a component's command line stays in
// a shell.
func (s *subject) scripted(c *service.Component) bool {
	switch {
	case c == nil:
		return false
	case !s.host.Cluster && c.Local != nil:
		return shellOnly(c.Local.Command)
	}
	main := container(c.Pod, c.Main)
	if c.Leader != nil {
		main = container(c.Leader.Pod, c.Leader.Main)
	}
	return main != nil && shellOnly(slices.Concat(main.Command, main.Args))
}

// shellOnly reports whether words run a shell's script that uses none of its
// arguments.
func shellOnly(words []string) bool {
	if len(words) == 0 || !slices.Contains([]string{"sh", "bash", "/bin/sh", "/bin/bash"}, words[0]) {
		return false
	}
	at := slices.IndexFunc(words, func(w string) bool { return len(w) > 1 && w[0] == '-' && strings.HasSuffix(w, "c") })
	return at > 0 && at+1 < len(words) && !strings.Contains(words[at+1], "$@")
}
