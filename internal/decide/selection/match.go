package selection

import (
	"cmp"
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
	faultDiffusion
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
	if f.Diffusion != nil && (s.model.Diffusion != nil || !s.named) {
		_, _, _, ok := f.Diffusion.Differs(s.model.Diffusion)
		m.note(faultDiffusion, ok)
	}
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
	var parts [5]string
	n := 0
	for _, p := range [...]string{named(f.Format), named(f.Framework), f.Architecture, f.Quantization, pipeline(f.Diffusion)} {
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

// pipeline is a diffusion pipeline in words.
func pipeline(p *service.DiffusionPipeline) string {
	switch {
	case p == nil:
		return ""
	case p.Class == "":
		return "a diffusion pipeline"
	}
	return p.Class
}

// differs describes where an entry and the model disagree.
func (s *subject) differs(f *service.SupportedFormat, set faults) string {
	var parts []string
	at, wanted, has, _ := f.Diffusion.Differs(s.model.Diffusion)
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
		{faultDiffusion, at, wanted, has},
	} {
		switch {
		case set&a.bit == 0:
		case a.entry == "":
			parts = append(parts, "lists no "+strings.TrimSpace(a.what)+", the model asks for "+a.model)
		case a.model == "" && (a.bit == faultQuantization || a.bit == faultDiffusion):
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

// version is a dotted version taken apart. OME's rules hold for every dialect:
// 1 = 1.0 = 1.0.0 = v1, and what follows the numbers must be the same.
type version struct {
	prefixed bool     // begins with a v
	parts    int      // how many numbers were written
	release  []string // digits without leading zeros; trailing zero components dropped
	suffix   string   // what follows the numbers ("-rc.1", ".dev0", "+build"), lower case
}

// parseVersion reads a version; ok is false when it does not begin with a
// number.
func parseVersion(s string) (v version, ok bool) {
	s = strings.ToLower(strings.TrimSpace(s))
	s, v.prefixed = strings.CutPrefix(s, "v")
	v.release, v.suffix = components(s)
	v.parts = len(v.release)
	for n := len(v.release); n > 0 && v.release[n-1] == ""; n-- {
		v.release = v.release[:n-1]
	}
	return v, v.parts > 0
}

// components takes the leading dotted numbers off s.
func components(s string) (numbers []string, rest string) {
	for {
		n := 0
		for n < len(s) && isDigit(s[n]) {
			n++
		}
		if n == 0 {
			return numbers, s
		}
		numbers = append(numbers, strings.TrimLeft(s[:n], "0"))
		s = s[n:]
		if len(s) < 2 || s[0] != '.' || !isDigit(s[1]) {
			return numbers, s
		}
		s = s[1:]
	}
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// compare orders the numbers of two versions: -1, 0 or 1.
func (v version) compare(w version) int {
	for i := range max(len(v.release), len(w.release)) {
		a, b := at(v.release, i), at(w.release, i)
		if c := cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)); c != 0 {
			return c
		}
	}
	return 0
}

func at(s []string, i int) string {
	if i < len(s) {
		return s[i]
	}
	return ""
}

// ordered reports whether one of two versions can be above the other: both are
// releases, written alike.
func (v version) ordered(w version) bool {
	return v.suffix == "" && w.suffix == "" && v.parts == w.parts && v.prefixed == w.prefixed
}

// asked is a model's version, taken apart once for all entries.
type asked struct {
	text   string // "" when the model states none
	parsed version
	ok     bool
}

func ask(text string) asked {
	v, ok := parseVersion(text)
	return asked{strings.TrimSpace(text), v, ok}
}

// metBy reports whether a runtime's version meets the one asked for under an
// operator (runtime = / > / >= model). Versions with a suffix can only be equal,
// whatever the operator; so can those that do not begin with a number, as text
// without regard to case. "" meets none.
func (a asked) metBy(runtime string, op service.Operator) bool {
	v, ok := parseVersion(runtime)
	if !ok || !a.ok {
		return strings.EqualFold(strings.TrimSpace(runtime), a.text) && op != service.OperatorGreaterThan
	}
	c := v.compare(a.parsed)
	switch {
	case v.suffix != "" || a.parsed.suffix != "" || !compares(op):
		return c == 0 && v.suffix == a.parsed.suffix
	case !v.ordered(a.parsed):
		return false
	case op == service.OperatorGreaterThan:
		return c > 0
	}
	return c >= 0
}

// compares reports whether an operator orders versions.
func compares(op service.Operator) bool {
	return op == service.OperatorGreaterThan || op == service.OperatorGreaterThanOrEqual
}

// unordered returns why an operator finds no order between a runtime's version and
// the one asked for, "" where it does.
func (a asked) unordered(runtime string, op service.Operator) string {
	v, ok := parseVersion(runtime)
	switch {
	case !compares(op) || !ok || !a.ok || v.ordered(a.parsed):
		return ""
	case v.suffix != "" || a.parsed.suffix != "":
		return " (a version that is no release is only ever equal)"
	}
	return " (only versions written alike are above or below each other)"
}
