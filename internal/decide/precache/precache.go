// Package precache decides which models are fetched ahead of their use, as KServe's
// LocalModelCaches ask, and when a fetch that failed is tried again.
package precache

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/credentials"
)

// Refused are the caches that are not fetched, each with why: those whose model does
// not fit into a node group beside the models of the caches before it. The oldest come
// first, then they go by name. A model of several caches counts once: on a cluster once for
// each namespace that fetches it, since each has a copy of its own on a node. Groups that
// are not there have no limit.
func Refused(caches []*service.ModelCache, groups []*service.NodeGroup, cluster bool) map[service.Key]string {
	limits := map[string]int64{}
	for _, g := range groups {
		limits[g.Name] = g.Limit
	}
	caches = slices.SortedFunc(slices.Values(caches), func(a, b *service.ModelCache) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Key.String(), b.Key.String()))
	})
	type copied struct{ group, namespace, uri string }
	copyIn := func(group string, c *service.ModelCache) copied {
		if !cluster {
			return copied{group: group, uri: c.URI}
		}
		return copied{group, credentials.NamespaceOfCache(c), c.URI}
	}
	used, counted, out := map[string]int64{}, map[copied]bool{}, map[service.Key]string{}
	for _, c := range caches {
		for _, g := range c.NodeGroups {
			limit, bound := limits[g]
			if why := out[c.Key]; why == "" && bound && !counted[copyIn(g, c)] && c.Bytes > limit-used[g] {
				out[c.Key] = fmt.Sprintf("spec.modelSize: %s do not fit into the %s that LocalModelNodeGroup %s has on each node (spec.storageLimit) beside the %s of caches before this one: raise the limit or delete caches",
					size(c.Bytes), size(limit), g, size(used[g]))
			}
		}
		if out[c.Key] != "" {
			continue
		}
		for _, g := range c.NodeGroups {
			if at := copyIn(g, c); !counted[at] {
				counted[at] = true
				used[g] += min(c.Bytes, limits[g]) // of groups without a limit nothing is asked
			}
		}
	}
	return out
}

func size(n int64) string { return resource.NewQuantity(n, resource.BinarySI).String() }

// The wait after a failure, which doubles with each up to a bound.
const (
	firstWait   = 10 * time.Second
	longestWait = 5 * time.Minute
)

// Wait is how long after a number of failures in a row a fetch is tried again.
func Wait(failures int) time.Duration {
	return min(firstWait<<min(max(failures-1, 0), 10), longestWait)
}
