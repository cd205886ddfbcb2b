package platform

import (
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	toolscache "k8s.io/client-go/tools/cache"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Annotations by which a manifest leaves the count to an autoscaler of its
// author's: of KServe, of OME, and ours.
const (
	classKServe   = "serving.kserve.io/autoscalerClass"
	classOME      = "ome.io/autoscalerClass"
	classOurs     = "roundhouse.dev/autoscalerClass"
	classExternal = "external"
)

func leftToOthers(annotations map[string]string) bool {
	return annotations[classKServe] == classExternal || annotations[classOME] == classExternal || annotations[classOurs] == classExternal
}

// target is what a HorizontalPodAutoscaler scales. KEDA makes one for each of
// its own objects.
type target struct {
	namespace string
	id
}

// scaledByOthers says whether an object's count is another's to set. The lock
// is held.
func (p *Platform) scaledByOthers(k service.Key, i id, o object) bool {
	return i.kind.counted() && (p.of(k).roles[o.role].left || p.mu.scalers[target{k.Namespace, i}] > 0)
}

var _ fleet.Left = (*Platform)(nil)

// Left says whether somebody else sets a role's count, and what it is.
func (p *Platform) Left(ref workload.Ref) (count int, theirs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.mu.held[ref.Service]
	if h == nil {
		return 0, false
	}
	for i, o := range h.objects {
		if i.kind.counted() && o.role == ref.Role && h.wanted[i] && p.scaledByOthers(ref.Service, i, o) {
			return o.count, true
		}
	}
	return 0, false
}

func trimScaler(raw any) (any, error) {
	h, ok := raw.(*autoscalingv2.HorizontalPodAutoscaler)
	if !ok {
		return raw, nil
	}
	h.Labels, h.OwnerReferences = nil, nil
	trimMeta(h)
	h.Spec = autoscalingv2.HorizontalPodAutoscalerSpec{ScaleTargetRef: h.Spec.ScaleTargetRef}
	h.Status = autoscalingv2.HorizontalPodAutoscalerStatus{}
	return h, nil
}

func targetOf(raw any) (target, bool) {
	if d, ok := raw.(toolscache.DeletedFinalStateUnknown); ok {
		raw = d.Obj
	}
	h, ok := raw.(*autoscalingv2.HorizontalPodAutoscaler)
	if !ok {
		return target{}, false
	}
	ref := h.Spec.ScaleTargetRef
	t := target{h.Namespace, id{kind(ref.Kind), ref.Name}}
	return t, t.kind.counted()
}

func (p *Platform) scalerEvents() toolscache.ResourceEventHandler {
	count := func(raw any, by int) {
		t, ok := targetOf(raw)
		if !ok {
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.mu.scalers[t] += by; p.mu.scalers[t] <= 0 {
			delete(p.mu.scalers, t)
		}
		for k, h := range p.mu.held {
			if _, there := h.objects[t.id]; there && k.Namespace == t.namespace {
				p.queue.Add(k) // its count has another owner now
			}
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(raw any) { count(raw, 1) },
		UpdateFunc: func(before, now any) { count(now, 1); count(before, -1) },
		DeleteFunc: func(raw any) { count(raw, -1) },
	}
}
