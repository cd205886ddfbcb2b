package fleet

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// brought are the containers that fetch what this program does not, by URI: of those that
// fetch one, the first by name.
func (r *resolver) brought(m resolvedModel) map[string]corev1.Container {
	all := workload.Model{URI: m.uri, Parts: m.parts, Adapters: m.adapters}
	uris := append(all.Others(), m.uri)
	for _, own := range m.own {
		uris = append(append(uris, own.URI), own.Others()...)
	}
	var out map[string]corev1.Container
	for _, uri := range uris {
		if !service.ForeignURI(uri) {
			continue
		}
		found := r.objects(func(id ID, o Object) bool { return id.Kind == storageContainerKind && o.StorageContainer.Fetches(uri) })
		if len(found) == 0 {
			continue
		}
		if out == nil {
			out = map[string]corev1.Container{}
		}
		out[uri] = found[0].StorageContainer.Container
	}
	return out
}

// broughtBy reports whether a change of o, if that is a StorageContainer, could matter to
// e: a container fetches some of its files, or none does.
func (e *entry) broughtBy(o Object) bool {
	if o.StorageContainer == nil {
		return false
	}
	m := e.object.Service.Model
	return m != nil && m.Ref != nil || slices.ContainsFunc(e.object.ModelURIs(), service.ForeignURI)
}
