package selection

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"unicode/utf8"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Explain prints the result for people: what was asked, what was chosen and
// why, then every candidate, the chosen first, with every rule's outcome. A
// ranked candidate has a line per rule; a failed one has a line per failed
// rule and the passed ones on one line. It ends in a newline, has no blank
// lines, and is the same for the same result.
func (r Result) Explain() string {
	var b strings.Builder
	r.head(&b)
	width := r.nameWidth()
	for i := range r.Candidates {
		r.Candidates[i].explain(&b, width)
	}
	return b.String()
}

// head prints what was asked, what was chosen and why.
func (r Result) head(b *strings.Builder) {
	line := func(label, text string) { fmt.Fprintf(b, "%-9s %s\n", label, text) }
	line("service", r.Service.String())
	line("model", modelWords(r.Attributes))
	switch {
	case r.NotNeeded:
		line("runtime", "none is needed: the service brings its own containers")
		if r.Host != nil {
			line("host", r.Host.Why)
		}
	case r.Chosen != nil:
		line("chosen", fmt.Sprintf("%s (%s): %s", r.Chosen.Name, r.Chosen.Scope, r.Chosen.Why))
	default:
		line("chosen", "none, "+r.Reason)
		line("because", r.Message)
	}
	if r.Protocol != "" {
		line("protocol", string(r.Protocol))
	}
}

// nameWidth is how wide the names of the candidates are, in characters.
func (r Result) nameWidth() (width int) {
	for i := range r.Candidates {
		width = max(width, utf8.RuneCountInString(r.Candidates[i].Name))
	}
	return width
}

// heading prints a candidate's rank, name, scope and why, the name in a column
// width characters wide.
func (c *Candidate) heading(b *strings.Builder, width int) {
	rank, why := "-", "fails "+strings.Join(c.failed(), ", ")
	if c.Eligible() {
		rank, why = fmt.Sprint(c.Rank), c.Why
	}
	fmt.Fprintf(b, "%-3s %-*s  %-9s  %s\n", rank, width, c.Name, c.Scope, why)
}

// explain prints one candidate under its heading.
func (c *Candidate) explain(b *strings.Builder, width int) {
	c.heading(b, width)
	var passed []string
	for _, r := range c.Rules {
		if r.Pass {
			passed = append(passed, r.Name)
		}
	}
	for _, r := range c.Rules {
		switch {
		case !r.Pass:
			fmt.Fprintf(b, "      FAIL  %-11s  %s\n", r.Name, r.Why)
		case c.Eligible():
			fmt.Fprintf(b, "      ok    %-11s  %s\n", r.Name, r.Why)
		}
	}
	if !c.Eligible() && len(passed) > 0 {
		fmt.Fprintf(b, "      ok    %s\n", strings.Join(passed, ", "))
	}
}

// modelWords lists what is known of the model and where each attribute that is
// not the manifest's came from.
func modelWords(a service.Attributes) string {
	size := ""
	if a.Parameters > 0 {
		size = service.FormatParameters(a.Parameters) + " parameters"
	}
	var parts []string
	for _, p := range []struct{ value, field string }{
		{named(a.Format), "format"},
		{named(a.Framework), "framework"},
		{a.Architecture, "architecture"},
		{a.Quantization, "quantization"},
		{pipeline(a.Diffusion), "diffusion"},
		{size, "parameters"},
	} {
		if p.value == "" {
			continue
		}
		from := a.From[p.field]
		if v := a.From[p.field+".version"]; from == "" && v != "" {
			from = "version from " + v
		} else if from != "" {
			from = "from " + from
		}
		if from != "" {
			p.value += " (" + from + ")"
		}
		parts = append(parts, p.value)
	}
	if len(parts) == 0 {
		return "nothing is known of it"
	}
	return strings.Join(parts, ", ")
}

// maxMisses is how many runtimes that do not match Brief gives the reasons for.
const maxMisses = 3

