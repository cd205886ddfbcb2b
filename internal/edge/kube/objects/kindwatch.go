package objects

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// LabelAdopt on a namespace names the foreign dialects whose manifests are
// read there.
const LabelAdopt = shape.LabelAdopt

// Foreign are the dialects that other controllers may serve in the same
// cluster.
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

// watcher watches the kinds of manifests that CRDs and namespaces select, and
// queues every manifest that changes.
type watcher struct {
	cache      cache.Cache
	mapper     meta.RESTMapper
	adopt      []service.Dialect
	namespaces []string
	only       func(*Kind) bool
	queue      interface{ Add(item) }
	// listed is called when a kind has been listed; unwatched, when it is no
	// longer watched.
	listed, unwatched func(*Kind)
	log               *slog.Logger

	// based is closed when it is known which kinds there are, and which
	// namespaces adopt.
	based    chan struct{}
	ensuring sync.Mutex

	mu struct {
		sync.Mutex
		running map[*Kind]*running
		ensured bool // running is complete
	}
}

// running is a kind that is watched.
type running struct {
	list     *unstructured.UnstructuredList // empty, of the kind
	object   *unstructured.Unstructured     // empty, of the kind
	informer cache.Informer
}

// informed returns how a kind is watched, nil if it is not.
func (w *watcher) informed(k *Kind) *running {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.running[k]
}

// base watches the installed kinds and the namespaces' adopt labels.
func (w *watcher) base(ctx context.Context) error {
	kinds := toolscache.FilteringResourceEventHandler{
		FilterFunc: func(obj any) bool {
			key, err := toolscache.DeletionHandlingObjectToName(obj)
			return err == nil && slices.ContainsFunc(Kinds, func(k *Kind) bool { return k.CRD() == key.Name })
		},
		Handler: toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) { w.queue.Add(item{}) },
			UpdateFunc: func(any, any) { w.queue.Add(item{}) }, DeleteFunc: func(any) { w.queue.Add(item{}) }},
	}
	watches := map[schema.GroupVersionKind]toolscache.ResourceEventHandler{crdKind: kinds}
	if len(w.namespaces) == 0 {
		watches[namespaceKind] = toolscache.ResourceEventHandlerFuncs{AddFunc: func(o any) { w.adopts(ctx, o, nil) },
			UpdateFunc: func(old, now any) { w.adopts(ctx, now, old) }}
	}
	for gvk, h := range watches {
		inf, err := w.cache.GetInformer(ctx, metadataOf(gvk), cache.BlockUntilSynced(false))
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
	close(w.based)
	return nil
}

// adopts looks at a namespace whose label may have changed.
func (w *watcher) adopts(ctx context.Context, now, old any) {
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
	w.queue.Add(item{})
	m, err := meta.Accessor(now)
	if err != nil {
		return
	}
	items, err := w.all(ctx)
	if err != nil {
		w.log.Error("manifests could not be listed after a namespace's label changed", "namespace", m.GetName(), "error", err)
	}
	for _, i := range items {
		if i.Namespace == m.GetName() {
			w.queue.Add(i)
		}
	}
}

// adopted reports whether manifests of a dialect are read in a namespace; "" asks
// for those that belong to none: they are read where any namespace's are.
func (w *watcher) adopted(ctx context.Context, d service.Dialect, namespace string) bool {
	if !slices.Contains(Foreign, d) || slices.Contains(w.adopt, d) {
		return true
	}
	if len(w.namespaces) > 0 {
		return false
	}
	if namespace == "" {
		return w.anyAdopts(ctx, d)
	}
	ns := metadataOf(namespaceKind)
	if err := w.cache.Get(ctx, client.ObjectKey{Name: namespace}, ns); err != nil {
		return false
	}
	return names(ns.Labels[LabelAdopt], d)
}

func (w *watcher) anyAdopts(ctx context.Context, d service.Dialect) bool {
	var all metav1.PartialObjectMetadataList
	all.SetGroupVersionKind(namespaceKind)
	if err := w.cache.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return false
	}
	return slices.ContainsFunc(all.Items, func(ns metav1.PartialObjectMetadata) bool { return names(ns.Labels[LabelAdopt], d) })
}

// names reports whether a label's value contains a dialect's name.
func names(value string, d service.Dialect) bool {
	return slices.Contains(strings.FieldsFunc(value, func(r rune) bool { return r == '.' || r == '_' }), string(d))
}

// wanted reports whether a kind is to be watched: it is installed, and ours or
// adopted somewhere.
func (w *watcher) wanted(ctx context.Context, k *Kind) bool {
	if w.only != nil && !w.only(k) {
		return false
	}
	crd := metadataOf(crdKind)
	err := w.cache.Get(ctx, client.ObjectKey{Name: k.CRD()}, crd)
	return err == nil && crd.DeletionTimestamp.IsZero() && w.adopted(ctx, k.Dialect(), "")
}

