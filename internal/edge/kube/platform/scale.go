package platform

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// deletionCost tells a ReplicaSet which pods to end first: those that cost
// least, among those as ready as each other.
const (
	deletionCost = corev1.PodDeletionCost
	victimCost   = "-1000000"
)

// maxReplicas is the most a role is scaled to.
const maxReplicas = 1 << 20

// Scale sets the count of a role through the scale subresource. If an autoscaler
// owns the count, Scale only raises it from 0, which autoscalers leave to others;
// under our own autoscaler it also sets it to 0. It never lowers a count that
// another client raised since the count was last seen, or since Observe; Raised is
// called with that count instead. The groups of a LeaderWorkerSet end in the order
// of their numbers, whichever victims are given.
func (p *Platform) Scale(ctx context.Context, ref workload.Ref, n int, victims []string) error {
	if n < 0 || n > maxReplicas {
		return fmt.Errorf("platform: scale %s: %d replicas cannot be", ref, n)
	}
	if err := p.ready(ctx); err != nil {
		return err
	}
	s, err := p.services.scaling(ref, n)
	if err != nil || s.settled {
		return err
	}
	defer p.services.scaled(s)
	if n > 0 && n < s.from && s.id.kind == kindDeployment {
		if err := p.writer.condemn(ctx, p.services.podsOf(ref), victims); err != nil {
			return fmt.Errorf("platform: scale %s: %w", ref, err)
		}
	}
	for try := 0; ; try++ {
		err := p.writer.scale(ctx, s)
		if apierrors.IsConflict(err) && try < maxConflicts {
			if err = p.writer.reread(ctx, s); err == nil && !s.settled {
				continue
			}
		}
		if err != nil {
			return fmt.Errorf("platform: scale %s to %d: %w", ref, n, err)
		}
		return nil
	}
}

// scaling is one change of a count.
type scaling struct {
	key     service.Key
	id      id
	n, from int
	version string // of the object from which from was read
	surge   bool   // one beyond n is made
	settled bool   // there is nothing to do
}

// scaling finds the object with the count of a role, and records the count that we set.
func (s *services) scaling(ref workload.Ref, n int) (*scaling, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.all[ref.Service]
	if h == nil || h.removed {
		return nil, fmt.Errorf("platform: scale %s: the service was not applied", ref)
	}
	for i, o := range h.objects {
		if !i.kind.counted() || o.role != ref.Role || o.deleting || h.wanted != nil && !h.wanted[i] {
			continue
		}
		c := &scaling{key: ref.Service, id: i, n: n, from: o.count, version: o.version, surge: o.surge}
		c.settled = n == o.count || n < o.count && o.raised || h.kept(i, o, n, s.scalers)
		if !c.settled {
			o.writing = n
			h.objects[i] = o
		}
		return c, nil
	}
	return nil, fmt.Errorf("platform: scale %s: the applied revision has no such role, or somebody deleted what runs it", ref)
}

// scaled ends a change.
func (s *services) scaled(c *scaling) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.all[c.key]; h != nil {
		if o, there := h.objects[c.id]; there {
			o.writing = -1
			h.objects[c.id] = o
		}
	}
}

// scale sets the count, provided the object is still the version that was seen.
func (w *writer) scale(ctx context.Context, s *scaling) error {
	m := map[string]any{"resourceVersion": s.version}
	replicas := s.n
	if s.surge && s.n > 0 {
		replicas++
	}
	patch, err := json.Marshal(map[string]any{"metadata": m, "spec": map[string]any{"replicas": replicas}})
	if err != nil {
		return err
	}
	o := newUnstructured(s.id.kind.gvk())
	o.SetNamespace(s.key.Namespace)
	o.SetName(s.id.name)
	answer := newUnstructured(autoscalingv1.SchemeGroupVersion.WithKind("Scale"))
	if err := w.client.SubResource("scale").Patch(ctx, o, client.RawPatch(types.MergePatchType, patch),
		client.FieldOwner(shape.FieldManager), client.WithSubResourceBody(answer)); err != nil {
		return err
	}
	w.services.counted(s, answer)
	return nil
}

// counted records the answer of the scale subresource.
func (s *services) counted(c *scaling, answer *unstructured.Unstructured) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.of(c.key)
	if o, there := h.objects[c.id]; there && o.uid == answer.GetUID() && older(o.version, answer.GetResourceVersion()) {
		o.replicas, o.version, o.since = countOfScale(answer), answer.GetResourceVersion(), s.now()
		o.count, o.raised = wantedOf(o.replicas, o.surge), false
		h.objects[c.id] = o
	}
	s.notices.add(c.key, event{})
}

// countOfScale returns the count of a Scale, which leaves out a count of 0.
func countOfScale(o *unstructured.Unstructured) int {
	n, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
	return int(n)
}

// reread reads an object that changed since it was seen. Its count may be
// unchanged.
func (w *writer) reread(ctx context.Context, s *scaling) error {
	live := newUnstructured(s.id.kind.gvk())
	if err := w.reader.Get(ctx, client.ObjectKey{Namespace: s.key.Namespace, Name: s.id.name}, live); err != nil {
		return err
	}
	seen := known(live)
	if s.settled = seen.count > s.from && (s.n < s.from || seen.count >= s.n); s.settled {
		w.services.saw(s.key, s.id, seen)
	}
	s.version, s.surge = live.GetResourceVersion(), seen.surge
	return nil
}

