package platform_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/kube/platform"
	"roundhouse.dev/roundhouse/internal/edge/kube/platform/clustertest"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

func (f *fixture) wantRaised(n int) {
	f.t.Helper()
	select {
	case got := <-f.raised:
		if got != n {
			f.t.Errorf("told of a count raised to %d, want %d", got, n)
		}
	case <-within(f.t).Done():
		f.t.Fatalf("not told of a count raised to %d", n)
	}
}

func (f *fixture) wantQuiet(when string) {
	f.t.Helper()
	select {
	case n := <-f.raised:
		f.t.Errorf("%s: told of a count raised to %d", when, n)
	case k := <-f.drifted:
		f.t.Errorf("%s: told that %s drifted", when, k)
	default:
	}
}

// TestScaledByOthers: a raise is a wake, a fall is mended, and what we do
// ourselves is neither.
func TestScaledByOthers(t *testing.T) {
	f := open(t)
	k := platformtest.Key("woken")
	f.MustApply(revision(k, platformtest.Server{}))
	f.scaleAs("roundhouse-gateway", deployments, k, 1)
	f.wantRaised(1)
	f.AwaitReady(k, 1)
	f.MustScale(k, 3)
	f.AwaitReady(k, 3)
	f.MustScale(k, 2)
	f.AwaitReady(k, 2)
	f.wantQuiet("scaled by us")
	f.scaleAs("somebody", deployments, k, 0)
	if got := f.driftedKey(); got != k {
		t.Errorf("told of %s", got)
	}
	f.MustScale(k, 2)
	f.AwaitReady(k, 2)
	f.wantQuiet("mended")
}

