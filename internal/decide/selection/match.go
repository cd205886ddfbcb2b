package selection

import (
	"math/bits"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// faults is a set of the attributes in which an entry and a model disagree.
type faults uint8

const (
	faultFormat faults = 1 << iota
	faultFormatVersion
	faultFramework
	faultFrameworkVersion
	faultArchitecture
	faultQuantization
)

// gravity orders near misses: another format is further away than any set of
// other disagreements.
func (f faults) gravity() int {
	n := bits.OnesCount8(uint8(f))
	if f&faultFormat != 0 {
		n += 8
	}
	return n
}

// match is what one entry makes of the model.
type match struct {
	entry    int
	faults   faults
	met      int // attributes that both state and that agree
	admitted bool
	priority int // 0: none that counts
}

// better is the order among a runtime's entries that match: those that may be
// auto-selected, the higher priority, the more specific, the one listed first.
func (m match) better(o match) bool {
	switch {
	case m.admitted != o.admitted:
		return m.admitted
	case m.priority != o.priority:
		return m.priority > o.priority
	case m.met != o.met:
		return m.met > o.met
	}
	return m.entry < o.entry
}

// matched finds the entry that stands for the runtime, or, with ok false, the
// one that comes nearest (entry -1 when the runtime lists none).
func (s *subject) matched(rt *service.Runtime) (best match, ok bool) {
	anyAuto := rt.AutoSelectAny && autoSelects(rt)
	best.entry = -1
	for i := range rt.Formats {
		f := &rt.Formats[i]
		m := s.compare(f)
		m.entry, m.admitted, m.priority = i, anyAuto || f.AutoSelect, priority(f)
		switch {
		case m.faults == 0 && (!ok || m.better(best)):
			best, ok = m, true
		case m.faults != 0 && !ok && (best.entry < 0 || m.faults.gravity() < best.faults.gravity()):
			best = m
		}
	}
	return best, ok
}

func autoSelects(rt *service.Runtime) bool {
	for i := range rt.Formats {
		if rt.Formats[i].AutoSelect {
			return true
		}
	}
	return false
}

// priority is the entry's priority where it counts: both guides void it
// without autoSelect, and values below 1 are refused by Conflicts.
func priority(f *service.SupportedFormat) int {
	if f.AutoSelect && f.Priority != nil && *f.Priority > 0 {
		return *f.Priority
	}
	return 0
}

// compare holds an entry against the model, attribute by attribute.
func (s *subject) compare(f *service.SupportedFormat) match {
	var m match
	s.name(&m, faultFormat, f.Format.Name, s.model.Format.Name)
	s.name(&m, faultFramework, f.Framework.Name, s.model.Framework.Name)
	s.name(&m, faultArchitecture, f.Architecture, s.model.Architecture)
	s.name(&m, faultQuantization, f.Quantization, s.model.Quantization)
	// A version says nothing beside another name. An entry without a format
	// version never meets a model that states one.
	if s.format.text != "" && m.faults&faultFormat == 0 {
		m.note(faultFormatVersion, s.format.metBy(f.Format.Version, f.FormatOperator))
	}
	// Framework versions are read from the model's files whether anyone asks
	// for them or not, so an entry may leave them out.
	if s.framework.text != "" && f.Framework.Version != "" && m.faults&faultFramework == 0 {
		m.note(faultFrameworkVersion, s.framework.metBy(f.Framework.Version, f.FrameworkOperator))
	}
	return m
}

// name compares one named attribute. One that the entry omits matches any
// model. One that the entry states and the model does not is a disagreement,
// unless the runtime was asked for by name: then its author answers for it.
func (s *subject) name(m *match, bit faults, entry, model string) {
	if entry == "" || model == "" && s.named {
		return
	}
	m.note(bit, strings.EqualFold(entry, model))
}

func (m *match) note(bit faults, met bool) {
	if met {
		m.met++
	} else {
		m.faults |= bit
	}
}

// named is a name and version as people write it ("sklearn 1").
func named(v service.NamedVersion) string {
	if v.Version == "" {
		return v.Name
	}
	return strings.TrimSpace(v.Name + " " + v.Version)
}

// listed is the entry in words ("safetensors 1.0.0, transformers 4.36.2,
// MistralForCausalLM").
func listed(f *service.SupportedFormat) string {
	var parts [4]string
	n := 0
	for _, p := range [...]string{named(f.Format), named(f.Framework), f.Architecture, f.Quantization} {
		if p != "" {
			parts[n] = p
			n++
		}
	}
	if n == 0 {
		return "any model"
	}
	return strings.Join(parts[:n], ", ")
}

// differs says in words where an entry and the model disagree.
func (s *subject) differs(f *service.SupportedFormat, set faults) string {
	var parts []string
	for _, a := range []struct {
		bit                faults
		what, entry, model string
	}{
		{faultFormat, "format", f.Format.Name, s.model.Format.Name},
		{faultFormatVersion, f.Format.Name + " version", operand(f.FormatOperator, f.Format.Version),
			s.model.Format.Version + s.format.unordered(f.Format.Version, f.FormatOperator)},
		{faultFramework, "framework", f.Framework.Name, s.model.Framework.Name},
		{faultFrameworkVersion, f.Framework.Name + " version", operand(f.FrameworkOperator, f.Framework.Version),
			s.model.Framework.Version + s.framework.unordered(f.Framework.Version, f.FrameworkOperator)},
		{faultArchitecture, "architecture", f.Architecture, s.model.Architecture},
		{faultQuantization, "quantization", f.Quantization, s.model.Quantization},
	} {
		switch {
		case set&a.bit == 0:
		case a.entry == "":
			parts = append(parts, "lists no "+strings.TrimSpace(a.what)+", the model asks for "+a.model)
		case a.model == "" && a.bit == faultQuantization:
			parts = append(parts, "wants "+a.what+" "+a.entry+", the model states none")
		case a.model == "":
			parts = append(parts, "wants "+a.what+" "+a.entry+", the model's is not known")
		default:
			parts = append(parts, "wants "+a.what+" "+a.entry+", the model's is "+a.model)
		}
	}
	return strings.Join(parts, "; ")
}

// operand is a runtime's version with its operator, read from the model's
// side: GreaterThan 4.36 takes models below 4.36.
func operand(op service.Operator, version string) string {
	switch {
	case version == "":
		return ""
	case op == service.OperatorGreaterThan:
		return "below " + version
	case op == service.OperatorGreaterThanOrEqual:
		return "up to " + version
	}
	return version
}

// formatNames lists the format names a runtime supports, each once.
func formatNames(rt *service.Runtime) []string {
	var out []string
	for i := range rt.Formats {
		name := rt.Formats[i].Format.Name
		known := name == ""
		for _, have := range out {
			known = known || strings.EqualFold(have, name)
		}
		if !known {
			out = append(out, name)
		}
	}
	return out
}
