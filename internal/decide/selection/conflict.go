package selection

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Conflict is a fault in how runtimes are declared: one that leaves the choice
// between two of them to chance, or a priority that means nothing.
type Conflict struct {
	// Runtime is the one at fault; of a pair, the later by name. Both point
	// into the runtimes given.
	Runtime *service.Runtime
	// Other is the runtime it conflicts with, nil when it is at fault alone.
	Other *service.Runtime
	// Field is the path in Runtime's manifest.
	Field string
	// Message is what is wrong and what to do, in one line.
	Message string
	// Tolerated: OME takes two such runtimes, and publishes some; the order
	// decides between them.
	Tolerated bool
}

// Conflicts checks the constraints that both guides lay on priorities: above
// zero; the same for all versions of one format in one runtime; never the same
// in two runtimes that can be chosen for the same model. Disabled runtimes are
// left out. The result is ordered by scope, namespace and name, whatever the
// order of runtimes.
func Conflicts(runtimes []service.Runtime) []Conflict {
	var sorted []*service.Runtime
	for i := range runtimes {
		if !runtimes[i].Disabled {
			sorted = append(sorted, &runtimes[i])
		}
	}
	slices.SortStableFunc(sorted, func(a, b *service.Runtime) int {
		return cmp.Or(cmp.Compare(scopeRank(a.Scope), scopeRank(b.Scope)),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	var out []Conflict
	for i, rt := range sorted {
		out = append(out, within(rt)...)
		for _, other := range sorted[:i] {
			if rivals(rt, other) {
				out = append(out, between(rt, other)...)
			}
		}
	}
	return out
}

func priorityField(i int) string {
	return fmt.Sprintf("spec.supportedModelFormats[%d].priority", i)
}

// within checks one runtime by itself.
func within(rt *service.Runtime) []Conflict {
	var out []Conflict
	for i := range rt.Formats {
		f := &rt.Formats[i]
		if f.Priority != nil && *f.Priority <= 0 {
			out = append(out, Conflict{Runtime: rt, Field: priorityField(i),
				Message: fmt.Sprintf("priority %d: it must be above 0; leave it out for none", *f.Priority)})
		}
		for j := range i {
			g := &rt.Formats[j]
			if f.AutoSelect && g.AutoSelect && sameButVersion(f, g) && priority(f) != priority(g) {
				out = append(out, Conflict{Runtime: rt, Field: priorityField(i),
					Message: fmt.Sprintf("%s has priority %s and %s priority %s: give all versions of a format in one runtime the same",
						named(f.Format), number(priority(f)), named(g.Format), number(priority(g)))})
				break
			}
		}
	}
	return out
}

// rivals reports whether some service could have either of two runtimes, format
// aside.
func rivals(a, b *service.Runtime) bool {
	return a.Scope == b.Scope && a.Namespace == b.Namespace &&
		a.MultiModel == b.MultiModel && runtimeShape(a) == runtimeShape(b) &&
		intersect(a.Protocols, b.Protocols) && sameSize(a.Size, b.Size)
}

// intersect: a runtime that lists no protocol speaks any.
func intersect(a, b []service.Protocol) bool {
	if len(a) == 0 || len(b) == 0 {
		return true
	}
	return slices.ContainsFunc(a, func(p service.Protocol) bool { return slices.Contains(b, p) })
}

// sameSize: where ranges differ the closer one decides before any priority.
func sameSize(a, b *service.SizeRange) bool {
	return unbounded(a) && unbounded(b) || a != nil && b != nil && *a == *b
}

// between checks the entries of two rivals against each other.
func between(rt, other *service.Runtime) []Conflict {
	var out []Conflict
	for i := range rt.Formats {
		f := &rt.Formats[i]
		p := priority(f)
		if p == 0 {
			continue
		}
		for j := range other.Formats {
			if g := &other.Formats[j]; p == priority(g) && sameEntry(f, g) {
				out = append(out, Conflict{Runtime: rt, Other: other, Field: priorityField(i),
					Tolerated: rt.Origin.Dialect() == service.DialectOME && other.Origin.Dialect() == service.DialectOME,
					Message:   fmt.Sprintf("priority %d for %s is also that of %s: give one of them another", p, listed(f), other.Name)})
				break
			}
		}
	}
	return out
}

// sameButVersion reports whether two entries differ in versions at most.
func sameButVersion(f, g *service.SupportedFormat) bool {
	return strings.EqualFold(f.Format.Name, g.Format.Name) &&
		strings.EqualFold(f.Framework.Name, g.Framework.Name) &&
		strings.EqualFold(f.Architecture, g.Architecture) &&
		strings.EqualFold(f.Quantization, g.Quantization) &&
		reflect.DeepEqual(f.Diffusion, g.Diffusion)
}

func sameEntry(f, g *service.SupportedFormat) bool {
	return sameButVersion(f, g) &&
		sameVersion(f.Format.Version, f.FormatOperator, g.Format.Version, g.FormatOperator) &&
		sameVersion(f.Framework.Version, f.FrameworkOperator, g.Framework.Version, g.FrameworkOperator)
}

func sameVersion(v string, vop service.Operator, w string, wop service.Operator) bool {
	if v == "" || w == "" {
		return v == w
	}
	return equalOr(vop) == equalOr(wop) && ask(v).metBy(w, service.OperatorEqual)
}

func equalOr(op service.Operator) service.Operator {
	if op == "" {
		return service.OperatorEqual
	}
	return op
}
