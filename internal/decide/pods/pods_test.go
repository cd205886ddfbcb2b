package pods

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

var iris = service.Key{Namespace: "default", Name: "iris"}

// exited is a pod whose main container ended.
func exited(name string, code int32, created time.Time) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(created), Labels: map[string]string{shape.LabelRole: "engine", shape.LabelRevision: "r1"}},
		Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "main"}}},
		Status: corev1.PodStatus{PodIP: "fd00::7", ContainerStatuses: []corev1.ContainerStatus{{Name: "main",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error"}}}}}}
}

// TestSignals: how Linux calls what ended a container, wherever this runs.
func TestSignals(t *testing.T) {
	roles := map[service.Role]Role{service.RoleEngine: {HTTP: 8080, Main: "main"}}
	for code, says := range map[int32]string{128 + 6: "aborted", 128 + 11: "segmentation fault", 128 + 9: "liveness probe", 128 + 15: "liveness probe",
		128 + 7: "bus error", 128 + 31: "signal 31", 1: "see its log", 0: "must not end by itself"} {
		r := Observe(iris, []*corev1.Pod{exited("a", code, time.Time{})}, []Set{{Role: service.RoleEngine, Count: 1, Revision: "r1"}}, roles)
		if len(r) != 1 || r[0].Phase != replica.Failed || !strings.Contains(r[0].Message, says) || r[0].HTTP != "[fd00::7]:8080" {
			t.Errorf("%d: %+v", code, r)
		}
	}
}

// TestMetricsOfPods: they are where the annotations of the component say, and
// what a field says goes over those.
func TestMetricsOfPods(t *testing.T) {
	kserve := map[string]string{"prometheus.kserve.io/port": "8002", "prometheus.kserve.io/path": "stats", "prometheus.io/port": "1"}
	for want, c := range map[string]workload.Component{
		"":                     {},
		"[fd00::7]:8002/stats": {Annotations: kserve},
		"[fd00::7]:9/stats":    {Annotations: kserve, Metrics: service.Metrics{Port: 9}},
		"[fd00::7]:8080/m":     {Metrics: service.Metrics{Path: "/m"}, Annotations: map[string]string{"prometheus.io/port": "70000"}},
		"[fd00::7]:7":          {Annotations: map[string]string{"prometheus.io/port": "7"}},
	} {
		roles := map[service.Role]Role{service.RoleEngine: {HTTP: 8080, Main: "main", Metrics: c.Exports()}}
		r := Observe(iris, []*corev1.Pod{exited("a", 1, time.Time{})}, []Set{{Role: service.RoleEngine, Count: 1, Revision: "r1"}}, roles)
		if len(r) != 1 || r[0].Metrics != want {
			t.Errorf("%+v, want %q", r, want)
		}
	}
}

// TestOrder: oldest first, and of one second in the order given.
func TestOrder(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	pods := []*corev1.Pod{exited("z", 1, noon), exited("a", 1, noon), exited("m", 1, noon.Add(-time.Second))}
	var got []string
	for _, r := range Observe(iris, pods, []Set{{Name: "iris-engine", Role: service.RoleEngine, Revision: "r1", Count: 5, Since: noon.Add(time.Minute)}}, nil) {
		got = append(got, r.ID)
	}
	if want := []string{"m", "z", "a", "iris-engine-awaited-3", "iris-engine-awaited-4"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// FuzzObserve: whatever a pod's status says, there are never fewer replicas than
// the count, each has a name, and messages are bounded.
func FuzzObserve(f *testing.F) {
	raw, _ := json.Marshal(exited("a", 137, time.Unix(0, 0)))
	f.Add(raw, 2)
	f.Add([]byte(`{"metadata":{"labels":{"roundhouse.dev/role":"engine"}},"status":{"phase":"Failed","message":"x"}}`), 1)
	f.Fuzz(func(t *testing.T, raw []byte, count int) {
		var pod corev1.Pod
		if json.Unmarshal(raw, &pod) != nil || pod.Name == "" {
			return
		}
		count &= 0xf
		set := Set{Name: "s", Role: service.RoleEngine, Revision: "r1", Count: count}
		got := Observe(iris, []*corev1.Pod{&pod}, []Set{set}, map[service.Role]Role{service.RoleEngine: {Main: "main", Startup: time.Minute}})
		if len(got) < count {
			t.Errorf("%d replicas of %d", len(got), count)
		}
		for _, r := range got {
			if r.ID == "" || r.Service != iris || len(r.Message) > 2*maxMessage {
				t.Errorf("%+v", r)
			}
		}
		LogContainer(&pod, "main"+strconv.Itoa(count))
	})
}

// TestBeside: a pod whose model is fetched while its server's image is pulled is
// fetching until both are there, and says which of them fails.
func TestBeside(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	waiting := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	over := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	failed := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: "403"}}
	for name, c := range map[string]struct {
		fetcher, last, waiter, main corev1.ContainerState
		phase                       replica.Phase
		says, log                   string
	}{
		"image pulled, model fetched":   {running, over, waiting(reasonInitializing, ""), waiting(reasonInitializing, ""), replica.Starting, "", shape.Fetcher},
		"model fetched":                 {running, over, running, waiting(reasonInitializing, ""), replica.Fetching, "", shape.Fetcher},
		"no such image":                 {running, over, waiting(reasonImagePull, "manifest unknown"), waiting(reasonInitializing, ""), replica.Failed, `image "vllm:v1" cannot be pulled`, shape.Fetcher},
		"no such model":                 {waiting(reasonCrashLoop, "back-off 20s restarting"), failed, running, waiting(reasonInitializing, ""), replica.Failed, "the model cannot be fetched: exit code 1: 403", shape.Fetcher},
		"server starts":                 {running, over, over, running, replica.Starting, "", "main"},
		"server starts, a fetcher fell": {running, failed, over, running, replica.Starting, "", "main"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{shape.LabelRole: "engine", shape.LabelRevision: "r1"}},
			Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "main"}}, InitContainers: []corev1.Container{
				{Name: shape.Fetcher, RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}, {Name: shape.Waiter}}},
			Status: corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{
				{Name: shape.Fetcher, State: c.fetcher, LastTerminationState: c.last}, {Name: shape.Waiter, Image: "vllm:v1", State: c.waiter}},
				ContainerStatuses: []corev1.ContainerStatus{{Name: "main", State: c.main}}}}
		r := Observe(iris, []*corev1.Pod{pod}, []Set{{Role: service.RoleEngine, Count: 1, Revision: "r1"}}, map[service.Role]Role{service.RoleEngine: {Main: "main"}})
		if len(r) != 1 || r[0].Phase != c.phase || !strings.Contains(r[0].Message, c.says) || c.says == "" && r[0].Message != "" {
			t.Errorf("%s: %+v, want %s %q", name, r, c.phase, c.says)
		}
		if got := LogContainer(pod, "main"); got != c.log {
			t.Errorf("%s: the log of %s, want %s", name, got, c.log)
		}
	}
}

