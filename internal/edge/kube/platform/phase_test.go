package platform

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/pods"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(d time.Duration) metav1.Time { return metav1.NewTime(noon.Add(d)) }

// placed is a pod on a node with one container in the given state.
func placed(c ...corev1.ContainerStatus) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "iris-engine-1", Namespace: "default", CreationTimestamp: at(0),
		Labels: map[string]string{shape.LabelRole: "engine", shape.LabelRevision: "r1"}},
		Spec:   corev1.PodSpec{NodeName: "n1", InitContainers: []corev1.Container{{Name: shape.Fetcher}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.0.7", ContainerStatuses: c}}
	for _, s := range c {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: s.Name})
	}
	return p
}

func with(p *corev1.Pod, change func(*corev1.Pod)) *corev1.Pod { change(p); return p }

func waiting(reason, message string, last *corev1.ContainerStateTerminated) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: "main", Image: "example.com/iris:2", RestartCount: 3,
		State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
		LastTerminationState: corev1.ContainerState{Terminated: last}}
}

func running(ready bool) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: "main", Ready: ready, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(time.Second)}}}
}

func exited(code int32, reason, message string, ran time.Duration) *corev1.ContainerStateTerminated {
	return &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message, StartedAt: at(0), FinishedAt: at(ran)}
}

// read is the replica that a pod is.
func read(t *testing.T, pod *corev1.Pod) replica.Replica {
	t.Helper()
	roles := map[service.Role]pods.Role{service.RoleEngine: {Main: "main", Startup: 10 * time.Minute}}
	for _, r := range pods.Observe(service.Key{Namespace: pod.Namespace, Name: "iris"}, []*corev1.Pod{pod}, []pods.Set{{Role: service.RoleEngine, Count: 1}}, roles) {
		if r.ID == pod.Name {
			return r
		}
	}
	t.Fatal("the pod is no replica")
	return replica.Replica{}
}

