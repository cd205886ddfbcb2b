package platform_test

import (
	"context"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
			n, theirs := f.Platform.(fleet.ExternalScaler).ExternalCount(ref)
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

// TestScaledByAResource: of a role that scales by cpu or memory a
// HorizontalPodAutoscaler counts the replicas, from one up; to and from none it
// is the requests that decide. The autoscaler goes with the metric, and before
// one of others.
func TestScaledByAResource(t *testing.T) {
	f := open(t)
	k := platformtest.Key("measured")
	r := revision(k, platformtest.Server{})
	l := &r.Components[0].Limits
	l.Min, l.Max, l.Metric, l.Target = 2, 3, service.MetricMemory, 65
	f.MustApply(r)
	typed, err := kubernetes.NewForConfig(cluster(t))
	if err != nil {
		t.Fatal(err)
	}
	scalers, name := typed.AutoscalingV2().HorizontalPodAutoscalers(k.Namespace), shape.Name(k, service.RoleEngine)
	h, err := scalers.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if m := h.Spec.Metrics[0].Resource; m.Name != "memory" || *m.Target.AverageUtilization != 65 || *h.Spec.MinReplicas != 2 || h.Spec.MaxReplicas != 3 || h.Spec.ScaleTargetRef.Name != name {
		t.Errorf("scales %+v", h.Spec)
	}
	f.wantCount(deployments, k, 0, "before a request")
	f.MustScale(k, 1)
	f.AwaitReady(k, 2) // by the autoscaler, whose least is that
	f.MustScale(k, 3)
	f.MustScale(k, 1)
	f.wantCount(deployments, k, 2, "scaled by us")
	f.calls.writes()
	f.MustApply(r)
	if w := f.calls.writes(); len(w) > 0 {
		t.Errorf("applied again: %v", w)
	}
	l.Target = 70
	f.MustApply(r)
	if h, err = scalers.Get(t.Context(), name, metav1.GetOptions{}); err != nil || *h.Spec.Metrics[0].Resource.Target.AverageUtilization != 70 {
		t.Errorf("another target: %+v, %v", h.Spec, err)
	}
	f.MustScale(k, 0)
	f.AwaitNone(k)
	f.wantCount(deployments, k, 0, "asleep")

	gone := func(when string) {
		t.Helper()
		for ctx := within(t); ; {
			_, err := scalers.Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return
			}
			select {
			case <-f.Changed():
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				t.Fatalf("%s: ours is still there: %v", when, err)
			}
		}
	}
	theirs := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: "mine"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MaxReplicas: 9, ScaleTargetRef: h.Spec.ScaleTargetRef}}
	if _, err := scalers.Create(t.Context(), theirs, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := f.driftedKey(); got != k {
		t.Errorf("%s is to be applied again", got)
	}
	f.MustApply(r)
	gone("beside another's")
	if err := scalers.Delete(t.Context(), theirs.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := f.driftedKey(); got != k {
		t.Errorf("%s is to be applied again", got)
	}
	f.MustApply(r)
	if _, err := scalers.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	l.Metric = service.MetricConcurrency
	f.MustApply(r)
	gone("with another metric")
	f.MustScale(k, 1)
	f.AwaitReady(k, 1)
}
