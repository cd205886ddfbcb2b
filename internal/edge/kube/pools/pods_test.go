package pools

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestRoles: what a pod is for follows llm-d's label.
func TestRoles(t *testing.T) {
	for label, want := range map[string]service.Role{
		"": service.RoleEngine, "decode": service.RoleEngine, "both": service.RoleEngine, "prefill-decode": service.RoleEngine, "encode-prefill-decode": service.RoleEngine,
		"prefill": service.RolePrefill, "encode-prefill": service.RolePrefill, "encode": service.RoleEncode,
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", Labels: map[string]string{"llm-d.ai/role": label}}, Status: corev1.PodStatus{PodIP: "10.0.0.7"}}
		if rs := Replicas(pod, []int32{8000, 8001}); len(rs) != 2 || rs[0].Role != want || rs[1].HTTP != "10.0.0.7:8001" {
			t.Errorf("%q: %+v", label, rs)
		}
	}
}