// TestPhases reads statuses as schedulers and kubelets write them.
func TestPhases(t *testing.T) {
	crash := "back-off 40s restarting failed container=main pod=iris-engine-1_default(0b4e)"
	initState := func(s corev1.ContainerState) *corev1.Pod {
		return with(placed(waiting("PodInitializing", "", nil)), func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: shape.Fetcher, State: s}}
		})
	}
	for name, c := range map[string]struct {
		pod    *corev1.Pod
		phase  replica.Phase
		reason string
		says   []string
		exit   int
		again  time.Duration // of Restart, from noon
	}{
		"new": {pod: with(placed(), func(p *corev1.Pod) { p.Spec.NodeName = "" }), phase: replica.Pending, reason: "Scheduling"},
		"no GPU": {pod: with(placed(), func(p *corev1.Pod) {
			p.Spec.NodeName = ""
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable",
				Message: "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."}}
		}), phase: replica.Pending, reason: "Unschedulable", says: []string{"no node takes the pod: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}},
		"pulling":  {pod: placed(waiting("ContainerCreating", "", nil)), phase: replica.Starting, reason: "ContainerCreating"},
		"fetching": {pod: initState(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}), phase: replica.Fetching},
		"fetch failed": {pod: initState(corev1.ContainerState{Terminated: exited(1, "Error", "Error: s3://b/iris: access denied\n", 0)}),
			phase: replica.Failed, reason: "Error", says: []string{"the model cannot be fetched", "access denied"}, exit: 1},
		"fetched":  {pod: initState(corev1.ContainerState{Terminated: exited(0, "Completed", "", 0)}), phase: replica.Starting, reason: "PodInitializing"},
		"starting": {pod: placed(running(false)), phase: replica.Starting},
		"ready": {pod: with(placed(running(true)), func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: at(5 * time.Second)}}
		}), phase: replica.Ready},
		"draining": {pod: with(placed(running(true)), func(p *corev1.Pod) {
			p.DeletionTimestamp = new(at(0))
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}), phase: replica.Draining},
		"crashing": {pod: placed(waiting("CrashLoopBackOff", crash, exited(7, "Error", "Traceback…\nValueError: no such tensor\n", 2*time.Second))),
			phase: replica.Failed, reason: "Error", says: []string{"exit code 7: ValueError: no such tensor"}, exit: 7, again: 42 * time.Second},
		"crashing in silence": {pod: placed(waiting("CrashLoopBackOff", crash, exited(1, "Error", "", 2*time.Second))),
			phase: replica.Failed, reason: "Error", says: []string{"exit code 1: see its log"}, exit: 1, again: 42 * time.Second},
		"just ended": {pod: placed(corev1.ContainerStatus{Name: "main", State: corev1.ContainerState{Terminated: exited(0, "Completed", "", time.Second)}}),
			phase: replica.Failed, reason: "Completed", says: []string{"must not end by itself"}, again: time.Second},
		"segfault": {pod: placed(waiting("CrashLoopBackOff", crash, exited(139, "Error", "", time.Second))),
			phase: replica.Failed, reason: "Error", says: []string{"segmentation fault"}, exit: 139, again: 41 * time.Second},
		"segfault after a log line": {pod: placed(waiting("CrashLoopBackOff", crash, exited(139, "Error", "listening on :8080\n", time.Second))),
			phase: replica.Failed, reason: "Error", says: []string{"exit code 139: segmentation fault"}, exit: 139, again: 41 * time.Second},
		"out of memory": {pod: placed(waiting("CrashLoopBackOff", crash, exited(137, "OOMKilled", "", time.Hour))),
			phase: replica.Failed, reason: "OOMKilled", says: []string{"out of memory", "raise its memory limit"}, exit: 137, again: time.Hour + 40*time.Second},
		"too slow": {pod: placed(waiting("CrashLoopBackOff", crash, exited(137, "Error", "", 10*time.Minute+31*time.Second))),
			phase: replica.Failed, reason: replica.ReasonStartupTimeout, says: []string{"not ready within 10m0s"}, exit: 137, again: 10*time.Minute + 71*time.Second},
		"stuck": {pod: placed(waiting("CrashLoopBackOff", crash, exited(137, "Error", "", 3*time.Hour))),
			phase: replica.Failed, reason: "Error", says: []string{"liveness probe"}, exit: 137, again: 3*time.Hour + 40*time.Second},
		"no such program": {pod: placed(waiting("CrashLoopBackOff", crash, exited(128, "StartError", `failed to create containerd task: exec: "vllm": executable file not found in $PATH: unknown`, 0))),
			phase: replica.Failed, reason: "StartError", says: []string{`"vllm": executable file not found`}, exit: 128, again: 40 * time.Second},
		"no such image": {pod: placed(waiting("ImagePullBackOff", `Back-off pulling image "example.com/iris:2": ErrImagePull: rpc error: code = NotFound desc = failed to pull and unpack image "example.com/iris:2": failed to resolve reference "example.com/iris:2": example.com/iris:2: not found`, nil)),
			phase: replica.Failed, reason: "ImagePullBackOff", says: []string{`image "example.com/iris:2" cannot be pulled: the registry has none of this name: rpc error`}},
		"private image": {pod: placed(waiting("ErrImagePull", `failed to pull and unpack image: failed to authorize: failed to fetch anonymous token: 401 Unauthorized`, nil)),
			phase: replica.Failed, reason: "ErrImagePull", says: []string{"imagePullSecrets"}},
		"no image name": {pod: placed(waiting("InvalidImageName", `Failed to apply default image tag "A B"`, nil)), phase: replica.Failed, reason: "InvalidImageName", says: []string{"is no name of an image"}},
		"never pulled":  {pod: placed(waiting("ErrImageNeverPull", `Container image "x" is not present with pull policy of Never`, nil)), phase: replica.Failed, reason: "ErrImageNeverPull", says: []string{"imagePullPolicy Never"}},
		"no secret":     {pod: placed(waiting("CreateContainerConfigError", `secret "hf" not found`, nil)), phase: replica.Pending, reason: "CreateContainerConfigError", says: []string{`secret "hf" not found`}},
		"cannot create": {pod: placed(waiting("CreateContainerError", `context deadline exceeded`, nil)), phase: replica.Failed, reason: "CreateContainerError", says: []string{"deadline"}},
		"sidecar": {pod: placed(running(false), func() corev1.ContainerStatus {
			c := waiting("CrashLoopBackOff", crash, exited(2, "Error", "", 0))
			c.Name = "proxy"
			return c
		}()), phase: replica.Failed, reason: "Error", says: []string{"container proxy: exit code 2"}, exit: 2, again: 40 * time.Second},
		"evicted": {pod: with(placed(), func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "Evicted", "The node was low on resource: memory. "
		}), phase: replica.Failed, reason: "Evicted", says: []string{"The node was low on resource: memory."}},
	} {
		t.Run(name, func(t *testing.T) {
			whole, _ := trimPod(c.pod.DeepCopy())
			for what, pod := range map[string]*corev1.Pod{"whole": c.pod, "trimmed": whole.(*corev1.Pod)} {
				r := read(t, pod)
				if r.Phase != c.phase || r.Reason != c.reason || r.ExitCode != c.exit || len(c.says) == 0 && r.Message != "" {
					t.Errorf("%s: %s %s %q exit %d", what, r.Phase, r.Reason, r.Message, r.ExitCode)
				}
				for _, s := range c.says {
					if !strings.Contains(r.Message, s) {
						t.Errorf("%s: %q does not say %q", what, r.Message, s)
					}
				}
				if got := r.Restart.Sub(noon); c.again > 0 && got != c.again {
					t.Errorf("%s: tried again after %s, want %s", what, got, c.again)
				}
			}
		})
	}
}