// condemn marks the victims, and no other pods, to end first.
func (w *writer) condemn(ctx context.Context, pods []*corev1.Pod, victims []string) error {
	for _, pod := range pods {
		var cost any // null: no mark
		switch condemned, was := slices.Contains(victims, pod.Name), pod.Annotations[deletionCost] == victimCost; {
		case condemned == was:
			continue
		case condemned:
			cost = victimCost
		}
		err := w.annotate(ctx, pod, deletionCost, cost)
		// A pod that is gone, or was replaced by one of its name, needs no mark.
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("mark pod %s as the one to end: %w", pod.Name, err)
		}
	}
	return nil
}

// target is what a HorizontalPodAutoscaler scales. KEDA makes one for each of
// its own objects.
type target struct {
	namespace string
	id
}

// scalers counts the HorizontalPodAutoscalers of others by what they scale.
type scalers map[target]int

// autoscaled reports which of a service's objects have an autoscaler that is
// not ours.
func (s *services) autoscaled(k service.Key) func(id) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[id]bool{}
	for t := range s.scalers {
		if t.namespace == k.Namespace {
			found[t.id] = true
		}
	}
	return func(i id) bool { return found[i] }
}

// unlessScaled leaves out our autoscaler for an object that another's scales:
// the two would overwrite each other's counts.
func unlessScaled(all []rendered, others func(id) bool) []rendered {
	return slices.DeleteFunc(all, func(o rendered) bool {
		return o.kind == kindScaler && slices.ContainsFunc(all, func(scaled rendered) bool {
			return scaled.kind.counted() && scaled.role == o.role && others(scaled.id)
		})
	})
}

// scaledByOthers reports whether an autoscaler, which may be ours, sets an
// object's count.
func (h *observed) scaledByOthers(i id, o object, others scalers) bool {
	r := h.roles[o.role]
	return i.kind.counted() && (r.external || r.measured || others[target{h.key.Namespace, i}] > 0)
}

// kept reports whether a count stays although n replicas are wanted, because an
// autoscaler sets it. All autoscalers leave it to us to raise a count from 0; ours
// also leaves it to us to set 0.
func (h *observed) kept(i id, o object, n int, others scalers) bool {
	if !h.scaledByOthers(i, o, others) {
		return false
	}
	r := h.roles[o.role]
	if ours := r.measured && !r.external && others[target{h.key.Namespace, i}] == 0; ours && n == 0 {
		return false
	}
	return o.count > 0 || n == 0
}

var _ fleet.ExternalScaler = (*Platform)(nil)

// ExternalCount reports whether an autoscaler in the cluster sets a role's count,
// and returns that count.
func (p *Platform) ExternalCount(ref workload.Ref) (count int, external bool) {
	return p.services.externalCount(ref)
}

func (s *services) externalCount(ref workload.Ref) (count int, external bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.all[ref.Service]
	if h == nil {
		return 0, false
	}
	for i, o := range h.objects {
		if i.kind.counted() && o.role == ref.Role && h.wanted[i] && h.scaledByOthers(i, o, s.scalers) {
			return o.count, true
		}
	}
	return 0, false
}

func ownScaler(h *autoscalingv2.HorizontalPodAutoscaler) bool {
	return h.Labels[shape.LabelManagedBy] == shape.Manager
}

// targetOf returns what an external autoscaler scales.
func targetOf(raw any) (target, bool) {
	if d, ok := raw.(toolscache.DeletedFinalStateUnknown); ok {
		raw = d.Obj
	}
	h, ok := raw.(*autoscalingv2.HorizontalPodAutoscaler)
	if !ok || ownScaler(h) {
		return target{}, false
	}
	ref := h.Spec.ScaleTargetRef
	t := target{h.Namespace, id{kind(ref.Kind), ref.Name}}
	return t, t.kind.counted()
}

// scalerEvents handles the events of external autoscalers.
func (s *services) scalerEvents() toolscache.ResourceEventHandler {
	count := func(raw any, by int) {
		if t, ok := targetOf(raw); ok {
			s.countScaler(t, by)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(raw any) { count(raw, 1) },
		UpdateFunc: func(before, now any) { count(now, 1); count(before, -1) },
		DeleteFunc: func(raw any) { count(raw, -1) },
	}
}

// countScaler records that an object has one autoscaler more or less, so that its
// count has another owner.
func (s *services) countScaler(t target, by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.scalers[t] += by; s.scalers[t] <= 0 {
		delete(s.scalers, t)
	}
	for k, h := range s.all {
		o, there := h.objects[t.id]
		if !there || k.Namespace != t.namespace {
			continue
		}
		r, others := h.roles[o.role], s.scalers[t] > 0
		s.notices.add(k, event{drifted: r.resource && others == r.measured}) // our autoscaler must be deleted or created
	}
}

// annotate sets an annotation of a pod; nil takes it away.
func (w *writer) annotate(ctx context.Context, pod *corev1.Pod, name string, value any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": map[string]any{name: value}}})
	if err != nil {
		return err
	}
	o := newUnstructured(corev1.SchemeGroupVersion.WithKind("Pod"))
	o.SetNamespace(pod.Namespace)
	o.SetName(pod.Name)
	return w.client.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(shape.FieldManager))
}

// hasten has the kubelets of pods look at a ConfigMap at once, which they would else do
// within a minute or two: they do so when a pod changes.
func (w *writer) hasten(ctx context.Context, pods []*corev1.Pod, digest string, log *slog.Logger) {
	for _, pod := range pods {
		if err := w.annotate(ctx, pod, shape.AnnotationModels, digest); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			log.Debug("a pod learns later of the models that it is to load", "pod", pod.Name, "error", err)
		}
	}
}
