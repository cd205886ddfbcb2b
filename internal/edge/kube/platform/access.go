package platform

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// accessKinds are what lets a router look for pods itself.
var accessKinds = map[kind]schema.GroupVersionKind{
	kindAccount: corev1.SchemeGroupVersion.WithKind(string(kindAccount)),
	kindRole:    rbacv1.SchemeGroupVersion.WithKind(string(kindRole)),
	kindBinding: rbacv1.SchemeGroupVersion.WithKind(string(kindBinding)),
}

// access is the watch of accounts, roles and bindings. It begins with the
// first service that needs some: few do, and whoever installs a controller may
// have kept these kinds from it.
type access struct {
	mu       sync.Mutex
	watching bool
}

// watchAccess sees to it that the accounts of routers are known. Only their
// metadata are read.
func (p *Platform) watchAccess(ctx context.Context) error {
	a := &p.access
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.watching {
		return nil
	}
	if err := p.mayWatchAccess(ctx); err != nil {
		return err
	}
	by := map[client.Object]cache.ByObject{}
	ours := cache.ByObject{Transform: trimMetadata, Label: labels.SelectorFromSet(labels.Set{shape.LabelManagedBy: shape.Manager})}
	for _, gvk := range accessKinds {
		by[metadataOf(gvk)] = ours
	}
	c, err := p.newCache(by, func(*runtime.Scheme) error { return nil })
	if err != nil {
		return err
	}
	watch, stop := context.WithCancel(p.groups.ctx)
	var all []<-chan struct{}
	for kd, gvk := range accessKinds {
		done, err := handle(ctx, c, metadataOf(gvk), handler(func(k service.Key, o *metav1.PartialObjectMetadata) {
			p.saw(k, id{kd, o.Name}, known(o))
		}, func(k service.Key, o *metav1.PartialObjectMetadata) {
			p.lost(k, id{kd, o.Name}, o.UID)
		}))
		if err != nil {
			stop()
			return err
		}
		all = append(all, done)
	}
	go p.keep(watch, c)
	ctx, cancel := context.WithTimeout(ctx, firstListTimeout)
	defer cancel()
	for _, done := range all {
		select {
		case <-done:
		case <-ctx.Done():
			stop()
			return fmt.Errorf("read the accounts of routers: %w", ctx.Err())
		}
	}
	a.watching = true
	context.AfterFunc(p.groups.ctx, stop)
	return nil
}

// mayWatchAccess finds out in one request for each kind whether it may be
// read: a watch that is forbidden says so to nobody.
func (p *Platform) mayWatchAccess(ctx context.Context) error {
	for _, namespace := range p.watched() {
		for _, gvk := range accessKinds {
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
			if err := p.cfg.Reader.List(ctx, list, client.InNamespace(namespace), client.Limit(1)); err != nil {
				return fmt.Errorf("the router looks for pods itself and needs an account that may: %w: allow the controller that, or name an account in the router's serviceAccountName", err)
			}
		}
	}
	return nil
}

// watched are the namespaces that are looked after; "" is all of them.
func (p *Platform) watched() []string {
	if len(p.cfg.Namespaces) == 0 {
		return []string{metav1.NamespaceAll}
	}
	return p.cfg.Namespaces
}

func metadataOf(gvk schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(gvk)
	return m
}

func trimMetadata(raw any) (any, error) {
	if m, ok := raw.(*metav1.PartialObjectMetadata); ok {
		trimMeta(m)
	}
	return raw, nil
}
