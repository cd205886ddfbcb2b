package pools

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestRoles: what a pod is for follows llm-d's label.
func TestRoles(t *testing.T) {
	for label, want := range map[string]struct {
		role    service.Role
		encodes bool
	}{
		"": {service.RoleEngine, false}, "decode": {service.RoleEngine, false}, "both": {service.RoleEngine, false}, "prefill-decode": {service.RoleEngine, false},
		"encode-prefill-decode": {service.RoleEngine, true}, "encode-prefill": {service.RolePrefill, true},
		"prefill": {service.RolePrefill, false}, "encode": {service.RoleEncode, false},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", Labels: map[string]string{"llm-d.ai/role": label}}, Status: corev1.PodStatus{PodIP: "10.0.0.7"}}
		trimmed, err := (&Pods{}).trim(pod)
		if err != nil {
			t.Fatal(err)
		}
		if rs := Replicas(trimmed.(*corev1.Pod), []int32{8000, 8001}); len(rs) != 2 || rs[0].Role != want.role || rs[1].Encodes != want.encodes || rs[1].HTTP != "10.0.0.7:8001" {
			t.Errorf("%q: %+v", label, rs)
		}
	}
}

// TestRanksOfPods: the ranks of a pod's engine are read from its command, unless its pool
// has a port for each, or a sidecar does.
func TestRanksOfPods(t *testing.T) {
	engine := corev1.Container{Args: []string{"vllm serve /models/m --data-parallel-size 4"}}
	sidecar := corev1.Container{Args: []string{"--port=8000", "--vllm-port=8001", "--data-parallel-size=4"}}
	four := service.DataParallel{Size: 4, Local: 4}
	for name, c := range map[string]struct {
		init, containers []corev1.Container
		ports            []int32
		want             service.DataParallel
	}{
		"an engine":                    {nil, []corev1.Container{{Args: []string{"proxy"}}, engine}, []int32{8000}, four},
		"with a port for each":         {nil, []corev1.Container{engine}, []int32{8000, 8001, 8002, 8003}, service.DataParallel{}},
		"with a sidecar for each":      {nil, []corev1.Container{sidecar, engine}, []int32{8000}, service.DataParallel{}},
		"with a sidecar that starts":   {[]corev1.Container{sidecar}, []corev1.Container{engine}, []int32{8000}, service.DataParallel{}},
		"with external load balancing": {nil, []corev1.Container{{Args: []string{"vllm serve m -dp 4 --data-parallel-multi-port-external-lb"}}}, []int32{8000}, service.DataParallel{}},
		"without":                      {nil, []corev1.Container{{Args: []string{"vllm serve m"}}}, []int32{8000}, service.DataParallel{}},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{InitContainers: c.init, Containers: c.containers}, Status: corev1.PodStatus{PodIP: "10.0.0.1"}}
		trimmed, err := (&Pods{}).trim(pod)
		if err != nil {
			t.Fatal(err)
		}
		if got := Replicas(trimmed.(*corev1.Pod), c.ports); len(got) != len(c.ports) || got[0].DataParallel != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
