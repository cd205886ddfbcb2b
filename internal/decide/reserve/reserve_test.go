package reserve

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// TestCount: the guide's ladder, shares, fixed numbers and bounds.
func TestCount(t *testing.T) {
	guide := []api.LadderStep{{FromNodes: 0, Count: 1}, {FromNodes: 3, Count: 2}, {FromNodes: 16, Count: 4}}
	for name, c := range map[string]struct {
		in    api.Placeholders
		nodes int
		want  int
		why   string
	}{
		"no nodes":             {api.Placeholders{Ladder: guide}, 0, 1, "0 nodes: the ladder's step from 0 on"},
		"under 3":              {api.Placeholders{Ladder: guide}, 2, 1, "2 nodes: the ladder's step from 0 on"},
		"3":                    {api.Placeholders{Ladder: guide}, 3, 2, "3 nodes: the ladder's step from 3 on"},
		"under 16":             {api.Placeholders{Ladder: guide}, 15, 2, "15 nodes: the ladder's step from 3 on"},
		"many":                 {api.Placeholders{Ladder: guide}, 500, 4, "500 nodes: the ladder's step from 16 on"},
		"below the first step": {api.Placeholders{Ladder: []api.LadderStep{{FromNodes: 2, Count: 9}}}, 1, 0, "1 node: below the ladder's first step"},
		"a share":              {api.Placeholders{Percent: new(10)}, 21, 3, "10% of 21 nodes is 3"},
		"a share of none":      {api.Placeholders{Percent: new(10)}, 0, 0, "10% of 0 nodes is 0"},
		"fixed":                {api.Placeholders{Count: new(5)}, 1, 5, "count is 5"},
		"bounded":              {api.Placeholders{Percent: new(100), Max: new(7)}, 9, 7, "100% of 9 nodes is 9; max is 7"},
		"beyond all":           {api.Placeholders{Percent: new(100)}, 5000, MaxPlaceholders, "100% of 5000 nodes is 5000; max is 1000"},
	} {
		if n, why := Count(&c.in, c.nodes); n != c.want || why != c.why {
			t.Errorf("%s: %d, %q; want %d, %q", name, n, why, c.want, c.why)
		}
	}
}

// TestCounted: cordoned nodes do not count, others for a while after they were
// ready, and only those whose taints are tolerated.
func TestCounted(t *testing.T) {
	gpu := corev1.Taint{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule}
	unreachable := corev1.Taint{Key: "node.kubernetes.io/unreachable", Effect: corev1.TaintEffectNoExecute}
	soft := corev1.Taint{Key: "old", Effect: corev1.TaintEffectPreferNoSchedule}
	nodes := []Node{
		{Name: "plain", Ready: true, Taints: []corev1.Taint{soft}},
		{Name: "gpu", Ready: true, Labels: map[string]string{"pool": "gpu"}, Taints: []corev1.Taint{gpu}},
		{Name: "cordoned", Ready: true, Cordoned: true},
		{Name: "just lost", Since: start.Add(-time.Minute), Taints: []corev1.Taint{unreachable}},
		{Name: "long lost", Since: start.Add(-time.Hour)},
		{Name: "windows", Ready: true, Labels: map[string]string{corev1.LabelOSStable: "windows"}},
	}
	for name, c := range map[string]struct {
		spec  api.ReserveSpec
		want  int
		again time.Time
	}{
		"all":          {api.ReserveSpec{}, 2, start.Add(4 * time.Minute)},
		"exists":       {api.ReserveSpec{Tolerations: []corev1.Toleration{{Key: gpu.Key, Operator: corev1.TolerationOpExists}}}, 3, start.Add(4 * time.Minute)},
		"everything":   {api.ReserveSpec{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}, 3, start.Add(4 * time.Minute)},
		"equal":        {api.ReserveSpec{NodeSelector: map[string]string{"pool": "gpu"}, Tolerations: []corev1.Toleration{{Key: gpu.Key, Value: "present"}}}, 1, time.Time{}},
		"not equal":    {api.ReserveSpec{NodeSelector: map[string]string{"pool": "gpu"}, Tolerations: []corev1.Toleration{{Key: gpu.Key, Value: "absent"}}}, 0, time.Time{}},
		"other effect": {api.ReserveSpec{NodeSelector: map[string]string{"pool": "gpu"}, Tolerations: []corev1.Toleration{{Key: gpu.Key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}}}, 0, time.Time{}},
		"no label":     {api.ReserveSpec{NodeSelector: map[string]string{"pool": ""}}, 0, time.Time{}},
	} {
		if n, again := Counted(&c.spec, nodes, start); n != c.want || !again.Equal(c.again) {
			t.Errorf("%s: %d, again %v; want %d, %v", name, n, again, c.want, c.again)
		}
	}
}

