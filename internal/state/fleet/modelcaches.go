package fleet

import (
	"slices"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/credentials"
)

// cacheOf is the ModelCache that keeps a service's model; nil for none. One of its
// namespace comes first.
func (r *resolver) cacheOf(s *service.Service, uri string) (found *service.ModelCache) {
	for _, o := range r.objects(func(id ID, o Object) bool { return id.Kind == CacheKind && credentials.Serves(o.ModelCache, s, uri) }) {
		if found == nil || found.Namespace == "" && o.Key.Namespace != "" {
			found = o.ModelCache
		}
	}
	return found
}

// cacheCredentials name what a ModelCache is fetched with.
func (r *resolver) cacheCredentials(c *service.ModelCache) service.Credentials {
	return credentials.OfCache(c, r.accounts(credentials.NamespaceOfCache(c)))
}

// CacheFiles are the files that a ModelCache asks for.
func (f *Fleet) CacheFiles(c *service.ModelCache) service.Files {
	return f.resolver.cacheCredentials(c).Of(c.URI)
}

// keptBy reports whether an object is a ModelCache that keeps, or kept, e's model.
func (e *entry) keptBy(o Object) bool {
	if o.ModelCache == nil {
		return false
	}
	s := e.object.Service
	return slices.ContainsFunc(e.object.ModelURIs(), func(uri string) bool { return credentials.Serves(o.ModelCache, s, uri) }) ||
		e.record != nil && credentials.Serves(o.ModelCache, s, e.record.Revision.Model.URI)
}

// CacheServices are the services whose model a ModelCache keeps.
func (f *Fleet) CacheServices(c *service.ModelCache) (out []ServiceState) {
	for _, st := range f.List() {
		uris := st.Object.ModelURIs()
		if st.Revision != nil {
			uris = append(uris, st.Revision.Model.URI)
		}
		if slices.ContainsFunc(uris, func(uri string) bool { return credentials.Serves(c, st.Object.Service, uri) }) {
			out = append(out, st)
		}
	}
	return out
}
