package platform

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// annotationSurge is on a LeaderWorkerSet that has one group beyond the count
// while groups of a new revision take over. It is written with the template and
// with the number, so that nobody ever sees one of them alone.
const annotationSurge = "roundhouse.dev/surge"

// Between two tries to end a surge.
const (
	surgeRetry    = time.Second
	maxSurgeRetry = time.Minute
)

func surging(o *unstructured.Unstructured) bool { return o.GetAnnotations()[annotationSurge] != "" }

// surge marks what is to be applied.
func surge(body *unstructured.Unstructured) {
	a := body.GetAnnotations()
	if a == nil {
		a = map[string]string{}
	}
	a[annotationSurge] = "1"
	body.SetAnnotations(a)
}

// wantedOf is the count of a set of so many replicas. One that was put to sleep
// and woken while it surged has none beyond.
func wantedOf(replicas int, surge bool) int {
	if surge && replicas > 1 {
		return replicas - 1
	}
	return replicas
}

// surges reports whether groups of another revision are to take the places of
// those that run, by a count that is ours to set.
func (p *Platform) surges(k service.Key, o rendered, live *unstructured.Unstructured) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return o.kind == kindGroups && replicasOf(live) > 0 && !p.scaledByOthers(k, o.id, known(live)) &&
		live.GetLabels()[shape.LabelRevision] != o.body.GetLabels()[shape.LabelRevision]
}

// settle has a surge ended that may be over. The lock is held.
func (p *Platform) settle(k service.Key, h *held) {
	for i, o := range h.objects {
		if h.taken(i, o) {
			p.surged.Add(k)
		}
	}
}

// taken reports whether a set surges for nothing any more: every group it is to
// have is of its revision and ready, and there is no other, or it is asleep.
// Only who applied it ends that.
func (h *held) taken(i id, o object) bool {
	if !o.surge || o.deleting || !h.wanted[i] {
		return false
	}
	ready := 0
	for _, pod := range h.pods {
		if pod.Labels[shape.LabelRole] != string(o.role) || pod.Labels[shape.LabelWorkerIndex] != "0" || pod.DeletionTimestamp != nil {
			continue
		}
		if pod.Labels[shape.LabelRevision] != o.revision || !isReady(pod.Pod) {
			return false
		}
		ready++
	}
	return ready >= o.replicas
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// runSurged ends surges until ctx ends.
func (p *Platform) runSurged(ctx context.Context) {
	stop := context.AfterFunc(ctx, p.surged.ShutDown)
	defer stop()
	for {
		k, down := p.surged.Get()
		if down {
			return
		}
		if err := p.endSurges(ctx, k); err != nil {
			p.cfg.Log.Warn("a group too many runs on", "service", k.String(), "error", err)
			p.surged.AddRateLimited(k)
		} else {
			p.surged.Forget(k)
		}
		p.surged.Done(k)
	}
}

// endSurges takes the mark and the group beyond the count from sets as they
// were seen.
func (p *Platform) endSurges(ctx context.Context, k service.Key) error {
	over := map[id]object{}
	p.mu.Lock()
	if h := p.mu.held[k]; h != nil {
		for i, o := range h.objects {
			if h.taken(i, o) {
				over[i] = o
			}
		}
	}
	p.mu.Unlock()
	for i, o := range over {
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"resourceVersion": o.version, "annotations": map[string]any{annotationSurge: nil}},
			"spec":     map[string]any{"replicas": o.count},
		})
		if err != nil {
			return err
		}
		u := newUnstructured(i.kind.gvk())
		u.SetNamespace(k.Namespace)
		u.SetName(i.name)
		err = p.cfg.Client.Patch(ctx, u, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(shape.FieldManager))
		switch {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err): // the watch tells of what it is now
		case err != nil:
			return fmt.Errorf("end the surge of %s %s: %w", i.kind, i.name, err)
		default:
			p.saw(k, i, known(u))
		}
	}
	return nil
}