func TestCanonical(t *testing.T) {
	for in, want := range map[string]string{
		"nginx":                             "docker.io/library/nginx:latest",
		"nginx:1.25":                        "docker.io/library/nginx:1.25",
		"vllm/vllm-openai":                  "docker.io/vllm/vllm-openai:latest",
		"docker.io/vllm/vllm-openai:v0.9":   "docker.io/vllm/vllm-openai:v0.9",
		"localhost/a:b":                     "localhost/a:b",
		"127.0.0.1:5000/a/b":                "127.0.0.1:5000/a/b:latest",
		"registry.example/a:1@sha256:abc":   "registry.example/a@sha256:abc",
		"registry.example:5000/a@sha256:ab": "registry.example:5000/a@sha256:ab",
		"a@sha256:ab":                       "docker.io/library/a@sha256:ab",
	} {
		if got := Canonical(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

// TestImages: named images first, each once, and of another namespace only where
// all are taken.
func TestImages(t *testing.T) {
	used := []Image{
		{FromServices, "a", "vllm/vllm-openai:v0.9"}, {FromServices, "a", "docker.io/vllm/vllm-openai:v0.9"}, {FromServices, "b", "b:1"},
		{FromRuntimes, "", "sglang:1"}, {FromRuntimes, "a", "nginx:latest"}, {FromRuntimes, "a", "x:{{.Version}}"}, {FromRuntimes, "b", "c:1"},
	}
	for name, c := range map[string]struct {
		images     *api.ReserveImages
		everywhere bool
		want       string
	}{
		"none":       {nil, true, ""},
		"named":      {&api.ReserveImages{Names: []string{"nginx", "nginx:latest"}}, true, "nginx"},
		"services":   {&api.ReserveImages{From: []string{FromServices}}, false, "docker.io/vllm/vllm-openai:v0.9"},
		"both":       {&api.ReserveImages{From: []string{FromRuntimes, FromServices}, Names: []string{"nginx"}}, false, "nginx docker.io/vllm/vllm-openai:v0.9 sglang:1"},
		"everywhere": {&api.ReserveImages{From: []string{FromRuntimes, FromServices}}, true, "b:1 docker.io/vllm/vllm-openai:v0.9 c:1 nginx:latest sglang:1"},
	} {
		r := &api.Reserve{Metadata: metav1.ObjectMeta{Namespace: "a"}, Spec: api.ReserveSpec{Images: c.images}}
		if got := strings.Join(Images(r, used, c.everywhere), " "); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func sample() *api.Reserve {
	return &api.Reserve{
		Metadata: metav1.ObjectMeta{Name: "gpus", Namespace: "team-a", UID: "1234", Generation: 3},
		Spec: api.ReserveSpec{
			NodeSelector: map[string]string{"pool": "gpu"}, ImagePullSecrets: []string{"registry"},
			Tolerations: []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}},
			Placeholders: &api.Placeholders{Count: new(2), Resources: map[string]resource.Quantity{
				"nvidia.com/gpu": resource.MustParse("1"), "cpu": resource.MustParse("4"), "memory": resource.MustParse("16Gi")}},
			Images: &api.ReserveImages{Names: []string{"vllm/vllm-openai:v0.9"}},
		},
	}
}

// TestRender compares the objects with golden files.
func TestRender(t *testing.T) {
	env := Env{Image: "registry.example/roundhouse:1", PriorityClass: "roundhouse-system-roundhouse-reserve"}
	for name, object := range map[string]any{
		"deployment": Deployment(sample(), 2, env),
		"job":        Job(sample(), Pull{"node-1", "vllm/vllm-openai:v0.9"}, env),
	} {
		raw, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		got, err := yaml.JSONToYAML(raw)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", name+".yaml")
		if *update {
			if err := os.WriteFile(file, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil || string(got) != string(want) {
			t.Errorf("%s: %v; -update rewrites it:\n%s", file, err, got)
		}
	}
	if a, b := JobName(sample(), Pull{"n", "nginx"}), JobName(sample(), Pull{"n", "docker.io/library/nginx:latest"}); a != b {
		t.Errorf("one pull has two names: %s, %s", a, b)
	}
	long, other := sample(), sample()
	long.Metadata.Name, other.Metadata.Name = strings.Repeat("a", 63), strings.Repeat("a", 62)
	if a, b := JobName(long, Pull{"n", "nginx"}), JobName(other, Pull{"n", "nginx"}); len(a) > 63 || a == b {
		t.Errorf("names of Jobs: %s, %s", a, b)
	}
	if a, b := Deployment(sample(), 1, env), Deployment(sample(), 2, env); a.Annotations[AnnotationApplied] == b.Annotations[AnnotationApplied] {
		t.Error("another count, and the same digest")
	}
}

// TestStatus: what people read of each state.
func TestStatus(t *testing.T) {
	running := Placeholder{Phase: corev1.PodRunning, Scheduled: true, Ready: true}
	preempted := Placeholder{Phase: corev1.PodPending, Unscheduled: "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."}
	for name, c := range map[string]struct {
		facts                 Facts
		status, reason, words string
	}{
		"kept": {Facts{Nodes: 3, Wanted: 2, Why: "count is 2", Pods: []Placeholder{running, running}, Images: []string{"a"}, Pulls: Plan{Wanted: 3, Present: 3}},
			"True", ReasonKept, "2 of 2 placeholders run (count is 2); 1 image on 3 nodes: 3 of 3 present"},
		"preempted": {Facts{Nodes: 3, Wanted: 2, Why: "count is 2", Pods: []Placeholder{running, preempted}},
			"False", ReasonNoRoom, "1 of 2 placeholders run (count is 2): 1 has no room and comes back when there is some: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."},
		"just made":   {Facts{Wanted: 1, Why: "count is 1", Pods: []Placeholder{{Phase: corev1.PodPending}}}, "False", ReasonStarting, "0 of 1 placeholder run"},
		"no pods":     {Facts{Wanted: 1, Why: "count is 1"}, "False", ReasonNoPods, "0 of 1 placeholder run"},
		"evicted":     {Facts{Wanted: 1, Why: "count is 1", Pods: []Placeholder{{Phase: corev1.PodFailed}, running}}, "True", ReasonKept, "1 of 1 placeholder run"},
		"not started": {Facts{Wanted: 1, Why: "count is 1", Pods: []Placeholder{{Phase: corev1.PodPending, Scheduled: true, Problem: "ErrImagePull: no such image"}}}, "False", ReasonNotStarted, "ErrImagePull: no such image"},
		"a quota":     {Facts{Wanted: 1, Why: "count is 1", Refused: "exceeded quota: few"}, "False", ReasonRefused, "exceeded quota: few"},
		"pulling":     {Facts{Nodes: 2, Images: []string{"a"}, Pulls: Plan{Wanted: 2, Present: 1, Pulling: 1}}, "False", ReasonPulling, "1 image on 2 nodes: 1 of 2 present"},
		"failed": {Facts{Nodes: 2, Images: []string{"a"}, Pulls: Plan{Wanted: 2, Failed: 1}, Last: &api.ImageFailure{Image: "a", Node: "n", Message: "not found"}},
			"False", ReasonFailed, "a on node n: not found; tried again after a pause"},
		"no nodes": {Facts{Images: []string{"a"}}, "True", ReasonKept, "1 image on 0 nodes: 0 of 0 present"},
		"disabled": {Facts{Reason: ReasonDisabled, Problem: "set reserves.enabled"}, "False", ReasonDisabled, "set reserves.enabled"},
	} {
		st := Status(sample(), c.facts)
		if ready := st.Conditions[0]; ready.Type != ConditionReady || string(ready.Status) != c.status || ready.Reason != c.reason || !strings.Contains(ready.Message, c.words) {
			t.Errorf("%s: %+v", name, ready)
		}
		if st.ObservedGeneration != 3 {
			t.Errorf("%s: of generation %d", name, st.ObservedGeneration)
		}
	}
}

// TestPods: what a pod tells.
func TestPods(t *testing.T) {
	p := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes are available: 1 Insufficient cpu. preemption: not helpful."}}}}
	if got := PlaceholderOf(p); got.Unscheduled != "0/1 nodes are available: 1 Insufficient cpu." || got.Scheduled {
		t.Errorf("%+v", got)
	}
	p = &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Phase: corev1.PodPending,
		InitContainerStatuses: []corev1.ContainerStatus{{Name: copier, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}},
		ContainerStatuses:     []corev1.ContainerStatus{{Name: Puller, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "back-off"}}}}}}
	if c, problem := PullProblem(p); c != Puller || problem != "ImagePullBackOff: back-off" {
		t.Errorf("%s: %s", c, problem)
	}
}

func names(pulls []Pull) (out []string) {
	for _, p := range pulls {
		out = append(out, p.Node+" "+p.Image)
	}
	slices.Sort(out)
	return out
}