// Brief prints the result as Explain does, shorter: the ranked candidates with
// why each has its rank, the nearest misses with what each lacks, and of all
// others how many fail by which rules.
func (r Result) Brief() string {
	var b strings.Builder
	r.head(&b)
	width := r.nameWidth()
	misses := 0
	for i := range r.Candidates {
		c := &r.Candidates[i]
		failed := c.failed()
		if len(failed) == 0 {
			c.heading(&b, width)
			continue
		}
		if misses++; misses > maxMisses {
			continue
		}
		c.heading(&b, width)
		for _, rule := range c.Rules {
			if !rule.Pass {
				fmt.Fprintf(&b, "      FAIL  %-11s  %s\n", rule.Name, rule.Why)
			}
		}
	}
	if more := misses - maxMisses; more > 0 {
		fmt.Fprintf(&b, "… and %d more do not match: --all lists them\n", more)
	}
	return b.String()
}

// failed are the rules that a candidate fails.
func (c *Candidate) failed() (out []string) {
	for _, r := range c.Rules {
		if !r.Pass {
			out = append(out, r.Name)
		}
	}
	return out
}

// lacking explains in one line why none of the candidates (sorted, none
// eligible) can serve the model, and what to do about it.
func (s *subject) lacking(ranked []*assessed) (reason, message string) {
	switch {
	case s.named:
		return s.refused(ranked[0])
	case len(ranked) == 0:
		return NoSupportingRuntime, "no runtime is known: apply a ServingRuntime or ClusterServingRuntime that lists " + s.wants()
	}
	if i := s.nearest(ranked); i >= 0 {
		return NoSupportingRuntime, s.nearMiss(slices.Concat(ranked[i:i+1], ranked[:i], ranked[i+1:]))
	}
	if s.model.Format.Name == "" {
		return NoSupportingRuntime, "the model's format is not stated, and its files do not show it: set " + s.formatField()
	}
	if why := s.unlisted(ranked); why != "" {
		return NoSupportingRuntime, why
	}
	return NoSupportingRuntime, "no runtime can serve " + s.wants() + "; the nearest, " + ranked[0].Name + ": " + failures(ranked[0])
}

// unlisted words a format that no enabled runtime lists, "" when one does.
func (s *subject) unlisted(ranked []*assessed) string {
	return unlisted(s.model.Format.Name, func(yield func(*service.Runtime) bool) {
		for _, a := range ranked {
			if !yield(a.Runtime) {
				return
			}
		}
	})
}

// UnknownFormat words a format that none of the runtimes lists, "" when one does.
func UnknownFormat(format string, runtimes []service.Runtime) string {
	return unlisted(format, func(yield func(*service.Runtime) bool) {
		for i := range runtimes {
			if !yield(&runtimes[i]) {
				return
			}
		}
	})
}

func unlisted(format string, runtimes iter.Seq[*service.Runtime]) string {
	var known []string
	for rt := range runtimes {
		if rt.Disabled {
			continue
		}
		for i := range rt.Formats {
			name := rt.Formats[i].Format.Name
			if name == "" || strings.EqualFold(name, format) {
				return ""
			}
			known = append(known, name)
		}
	}
	slices.Sort(known)
	known = slices.CompactFunc(known, strings.EqualFold)
	msg := fmt.Sprintf("no enabled runtime lists the format %q", format)
	if near := closest(format, known); near != "" {
		return msg + fmt.Sprintf(": did you mean %q?", near)
	}
	if len(known) > 0 {
		msg += " (listed are " + strings.Join(known, ", ") + ")"
	}
	return msg + ": apply a ServingRuntime or ClusterServingRuntime that does"
}

// nearest is the runtime that a single rule keeps out, and of those one that pip can
// mend; -1 for none.
func (s *subject) nearest(ranked []*assessed) int {
	near := func(a *assessed) bool { return a.failed == 1 && a.Rules[a.first].Name != RuleFormat }
	first := slices.IndexFunc(ranked, near)
	if first < 0 || ranked[first].Rules[ranked[first].first].Name != RuleHost {
		return first
	}
	if i := slices.IndexFunc(ranked, s.mended); i >= 0 {
		return i
	}
	return first
}

