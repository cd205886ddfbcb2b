package pods

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// Failure is how a start of a group ended. The controller of LeaderWorkerSets
// makes a group anew as soon as one of its containers ended, so that no pod is
// there for long that could tell.
type Failure struct {
	Revision, Reason, Message string
	ExitCode                  int
	At                        time.Time
}

// GroupFailure reads of a pod of a group how one of its containers ended last;
// ok is false where none did, or where the pod is ended by somebody.
func GroupFailure(pod *corev1.Pod, role Role) (f Failure, ok bool) {
	if pod.DeletionTimestamp != nil {
		return f, false
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			init := isInit(pod, list[i].Name)
			t := ending(&list[i], init)
			if t == nil {
				continue
			}
			found := exitFault(t, role)
			f = Failure{Revision: pod.Labels[shape.LabelRevision], Reason: found.reason, Message: found.message, ExitCode: found.exit, At: t.FinishedAt.Time}
			if init {
				f.Message = initName(list[i].Name) + f.Message
			}
			if pod.Labels[shape.LabelWorkerIndex] != "0" {
				f.Message = fmt.Sprintf("worker %s: %s", pod.Name, f.Message)
			}
			f.Message = clip(f.Message)
			return f, true
		}
	}
	return f, false
}

// ending is the last end of a container that was not to end; nil is none.
func ending(c *corev1.ContainerStatus, init bool) *corev1.ContainerStateTerminated {
	switch t := c.State.Terminated; {
	case t != nil && (t.ExitCode != 0 || !init):
		return t
	case c.RestartCount > 0:
		return c.LastTerminationState.Terminated
	}
	return nil
}

// failed has a replica whose group is made anew tell how the one before ended.
func (f Failure) failed(r *replica.Replica) {
	switch r.Phase {
	case replica.Pending, replica.Fetching, replica.Starting:
	default:
		return
	}
	if f.Revision == r.Revision {
		r.Phase, r.Reason, r.Message, r.ExitCode = replica.Failed, f.Reason, f.Message, f.ExitCode
	}
}
