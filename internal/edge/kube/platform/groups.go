package platform

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/pods"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// annotationSurge marks a LeaderWorkerSet that has one group beyond its count
// while groups of a new revision replace the old ones. The mark is written together
// with the template and with the number, so that nobody sees one without the other.
const annotationSurge = "roundhouse.dev/surge"

// How long to wait between two tries to end a surge.
const (
	surgeRetry    = time.Second
	maxSurgeRetry = time.Minute
)

func surging(o *unstructured.Unstructured) bool { return o.GetAnnotations()[annotationSurge] != "" }

// surge sets the mark on an object that will be applied.
func surge(body *unstructured.Unstructured) {
	a := body.GetAnnotations()
	if a == nil {
		a = map[string]string{}
	}
	a[annotationSurge] = "1"
	body.SetAnnotations(a)
}

// wantedOf returns the count of a set, given its replicas: one fewer while it
// surges. A set that was scaled to zero and back while it surged has no surplus
// group.
func wantedOf(replicas int, surge bool) int {
	if surge && replicas > 1 {
		return replicas - 1
	}
	return replicas
}

// surges reports whether groups of another revision will replace those that run,
// and we own the count.
func (s *services) surges(k service.Key, o rendered, live *unstructured.Unstructured) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return o.kind == kindGroups && replicasOf(live) > 0 && !s.of(k).scaledByOthers(o.id, known(live), s.scalers) &&
		live.GetLabels()[shape.LabelRevision] != o.body.GetLabels()[shape.LabelRevision]
}

// settle queues the end of a surge that may be over. The lock is held.
func (s *services) settle(h *observed) {
	for i, o := range h.objects {
		if h.taken(i, o) {
			s.surged(h.key)
		}
	}
}

// taken reports whether a set no longer needs its surplus group: all its groups
// are of its revision and ready, or it is scaled to zero. Only the controller that
// applied the set ends the surge.
func (h *observed) taken(i id, o object) bool {
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

// surplus lists the sets of a service that no longer need their surplus group.
func (s *services) surplus(k service.Key) map[id]object {
	s.mu.Lock()
	defer s.mu.Unlock()
	over := map[id]object{}
	if h := s.all[k]; h != nil {
		for i, o := range h.objects {
			if h.taken(i, o) {
				over[i] = o
			}
		}
	}
	return over
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// endSurges ends the surges of services in the queue until ctx ends.
func endSurges(ctx context.Context, queue workqueue.TypedRateLimitingInterface[service.Key], w *writer, log *slog.Logger) {
	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	for {
		k, down := queue.Get()
		if down {
			return
		}
		if err := w.endSurges(ctx, k); err != nil {
			log.Warn("a surplus group still runs after a rollout; it will be removed later", "service", k.String(), "error", err)
			queue.AddRateLimited(k)
		} else {
			queue.Forget(k)
		}
		queue.Done(k)
	}
}

// endSurges removes the mark and the surplus group of sets. It writes only over
// the versions that were seen.
func (w *writer) endSurges(ctx context.Context, k service.Key) error {
	for i, o := range w.services.surplus(k) {
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
		err = w.client.Patch(ctx, u, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(shape.FieldManager))
		switch {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err): // the watch shows the current state
		case err != nil:
			return fmt.Errorf("end the surge of %s %s: %w", i.kind, i.name, err)
		default:
			w.services.saw(k, i, known(u))
		}
	}
	return nil
}

// groupID is a group of a role, by its number.
type groupID struct {
	role  service.Role
	group string
}

// start is what is remembered of a group when its pods are gone.
type start struct {
	// ready: the group has been ready since it last ended.
	ready bool
	// ended is when one of its containers last ended. Pods that are older report
	// the same end.
	ended time.Time
	// failure is how the group ended before it was ready; nil if it did not.
	failure *pods.Failure
}

// started remembers the state of a pod's group. The lock is held.
func (h *observed) started(pod *corev1.Pod) {
	group, grouped := pod.Labels[pods.LabelGroup]
	if !grouped {
		return
	}
	i := groupID{service.Role(pod.Labels[shape.LabelRole]), group}
	s := h.starts[i]
	if s.failure != nil && s.failure.Revision != pod.Labels[shape.LabelRevision] {
		s.failure = nil
	}
	switch f, failed := pods.GroupFailure(pod, h.roles[i.role].Role); {
	case failed && pod.CreationTimestamp.After(s.ended):
		if !s.ready {
			s.failure = &f
		}
		s.ready, s.ended = false, f.At
		if s.ended.Before(pod.CreationTimestamp.Time) {
			s.ended = pod.CreationTimestamp.Time
		}
	case !failed && pod.Labels[shape.LabelWorkerIndex] == "0" && pod.DeletionTimestamp == nil && isReady(pod):
		s.ready, s.failure = true, nil
	}
	if h.starts == nil {
		h.starts = map[groupID]start{}
	}
	h.starts[i] = s
}

// failures returns the failures of a role's groups. The lock is held.
func (h *observed) failures(role service.Role) map[string]pods.Failure {
	var out map[string]pods.Failure
	for i, s := range h.starts {
		if s.failure == nil || i.role != role {
			continue
		}
		if out == nil {
			out = map[string]pods.Failure{}
		}
		out[i.group] = *s.failure
	}
	return out
}
