package objects

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
)

// configMaps is the kind of ConfigMaps that services name.
var configMaps = &Kind{GroupKind: schema.GroupKind{Kind: "ConfigMap"}, Plural: "configmaps", Versions: []string{"v1"}, ID: dialect.ConfigMapID}

var configMapKind = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}

// configs are the ConfigMaps that manifests name. A cluster has many of others: their
// metadata alone is watched, once a manifest names one, and only those of the names are
// read.
type configs struct {
	cache  cache.Cache
	reader client.Reader // past the cache
	queue  interface{ Add(item) }

	mu       sync.Mutex
	by       map[item]string // the manifests that name one
	names    map[string]int  // by how many
	informer cache.Informer  // nil until one is named
}

func newConfigs(cfg *Config, queue interface{ Add(item) }) *configs {
	return &configs{cache: cfg.Cache, reader: cfg.ConfigMaps, queue: queue, by: map[item]string{}, names: map[string]int{}}
}

// named is the ConfigMap that a manifest's object names; "" for none.
func (c *claim) named() string {
	var from *service.ConfigMapKey
	switch {
	case c == nil || c.object == nil:
	case c.object.Service != nil:
		from = c.object.Service.SchedulingFrom
	case c.object.Base != nil:
		from = c.object.Base.SchedulingFrom
	}
	if from == nil {
		return ""
	}
	return from.Name
}

// follow notes which ConfigMap a manifest names now, and has it read if no other manifest
// names it.
func (c *configs) follow(ctx context.Context, i item, name string) error {
	if c.reader == nil || i.kind == configMaps {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.by[i]
	if was == name {
		return nil
	}
	if was != "" {
		if c.names[was]--; c.names[was] == 0 {
			delete(c.names, was)
		}
	}
	if delete(c.by, i); name == "" {
		return nil
	}
	c.by[i] = name
	if c.names[name]++; c.names[name] > 1 {
		return nil
	}
	return c.look(ctx, name)
}

// look queues the ConfigMaps of a name; mu is held.
func (c *configs) look(ctx context.Context, name string) error {
	if c.informer == nil {
		inf, err := c.cache.GetInformer(ctx, metadataOf(configMapKind), cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch ConfigMaps: %w", err)
		}
		add := func(obj any) {
			if key, err := toolscache.DeletionHandlingObjectToName(obj); err == nil && c.wanted(key.Name) {
				c.queue.Add(item{configMaps, types.NamespacedName{Namespace: key.Namespace, Name: key.Name}})
			}
		}
		if _, err := inf.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, now any) { add(now) }, DeleteFunc: add}); err != nil {
			return fmt.Errorf("watch ConfigMaps: %w", err)
		}
		c.informer = inf
		return nil
	}
	items, err := c.items(ctx, func(n string) bool { return n == name })
	for _, i := range items {
		c.queue.Add(i)
	}
	return err
}

// items are the ConfigMaps whose name matches, of those listed.
func (c *configs) items(ctx context.Context, match func(string) bool) (out []item, err error) {
	if c.informer == nil || !c.informer.HasSynced() { // each is queued as it comes
		return nil, nil
	}
	var all metav1.PartialObjectMetadataList
	all.SetGroupVersionKind(configMapKind)
	if err := c.cache.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	for i := range all.Items {
		if m := &all.Items[i]; match(m.Name) {
			out = append(out, item{configMaps, types.NamespacedName{Namespace: m.Namespace, Name: m.Name}})
		}
	}
	return out, nil
}

func (c *configs) wanted(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.names[name] > 0
}

// listLimit is how long a start waits for the list of ConfigMaps: an account may be
// forbidden to read it, and services run without it.
const listLimit = 10 * time.Second

// listed are the ConfigMaps that manifests name, once there is a list. ok is false where
// there is none in time.
func (c *configs) listed(ctx context.Context) (out []item, ok bool, err error) {
	c.mu.Lock()
	inf := c.informer
	c.mu.Unlock()
	if inf == nil {
		return nil, true, nil
	}
	limit := time.NewTimer(listLimit)
	defer limit.Stop()
	select {
	case <-inf.HasSyncedChecker().Done():
	case <-limit.C:
		return nil, false, nil
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	out, err = c.items(ctx, func(n string) bool { return c.names[n] > 0 })
	return out, true, err
}

// configClaim reads a ConfigMap. One that nobody names, or without a configuration, is
// no manifest of ours.
func (s *Source) configClaim(ctx context.Context, i item) (*claim, error) {
	if !s.configs.wanted(i.Name) || !s.kinds.adopted(ctx, service.DialectKServe, i.Namespace) {
		return nil, nil
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(configMapKind)
	switch err := s.configs.reader.Get(ctx, i.NamespacedName, u); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	doc, err := Document(u)
	if err != nil {
		return nil, err
	}
	c := &claim{ref: Ref{configMapKind, i.id().Key, u.GetUID(), u.GetGeneration()}, created: u.GetCreationTimestamp().Time, document: doc}
	if before := s.claims.get(i); before != nil && before.ref.UID == c.ref.UID && bytes.Equal(before.document, doc) {
		return before, nil
	}
	if c.object, _, c.warnings = parse(doc); c.object == nil {
		return nil, nil
	}
	c.object.SetCreated(c.created)
	return c, nil
}
