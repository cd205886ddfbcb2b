package credentials

import (
	"cmp"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// CacheNamespace is the namespace of the secrets that models of the whole cluster are
// fetched with ahead of their use: that in which KServe fetches them.
const CacheNamespace = "kserve-localmodel-jobs"

// NamespaceOfCache is where the secrets are that a ModelCache names.
func NamespaceOfCache(c *service.ModelCache) string { return cmp.Or(c.Namespace, CacheNamespace) }

// OfCache name what the model of a ModelCache is fetched with: what its storage or its
// service account says, and this program's environment where it has neither. accounts
// finds the service accounts of its namespace.
func OfCache(c *service.ModelCache, account func(name string) (Account, bool)) service.Credentials {
	if c.Account == "" && c.Storage == nil {
		return service.Credentials{}
	}
	s := &service.Service{Meta: service.Meta{Key: service.Key{Namespace: NamespaceOfCache(c)}}, Model: &service.ModelSource{Storage: c.Storage}}
	s.Components.Engine = &service.Component{}
	s.Components.Engine.Pod.ServiceAccountName = c.Account
	return Of(s, account)
}

// ByCache names what a service's files are fetched with of which those at a URI are kept
// by a ModelCache: these as the cache fetches them, so that they are not fetched twice,
// and all others with own. One that has credentials of its own is fetched with these.
func ByCache(own, cache service.Credentials, uri string) service.Credentials {
	if cache.Zero() || !own.Zero() { // its own may be of another store, in which the URI is another model
		return own
	}
	cache.Only, cache.Others = uri, &own
	return cache
}

// Serves reports whether a ModelCache keeps the model that a service names by a URI:
// one of the cluster serves all namespaces.
func Serves(c *service.ModelCache, s *service.Service, uri string) bool {
	sub, ok := Keeps(c, s, uri)
	return ok && sub == ""
}

// Keeps is Serves for a model that lies in what the ModelCache keeps, too, at the path sub.
func Keeps(c *service.ModelCache, s *service.Service, uri string) (sub string, ok bool) {
	_, without := s.Annotations[service.AnnotationNoModelCache]
	if m := s.Model; m != nil && m.Storage != nil {
		return "", false // its URI is one of the store that its own storage names
	}
	if without || c.Namespace != "" && c.Namespace != s.Namespace {
		return "", false
	}
	return c.Below(uri)
}
