package platform

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube"
)

// Start watches what the platform is made of, until ctx ends: through in,
// whose options were given to [Trimmed] and which the caller starts, and
// through a cache of its own for kinds of other groups. Once only.
func (p *Platform) Start(ctx context.Context, in cache.Informers) error {
	for _, w := range []struct {
		object client.Object
		kind   kind
	}{{&appsv1.Deployment{}, kindDeployment}, {&corev1.Service{}, kindService}, {&policyv1.PodDisruptionBudget{}, kindBudget}} {
		if err := p.watch(ctx, in, w.object, p.objects(w.kind)); err != nil {
			return err
		}
	}
	if err := p.watch(ctx, in, &corev1.Pod{}, p.podEvents()); err != nil {
		return err
	}
	own, err := p.newCache(map[client.Object]cache.ByObject{&autoscalingv2.HorizontalPodAutoscaler{}: {Transform: trimScaler}}, autoscalingv2.AddToScheme)
	if err != nil {
		return err
	}
	if err := p.watch(ctx, own, &autoscalingv2.HorizontalPodAutoscaler{}, p.scalerEvents()); err != nil {
		return err
	}
	if err := p.watch(ctx, own, &autoscalingv2.HorizontalPodAutoscaler{}, p.objects(kindScaler)); err != nil {
		return err
	}
	go p.keep(ctx, own)
	p.groups.ctx = ctx
	if _, err := p.groupsInstalled(ctx); err != nil {
		p.cfg.Log.Warn("LeaderWorkerSets are looked for again when a service needs one", "error", err)
	}
	go p.run(ctx)
	go p.runNews(ctx)
	go p.runSurged(ctx)
	close(p.started)
	return nil
}

// newCache makes a cache of some kinds.
func (p *Platform) newCache(by map[client.Object]cache.ByObject, add func(*runtime.Scheme) error) (cache.Cache, error) {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, metav1.SchemeGroupVersion)
	if err := add(s); err != nil {
		return nil, fmt.Errorf("platform: %w", err)
	}
	opts := cache.Options{Scheme: s, Mapper: p.cfg.Client.RESTMapper(), NewInformer: kube.NewInformer, ReaderFailOnMissingInformer: true,
		ByObject: by}
	if len(p.cfg.Namespaces) > 0 {
		opts.DefaultNamespaces = map[string]cache.Config{}
		for _, ns := range p.cfg.Namespaces {
			opts.DefaultNamespaces[ns] = cache.Config{}
		}
	}
	c, err := cache.New(p.cfg.REST, opts)
	if err != nil {
		return nil, fmt.Errorf("platform: %w", err)
	}
	return c, nil
}

func (p *Platform) keep(ctx context.Context, c cache.Cache) {
	if err := c.Start(ctx); err != nil {
		p.cfg.Log.Error("a watch ended", "error", err)
	}
}

// watch adds a handler to a kind's watch.
func (p *Platform) watch(ctx context.Context, in cache.Informers, o client.Object, h toolscache.ResourceEventHandler) error {
	done, err := handle(ctx, in, o, h)
	if err == nil {
		p.synced = append(p.synced, done)
	}
	return err
}

// handle adds a handler; done is closed when it has been given everything that
// was there.
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

// handler calls seen for what is there, and gone for what no longer is.
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

func (p *Platform) objects(kd kind) toolscache.ResourceEventHandler {
	return handler(func(k service.Key, o client.Object) {
		p.saw(k, id{kd, o.GetName()}, known(o))
	}, func(k service.Key, o client.Object) {
		p.lost(k, id{kd, o.GetName()}, o.GetUID())
	})
}

func (p *Platform) podEvents() toolscache.ResourceEventHandler {
	return handler(func(k service.Key, pod *corev1.Pod) {
		p.sawPod(k, pod.Name, pod)
	}, func(k service.Key, pod *corev1.Pod) {
		p.sawPod(k, pod.Name, nil)
	})
}

