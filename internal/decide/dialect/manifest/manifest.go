// Package manifest is what the dialects share: the document that is read, the
// hub object it becomes, the problems that are found on the way, and the checks
// of fields that several dialects have.
package manifest

import (
	"fmt"
	"reflect"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// Kind is which of an Object's parts is set.
type Kind string

// The hub's kinds.
const (
	KindService Kind = "Service"
	KindRuntime Kind = "Runtime"
	KindModel   Kind = "Model"
	// KindRouting is every kind of package routing.
	KindRouting Kind = "Routing"
)

// Object is one document read into the hub. Exactly one of Service,
// Runtime, Model and Routing is set.
type Object struct {
	Origin service.Origin
	// Key has no namespace for cluster-scoped objects.
	Key     service.Key
	Kind    Kind
	Service *service.Service
	Runtime *service.Runtime
	Model   *service.Model
	Routing routing.Object
	// Original is the document as written, without its separator. Its first
	// line is Origin.Line of the file. It is a slice of what Read was given.
	Original []byte
}

// Platform is where replicas run, as far as a problem depends on it.
type Platform string

// The platforms.
const (
	AnyPlatform Platform = ""
	Process     Platform = "process"    // replicas are processes of one machine
	Kubernetes  Platform = "kubernetes" // replicas are pods
)

// Problem is one thing wrong with a manifest, or worth a warning.
type Problem struct {
	File    string
	Line    int    // 1-based; 0 when the file as a whole is meant
	Column  int    // 1-based
	Path    string // "spec.predictor.model.modelFormat.name"; "" for the document
	Message string
	Warning bool
	// Platform is the only platform the problem exists on; "" is every one.
	Platform Platform
	// Readable: the object is read in spite of the error, so that one applied
	// before the error was known goes on.
	Readable bool
}

// String is "file:line: path: message".
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		if p.File != "" {
			b.WriteString(":")
		}
		fmt.Fprintf(&b, "%d", p.Line)
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	if p.Warning {
		b.WriteString("warning: ")
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// ModelURIs are the URIs of files that an object names: its model's and its
// adapters'.
func (o Object) ModelURIs() []string {
	var out []string
	add := func(uri string) {
		if uri != "" {
			out = append(out, uri)
		}
	}
	switch {
	case o.Service != nil && o.Service.Model != nil:
		add(o.Service.Model.URI)
		for _, a := range o.Service.Model.Adapters {
			add(a.URI)
		}
	case o.Model != nil:
		add(o.Model.URI)
	}
	return out
}

// HubKind is the object's kind in the hub, routing kinds each by itself.
func (o Object) HubKind() string {
	switch {
	case o.Routing != nil:
		return string(o.Routing.RoutingKind())
	case o.Model != nil && o.Model.FineTuned != nil:
		return KindFineTunedWeight
	}
	return string(o.Kind)
}

// KindFineTunedWeight is OME's kind of adapters; its objects have no namespace.
const KindFineTunedWeight = "FineTunedWeight"

// Clip keeps a message to one line of bearable length.
func Clip(s string) string {
	return excerpt.Of(s, 80)
}

// Schema is one kind of manifest: the type it is decoded into, and how that is
// read into the hub.
type Schema struct {
	APIVersion, Kind string
	Shape            reflect.Type
	Read             func(r *Reader, manifest any, o *Object)
}

// SchemaOf is the schema of a manifest type.
func SchemaOf[T any](apiVersion, kind string, read func(*Reader, *T, *Object)) Schema {
	return Schema{apiVersion, kind, reflect.TypeFor[T](), func(r *Reader, m any, o *Object) { read(r, m.(*T), o) }}
}
