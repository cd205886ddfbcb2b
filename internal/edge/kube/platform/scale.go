package platform

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// deletionCost tells a ReplicaSet which pods to end first: those that cost
// least, among those as ready as each other.
const (
	deletionCost = corev1.PodDeletionCost
	victimCost   = "-1000000"
)

// maxReplicas is the most a role is scaled to.
const maxReplicas = 1 << 20

// Scale sets the count of a role through the scale subresource. Where another
// autoscaler owns it, it is only raised from 0, which those leave to others; that
// of ours leaves it going to 0, too. A
// count that somebody raised since it was last seen, or since Observe, is not
// lowered, be it that fewer are wanted or that more are and as many are there:
// Raised tells of it. The groups of a LeaderWorkerSet go in the order of their
// numbers, whoever the victims are.
func (p *Platform) Scale(ctx context.Context, ref workload.Ref, n int, victims []string) error {
	if n < 0 || n > maxReplicas {
		return fmt.Errorf("platform: scale %s: %d replicas cannot be", ref, n)
	}
	if err := p.ready(ctx); err != nil {
		return err
	}
	s, err := p.scaling(ref, n)
	if err != nil || s.settled {
		return err
	}
	defer p.scaled(s)
	if n > 0 && n < s.from && s.id.kind == kindDeployment {
		if err := p.condemn(ctx, ref, victims); err != nil {
			return fmt.Errorf("platform: scale %s: %w", ref, err)
		}
	}
	for try := 0; ; try++ {
		err := p.sendScale(ctx, s)
		if apierrors.IsConflict(err) && try < maxConflicts {
			if err = p.reread(ctx, s); err == nil && !s.settled {
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
	version string // of the object that from was read of
	surge   bool   // one beyond n is made
	settled bool   // there is nothing to do
}

// scaling finds what has the count of a role, and notes what we make of it.
func (p *Platform) scaling(ref workload.Ref, n int) (*scaling, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.mu.held[ref.Service]
	if h == nil || h.removed {
		return nil, fmt.Errorf("platform: scale %s: the service was not applied", ref)
	}
	for i, o := range h.objects {
		if !i.kind.counted() || o.role != ref.Role || o.deleting || h.wanted != nil && !h.wanted[i] {
			continue
		}
		s := &scaling{key: ref.Service, id: i, n: n, from: o.count, version: o.version, surge: o.surge}
		s.settled = n == o.count || n < o.count && o.raised || p.kept(ref.Service, i, o, n)
		if !s.settled {
			o.writing = n
			h.objects[i] = o
		}
		return s, nil
	}
	return nil, fmt.Errorf("platform: scale %s: the applied revision has no such role, or somebody deleted what runs it", ref)
}

// scaled ends a change.
func (p *Platform) scaled(s *scaling) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.mu.held[s.key]; h != nil {
		if o, there := h.objects[s.id]; there {
			o.writing = -1
			h.objects[s.id] = o
		}
	}
}

// sendScale sets the count of the object as it was seen, and of no other.
func (p *Platform) sendScale(ctx context.Context, s *scaling) error {
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
	if err := p.cfg.Client.SubResource("scale").Patch(ctx, o, client.RawPatch(types.MergePatchType, patch),
		client.FieldOwner(shape.FieldManager), client.WithSubResourceBody(answer)); err != nil {
		return err
	}
	p.counted(s, answer)
	return nil
}

// counted takes the answer of the scale subresource in.
func (p *Platform) counted(s *scaling, answer *unstructured.Unstructured) {
	p.mu.Lock()
	h := p.of(s.key)
	if o, there := h.objects[s.id]; there && o.uid == answer.GetUID() && older(o.version, answer.GetResourceVersion()) {
		o.replicas, o.version, o.since = countOfScale(answer), answer.GetResourceVersion(), p.cfg.Now()
		o.count, o.raised = wantedOf(o.replicas, o.surge), false
		h.objects[s.id] = o
	}
	p.mu.Unlock()
	p.queue.Add(s.key)
}

// countOfScale: a Scale leaves out a count of 0.
func countOfScale(o *unstructured.Unstructured) int {
	n, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
	return int(n)
}

// reread looks at an object that changed since it was seen. What changed may
// be anything but its count.
func (p *Platform) reread(ctx context.Context, s *scaling) error {
	live := newUnstructured(s.id.kind.gvk())
	if err := p.cfg.Reader.Get(ctx, client.ObjectKey{Namespace: s.key.Namespace, Name: s.id.name}, live); err != nil {
		return err
	}
	seen := known(live)
	if s.settled = seen.count > s.from && (s.n < s.from || seen.count >= s.n); s.settled {
		p.saw(s.key, s.id, seen)
	}
	s.version, s.surge = live.GetResourceVersion(), seen.surge
	return nil
}

// condemn has the victims, and no other pods of the role, end first.
func (p *Platform) condemn(ctx context.Context, ref workload.Ref, victims []string) error {
	for _, pod := range p.podsOf(ref) {
		var cost any // null: as any other
		switch condemned, was := slices.Contains(victims, pod.Name), pod.Annotations[deletionCost] == victimCost; {
		case condemned == was:
			continue
		case condemned:
			cost = victimCost
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": map[string]any{deletionCost: cost}}})
		if err != nil {
			return err
		}
		o := newUnstructured(corev1.SchemeGroupVersion.WithKind("Pod"))
		o.SetNamespace(pod.Namespace)
		o.SetName(pod.Name)
		err = p.cfg.Client.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(shape.FieldManager))
		// One that is gone, or another of its name by now, needs no mark.
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("mark pod %s as the one to end: %w", pod.Name, err)
		}
	}
	return nil
}

// podsOf are the pods of a role that are not going yet.
func (p *Platform) podsOf(ref workload.Ref) []*corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.mu.held[ref.Service]
	if h == nil {
		return nil
	}
	var out []*corev1.Pod
	for _, pod := range h.pods {
		if pod.Labels[shape.LabelRole] == string(ref.Role) && pod.DeletionTimestamp == nil {
			out = append(out, pod.Pod)
		}
	}
	return out
}
