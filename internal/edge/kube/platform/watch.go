package platform

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube"
)

// watches keep services up to date. The watches of LeaderWorkerSets, of
// accounts, roles and bindings, and of ConfigMaps begin with the first service that needs them. Few
// services do, the kind may be installed later, and the controller may have no
// permission for these kinds.
type watches struct {
	rest       *rest.Config
	mapper     meta.RESTMapper
	reader     client.Reader
	namespaces []string
	services   *services
	log        *slog.Logger

	ctx    context.Context // of start
	synced []<-chan struct{}

	groups, access, models optional
}

// optional is a watch that begins when it is needed.
type optional struct {
	mu       sync.Mutex
	watching bool
}

// firstListTimeout bounds the first list of LeaderWorkerSets, and that of the
// accounts of routers.
const firstListTimeout = 10 * time.Second

// start watches the platform's objects until ctx ends: through in, which the
// caller starts and whose options were given to [Trimmed], and through a cache of
// its own for kinds of other groups. It must be called once.
func (w *watches) start(ctx context.Context, in cache.Informers) error {
	for _, of := range []struct {
		object client.Object
		kind   kind
	}{{&appsv1.Deployment{}, kindDeployment}, {&corev1.Service{}, kindService}, {&policyv1.PodDisruptionBudget{}, kindBudget}} {
		if err := w.watch(ctx, in, of.object, w.objects(of.kind)); err != nil {
			return err
		}
	}
	if err := w.watch(ctx, in, &corev1.Pod{}, w.podEvents()); err != nil {
		return err
	}
	own, err := w.newCache(map[client.Object]cache.ByObject{&autoscalingv2.HorizontalPodAutoscaler{}: {Transform: trimScaler}}, autoscalingv2.AddToScheme)
	if err != nil {
		return err
	}
	if err := w.watch(ctx, own, &autoscalingv2.HorizontalPodAutoscaler{}, w.services.scalerEvents()); err != nil {
		return err
	}
	if err := w.watch(ctx, own, &autoscalingv2.HorizontalPodAutoscaler{}, w.objects(kindScaler)); err != nil {
		return err
	}
	go w.keep(ctx, own)
	w.ctx = ctx
	if _, err := w.groupsInstalled(ctx); err != nil {
		w.log.Warn("LeaderWorkerSets could not be read: they will be read when a service needs them", "error", err)
	}
	return nil
}

// newCache makes a cache of some kinds.
func (w *watches) newCache(by map[client.Object]cache.ByObject, add func(*runtime.Scheme) error) (cache.Cache, error) {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, metav1.SchemeGroupVersion)
	if err := add(s); err != nil {
		return nil, fmt.Errorf("platform: %w", err)
	}
	opts := cache.Options{Scheme: s, Mapper: w.mapper, NewInformer: kube.NewInformer, ReaderFailOnMissingInformer: true,
		ByObject: by}
	opts.DefaultNamespaces = kube.Within(w.namespaces)
	c, err := cache.New(w.rest, opts)
	if err != nil {
		return nil, fmt.Errorf("platform: %w", err)
	}
	return c, nil
}

func (w *watches) keep(ctx context.Context, c cache.Cache) {
	if err := c.Start(ctx); err != nil {
		w.log.Error("a watch ended", "error", err)
	}
}

// watch adds a handler to a kind's watch.
func (w *watches) watch(ctx context.Context, in cache.Informers, o client.Object, h toolscache.ResourceEventHandler) error {
	done, err := handle(ctx, in, o, h)
	if err == nil {
		w.synced = append(w.synced, done)
	}
	return err
}

// sync waits until what was there at the start is known.
func (w *watches) sync(ctx context.Context) error {
	for _, done := range w.synced {
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("platform: the cluster's objects are not read yet: %w", ctx.Err())
		}
	}
	return nil
}

// handle adds a handler; done is closed when the handler has received everything
// that existed.
func handle(ctx context.Context, in cache.Informers, o client.Object, h toolscache.ResourceEventHandler) (done <-chan struct{}, err error) {
	informer, err := in.GetInformer(ctx, o, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("platform: watch %T: %w", o, err)
	}
	reg, err := informer.AddEventHandler(h)
	if err != nil {
		return nil, fmt.Errorf("platform: watch %T: %w", o, err)
	}
	return reg.HasSyncedChecker().Done(), nil
}

