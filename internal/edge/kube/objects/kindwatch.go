package objects

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// LabelAdopt on a namespace names the foreign dialects whose manifests are
// read there.
const LabelAdopt = shape.LabelAdopt

// Foreign are the dialects that others may serve in the same cluster.
var Foreign = []service.Dialect{service.DialectKServe, service.DialectOME, service.DialectSeldon, service.DialectGateway}

func joined(ds []service.Dialect) string {
	out := make([]string, len(ds))
	for i, d := range ds {
		out[i] = string(d)
	}
	return strings.Join(out, ", ")
}

// The kinds that are known by their metadata alone.
var (
	crdKind       = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}
	namespaceKind = schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}
)

func metadataOf(gvk schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(gvk)
	return o
}

// base watches which kinds there are and which namespaces adopt what.
func (s *Source) base(ctx context.Context) error {
	kinds := toolscache.FilteringResourceEventHandler{
		FilterFunc: func(obj any) bool {
			key, err := toolscache.DeletionHandlingObjectToName(obj)
			return err == nil && slices.ContainsFunc(Kinds, func(k *Kind) bool { return k.CRD() == key.Name })
		},
		Handler: toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) { s.queue.Add(item{}) },
			UpdateFunc: func(any, any) { s.queue.Add(item{}) }, DeleteFunc: func(any) { s.queue.Add(item{}) }},
	}
	watches := map[schema.GroupVersionKind]toolscache.ResourceEventHandler{crdKind: kinds}
	if len(s.cfg.Namespaces) == 0 {
		watches[namespaceKind] = toolscache.ResourceEventHandlerFuncs{AddFunc: func(o any) { s.adopts(ctx, o, nil) },
			UpdateFunc: func(old, now any) { s.adopts(ctx, now, old) }}
	}
	for gvk, h := range watches {
		inf, err := s.cfg.Cache.GetInformer(ctx, metadataOf(gvk), cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %ss: %w", gvk.Kind, err)
		}
		reg, err := inf.AddEventHandler(h)
		if err != nil {
			return fmt.Errorf("watch %ss: %w", gvk.Kind, err)
		}
		select {
		case <-reg.HasSyncedChecker().Done():
		case <-ctx.Done():
			return nil
		}
	}
	close(s.based)
	return nil
}

// adopts looks at a namespace whose label may have changed.
func (s *Source) adopts(ctx context.Context, now, old any) {
	label := func(o any) string {
		m, err := meta.Accessor(o)
		if err != nil {
			return ""
		}
		return m.GetLabels()[LabelAdopt]
	}
	if label(now) == label(old) {
		return
	}
	s.queue.Add(item{})
	m, err := meta.Accessor(now)
	if err != nil {
		return
	}
	items, err := s.all(ctx)
	if err != nil {
		s.cfg.Log.Error("a namespace's label may not be heeded", "namespace", m.GetName(), "error", err)
	}
	for _, i := range items {
		if i.Namespace == m.GetName() {
			s.queue.Add(i)
		}
	}
}

// Adopted reports whether manifests of a dialect are read in a namespace.
func (s *Source) Adopted(ctx context.Context, d service.Dialect, namespace string) bool {
	return s.adopted(ctx, d, namespace)
}

// adopted reports whether manifests of a dialect are read in a namespace; "" asks
// for those that belong to none: they are read where any namespace's are.
func (s *Source) adopted(ctx context.Context, d service.Dialect, namespace string) bool {
	if !slices.Contains(Foreign, d) || slices.Contains(s.cfg.Adopt, d) {
		return true
	}
	if len(s.cfg.Namespaces) > 0 {
		return false
	}
	if namespace == "" {
		return s.anyAdopts(ctx, d)
	}
	ns := metadataOf(namespaceKind)
	if err := s.cfg.Cache.Get(ctx, client.ObjectKey{Name: namespace}, ns); err != nil {
		return false
	}
	return names(ns.Labels[LabelAdopt], d)
}

func (s *Source) anyAdopts(ctx context.Context, d service.Dialect) bool {
	var all metav1.PartialObjectMetadataList
	all.SetGroupVersionKind(namespaceKind)
	if err := s.cfg.Cache.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return false
	}
	return slices.ContainsFunc(all.Items, func(ns metav1.PartialObjectMetadata) bool { return names(ns.Labels[LabelAdopt], d) })
}

