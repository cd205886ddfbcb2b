package platform

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/pods"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// groupID is a group of a role, by its number.
type groupID struct {
	role  service.Role
	group string
}

// start is what is remembered of a group beyond the life of its pods.
type start struct {
	// ready: it has been so since the last end.
	ready bool
	// ended is when one of its containers last did; what pods that are older
	// tell is of the same end.
	ended time.Time
	// failure is how it ended before it was ready, nil for nothing.
	failure *pods.Failure
}

// started remembers how a pod's group does. The lock is held.
func (h *held) started(pod *corev1.Pod) {
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

// failures are those of a role's groups. The lock is held.
func (h *held) failures(role service.Role) map[string]pods.Failure {
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
