package platform

import (
	"slices"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	toolscache "k8s.io/client-go/tools/cache"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// target is what a HorizontalPodAutoscaler scales. KEDA makes one for each of
// its own objects.
type target struct {
	namespace string
	id
}

// unlessScaled leaves out autoscalers of ours for what another's scales: two
// would set its count in turns.
func (p *Platform) unlessScaled(k service.Key, all []rendered) []rendered {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(all, func(o rendered) bool {
		return o.kind == kindScaler && slices.ContainsFunc(all, func(scaled rendered) bool {
			return scaled.kind.counted() && scaled.role == o.role && p.mu.scalers[target{k.Namespace, scaled.id}] > 0
		})
	})
}

// scaledByOthers reports whether an object's count is another's to set: an
// autoscaler's, ours among them. The lock is held.
func (p *Platform) scaledByOthers(k service.Key, i id, o object) bool {
	return i.kind.counted() && (p.of(k).roles[o.role].left || p.of(k).roles[o.role].measured || p.mu.scalers[target{k.Namespace, i}] > 0)
}

// kept reports whether a count stays although n are wanted, since another sets
// it. From 0 everybody leaves it to us; to 0 the autoscaler that is ours does.
// The lock is held.
func (p *Platform) kept(k service.Key, i id, o object, n int) bool {
	if !p.scaledByOthers(k, i, o) {
		return false
	}
	r := p.of(k).roles[o.role]
	if ours := r.measured && !r.left && p.mu.scalers[target{k.Namespace, i}] == 0; ours && n == 0 {
		return false
	}
	return o.count > 0 || n == 0
}

var _ fleet.ExternalScaler = (*Platform)(nil)

// ExternalCount reports whether somebody else sets a role's count, and returns
// it.
func (p *Platform) ExternalCount(ref workload.Ref) (count int, external bool) {
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
	if !ownScaler(h) {
		h.Labels = nil
	}
	trimMeta(h)
	h.Spec = autoscalingv2.HorizontalPodAutoscalerSpec{ScaleTargetRef: h.Spec.ScaleTargetRef}
	h.Status = autoscalingv2.HorizontalPodAutoscalerStatus{}
	return h, nil
}

func ownScaler(h *autoscalingv2.HorizontalPodAutoscaler) bool {
	return h.Labels[shape.LabelManagedBy] == shape.Manager
}

// targetOf is what an autoscaler of others scales.
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
			o, there := h.objects[t.id]
			if !there || k.Namespace != t.namespace {
				continue
			}
			p.queue.Add(k) // its count has another owner now
			if others := p.mu.scalers[t] > 0; h.roles[o.role].resource && others == h.roles[o.role].measured {
				before := p.mu.untold[k]
				before.drifted = true // an autoscaler of ours is to go, or to come
				p.mu.untold[k] = before
				p.news.Add(k)
			}
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(raw any) { count(raw, 1) },
		UpdateFunc: func(before, now any) { count(now, 1); count(before, -1) },
		DeleteFunc: func(raw any) { count(raw, -1) },
	}
}
