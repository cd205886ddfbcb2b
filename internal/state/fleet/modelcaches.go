package fleet

import (
	"bytes"
	"encoding/json"
	"slices"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/credentials"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/precache"
	"roundhouse.dev/roundhouse/internal/decide/workload"
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
	keeps := func(uri string) bool {
		_, ok := credentials.Keeps(o.ModelCache, e.object.Service, uri)
		return ok
	}
	return slices.ContainsFunc(e.object.ModelURIs(), keeps) || e.record != nil && keeps(e.record.Revision.Model.URI)
}

// rekeptBy reports whether where nodes keep e's model may have changed with o: caches share
// the room of their groups.
func (r *resolver) rekeptBy(e *entry, o Object) bool {
	if !r.cfg.Cluster || o.ModelCache == nil && o.NodeGroup == nil {
		return false
	}
	return e.record != nil && e.record.Revision.Kept != nil ||
		len(r.objects(func(id ID, c Object) bool { return id.Kind == CacheKind && e.keptBy(c) })) > 0
}

// CacheServices are the services whose model a ModelCache keeps.
func (f *Fleet) CacheServices(c *service.ModelCache) (out []ServiceState) {
	for _, st := range f.List() {
		uris := st.Object.ModelURIs()
		if st.Revision != nil {
			uris = append(uris, st.Revision.Model.URI)
		}
		if slices.ContainsFunc(uris, func(uri string) bool {
			sub, ok := credentials.Keeps(c, st.Object.Service, uri)
			return ok && (sub == "" || f.cfg.Cluster)
		}) {
			out = append(out, st)
		}
	}
	return out
}

// CacheUsers are the services whose model a ModelCache keeps, as its status names them.
func (f *Fleet) CacheUsers(c *service.ModelCache) (services, llm []service.Key) {
	for _, st := range f.CacheServices(c) {
		if st.Object.Origin.Kind == dialect.LLMService {
			llm = append(llm, st.Object.Key)
		} else {
			services = append(services, st.Object.Key)
		}
	}
	return services, llm
}

// CacheNodes is where the nodes of a cluster keep the model of each ModelCache, and what
// is wrong with some, by their keys.
func (f *Fleet) CacheNodes() (kept map[service.Key][]precache.Kept, problems map[service.Key]string) {
	return f.resolver.cacheNodes()
}

func (r *resolver) cacheNodes() (kept map[service.Key][]precache.Kept, problems map[service.Key]string) {
	var caches []*service.ModelCache
	var groups []*service.NodeGroup
	for _, o := range r.objects(func(id ID, _ Object) bool { return id.Kind == CacheKind || id.Kind == NodeGroupKind }) {
		if o.ModelCache != nil {
			caches = append(caches, o.ModelCache)
		} else {
			groups = append(groups, o.NodeGroup)
		}
	}
	kept, problems = map[service.Key][]precache.Kept{}, precache.Refused(caches, groups, r.cfg.Cluster)
	for _, c := range caches {
		if problems[c.Key] != "" {
			continue
		}
		where, missing := precache.Where(c, groups, r.cfg.Delivery.Store, r.cfg.Installation)
		if kept[c.Key] = where; missing != "" {
			problems[c.Key] = missing
		}
	}
	return kept, problems
}

// kept is where the nodes of a cluster have a service's model ahead of its use; nil where
// no ModelCache keeps it. One of its namespace comes first.
func (r *resolver) kept(s *service.Service, m resolvedModel) *workload.Kept {
	if m.uri == "" || len(m.parts) > 0 || s.Repository {
		return nil
	}
	var all map[service.Key][]precache.Kept
	var found *workload.Kept
	for _, o := range r.objects(func(id ID, _ Object) bool { return id.Kind == CacheKind }) {
		sub, ok := credentials.Keeps(o.ModelCache, s, m.uri)
		if !ok || found != nil && o.Key.Namespace == "" {
			continue
		}
		if all == nil {
			all, _ = r.cacheNodes()
		}
		if at, ok := precache.For(o.ModelCache, all[o.Key], s.Annotations); ok {
			found = &workload.Kept{Name: at.Name, Folder: at.Folder, Sub: sub, Nodes: at.Nodes}
			if o.Key.Namespace != "" {
				return found
			}
		}
	}
	return found
}

// keptSo reports whether a revision's model is still kept where it says.
func (r *resolver) keptSo(s *service.Service, rev *workload.Revision) bool {
	was, _ := json.Marshal(rev.Kept) // plain structs always encode
	is, _ := json.Marshal(r.kept(s, resolvedModel{uri: rev.Model.URI, parts: rev.Model.Parts}))
	return bytes.Equal(was, is)
}
