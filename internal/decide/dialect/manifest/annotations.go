package manifest

import (
	"fmt"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// ours is the prefix of Roundhouse's annotations.
const ours = "roundhouse.dev/"

// AnnotationPropagate of an InferenceGraph lists which header fields of requests its
// steps get.
const AnnotationPropagate = "roundhouse.dev/propagate-headers"

// AnnotationAddresses of an InferencePoolImport lists where its requests go.
const AnnotationAddresses = "roundhouse.dev/addresses"

// Annotation is one of Roundhouse's that a manifest may have. docs/manifests.md has
// the same table.
type Annotation struct {
	// Name is without the prefix.
	Name string
	// Kinds may have it; none are all.
	Kinds []Kind
	// Dialects may have it; none are all.
	Dialects []service.Dialect
	// Component: a component may have it too, besides the object.
	Component bool
	// Field is what a ModelService has in its place.
	Field string
}

// Annotations are all that the product reads of manifests.
var Annotations = func() []Annotation {
	services, others := []Kind{KindService}, []service.Dialect{service.DialectKServe, service.DialectOME}
	all := []Annotation{
		{Name: strings.TrimPrefix(service.AnnotationStop, ours), Kinds: services},
		{Name: strings.TrimPrefix(service.AnnotationRestarted, ours), Kinds: services},
		{Name: strings.TrimPrefix(service.AnnotationModelStore, ours), Kinds: services},
		{Name: strings.TrimPrefix(service.AnnotationKeepBodies, ours), Kinds: services},
		{Name: strings.TrimPrefix(scheduleAnnotation, ours), Kinds: services, Dialects: others, Component: true, Field: "spec.scaling.schedule"},
		{Name: strings.TrimPrefix(prewarmAnnotation, ours), Kinds: services, Dialects: others, Component: true, Field: "spec.scaling.prewarm"},
		{Name: strings.TrimPrefix(queueAnnotation, ours), Kinds: services, Dialects: others, Component: true, Field: "spec.scaling.queue"},
		{Name: strings.TrimPrefix(presetAnnotation, ours), Kinds: services, Dialects: others, Component: true, Field: "spec.scaling.preset"},
		{Name: strings.TrimPrefix(firstAnnotation, ours), Kinds: []Kind{KindRouting}, Dialects: []service.Dialect{service.DialectGateway}},
		{Name: strings.TrimPrefix(eachAnnotation, ours), Kinds: []Kind{KindRouting}, Dialects: []service.Dialect{service.DialectGateway}},
		{Name: strings.TrimPrefix(AnnotationAddresses, ours), Kinds: []Kind{KindRouting}, Dialects: []service.Dialect{service.DialectGateway}},
		{Name: "autoscalerClass", Kinds: []Kind{KindService, KindRuntime}, Component: true},
		{Name: "take-over"},
		{Name: strings.TrimPrefix(AnnotationPropagate, ours), Kinds: []Kind{KindRouting}, Dialects: []service.Dialect{service.DialectKServe}},
	}
	for name := range residencyFields {
		all = append(all, Annotation{Name: strings.TrimPrefix(service.AnnotationResidency, ours) + name, Kinds: services})
	}
	slices.SortFunc(all, func(a, b Annotation) int { return strings.Compare(a.Name, b.Name) })
	return all
}()

// CheckAnnotations warns of Roundhouse's annotations that are not read where they
// stand, or nowhere.
func (r *Reader) CheckAnnotations(kind Kind) {
	const object = "metadata.annotations"
	for _, at := range r.doc.Keys(ours) {
		parent := strict.Parent(at)
		if parent != object && !strings.HasSuffix(parent, ".annotations") {
			continue
		}
		name := strings.TrimSuffix(strings.TrimPrefix(at[len(parent):], "["+ours), "]")
		i := slices.IndexFunc(Annotations, func(a Annotation) bool { return a.Name == name })
		switch {
		case i < 0:
			r.Warnf(at, "is none of Roundhouse's annotations and has no effect%s", meant(name))
		case !Annotations[i].on(kind, r.origin.Dialect()):
			r.Warnf(at, "has no effect on a %s%s", r.origin.Kind, Annotations[i].instead(kind, r.origin.Dialect()))
		case parent != object && !Annotations[i].Component && kind == KindService:
			r.Warnf(at, "has no effect on a component: write it into %s", object)
		}
	}
}

// meant asks whether a similar annotation was meant.
func meant(name string) string {
	var known []string
	for _, a := range Annotations {
		known = append(known, a.Name)
	}
	if near := strict.Nearest(name, known); near != "" {
		return fmt.Sprintf("; did you mean %q?", ours+near)
	}
	return ""
}

func (a Annotation) on(kind Kind, d service.Dialect) bool {
	return (a.Kinds == nil || slices.Contains(a.Kinds, kind)) && (a.Dialects == nil || slices.Contains(a.Dialects, d))
}

// instead is what to write where the annotation is not read.
func (a Annotation) instead(kind Kind, d service.Dialect) string {
	if a.Field != "" && kind == KindService && d == service.DialectRoundhouse {
		return ": write " + a.Field
	}
	return ""
}