// ensure watches the kinds that are to be watched, and no others.
func (w *watcher) ensure(ctx context.Context) error {
	w.ensuring.Lock()
	defer w.ensuring.Unlock()
	var errs []error
	for _, k := range Kinds {
		r := w.informed(k)
		switch want := w.wanted(ctx, k); {
		case want && r == nil:
			errs = append(errs, w.watch(ctx, k))
		case !want && r != nil:
			errs = append(errs, w.unwatch(ctx, k, r))
		}
	}
	w.mu.Lock()
	w.mu.ensured = true
	w.mu.Unlock()
	return errors.Join(errs...)
}

// watch begins to watch a kind, in the first version we read that is served.
func (w *watcher) watch(ctx context.Context, k *Kind) error {
	var err error
	for _, v := range k.Versions {
		if _, err = w.mapper.RESTMapping(k.GroupKind, v); err != nil {
			continue
		}
		r := &running{list: &unstructured.UnstructuredList{}, object: &unstructured.Unstructured{}}
		r.object.SetGroupVersionKind(k.WithVersion(v))
		r.list.SetGroupVersionKind(k.WithVersion(v))
		if r.informer, err = w.cache.GetInformer(ctx, r.object.DeepCopy(), cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("watch %s: %w", k.CRD(), err)
		}
		if _, err = r.informer.AddEventHandler(w.handler(k)); err != nil {
			return fmt.Errorf("watch %s: %w", k.CRD(), err)
		}
		w.mu.Lock()
		w.mu.running[k] = r
		w.mu.Unlock()
		w.log.Info("watching", "kind", k.CRD(), "version", v)
		done := r.informer.HasSyncedChecker().Done()
		go func() {
			<-done // also when the informer is stopped: then ensure looks again
			w.listed(k)
		}()
		return nil
	}
	return fmt.Errorf("%s is installed and not served in a version that is read (%s): %w", k.CRD(), strings.Join(k.Versions, ", "), err)
}

// unwatch stops watching a kind; its manifests count as gone.
func (w *watcher) unwatch(ctx context.Context, k *Kind, r *running) error {
	if err := w.cache.RemoveInformer(ctx, r.object.DeepCopy()); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("stop watching %s: %w", k.CRD(), err)
	}
	w.log.Info("no longer watching", "kind", k.CRD())
	w.mu.Lock()
	delete(w.mu.running, k)
	w.mu.Unlock()
	w.unwatched(k)
	return nil
}

// handler queues every manifest of a kind that changes.
func (w *watcher) handler(k *Kind) toolscache.ResourceEventHandler {
	add := func(obj any) {
		key, err := toolscache.DeletionHandlingObjectToName(obj)
		if err == nil {
			w.queue.Add(item{k, types.NamespacedName{Namespace: key.Namespace, Name: key.Name}})
		}
	}
	return toolscache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, now any) { add(now) }, DeleteFunc: add}
}

// ready reports whether every kind that is watched has been listed.
func (w *watcher) ready() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.mu.ensured {
		return false
	}
	for _, r := range w.mu.running {
		if !r.informer.HasSynced() {
			return false
		}
	}
	return true
}

// count counts the kinds that are watched: those that have been listed, and
// those whose first list is still waited for.
func (w *watcher) count() (read, unread int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.mu.running {
		if r.informer.HasSynced() {
			read++
		} else {
			unread++
		}
	}
	return read, unread
}

// synced waits until every kind that is to be watched has been listed.
func (w *watcher) synced(ctx context.Context) error {
	select {
	case <-w.based:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := w.ensure(ctx); err != nil {
		// The services in such a kind's records are kept until it can be read.
		w.log.Warn("not every kind can be watched yet", "error", err)
	}
	w.mu.Lock()
	waits := map[*Kind]<-chan struct{}{}
	for k, r := range w.mu.running {
		waits[k] = r.informer.HasSyncedChecker().Done()
	}
	w.mu.Unlock()
	for k, done := range waits {
		if err := w.await(ctx, k, done); err != nil {
			return err
		}
	}
	return nil
}

// await waits for a kind's first list, and logs when that takes long.
func (w *watcher) await(ctx context.Context, k *Kind, done <-chan struct{}) error {
	const long = 10 * time.Second
	t := time.NewTicker(long)
	defer t.Stop()
	for {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
			w.log.Warn("the first list of a kind takes long: check that this account may list and watch it", "kind", k.CRD())
		}
	}
}

// all lists every manifest that is watched, adopted or not.
func (w *watcher) all(ctx context.Context) ([]item, error) {
	w.mu.Lock()
	lists := map[*Kind]*unstructured.UnstructuredList{}
	for k, r := range w.mu.running {
		lists[k] = r.list.DeepCopy()
	}
	w.mu.Unlock()
	var out []item
	for k, l := range lists {
		if err := w.cache.List(ctx, l, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list %s: %w", k.CRD(), err)
		}
		for i := range l.Items {
			out = append(out, item{k, types.NamespacedName{Namespace: l.Items[i].GetNamespace(), Name: l.Items[i].GetName()}})
		}
	}
	return out, nil
}

// validAdopt refuses names of unknown dialects.
func validAdopt(in []service.Dialect) error {
	for _, d := range in {
		if !slices.Contains(Foreign, d) {
			return fmt.Errorf("%q is not a dialect to adopt: write some of %s", d, joined(Foreign))
		}
	}
	return nil
}
