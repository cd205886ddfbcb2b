package selection

import (
	"fmt"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// lacking explains in one line why none of the candidates (sorted, none
// eligible) will do, and what to do about it.
func (s *subject) lacking(ranked []assessed) (reason, message string) {
	switch {
	case s.named:
		return s.refused(&ranked[0])
	case len(ranked) == 0:
		return NoSupportingRuntime, "no runtime is known: apply a ServingRuntime or ClusterServingRuntime that lists " + s.wants()
	}
	if nearest := &ranked[0]; nearest.failed == 1 {
		if why := s.nearMiss(ranked); why != "" {
			return NoSupportingRuntime, why
		}
	}
	if s.model.Format.Name == "" {
		return NoSupportingRuntime, "the model's format is neither stated nor found in its files: set " + s.formatField()
	}
	known := knownFormats(ranked)
	if !slices.ContainsFunc(known, func(f string) bool { return strings.EqualFold(f, s.model.Format.Name) }) {
		msg := fmt.Sprintf("no runtime lists the format %q", s.model.Format.Name)
		if near := closest(s.model.Format.Name, known); near != "" {
			return NoSupportingRuntime, msg + fmt.Sprintf(": did you mean %q?", near)
		}
		return NoSupportingRuntime, msg + ": known are " + strings.Join(known, ", ")
	}
	return NoSupportingRuntime, "no runtime can serve " + s.wants() + "; the nearest, " + ranked[0].Name + ": " + failures(&ranked[0])
}

// nearMiss words the runtimes that a single rule keeps out, where that rule
// leaves something plain to do; "" otherwise.
func (s *subject) nearMiss(ranked []assessed) string {
	a := &ranked[0]
	r := a.Rules[a.first]
	switch r.Name {
	case RuleHost:
		more := 0
		for i := range ranked[1:] {
			if ranked[i+1].failed == 1 && ranked[i+1].first == a.first {
				more++
			}
		}
		if more > 0 {
			return fmt.Sprintf("%s could serve it (and %d more), but %s", a.Name, more, r.Why)
		}
		return a.Name + " could serve it, but " + r.Why
	case RuleAutoSelect:
		return a.Name + " could serve it, but is not marked autoSelect: name it as the service's runtime"
	case RuleProtocol:
		return a.Name + " could serve it, but " + r.Why + ": ask for a protocol that it speaks"
	}
	return ""
}

// refused words the failure of a runtime asked for by name.
func (s *subject) refused(a *assessed) (reason, message string) {
	switch {
	case a.Runtime.Disabled:
		return RuntimeDisabled, fmt.Sprintf("runtime %s is disabled: enable it or name another", a.Name)
	case a.failed == 1 && !a.Rules[len(a.Rules)-1].Pass:
		return NoSupportingRuntime, a.Name + " could serve it, but " + a.Rules[len(a.Rules)-1].Why
	}
	return NoSupportingRuntime, fmt.Sprintf("runtime %s cannot serve it: %s", a.Name, failures(a))
}

// unrecognized words a name that no runtime bears.
func (s *subject) unrecognized(ref service.ObjectRef, runtimes []service.Runtime) string {
	what := "runtime"
	if ref.Kind != "" {
		what = ref.Kind
	}
	msg := fmt.Sprintf("%s %q is not known", what, ref.Name)
	var names []string
	for i := range runtimes {
		rt := &runtimes[i]
		if rt.Name == ref.Name {
			if rt.Scope == service.ScopeNamespace {
				return msg + fmt.Sprintf(" in namespace %s: there is one in namespace %s", s.namespace, rt.Namespace)
			}
			return msg + fmt.Sprintf(": there is one of %s scope, leave out the kind or set ClusterServingRuntime", rt.Scope)
		}
		names = append(names, rt.Name)
	}
	if near := closest(ref.Name, names); near != "" {
		return msg + fmt.Sprintf(": did you mean %q?", near)
	}
	return msg + ": apply it, or leave the runtime out to have one chosen"
}

// failures joins the words of the failed rules.
func failures(a *assessed) string {
	var out []string
	for _, r := range a.Rules {
		if !r.Pass {
			out = append(out, r.Name+": "+r.Why)
		}
	}
	return strings.Join(out, "; ")
}

// wants is the model in words.
func (s *subject) wants() string {
	if s.model.Format.Name == "" {
		return "the model's format"
	}
	return listed(&service.SupportedFormat{Format: s.model.Format, Framework: s.model.Framework,
		Architecture: s.model.Architecture, Quantization: s.model.Quantization})
}

// formatField is where the manifest's dialect states the model's format.
func (s *subject) formatField() string {
	switch s.svc.Origin.Dialect() {
	case service.DialectKServe:
		return "spec.predictor.model.modelFormat.name"
	case service.DialectOME:
		return "spec.modelFormat.name of the BaseModel"
	}
	return "spec.model.format.name"
}

// knownFormats lists, sorted, the format names of enabled runtimes.
func knownFormats(ranked []assessed) []string {
	var out []string
	for i := range ranked {
		if !ranked[i].Runtime.Disabled {
			out = append(out, formatNames(ranked[i].Runtime)...)
		}
	}
	slices.Sort(out)
	return slices.CompactFunc(out, strings.EqualFold)
}

// closest is the known word fewest edits away, at most a third of the word's
// length and one; the first in alphabetical order among equals, "" for none.
func closest(word string, known []string) string {
	best, least := "", len(word)/3+1
	for _, k := range known {
		d := edits(strings.ToLower(word), strings.ToLower(k), least)
		if d < least || d == least && (best == "" || k < best) {
			best, least = k, d
		}
	}
	return best
}

// edits is the Levenshtein distance of a and b in bytes, or limit+1 where the
// lengths alone exceed it.
func edits(a, b string, limit int) int {
	if len(a)-len(b) > limit || len(b)-len(a) > limit {
		return limit + 1
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
