package platform

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

var groupVersionKind = schema.GroupVersionKind{Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: string(kindGroups)}

// firstListTimeout bounds the first look at LeaderWorkerSets, and at the
// accounts of routers.
const firstListTimeout = 10 * time.Second

// groups is the watch of LeaderWorkerSets, which begins when their kind is
// there.
type groups struct {
	ctx context.Context // of Start

	mu       sync.Mutex
	watching bool
}

// groupsInstalled reports whether LeaderWorkerSets can be made, and sees to it
// that those that are there are known.
func (p *Platform) groupsInstalled(ctx context.Context) (bool, error) {
	g := &p.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.watching {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, firstListTimeout)
	defer cancel()
	switch _, err := p.cfg.Client.RESTMapper().RESTMapping(groupVersionKind.GroupKind(), groupVersionKind.Version); {
	case meta.IsNoMatchError(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for LeaderWorkerSet: %w", err)
	}
	u := newUnstructured(groupVersionKind)
	c, err := p.newCache(map[client.Object]cache.ByObject{u: {Transform: trimGroups,
		Label: labels.SelectorFromSet(labels.Set{shape.LabelManagedBy: shape.Manager})}}, func(*runtime.Scheme) error { return nil })
	if err != nil {
		return false, err
	}
	watch, stop := context.WithCancel(g.ctx)
	done, err := handle(ctx, c, u, handler(func(k service.Key, o *unstructured.Unstructured) {
		p.saw(k, id{kindGroups, o.GetName()}, known(o))
	}, func(k service.Key, o *unstructured.Unstructured) {
		p.lost(k, id{kindGroups, o.GetName()}, o.GetUID())
	}))
	if err != nil {
		stop()
		return false, err
	}
	go p.keep(watch, c)
	select {
	case <-done:
	case <-ctx.Done():
		stop()
		return false, fmt.Errorf("read LeaderWorkerSets: %w", ctx.Err())
	}
	g.watching = true
	context.AfterFunc(g.ctx, stop)
	return true, nil
}

func newUnstructured(gvk schema.GroupVersionKind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	return u
}

func trimGroups(raw any) (any, error) {
	u, ok := raw.(*unstructured.Unstructured)
	if !ok {
		return raw, nil
	}
	trimMeta(u)
	n, found, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
	delete(u.Object, "status")
	u.Object["spec"] = map[string]any{}
	if found {
		u.Object["spec"] = map[string]any{"replicas": n}
	}
	return u, nil
}

// replicasOf reads spec.replicas, which the API servers of both kinds take for 1
// when it is absent.
func replicasOf(o *unstructured.Unstructured) int {
	n, found, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
	if !found {
		return 1
	}
	return int(n)
}