// names reports whether a label's value names a dialect.
func names(value string, d service.Dialect) bool {
	return slices.Contains(strings.FieldsFunc(value, func(r rune) bool { return r == '.' || r == '_' }), string(d))
}

// wanted reports whether a kind is to be watched: it is installed, and ours or
// adopted somewhere.
func (s *Source) wanted(ctx context.Context, k *Kind) bool {
	if s.cfg.Only != nil && !s.cfg.Only(k) {
		return false
	}
	crd := metadataOf(crdKind)
	err := s.cfg.Cache.Get(ctx, client.ObjectKey{Name: k.CRD()}, crd)
	return err == nil && crd.DeletionTimestamp.IsZero() && s.adopted(ctx, k.Dialect(), "")
}

// ensure watches the kinds that are to be watched, and no others.
func (s *Source) ensure(ctx context.Context) error {
	var errs []error
	for _, k := range Kinds {
		s.mu.Lock()
		r := s.mu.running[k]
		s.mu.Unlock()
		switch want := s.wanted(ctx, k); {
		case want && r == nil:
			errs = append(errs, s.watch(ctx, k))
		case !want && r != nil:
			errs = append(errs, s.unwatch(ctx, k, r))
		}
	}
	s.mu.Lock()
	s.mu.ensured = true
	s.mu.Unlock()
	return errors.Join(errs...)
}

// watch begins to watch a kind, in the first version we read that is served.
func (s *Source) watch(ctx context.Context, k *Kind) error {
	var err error
	for _, v := range k.Versions {
		if _, err = s.cfg.Mapper.RESTMapping(k.GroupKind, v); err != nil {
			continue
		}
		r := &running{list: &unstructured.UnstructuredList{}, object: &unstructured.Unstructured{}}
		r.object.SetGroupVersionKind(k.WithVersion(v))
		r.list.SetGroupVersionKind(k.WithVersion(v))
		if r.informer, err = s.cfg.Cache.GetInformer(ctx, r.object.DeepCopy(), cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("watch %s: %w", k.CRD(), err)
		}
		if _, err = r.informer.AddEventHandler(s.handler(k)); err != nil {
			return fmt.Errorf("watch %s: %w", k.CRD(), err)
		}
		s.mu.Lock()
		s.mu.running[k] = r
		s.mu.Unlock()
		s.cfg.Log.Info("watching", "kind", k.CRD(), "version", v)
		s.sweep(r)
		return nil
	}
	return fmt.Errorf("%s is installed and not served in a version that is read (%s): %w", k.CRD(), strings.Join(k.Versions, ", "), err)
}

// sweep looks, once a kind has been listed, at what was kept by its records:
// its manifests may be gone.
func (s *Source) sweep(r *running) {
	done := r.informer.HasSyncedChecker().Done()
	go func() {
		<-done // also when the informer is stopped: then ensure looks again
		s.mu.Lock()
		defer s.mu.Unlock()
		for id, at := range s.mu.applied {
			if at == (applied{}) {
				for _, k := range Kinds {
					if k.ID == id.Kind && s.mu.running[k] == r {
						i := item{kind: k}
						i.Namespace, i.Name = id.Namespace, id.Name
						s.queue.Add(i)
					}
				}
			}
		}
	}()
}

// unwatch stops watching a kind; its manifests count as gone.
func (s *Source) unwatch(ctx context.Context, k *Kind, r *running) error {
	if err := s.cfg.Cache.RemoveInformer(ctx, r.object.DeepCopy()); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("stop watching %s: %w", k.CRD(), err)
	}
	s.cfg.Log.Info("no longer watching", "kind", k.CRD())
	s.mu.Lock()
	delete(s.mu.running, k)
	var gone []item
	for _, claims := range s.mu.claims {
		for i := range claims {
			if i.kind == k {
				gone = append(gone, i)
			}
		}
	}
	s.mu.Unlock()
	for _, i := range gone {
		s.queue.Add(i)
	}
	return nil
}
