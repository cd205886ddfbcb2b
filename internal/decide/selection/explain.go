package selection

import (
	"fmt"
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
