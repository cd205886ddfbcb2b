package admin

import (
	"fmt"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// explainText is what `roundhouse explain` prints: the model and where each of
// its attributes came from, then result's words.
func explainText(o fleet.Object, ex fleet.Explanation, result string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s %s)\n", o.Key, o.Origin.APIVersion, o.Origin.Kind)
	if ex.URI != "" {
		fmt.Fprintf(&b, "  model          %s\n", ex.URI)
	}
	for _, a := range attributes(ex.Attributes) {
		fmt.Fprintf(&b, "  %-14s %s  (from %s)\n", a[0], a[1], a[2])
	}
	for _, a := range ex.Adapters {
		fmt.Fprintf(&b, "  %-14s %s\n", "adapter", AdapterText(a))
	}
	if ex.Problem != "" {
		fmt.Fprintf(&b, "  %-14s %s\n", "problem", ex.Problem)
	}
	if p := ex.Pinned; p.Name != "" {
		note := ""
		if ex.Result.Chosen == nil || ex.Result.Chosen.Name != p.Name {
			note = "; `roundhouse apply --reselect` would choose anew"
		}
		fmt.Fprintf(&b, "  %-14s %s (%s)%s\n", "runs on", p.Name, p.Scope, note)
	}
	b.WriteString("\n")
	b.WriteString(result)
	return b.String()
}

func attributes(a service.Attributes) [][3]string {
	var out [][3]string
	add := func(name, value string) {
		if value == "" {
			return
		}
		from := a.From[name]
		if from == "" {
			from = "the manifest"
		}
		out = append(out, [3]string{name, value, from})
	}
	add("format", strings.TrimSuffix(a.Format.Name+" "+a.Format.Version, " "))
	add("framework", strings.TrimSuffix(a.Framework.Name+" "+a.Framework.Version, " "))
	add("architecture", a.Architecture)
	add("quantization", a.Quantization)
	if a.Parameters > 0 {
		add("parameters", service.FormatParameters(a.Parameters))
	}
	return out
}

// AdapterText is an adapter in a few words.
func AdapterText(a workload.Adapter) string {
	text := a.Name
	if a.URI != "" {
		text += " at " + artifact.Redact(a.URI)
	}
	if a.Rank > 0 {
		text += fmt.Sprintf(", rank %d", a.Rank)
	}
	return text
}
