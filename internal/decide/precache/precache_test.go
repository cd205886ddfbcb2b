package precache

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/credentials"
)

func cache(name, uri string, bytes int64, age time.Duration, groups ...string) *service.ModelCache {
	c := &service.ModelCache{URI: uri, Bytes: bytes, NodeGroups: groups}
	c.Name, c.Created = name, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(-age)
	return c
}

func group(name string, limit int64) *service.NodeGroup {
	g := &service.NodeGroup{Limit: limit}
	g.Name = name
	return g
}

const gi = 1 << 30

func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		caches []*service.ModelCache
		want   string // names
	}{
		"all fit":                       {[]*service.ModelCache{cache("a", "s3://a", 4*gi, 0, "g"), cache("b", "s3://b", 6*gi, 0, "g")}, ""},
		"the youngest gives way":        {[]*service.ModelCache{cache("a", "s3://a", 5*gi, 0, "g"), cache("b", "s3://b", 6*gi, time.Hour, "g")}, "a"},
		"a smaller one after it fits":   {[]*service.ModelCache{cache("a", "s3://a", 8*gi, 2, "g"), cache("b", "s3://b", 6*gi, 1, "g"), cache("c", "s3://c", 2*gi, 0, "g")}, "b"},
		"one model counts once":         {[]*service.ModelCache{cache("a", "s3://a", 8*gi, 0, "g"), cache("b", "s3://a", 8*gi, 0, "g")}, ""},
		"too large by itself":           {[]*service.ModelCache{cache("a", "s3://a", 11*gi, 0, "g")}, "a"},
		"into every group":              {[]*service.ModelCache{cache("a", "s3://a", 2*gi, 0, "g", "small")}, "a"},
		"a group that is not there":     {[]*service.ModelCache{cache("a", "s3://a", 99*gi, 0, "none")}, ""},
		"what is refused takes nothing": {[]*service.ModelCache{cache("a", "s3://a", 2*gi, 1, "g", "small"), cache("b", "s3://b", 10*gi, 0, "g")}, "a"},
		"sizes that overflow together":  {[]*service.ModelCache{cache("a", "s3://a", 1<<62, 2, "none"), cache("b", "s3://b", 1<<62, 1, "none"), cache("c", "s3://c", 1<<62, 0, "g", "none")}, "c"},
	} {
		var got []string
		refused := Refused(c.caches, []*service.NodeGroup{group("g", 10*gi), group("small", gi)}, false)
		for _, one := range c.caches {
			if refused[one.Key] != "" {
				got = append(got, one.Name)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(strings.Fields(c.want)) {
			t.Errorf("%s: %v are refused, want %s", name, refused, c.want)
		}
	}
	why := Refused([]*service.ModelCache{cache("a", "s3://a", 8*gi, 1, "g"), cache("b", "s3://b", 6*gi, 0, "g")}, []*service.NodeGroup{group("g", 10*gi)}, true)
	if got := why[service.Key{Name: "b"}]; got != "spec.modelSize: 6Gi do not fit into the 10Gi that LocalModelNodeGroup g has on each node (spec.storageLimit) beside the 8Gi of caches before this one: raise the limit or delete caches" {
		t.Error(got)
	}
}

// TestRefusedByNamespace: on a cluster each namespace has a copy of its own, so a model of
// two counts twice; those of the cluster are fetched in one namespace. One machine has one.
func TestRefusedByNamespace(t *testing.T) {
	in := func(ns, name string, age time.Duration) *service.ModelCache {
		c := cache(name, "s3://a", 6*gi, age, "g")
		c.Namespace = ns
		return c
	}
	for name, c := range map[string]struct {
		caches          []*service.ModelCache
		cluster, single string // names
	}{
		"of two namespaces":                  {[]*service.ModelCache{in("team", "a", 1), in("other", "b", 0)}, "[other/b]", "[]"},
		"of the cluster and a namespace":     {[]*service.ModelCache{in("", "a", 1), in("team", "b", 0)}, "[team/b]", "[]"},
		"of the cluster twice":               {[]*service.ModelCache{in("", "a", 1), in("", "b", 0)}, "[]", "[]"},
		"of the cluster and where it is":     {[]*service.ModelCache{in("", "a", 1), in(credentials.CacheNamespace, "b", 0)}, "[]", "[]"},
		"of one namespace between those two": {[]*service.ModelCache{in("team", "a", 2), in("other", "b", 1), in("team", "c", 0)}, "[other/b]", "[]"},
	} {
		for cluster, want := range map[bool]string{true: c.cluster, false: c.single} {
			got := slices.Collect(maps.Keys(Refused(c.caches, []*service.NodeGroup{group("g", 10*gi)}, cluster)))
			if fmt.Sprint(got) != want {
				t.Errorf("%s, cluster %v: %v are refused, want %s", name, cluster, got, want)
			}
		}
	}
}

func TestWait(t *testing.T) {
	for failures, want := range map[int]time.Duration{0: 10 * time.Second, 1: 10 * time.Second, 2: 20 * time.Second, 5: 160 * time.Second, 6: 5 * time.Minute, 1 << 40: 5 * time.Minute} {
		if got := Wait(failures); got != want {
			t.Errorf("after %d failures %s, want %s", failures, got, want)
		}
	}
}