// TestObserve: what of pods and counts become replicas.
func TestObserve(t *testing.T) {
	k := service.Key{Namespace: "default", Name: "iris"}
	ready := func(name, revision string, labels ...string) *corev1.Pod {
		return with(placed(running(true)), func(p *corev1.Pod) {
			p.Name, p.Labels[shape.LabelRevision] = name, revision
			for i := 0; i < len(labels); i += 2 {
				p.Labels[labels[i]] = labels[i+1]
			}
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		})
	}
	evicted := func(name string, created time.Duration) *corev1.Pod {
		return with(placed(), func(p *corev1.Pod) {
			p.Name, p.CreationTimestamp = name, at(created)
			p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted"
		})
	}
	unschedulable := func(p *corev1.Pod) {
		p.Spec.NodeName, p.Status.ContainerStatuses = "", nil
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes"}}
	}
	for name, c := range map[string]struct {
		object object
		pods   []*corev1.Pod
		want   string // id phase reason, …
		says   string
	}{
		"asleep":        {},
		"none yet":      {object: object{count: 2}, want: "x-awaited-0 Pending Creating, x-awaited-1 Pending Creating"},
		"one of two":    {object: object{count: 2}, pods: []*corev1.Pod{ready("a", "r1")}, want: "a Ready , x-awaited-1 Pending Creating"},
		"rollout":       {object: object{count: 2}, pods: []*corev1.Pod{ready("a", "r0"), ready("b", "r0"), ready("c", "r1")}, want: "a Ready , b Ready , c Ready , x-awaited-1 Pending Rollout"},
		"one too many":  {object: object{count: 1}, pods: []*corev1.Pod{ready("a", "r1"), ready("b", "r1")}, want: "a Ready , b Ready "},
		"going":         {object: object{count: 1, deleting: true}, pods: []*corev1.Pod{ready("a", "r1")}, want: "a Ready "},
		"refused":       {object: object{count: 1, refused: `admission webhook "x" denied the request: no`}, want: "x-awaited-0 Pending PodRefused", says: "the cluster refuses the pod: admission webhook"},
		"over quota":    {object: object{count: 1, refused: `pods "x-1" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=2, limited: requests.nvidia.com/gpu=2`}, want: "x-awaited-0 Pending QuotaExceeded", says: "gpus, requested: requests.nvidia.com/gpu=1"},
		"evicted, last": {object: object{count: 1}, pods: []*corev1.Pod{evicted("a", 0)}, want: "a Failed Evicted"},
		"evicted, replaced": {object: object{count: 1}, pods: []*corev1.Pod{evicted("a", 0), evicted("b", time.Second),
			with(ready("c", "r1"), func(p *corev1.Pod) { p.CreationTimestamp = at(time.Second) })}, want: "c Ready "},
		"evicted, asleep": {pods: []*corev1.Pod{evicted("a", 0)}},
		"group": {object: object{count: 1}, pods: []*corev1.Pod{ready("g-0", "r1", pods.LabelGroup, "0", shape.LabelWorkerIndex, "0"),
			ready("g-0-1", "r1", pods.LabelGroup, "0", shape.LabelWorkerIndex, "1")}, want: "g-0 Ready "},
		"group that lacks a worker": {object: object{count: 1}, pods: []*corev1.Pod{
			with(ready("g-0", "r1", pods.LabelGroup, "0", shape.LabelWorkerIndex, "0"), func(p *corev1.Pod) { p.Status.Conditions = nil }),
			with(ready("g-0-1", "r1", pods.LabelGroup, "0", shape.LabelWorkerIndex, "1"), unschedulable),
		}, want: "g-0 Pending Unschedulable", says: "worker g-0-1: no node takes the pod: 0/1 nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			c.object.role, c.object.revision, c.object.since = service.RoleEngine, "r1", noon.Add(time.Hour)
			h := &observed{key: k, objects: map[id]object{{kindDeployment, "x"}: c.object}, pods: map[string]member{}}
			for i, p := range c.pods {
				h.pods[p.Name] = member{p, i}
			}
			var got []string
			said := ""
			for _, r := range h.replicas() {
				got = append(got, r.ID+" "+string(r.Phase)+" "+r.Reason)
				said += r.Message
				if r.Service != k || r.Role != service.RoleEngine || r.Revision == "" {
					t.Errorf("%+v", r)
				}
			}
			if strings.Join(got, ", ") != c.want || !strings.Contains(said, c.says) {
				t.Errorf("got  %s: %s\nwant %s: %s", strings.Join(got, ", "), said, c.want, c.says)
			}
		})
	}
}