// handler calls seen for objects that exist, and gone for those that were deleted.
func handler[T metav1.Object](seen, gone func(service.Key, T)) toolscache.ResourceEventHandler {
	on := func(f func(service.Key, T)) func(any) {
		return func(raw any) {
			if d, ok := raw.(toolscache.DeletedFinalStateUnknown); ok {
				raw = d.Obj
			}
			o, ok := raw.(T)
			if !ok || o.GetLabels()[shape.LabelManagedBy] != shape.Manager {
				return
			}
			if k, ours := keyOf(o); ours {
				f(k, o)
			}
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: on(seen),
		UpdateFunc: func(before, now any) {
			a, ok := before.(metav1.Object)
			b, same := now.(metav1.Object)
			if ok && same && a.GetResourceVersion() == b.GetResourceVersion() {
				return // a resync
			}
			on(seen)(now)
		},
		DeleteFunc: on(gone),
	}
}

func (w *watches) objects(kd kind) toolscache.ResourceEventHandler {
	return handler(func(k service.Key, o client.Object) {
		w.services.saw(k, id{kd, o.GetName()}, known(o))
	}, func(k service.Key, o client.Object) {
		w.services.lost(k, id{kd, o.GetName()}, o.GetUID())
	})
}

func (w *watches) podEvents() toolscache.ResourceEventHandler {
	return handler(func(k service.Key, pod *corev1.Pod) {
		w.services.sawPod(k, pod.Name, pod)
	}, func(k service.Key, pod *corev1.Pod) {
		w.services.sawPod(k, pod.Name, nil)
	})
}

// groupsInstalled reports whether the cluster has LeaderWorkerSets, and begins to
// watch them.
func (w *watches) groupsInstalled(ctx context.Context) (bool, error) {
	w.groups.mu.Lock()
	defer w.groups.mu.Unlock()
	if w.groups.watching {
		return true, nil
	}
	switch _, err := w.mapper.RESTMapping(groupVersionKind.GroupKind(), groupVersionKind.Version); {
	case meta.IsNoMatchError(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for LeaderWorkerSet: %w", err)
	}
	u := newUnstructured(groupVersionKind)
	err := w.begin(ctx, "LeaderWorkerSets", map[client.Object]kind{u: kindGroups}, cache.ByObject{Transform: trimGroups})
	w.groups.watching = err == nil
	return err == nil, err
}

// watchAccess begins to watch the accounts of routers, of which it reads the
// metadata only.
func (w *watches) watchAccess(ctx context.Context) error {
	w.access.mu.Lock()
	defer w.access.mu.Unlock()
	if w.access.watching {
		return nil
	}
	if err := w.mayWatchAccess(ctx); err != nil {
		return err
	}
	kinds := map[client.Object]kind{}
	for kd, gvk := range accessKinds {
		kinds[metadataOf(gvk)] = kd
	}
	err := w.begin(ctx, "routers' accounts", kinds, cache.ByObject{Transform: trimMetadata})
	w.access.watching = err == nil
	return err
}

// watchModels begins to watch the lists of models that pods load, of which it reads the
// metadata only.
func (w *watches) watchModels(ctx context.Context) error {
	w.models.mu.Lock()
	defer w.models.mu.Unlock()
	if w.models.watching {
		return nil
	}
	for _, namespace := range w.watched() {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
		if err := w.reader.List(ctx, list, client.InNamespace(namespace), client.Limit(1)); err != nil {
			return fmt.Errorf("the models of TrainedModels are listed in a ConfigMap, and the controller may not read any: %w: allow it to (the chart's rbac.trainedModels), or give the service a model of its own", err)
		}
	}
	err := w.begin(ctx, "lists of models", map[client.Object]kind{metadataOf(kindModels.gvk()): kindModels}, cache.ByObject{Transform: trimMetadata})
	w.models.watching = err == nil
	return err
}

// begin watches more kinds, and returns when their existing objects are known.
func (w *watches) begin(ctx context.Context, what string, kinds map[client.Object]kind, how cache.ByObject) error {
	how.Label = labels.SelectorFromSet(labels.Set{shape.LabelManagedBy: shape.Manager})
	by := map[client.Object]cache.ByObject{}
	for o := range kinds {
		by[o] = how
	}
	c, err := w.newCache(by, func(*runtime.Scheme) error { return nil })
	if err != nil {
		return err
	}
	watch, stop := context.WithCancel(w.ctx)
	var all []<-chan struct{}
	for o, kd := range kinds {
		done, err := handle(ctx, c, o, w.objects(kd))
		if err != nil {
			stop()
			return err
		}
		all = append(all, done)
	}
	go w.keep(watch, c)
	ctx, cancel := context.WithTimeout(ctx, firstListTimeout)
	defer cancel()
	for _, done := range all {
		select {
		case <-done:
		case <-ctx.Done():
			stop()
			return fmt.Errorf("read the %s: %w", what, ctx.Err())
		}
	}
	context.AfterFunc(w.ctx, stop)
	return nil
}

// mayWatchAccess asks, in one request for each kind, whether it may be read. A
// forbidden watch would fail silently.
func (w *watches) mayWatchAccess(ctx context.Context) error {
	for _, namespace := range w.watched() {
		for _, gvk := range accessKinds {
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
			if err := w.reader.List(ctx, list, client.InNamespace(namespace), client.Limit(1)); err != nil {
				return fmt.Errorf("the router lists pods itself, and the controller may not give it an account for that: %w: allow the controller to, or name an account in the router's serviceAccountName", err)
			}
		}
	}
	return nil
}

// watched lists the namespaces to watch; "" means all of them.
func (w *watches) watched() []string {
	if len(w.namespaces) == 0 {
		return []string{metav1.NamespaceAll}
	}
	return w.namespaces
}