// TestKept: a pod that reads a model which its node keeps is fetching until that is there,
// and says what it has not got.
func TestKept(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reasonInitializing}}
	over := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	missing := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: "roundhouse-pause: the model has no v9"}}
	for name, c := range map[string]struct {
		waiter, finder corev1.ContainerState
		phase          replica.Phase
		says, log      string
	}{
		"not there yet": {running, waiting, replica.Fetching, "", shape.Waiter},
		"looked at":     {over, running, replica.Fetching, "", shape.Finder},
		"no such path":  {over, missing, replica.Failed, "exit code 1: roundhouse-pause: the model has no v9", shape.Finder},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{shape.LabelRole: "engine", shape.LabelRevision: "r1"}},
			Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "main"}}, InitContainers: []corev1.Container{{Name: shape.Waiter}, {Name: shape.Finder}}},
			Status: corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{{Name: shape.Waiter, State: c.waiter}, {Name: shape.Finder, State: c.finder}},
				ContainerStatuses: []corev1.ContainerStatus{{Name: "main", State: waiting}}}}
		r := Observe(iris, []*corev1.Pod{pod}, []Set{{Role: service.RoleEngine, Count: 1, Revision: "r1"}}, map[service.Role]Role{service.RoleEngine: {Main: "main"}})
		if len(r) != 1 || r[0].Phase != c.phase || r[0].Message != c.says {
			t.Errorf("%s: %+v, want %s %q", name, r, c.phase, c.says)
		}
		if got := LogContainer(pod, "main"); got != c.log {
			t.Errorf("%s: the log of %s, want %s", name, got, c.log)
		}
	}
}