// mended reports whether one line of pip lets a runtime serve the model here.
func (s *subject) mended(a *assessed) bool {
	return a.failed == 1 && a.Rules[a.first].Name == RuleHost && s.pip(a.Runtime)
}

// nearMiss words the first of the runtimes, which a single rule keeps out, and
// counts those after it that the same rule alone keeps out.
func (s *subject) nearMiss(ranked []*assessed) string {
	a := ranked[0]
	more := 0
	for _, b := range ranked[1:] {
		if b.failed == 1 && b.first == a.first {
			more++
		}
	}
	subject := a.Name + " could serve it"
	if more > 0 {
		subject += fmt.Sprintf(" (and %d more)", more)
	}
	switch r := a.Rules[a.first]; r.Name {
	case RuleEnabled:
		if a.Runtime.Disabled {
			return a.Name + " could serve it, but is disabled: enable it"
		}
		return a.Name + " of the catalog could serve it, but " + r.Why
	case RuleAutoSelect:
		return subject + ", but is not marked autoSelect: name it as the service's runtime"
	case RuleProtocol:
		return subject + ", but " + r.Why + ": ask for a protocol that it speaks"
	case RuleSize:
		return subject + ", but " + r.Why + ": apply a runtime for that size"
	case RuleHost:
		if s.host.Cluster {
			return subject + ", but " + r.Why + ": " + inContainers(ranked)
		}
		return subject + ", but " + r.Why
	default:
		return subject + ", but " + r.Why
	}
}

// inContainers returns what serves a model in pods that the nearest runtime only
// serves on one machine.
func inContainers(ranked []*assessed) string {
	for _, b := range ranked {
		if b.failed == 1 && b.Rules[b.first].Name == RuleProtocol {
			return "ask for a protocol of " + b.Name + ", which " + b.Rules[b.first].Why + ", or apply a runtime with an image"
		}
	}
	return "apply a runtime with an image"
}

// refused words the failure of a runtime asked for by name.
func (s *subject) refused(a *assessed) (reason, message string) {
	switch {
	case a.Runtime.Disabled:
		return RuntimeDisabled, fmt.Sprintf("runtime %s is disabled: enable it or name another", a.Name)
	case a.failed == 1 && !a.Rules[len(a.Rules)-1].Pass:
		message = a.Name + " could serve it, but " + a.Rules[len(a.Rules)-1].Why
		if s.host.Cluster {
			message += ": name one with an image, or leave the runtime out"
		}
		return NoSupportingRuntime, message
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
	if rt := lookup(inNamespace(runtimes, s.namespace), service.ObjectRef{Name: ref.Name}); rt != nil {
		return msg + fmt.Sprintf(": there is one of %s scope, leave out the kind or correct it", rt.Scope)
	}
	var names, namespaces []string
	for i := range runtimes {
		names = append(names, runtimes[i].Name)
		if runtimes[i].Name == ref.Name {
			namespaces = append(namespaces, runtimes[i].Namespace)
		}
	}
	if len(namespaces) > 0 {
		return msg + fmt.Sprintf(" in namespace %s: there is one in namespace %s", s.namespace, slices.Min(namespaces))
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
		Architecture: s.model.Architecture, Quantization: s.model.Quantization, Diffusion: s.model.Diffusion})
}

// formatField is where the manifest's dialect states the model's format.
func (s *subject) formatField() string {
	switch s.svc.Origin.Dialect() {
	case service.DialectKServe:
		return "spec.predictor.model.modelFormat.name"
	case service.DialectOME:
		return "spec.modelFormat.name of the BaseModel"
	case service.DialectSeldon:
		return "spec.predictors[].graph.implementation"
	}
	return "spec.model.format.name"
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