// TestSleepDoesNotUndoWake: a count that a gateway raised after we looked is
// not lowered.
func TestSleepDoesNotUndoWake(t *testing.T) {
	f := open(t)
	k := platformtest.Key("kept-awake")
	f.MustApply(revision(k, platformtest.Server{}))
	f.MustScale(k, 1)
	f.AwaitReady(k, 1)
	done := false
	f.calls.set(func(call string) {
		if call == "PATCH deployments/scale" && !done {
			done = true
			f.scaleAs("roundhouse-gateway", deployments, k, 2)
		}
	}, false)
	f.MustScale(k, 0)
	f.calls.set(nil, false)
	f.wantCount(deployments, k, 2, "raised meanwhile")
	f.wantRaised(2)
	f.AwaitReady(k, 2)
	// What changed may also be something else: then the count falls.
	done = false
	f.calls.set(func(call string) {
		if call == "PATCH deployments/scale" && !done {
			done = true
			d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: shape.Name(k, service.RoleEngine)}}
			if err := f.direct.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"touched":"yes"}}}`))); err != nil {
				t.Error(err)
			}
		}
	}, false)
	f.MustScale(k, 0)
	f.calls.set(nil, false)
	f.wantCount(deployments, k, 0, "touched meanwhile")
	f.AwaitNone(k)
}

// TestRaiseDoesNotLower: whoever raised the count further after we looked has
// the greater wish, which stays; a lesser one is raised to ours.
func TestRaiseDoesNotLower(t *testing.T) {
	f := open(t)
	k := platformtest.Key("raised-twice")
	f.MustApply(revision(k, platformtest.Server{}))
	f.MustScale(k, 1)
	f.AwaitReady(k, 1)
	meanwhile := func(n int) {
		done := false
		f.calls.set(func(call string) {
			if call == "PATCH deployments/scale" && !done {
				done = true
				f.scaleAs("somebody", deployments, k, n)
			}
		}, false)
	}
	meanwhile(4)
	f.MustScale(k, 2)
	f.calls.set(nil, false)
	f.wantCount(deployments, k, 4, "raised further meanwhile")
	f.wantRaised(4)
	f.AwaitReady(k, 4)
	meanwhile(5)
	f.MustScale(k, 6)
	f.calls.set(nil, false)
	f.wantCount(deployments, k, 6, "raised meanwhile, and by us further")
	f.AwaitReady(k, 6)
	f.MustScale(k, 0)
	f.AwaitNone(k)
}

// TestRaiseStands: who decides by what he saw before somebody raised the count
// does not undo that. Once he was told, and has looked again, he decides.
func TestRaiseStands(t *testing.T) {
	f := open(t)
	k := platformtest.Key("stands")
	f.MustApply(revision(k, platformtest.Server{}))
	f.MustScale(k, 1)
	f.AwaitReady(k, 1)
	f.wantQuiet("scaled by us")
	f.scaleAs("somebody", deployments, k, 3)
	f.wantRaised(3)
	f.MustScale(k, 1)
	f.wantCount(deployments, k, 3, "decided before the raise was seen")
	f.AwaitReady(k, 3)
	f.MustScale(k, 1)
	f.wantCount(deployments, k, 1, "decided after it")
	f.MustScale(k, 0)
	f.AwaitNone(k)
}

// TestLateTemplate: a template that somebody writes over ours as the controller
// does is noticed, and ours written again.
func TestLateTemplate(t *testing.T) {
	f := open(t)
	k := platformtest.Key("late")
	r := revision(k, platformtest.Server{})
	f.MustApply(r)
	f.MustScale(k, 1)
	f.AwaitReady(k, 1)
	f.wantQuiet("applied by us")
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: shape.Name(k, service.RoleEngine)}}
	late := `{"metadata":{"annotations":{"` + shape.AnnotationApplied + `":"late"}},"spec":{"template":{"metadata":{"annotations":{"late":"yes"}}}}}`
	if err := f.direct.Patch(t.Context(), d, client.RawPatch(types.MergePatchType, []byte(late)), client.FieldOwner(shape.FieldManager)); err != nil {
		t.Fatal(err)
	}
	if got := f.driftedKey(); got != k {
		t.Errorf("told of %s", got)
	}
	f.MustApply(r)
	if err := f.direct.Get(t.Context(), client.ObjectKeyFromObject(d), d); err != nil || d.Annotations[shape.AnnotationApplied] == "late" {
		t.Errorf("it stands as it was written late: %v", err)
	}
	f.wantQuiet("mended")
	f.MustScale(k, 0)
	f.AwaitNone(k)
}

// TestVictimsForgiven: who was to end and did not is a pod like the others.
func TestVictimsForgiven(t *testing.T) {
	f := open(t)
	k := platformtest.Key("forgiven")
	f.MustApply(revision(k, platformtest.Server{}))
	f.MustScale(k, 3)
	ids := platformtest.IDs(f.AwaitReady(k, 3))
	costs := func(set map[string]any) {
		t.Helper()
		for _, id := range ids[:2] {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: id}}
			if err := f.direct.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
				t.Fatal(err)
			}
			if got, want := pod.Annotations[corev1.PodDeletionCost], set[id]; want != nil && got != want || want == nil && got != "" {
				t.Errorf("pod %s costs %q, want %v", id, got, want)
			}
		}
	}
	f.calls.set(func(call string) {
		if call == "PATCH deployments/scale" {
			f.scaleAs("somebody", deployments, k, 4)
		}
	}, false)
	f.MustScale(k, 2, ids[0])
	f.calls.set(nil, false)
	costs(map[string]any{ids[0]: "-1000000"})
	f.wantRaised(4)
	f.AwaitReady(k, 4)
	f.MustScale(k, 3, ids[2])
	f.AwaitReady(k, 3)
	costs(nil)
}

// TestAutoscalerOfOthers: a Deployment that an HPA scales, or that a manifest
// leaves to another autoscaler, is only woken by us.
func TestAutoscalerOfOthers(t *testing.T) {
	for _, how := range []string{"HorizontalPodAutoscaler", "annotation"} {
		t.Run(how, func(t *testing.T) {
			f := open(t)
			k := platformtest.Key("left-" + strings.ToLower(how))
			r := revision(k, platformtest.Server{})
			typed, err := kubernetes.NewForConfig(cluster(t))
			if err != nil {
				t.Fatal(err)
			}
			scalers := typed.AutoscalingV2().HorizontalPodAutoscalers(k.Namespace)
			name := shape.Name(k, service.RoleEngine)
			if how == "annotation" {
				r.Annotations = map[string]string{"serving.kserve.io/autoscalerClass": "external"}
			} else if _, err := scalers.Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MaxReplicas: 9, ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
					APIVersion: "apps/v1", Kind: "Deployment", Name: name}}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if how != "annotation" {
				// A platform that starts now knows of it from the start.
				f = open(t)
			}
			f.MustApply(r)
			f.MustScale(k, 1)
			f.wantCount(deployments, k, 1, "woken")
			f.AwaitReady(k, 1)
			f.MustScale(k, 3)
			f.MustScale(k, 0)
			f.wantCount(deployments, k, 1, "scaled by us")
			f.scaleAs("horizontal-pod-autoscaler", deployments, k, 2)
			f.AwaitReady(k, 2)
			f.scaleAs("horizontal-pod-autoscaler", deployments, k, 1)
			f.AwaitReady(k, 1)
			f.wantQuiet("scaled by the autoscaler")
			if how == "annotation" {
				return
			}
			if err := scalers.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			again := open(t)
			again.MustApply(r)
			again.MustScale(k, 2)
			again.wantCount(deployments, k, 2, "once it is gone")
		})
	}
}

// TestCallbacksMayWait: who is told may need what the caller of Apply holds.
func TestCallbacksMayWait(t *testing.T) {
	cfg := cluster(t)
	calls, told, let := &counter{}, make(chan int), make(chan bool)
	calls.attach(cfg)
	p := clustertest.Open(t, platform.Config{REST: cfg, Raised: func(_ service.Key, n int) { <-let; told <- n }})
	f := &fixture{t: t, calls: calls, direct: direct(t), Subject: platformtest.On(t, p)}
	k := platformtest.Key("patient")
	f.MustApply(revision(k, platformtest.Server{Salt: "1"}))
	calls.set(func(call string) {
		if call == "PATCH deployments" {
			f.scaleAs("roundhouse-gateway", deployments, k, 1)
		}
	}, false)
	f.MustApply(revision(k, platformtest.Server{Salt: "2"}))
	calls.set(nil, false)
	f.AwaitReady(k, 1)
	close(let)
	select {
	case n := <-told:
		if n != 1 {
			t.Errorf("raised to %d", n)
		}
	case <-within(t).Done():
		t.Error("nobody is told")
	}
}

// TestNotOurs: what somebody else has under a name of ours stays his.
func TestNotOurs(t *testing.T) {
	f := open(t)
	labels := map[string]string{"app": "theirs"}
	for k, theirs := range map[service.Key]client.Object{
		platformtest.Key("taken-deployment"): &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: new(int32(0)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "theirs"}}}}}},
		platformtest.Key("taken-service"): &corev1.Service{Spec: corev1.ServiceSpec{Selector: labels, ClusterIP: "None",
			Ports: []corev1.ServicePort{{Name: "http", Port: 8080, TargetPort: intstr.FromInt32(1)}}}},
	} {
		theirs.SetNamespace(k.Namespace)
		theirs.SetName(shape.Name(k, service.RoleEngine))
		if err := f.direct.Create(t.Context(), theirs); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.direct.Delete(context.Background(), theirs) })
		if err := f.Apply(t.Context(), revision(k, platformtest.Server{})); err == nil || !strings.Contains(err.Error(), "not Roundhouse's") {
			t.Errorf("%s: %v", k, err)
		}
		version := theirs.GetGeneration()
		if err := f.direct.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs); err != nil || theirs.GetGeneration() != version || len(theirs.GetLabels()) != 0 {
			t.Errorf("%s: changed: %v, %v", k, theirs, err)
		}
		if err := f.Remove(t.Context(), k); err != nil {
			t.Error(err)
		}
		if err := f.direct.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs); err != nil {
			t.Errorf("%s: removed: %v", k, err)
		}
	}
}

// TestScaleRefused shows why.
func TestScaleRefused(t *testing.T) {
	f := open(t)
	k := platformtest.Key("refused")
	f.MustApply(revision(k, platformtest.Server{}))
	ref := workload.Ref{Service: k, Role: service.RoleEngine}
	for _, n := range []int{-1, 1 << 30} {
		if err := f.Scale(t.Context(), ref, n, nil); err == nil || !strings.Contains(err.Error(), "cannot be") {
			t.Errorf("Scale to %d: %v", n, err)
		}
	}
	if err := f.Apply(t.Context(), workload.Revision{}); err == nil {
		t.Error("an empty revision is applied")
	}
}

// TestQuota: what the namespace's quota refuses shows as a replica that waits,
// and comes once there is room.
func TestQuota(t *testing.T) {
	overQuota := func(r replica.Replica) bool { return r.Reason == replica.ReasonQuotaExceeded }
	f := open(t)
	k := service.Key{Namespace: "narrow", Name: "squeezed"}
	clustertest.MakeNamespace(t, f.direct, k.Namespace)
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: "few"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}}}
	if err := f.direct.Create(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.direct.Delete(context.Background(), quota) })
	f.MustApply(revision(k, platformtest.Server{}))
	f.MustScale(k, 2)
	rs := f.Await(k, "one refused", func(rs []replica.Replica) bool {
		return len(rs) == 2 && platformtest.Count(rs, replica.Ready) == 1 && slices.ContainsFunc(rs, overQuota)
	})
	// Until the quota is counted the API server refuses the first pod as well, so
	// the one that is left may be older than the one that runs.
	if r := rs[slices.IndexFunc(rs, overQuota)]; r.Phase != replica.Pending || !strings.Contains(r.Message, "few") || !strings.Contains(r.Message, "limited: pods=1") || !strings.Contains(r.Message, "raise it") {
		t.Errorf("refused: %+v", r)
	}
	if err := f.direct.Patch(t.Context(), quota, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"hard":{"pods":"5"}}}`))); err != nil {
		t.Fatal(err)
	}
	f.AwaitReady(k, 2)
}