// known reads what is remembered of an object.
func known(o client.Object) object {
	out := object{uid: o.GetUID(), version: o.GetResourceVersion(), role: service.Role(o.GetLabels()[shape.LabelRole]),
		applied: o.GetAnnotations()[shape.AnnotationApplied], revision: o.GetLabels()[shape.LabelRevision],
		deleting: o.GetDeletionTimestamp() != nil}
	switch o := o.(type) {
	case *appsv1.Deployment:
		out.count = 1 // what the API server takes an absent one for
		if o.Spec.Replicas != nil {
			out.count = int(*o.Spec.Replicas)
		}
		for _, c := range o.Status.Conditions {
			if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
				out.refused = c.Message
			}
		}
	case *unstructured.Unstructured:
		if !kind(o.GetKind()).counted() {
			break
		}
		out.replicas, out.surge = replicasOf(o), surging(o)
		out.count = wantedOf(out.replicas, out.surge)
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		for _, raw := range conditions {
			c, _ := raw.(map[string]any)
			if c["type"] == string(appsv1.DeploymentReplicaFailure) && c["status"] == string(corev1.ConditionTrue) {
				out.refused, _ = c["message"].(string)
			}
		}
	}
	return out
}

// Trimmed has a cache keep of the platform's kinds only Roundhouse's own
// objects, and of those only what is read: a pod without its volumes and
// variables is a quarter of itself. What such a cache returns must not be
// written back whole.
func Trimmed(o *cache.Options) error {
	for kind, by := range o.ByObject {
		switch kind.(type) {
		case *corev1.Pod:
			by.Transform = chain(by.Transform, o.DefaultTransform, trimPod)
		case *appsv1.Deployment:
			by.Transform = chain(by.Transform, o.DefaultTransform, trimDeployment)
		case *corev1.Service:
			by.Transform = chain(by.Transform, o.DefaultTransform, func(raw any) (any, error) {
				if s, ok := raw.(*corev1.Service); ok {
					s.Spec, s.Status = corev1.ServiceSpec{}, corev1.ServiceStatus{}
				}
				return raw, nil
			})
		case *policyv1.PodDisruptionBudget:
			by.Transform = chain(by.Transform, o.DefaultTransform, func(raw any) (any, error) {
				if b, ok := raw.(*policyv1.PodDisruptionBudget); ok {
					b.Spec, b.Status = policyv1.PodDisruptionBudgetSpec{}, policyv1.PodDisruptionBudgetStatus{}
				}
				return raw, nil
			})
		default:
			continue
		}
		if by.Label == nil {
			return errors.New("platform: the cache would hold every " + fmt.Sprintf("%T", kind) + " of the cluster: select by " + shape.LabelManagedBy)
		}
		o.ByObject[kind] = by
	}
	return nil
}

// chain applies the kind's own transform, or else the default, and then last.
func chain(own, byDefault, last toolscache.TransformFunc) toolscache.TransformFunc {
	first := own
	if first == nil {
		first = byDefault
	}
	return func(raw any) (any, error) {
		if first != nil {
			var err error
			if raw, err = first(raw); err != nil {
				return raw, err
			}
		}
		return last(raw)
	}
}

func trimMeta(o metav1.Object) {
	o.SetManagedFields(nil)
	var kept map[string]string
	for _, name := range []string{shape.AnnotationService, shape.AnnotationApplied, deletionCost, annotationSurge} {
		if v, ok := o.GetAnnotations()[name]; ok {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[name] = v
		}
	}
	o.SetAnnotations(kept)
	o.SetOwnerReferences(nil)
}

func trimPod(raw any) (any, error) {
	pod, ok := raw.(*corev1.Pod)
	if !ok {
		return raw, nil
	}
	trimMeta(pod)
	pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, InitContainers: names(pod.Spec.InitContainers),
		Containers: names(pod.Spec.Containers)}
	st := &pod.Status
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
		for i := range list {
			c := &list[i]
			c.ImageID, c.ContainerID, c.VolumeMounts, c.AllocatedResources, c.Resources, c.User, c.AllocatedResourcesStatus =
				"", "", nil, nil, nil, nil, nil
		}
	}
	st.PodIPs, st.HostIPs, st.EphemeralContainerStatuses, st.ResourceClaimStatuses = nil, nil, nil, nil
	return pod, nil
}

// names keeps of containers what tells them apart.
func names(in []corev1.Container) []corev1.Container {
	out := make([]corev1.Container, len(in))
	for i := range in {
		out[i] = corev1.Container{Name: in[i].Name, Image: in[i].Image, RestartPolicy: in[i].RestartPolicy}
	}
	return out
}

func trimDeployment(raw any) (any, error) {
	d, ok := raw.(*appsv1.Deployment)
	if !ok {
		return raw, nil
	}
	trimMeta(d)
	d.Spec = appsv1.DeploymentSpec{Replicas: d.Spec.Replicas}
	return d, nil
}
