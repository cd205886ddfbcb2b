package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Watch watches the kinds of opts.ByObject through a cache of its own until ctx
// ends. seen receives every object as it is now, and with exists false every
// object that was deleted; synced runs once all objects of the first lists were
// seen.
func Watch(ctx context.Context, cfg *rest.Config, opts cache.Options, seen func(object any, exists bool), synced func()) error {
	opts.Scheme, opts.NewInformer = Scheme(), NewInformer
	c, err := cache.New(cfg, opts)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(ctx)
	var syncing sync.WaitGroup
	defer syncing.Wait()
	defer end()
	var lists []toolscache.ResourceEventHandlerRegistration
	for o := range opts.ByObject {
		inf, err := c.GetInformer(ctx, o, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %T: %w", o, err)
		}
		reg, err := inf.AddEventHandler(Handler(seen))
		if err != nil {
			return fmt.Errorf("watch %T: %w", o, err)
		}
		lists = append(lists, reg)
	}
	syncing.Go(func() {
		for _, list := range lists {
			select {
			case <-list.HasSyncedChecker().Done():
			case <-ctx.Done():
				return
			}
		}
		synced()
	})
	return c.Start(ctx)
}

// Handler is an informer's event handler that calls seen with every object as it
// is now, and with exists false and its last known state when it was deleted.
func Handler(seen func(object any, exists bool)) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { seen(o, true) },
		UpdateFunc: func(_, o any) { seen(o, true) },
		DeleteFunc: func(o any) {
			if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			seen(o, false)
		}}
}

// WatchSlices watches the EndpointSlices of a Service until ctx ends. changed
// receives all of them: first when the list is complete, then whenever one
// changes. transform changes them on their way into the cache, as tests need;
// it may be nil.
func WatchSlices(ctx context.Context, cfg *rest.Config, mapper meta.RESTMapper, of client.ObjectKey, transform toolscache.TransformFunc, changed func([]*discoveryv1.EndpointSlice)) error {
	var mu sync.Mutex
	complete, all := false, map[string]*discoveryv1.EndpointSlice{}
	opts := cache.Options{Mapper: mapper, DefaultTransform: Trim, ByObject: map[client.Object]cache.ByObject{&discoveryv1.EndpointSlice{}: {
		Namespaces: map[string]cache.Config{of.Namespace: {}}, Label: labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: of.Name}), Transform: transform}}}
	return Watch(ctx, cfg, opts, func(object any, exists bool) {
		es, ok := object.(*discoveryv1.EndpointSlice)
		if !ok {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if all[es.Name] = es; !exists {
			delete(all, es.Name)
		}
		if complete {
			changed(slices.Collect(maps.Values(all)))
		}
	}, func() {
		mu.Lock()
		defer mu.Unlock()
		complete = true
		changed(slices.Collect(maps.Values(all)))
	})
}
