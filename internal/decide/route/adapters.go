package route

import (
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// addAdapters claims the names of services' adapters. They give way to every
// other claim of their namespace: an adapter takes no service's name away.
func (t *Table) addAdapters() {
	for _, k := range t.keys {
		for _, name := range t.adapters[k] {
			t.claim(&claim{key: service.Key{Namespace: k.Namespace, Name: name}, of: k})
		}
	}
}

// at is a service that a request has been found to be for.
func (t *Table) at(k service.Key, q *Query) Target {
	out := Target{Pool: routing.Service(k), Named: q.Model == "" || names(k, q.Model)}
	if out.Named {
		return out
	}
	name := strings.TrimPrefix(q.Model, k.Namespace+"/")
	if own := t.adapters[k.Stable()]; slices.Contains(own, name) {
		out.Adapter, out.Model = name, name
	} else if k.IsCanary() && slices.Contains(t.adapters[k], name) {
		out.Adapter, out.Model = name, name
	}
	return out.leave(q)
}

// Adapter is a name that requests can give an adapter of a service.
type Adapter struct {
	// Model is the shortest name that resolves.
	Model string
	// Name is the adapter's own.
	Name    string
	Service service.Key
}

// Adapters lists the adapters that can be named, by name, then namespace. One
// that does not have its name to itself in its namespace is left out: it needs
// its service's host.
func (t *Table) Adapters() []Adapter {
	var out []Adapter
	for _, c := range t.all {
		if c.of == (service.Key{}) || len(t.full[c.key.String()]) > 1 {
			continue
		}
		out = append(out, Adapter{Model: t.Name(c.key), Name: c.key.Name, Service: c.of})
	}
	return out
}
