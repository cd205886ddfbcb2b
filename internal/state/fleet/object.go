package fleet

import (
	"fmt"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
)

// Object is one applied manifest with what is known of its origin.
type Object struct {
	dialect.Object
	// Source is the watched file or folder it came from; "" for one applied by
	// hand. Deleting a watched file deletes what came from it.
	Source string
	// URIs maps model URIs as written to where they are: a relative file URI
	// to its absolute one, or a local file to its upload.
	URIs map[string]string
}

// ID names an object among all kinds.
type ID struct {
	// Kind is "service", "runtime", "model", "weight" (a model object that holds an
	// adapter), or a routing kind in lower case:
	// "pool", "route", "httproute", "inferencemodel", …
	Kind string
	service.Key
}

// String is "kind namespace/name".
func (i ID) String() string {
	if i.Namespace == "" {
		return i.Kind + " " + i.Name
	}
	return i.Kind + " " + i.Key.String()
}

func compareIDs(a, b ID) int { return strings.Compare(a.String(), b.String()) }

// Kinds in the ID of a service and of a runtime.
const (
	serviceKind = "service"
	runtimeKind = "runtime"
)

// ID of the object. Cluster-scoped objects have no namespace.
func (o Object) ID() ID {
	switch {
	case o.Runtime != nil:
		return ID{Kind: runtimeKind, Key: o.Key}
	case o.Model != nil && o.Model.FineTuned != nil:
		return ID{Kind: weightKind, Key: o.Key}
	case o.Model != nil:
		return ID{Kind: "model", Key: o.Key}
	case o.Routing != nil:
		return ID{Kind: routingKind(o.Routing.RoutingKind()), Key: o.Key}
	default:
		return ID{Kind: serviceKind, Key: o.Key}
	}
}

// meta is the hub object's own metadata.
func (o Object) meta() *service.Meta {
	switch {
	case o.Runtime != nil:
		return &o.Runtime.Meta
	case o.Model != nil:
		return &o.Model.Meta
	case o.Routing != nil:
		return o.Routing.Common()
	default:
		return &o.Service.Meta
	}
}

// Created is when the object was first applied.
func (o Object) Created() time.Time { return o.meta().Created }

// SetCreated sets it, and is for whoever makes the object.
func (o Object) SetCreated(t time.Time) { o.meta().Created = t }

// NotFoundError says that there is no such object.
type NotFoundError struct{ ID ID }

// Error names the object and how to see what there is.
func (e *NotFoundError) Error() string {
	return fmt.Sprintf("no %s: `roundhouse get %ss -A` lists what there is", e.ID, e.ID.Kind)
}

func errNotFound(kind string, k service.Key) error {
	return &NotFoundError{ID: ID{Kind: kind, Key: k}}
}
