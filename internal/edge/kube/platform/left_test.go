package platform_test

import (
	"context"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

// TestAutoscalerComesAndGoes: a HorizontalPodAutoscaler that somebody makes of a
// Deployment which runs takes the count over from then on, and the service is
// looked at again, as it is once that is deleted.
func TestAutoscalerComesAndGoes(t *testing.T) {
	f := open(t)
	k := platformtest.Key("taken-over")
	ref := workload.Ref{Service: k, Role: service.RoleEngine}
	f.MustApply(revision(k, platformtest.Server{}))
	f.MustScale(k, 2)
	f.AwaitReady(k, 2)
	left := func(want bool) {
		t.Helper()
		for ctx := within(t); ; {
			n, theirs := f.Platform.(fleet.Left).Left(ref)
			if theirs == want {
				if theirs && n != 2 {
					t.Errorf("their count is %d", n)
				}
				return
			}
			select {
			case <-f.Changed():
			case <-ctx.Done():
				t.Fatalf("never told that the count is theirs: %v", want)
			}
		}
	}
	left(false)
	name := shape.Name(k, service.RoleEngine)
	typed, err := kubernetes.NewForConfig(cluster(t))
	if err != nil {
		t.Fatal(err)
	}
	scalers := typed.AutoscalingV2().HorizontalPodAutoscalers(k.Namespace)
	h := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: "keda-hpa-taken-over"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MaxReplicas: 9, ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
			APIVersion: "apps/v1", Kind: "Deployment", Name: name}}}
	if _, err := scalers.Create(t.Context(), h, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = scalers.Delete(context.Background(), h.Name, metav1.DeleteOptions{}) })
	left(true)
	f.MustScale(k, 3)
	f.MustScale(k, 0)
	f.wantCount(deployments, k, 2, "scaled by us")
	f.scaleAs("horizontal-pod-autoscaler", deployments, k, 1)
	f.AwaitReady(k, 1)
	f.MustApply(revision(k, platformtest.Server{Salt: "2"}))
	f.wantCount(deployments, k, 1, "a new revision")
	f.AwaitReady(k, 1)
	if err := scalers.Delete(t.Context(), h.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	left(false)
	f.MustScale(k, 0)
	f.wantCount(deployments, k, 0, "once it is gone")
	f.AwaitNone(k)
}
