package app

import (
	"cmp"
	"context"
	"os"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/history"
	"roundhouse.dev/roundhouse/internal/decide/precache"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/edge/prefetch"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// caches fetches the models of the ModelCaches that were applied. This machine is the one
// node of every node group.
type caches struct {
	fetches *prefetch.Fetches
	fleet   *fleet.Fleet
	node    string
}

func (n *node) newCaches() *caches {
	host, _ := os.Hostname() // it names the node in a status, and nothing else
	c := &caches{fleet: n.fleet, node: cmp.Or(host, "localhost")}
	from := fetcher{n.store, n.downloads, n.open, n.bring}
	c.fetches = prefetch.New(prefetch.Config{List: c.list, Fetch: func(ctx context.Context, f service.Files, progress func(done, total int64)) error {
		_, err := from.Fetch(ctx, f, progress)
		return err
	}, Told: func(k service.Key, o prefetch.Outcome) {
		e := history.Event{Namespace: k.Namespace, Object: fleet.CacheKind + " " + k.Name, Reason: "ModelCached", Message: "the model is here"}
		if o.State == service.CacheFailed {
			e.Reason, e.Message = "ModelCacheFailed", o.Reason
			n.log.Warn("a model is not fetched ahead of its use", "object", fleet.ID{Kind: fleet.CacheKind, Key: k}.String(), "error", o.Reason)
		}
		n.cfg.events.Tell(e)
	}})
	return c
}

// list is the models that are to be fetched.
func (c *caches) list() []prefetch.Model {
	var all []*service.ModelCache
	for _, o := range c.fleet.Objects(fleet.CacheKind) {
		all = append(all, o.ModelCache)
	}
	var groups []*service.NodeGroup
	for _, o := range c.fleet.Objects(fleet.NodeGroupKind) {
		groups = append(groups, o.NodeGroup)
	}
	refused := precache.Refused(all, groups, false)
	out := make([]prefetch.Model, len(all))
	for i, one := range all {
		out[i] = prefetch.Model{Key: one.Key, Files: c.fleet.CacheFiles(one), Refused: refused[one.Key]}
	}
	return out
}

// Of is a ModelCache as the admin API shows it.
func (c *caches) Of(o fleet.Object) admin.ModelCache {
	is := c.fetches.Outcome(o.Key)
	out := admin.ModelCache{URI: artifact.Redact(o.ModelCache.URI), Done: is.Done, Total: is.Total, Again: is.Again, CacheStatus: service.CacheStatus{
		Nodes: map[string]service.CacheState{c.node: is.State}, Reason: is.Reason}}
	out.Services, out.LLMServices = c.fleet.CacheUsers(o.ModelCache)
	return out
}
