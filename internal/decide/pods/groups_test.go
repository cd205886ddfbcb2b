package pods

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// ofGroup puts a pod into a group.
func ofGroup(pod *corev1.Pod, group, worker string, change func(*corev1.Pod)) *corev1.Pod {
	pod.Labels[LabelGroup], pod.Labels[shape.LabelWorkerIndex] = group, worker
	if change != nil {
		change(pod)
	}
	return pod
}

func TestGroupFailure(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	end := &corev1.ContainerStateTerminated{ExitCode: 3, Message: "out of tune", FinishedAt: metav1.NewTime(noon)}
	again := func(p *corev1.Pod) {
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		p.Status.ContainerStatuses[0].LastTerminationState.Terminated = end
		p.Status.ContainerStatuses[0].RestartCount = 1
	}
	fetching := func(name string, code int32, restarts int32) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: name}}
			p.Status.ContainerStatuses = nil
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: name, RestartCount: restarts,
				State:                corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.NewTime(noon)}},
				LastTerminationState: corev1.ContainerState{Terminated: end}}}
		}
	}
	fetcher := func(code, restarts int32) func(*corev1.Pod) { return fetching(shape.Fetcher, code, restarts) }
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		says string // "" is no failure
	}{
		"ended":             {ofGroup(exited("x-0", 3, noon), "0", "0", nil), "exit code 3"},
		"runs again":        {ofGroup(exited("x-0", 3, noon), "0", "0", again), "exit code 3: out of tune"},
		"a worker":          {ofGroup(exited("x-0-1", 3, noon), "0", "1", again), "worker x-0-1: exit code 3: out of tune"},
		"no model":          {ofGroup(exited("x-0", 3, noon), "0", "0", fetcher(1, 0)), "the model cannot be fetched: exit code 1"},
		"no adapter":        {ofGroup(exited("x-0", 3, noon), "0", "0", fetching("roundhouse-adapter-sql", 1, 0)), "adapter sql cannot be fetched: exit code 1"},
		"no model at first": {ofGroup(exited("x-0", 3, noon), "0", "0", fetcher(0, 1)), "the model cannot be fetched: exit code 3: out of tune"},
		"fetched":           {ofGroup(exited("x-0", 3, noon), "0", "0", fetcher(0, 0)), ""},
		"being deleted":     {ofGroup(exited("x-0", 3, noon), "0", "0", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: noon} }), ""},
		"new":               {ofGroup(exited("x-0", 3, noon), "0", "0", func(p *corev1.Pod) { p.Status.ContainerStatuses = nil }), ""},
	} {
		f, failed := GroupFailure(c.pod, Role{})
		if failed != (c.says != "") || !strings.HasPrefix(f.Message, c.says) || failed && f.Revision != "r1" {
			t.Errorf("%s: %v, %+v", name, failed, f)
		}
	}
}

// TestGroupMadeAnew: while a group is made anew, its replica says how the last
// try ended, be there a pod of it or none.
func TestGroupMadeAnew(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	starting := func(p *corev1.Pod) {
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	}
	set := Set{Name: "x", Role: service.RoleEngine, Revision: "r1", Count: 2, Since: noon,
		Failures: map[string]Failure{"1": {Revision: "r1", Reason: "Error", Message: "out of tune", ExitCode: 3}}}
	pods := []*corev1.Pod{ofGroup(exited("x-0", 0, noon), "0", "0", starting), ofGroup(exited("x-1", 0, noon), "1", "0", starting)}
	for name, c := range map[string]struct {
		pods     []*corev1.Pod
		revision string
		failed   string
	}{
		"starting again":   {pods, "r1", "x-1"},
		"no pod yet":       {pods[:1], "r1", "x-awaited-1"},
		"another revision": {pods, "r2", ""},
	} {
		s := set
		s.Failures = map[string]Failure{"1": {Revision: c.revision, Reason: "Error", Message: "out of tune", ExitCode: 3}}
		var failed string
		for _, r := range Observe(iris, c.pods, []Set{s}, nil) {
			if r.Phase == replica.Failed {
				failed += r.ID
				if r.Message != "out of tune" || r.ExitCode != 3 {
					t.Errorf("%s: %+v", name, r)
				}
			}
		}
		if failed != c.failed {
			t.Errorf("%s: %q failed, want %q", name, failed, c.failed)
		}
	}
}
