package objects

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Document is a manifest as its author wrote it, as far as the API server
// keeps that: without status, without the metadata that servers and clients
// add, and without the defaults that schemas put in. The same manifest makes
// the same document whichever schema it passed through, so that a revision's
// hash is that of the file.
func Document(u *unstructured.Unstructured) ([]byte, error) {
	doc := dialect.Authored(u.Object, corev1.LastAppliedConfigAnnotation, kube.AnnotationTakeOver)
	out, err := json.Marshal(doc) // keys sorted
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return out, nil
}

// parse reads a manifest's document into a fleet.Object. Problems are what is
// wrong with it, warnings what has no effect.
func parse(doc []byte) (o *fleet.Object, problems, warnings []string) {
	res := dialect.Read("", doc).Applied()
	for _, p := range res.Errors(dialect.Kubernetes) {
		problems = append(problems, describe(p))
	}
	for _, p := range res.Warnings(dialect.Kubernetes) {
		warnings = append(warnings, describe(p))
	}
	if len(problems) > 0 || len(res.Objects) != 1 {
		return nil, problems, warnings
	}
	o = &fleet.Object{Object: res.Objects[0]}
	o.Origin.Line = 0 // the author has not seen this document
	return o, nil, warnings
}

// describe formats a problem without its line: the document is ours, not the
// author's.
func describe(p dialect.Problem) string {
	if p.Path == "" {
		return p.Message
	}
	return p.Path + ": " + p.Message
}

// HTTPRoute reads an HTTPRoute or GRPCRoute as a fleet does; nil and the problem if it
// does not count.
func HTTPRoute(u *unstructured.Unstructured) (*routing.HTTPRoute, string) {
	doc, err := Document(u)
	if err != nil {
		return nil, err.Error()
	}
	o, problems, _ := parse(doc)
	if o == nil {
		return nil, listed(problems)
	}
	r, ok := o.Routing.(*routing.HTTPRoute)
	if !ok {
		return nil, "is no HTTPRoute, and no GRPCRoute"
	}
	r.Created = u.GetCreationTimestamp().Time
	return r, ""
}

// listed joins problems into one message that fits into a status.
func listed(problems []string) string {
	const most = 5
	if n := len(problems); n > most {
		problems = append(problems[:most:most], fmt.Sprintf("and %d more", n-most))
	}
	return strings.Join(problems, "; ")
}
