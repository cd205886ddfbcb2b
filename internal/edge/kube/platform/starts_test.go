package platform

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/pods"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// TestStarts: a group that does not come up keeps its failure over the pods
// that are made for it; one that ran and ended does not count as such.
func TestStarts(t *testing.T) {
	member := func(worker, revision string, created time.Duration, c corev1.ContainerStatus, ready bool) *corev1.Pod {
		return with(placed(c), func(p *corev1.Pod) {
			p.CreationTimestamp = at(created)
			p.Labels[pods.LabelGroup], p.Labels[shape.LabelWorkerIndex], p.Labels[shape.LabelRevision] = "1", worker, revision
			if ready {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			}
		})
	}
	ended := func(after time.Duration, message string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: "main", RestartCount: 1, LastTerminationState: corev1.ContainerState{Terminated: exited(1, "Error", message, after)}}
	}
	h := &observed{}
	for _, step := range []struct {
		what string
		pod  *corev1.Pod
		says string
	}{
		{"it starts", member("0", "r1", 0, running(false), false), ""},
		{"it fails", member("0", "r1", 0, ended(3*time.Second, "no memory"), false), "exit code 1: no memory"},
		{"its worker fails for that", member("1", "r1", 0, ended(4*time.Second, "no leader"), false), "exit code 1: no memory"},
		{"it is made anew", member("0", "r1", 6*time.Second, running(false), false), "exit code 1: no memory"},
		{"and fails otherwise", member("1", "r1", 6*time.Second, ended(9*time.Second, "no GPU"), false), "worker iris-engine-1: exit code 1: no GPU"},
		{"and is ready at last", member("0", "r1", 12*time.Second, running(true), true), ""},
		{"a worker ends", member("1", "r1", 12*time.Second, ended(60*time.Second, "killed"), false), ""},
		{"the leader for that", member("0", "r1", 12*time.Second, ended(61*time.Second, "no worker"), false), ""},
		{"it is made anew", member("0", "r1", 63*time.Second, running(false), false), ""},
		{"and fails", member("0", "r1", 63*time.Second, ended(65*time.Second, "no disk"), false), "exit code 1: no disk"},
		{"another revision", member("0", "r2", 70*time.Second, running(false), false), ""},
	} {
		h.started(step.pod)
		if got := h.failures(service.RoleEngine)["1"].Message; got != step.says {
			t.Errorf("%s: %q, want %q", step.what, got, step.says)
		}
	}
}
