package platform_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

// TestGroups: LeaderWorkerSets, which are installed here and stay, since the
// garbage collector stands still for long when a kind goes.
func TestGroups(t *testing.T) {
	t.Run("InstalledLater", testInstalledLater)
	t.Run("Count", func(t *testing.T) { testCount(t, groups, overNodes) })
	t.Run("ShapeChanges", testShapeChanges)
	t.Run("Surge", testSurge)
	t.Run("SurgeOutlivesRestart", testSurgeOutlivesRestart)
	t.Run("NoSurge", testNoSurge)
}

// overNodes makes a group of two of the engine.
func overNodes(r workload.Revision) workload.Revision {
	c := &r.Components[0]
	c.Worker = &workload.Node{Pod: *c.Pod.DeepCopy(), Main: c.Main, Size: 1}
	return r
}

// testInstalledLater: what needs LeaderWorkerSets says so, and runs once
// they are there.
func testInstalledLater(t *testing.T) {
	f := open(t)
	if _, err := f.direct.RESTMapper().RESTMapping(groups.GroupKind()); err == nil {
		t.Skip("LeaderWorkerSets are installed already, by a run before this one")
	}
	k := platformtest.Key("grouped")
	r := overNodes(revision(k, platformtest.Server{}))
	if err := f.Apply(t.Context(), r); err == nil || !strings.Contains(err.Error(), "install sigs.k8s.io/lws") {
		t.Errorf("without LeaderWorkerSets: %v", err)
	}
	if _, err := envtest.InstallCRDs(cluster(t), envtest.CRDInstallOptions{Paths: []string{"testdata/crds"}}); err != nil {
		t.Fatal(err)
	}
	f.MustApply(r)
	f.MustScale(k, 2)
	f.wantCount(groups, k, 2, "scaled")
	f.scaleAs("somebody", groups, k, 3)
	f.wantRaised(3)
	f.calls.writes()
	again := open(t)
	again.MustApply(r)
	again.MustScale(k, 3)
	if got := again.calls.writes(); len(got) != 0 {
		t.Errorf("a restart wrote %v", got)
	}
	if err := f.Remove(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	f.AwaitNone(k)
}

// testShapeChanges: a Deployment that becomes a LeaderWorkerSet keeps its count.
func testShapeChanges(t *testing.T) {
	f := open(t)
	k := platformtest.Key("reshaped")
	f.MustApply(revision(k, platformtest.Server{}))
	f.MustScale(k, 2)
	f.AwaitReady(k, 2)
	f.MustApply(overNodes(revision(k, platformtest.Server{Salt: "2"})))
	f.wantCount(groups, k, 2, "the new shape")
	u := &appsv1.Deployment{}
	err := f.direct.Get(t.Context(), client.ObjectKey{Namespace: k.Namespace, Name: shape.Name(k, service.RoleEngine)}, u)
	if !apierrors.IsNotFound(err) {
		t.Errorf("the Deployment: %v", err)
	}
}

// leader makes the leader of a group as the controller of LeaderWorkerSets
// does; the kubelet of these tests has it ready.
func (f *fixture) leader(k service.Key, group int, rev workload.Revision) *corev1.Pod {
	f.t.Helper()
	name := shape.Name(k, service.RoleEngine)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: fmt.Sprintf("%s-%d", name, group),
		Annotations: map[string]string{shape.AnnotationService: k.Name},
		Labels: map[string]string{shape.LabelManagedBy: shape.Manager, shape.LabelService: k.Name, shape.LabelRole: "engine",
			shape.LabelRevision: rev.Hash, shape.LabelWorkerIndex: "0"}},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(0)), Containers: []corev1.Container{{Name: "main", Image: "test",
			Env: []corev1.EnvVar{{Name: "PLATFORMTEST_SERVER", Value: "{}"}}}}}}
	if err := f.direct.Create(f.t.Context(), pod); err != nil {
		f.t.Fatal(err)
	}
	return pod
}

// wantReplicas waits until the set is to have so many groups, and surges or
// does not.
func (f *fixture) wantReplicas(k service.Key, n int64, surge bool, when string) {
	f.t.Helper()
	ctx := within(f.t)
	for {
		u := f.live(groups, k)
		got, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
		marked := u.GetAnnotations()["roundhouse.dev/surge"] != ""
		if got == n && marked == surge {
			return
		}
		select {
		case <-f.Changed():
		case <-ctx.Done():
			f.t.Fatalf("%s: %d replicas, surging: %v; want %d, %v", when, got, marked, n, surge)
		}
	}
}

// remove deletes a service and the pods that the test made for it.
func (f *fixture) remove(k service.Key) {
	f.t.Helper()
	if err := f.Remove(f.t.Context(), k); err != nil {
		f.t.Fatal(err)
	}
	if err := f.direct.DeleteAllOf(f.t.Context(), &corev1.Pod{}, client.InNamespace(k.Namespace), client.MatchingLabels{shape.LabelService: k.Name}); err != nil {
		f.t.Fatal(err)
	}
	f.AwaitNone(k)
}

// testSurge: one group more than wanted is there while those of a new revision
// take over, and nobody is told of another count.
func testSurge(t *testing.T) {
	f := open(t)
	k := platformtest.Key("surged")
	first, second := overNodes(revision(k, platformtest.Server{Salt: "1"})), overNodes(revision(k, platformtest.Server{Salt: "2"}))
	f.MustApply(first)
	f.MustScale(k, 1)
	old := f.leader(k, 0, first)
	f.AwaitReady(k, 1)
	f.calls.writes()
	f.MustApply(second)
	f.wantReplicas(k, 2, true, "a new revision")
	if calls := f.calls.writes(); !slices.Equal(calls, []string{"PATCH leaderworkersets"}) {
		t.Errorf("calls: %v", calls)
	}
	f.MustApply(second)
	f.leader(k, 1, second)
	f.AwaitReady(k, 2) // of both revisions
	f.MustScale(k, 2)
	f.wantReplicas(k, 3, true, "scaled meanwhile")
	f.MustScale(k, 1)
	f.wantReplicas(k, 2, true, "and back")
	third := overNodes(revision(k, platformtest.Server{Salt: "3"}))
	f.MustApply(third)
	f.wantReplicas(k, 2, true, "another revision meanwhile")
	f.MustApply(second)
	if err := f.direct.Delete(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	f.await(k, func(pods []corev1.Pod) bool { return len(pods) == 1 })
	f.wantReplicas(k, 2, true, "one of two took over")
	f.leader(k, 0, second)
	f.wantReplicas(k, 1, false, "all took over")
	f.calls.writes()
	f.MustApply(second)
	f.MustScale(k, 1)
	if calls := f.calls.writes(); len(calls) != 0 {
		t.Errorf("calls once all is done: %v", calls)
	}
	f.wantQuiet("a surge")
	f.remove(k)
}

// testSurgeOutlivesRestart: who takes over in the middle of a surge knows what
// is wanted, and ends it; one that sleeps ends at once.
func testSurgeOutlivesRestart(t *testing.T) {
	f := open(t)
	k := platformtest.Key("surged-on")
	first, second := overNodes(revision(k, platformtest.Server{Salt: "1"})), overNodes(revision(k, platformtest.Server{Salt: "2"}))
	f.MustApply(first)
	f.MustScale(k, 2)
	f.MustApply(second)
	f.wantReplicas(k, 3, true, "a new revision")
	again := open(t)
	again.MustApply(second)
	again.MustScale(k, 2)
	if calls := again.calls.writes(); len(calls) != 0 {
		t.Errorf("calls of another controller: %v", calls)
	}
	for group := range 3 {
		again.leader(k, group, second)
	}
	again.wantReplicas(k, 2, false, "all took over")
	again.wantQuiet("another controller")
	third := overNodes(revision(k, platformtest.Server{Salt: "3"}))
	again.MustApply(third)
	again.wantReplicas(k, 3, true, "another revision")
	again.MustScale(k, 0)
	if err := again.direct.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(k.Namespace), client.MatchingLabels{shape.LabelService: k.Name}); err != nil {
		t.Fatal(err)
	}
	again.wantReplicas(k, 0, false, "asleep")
	again.remove(k)
}

// testNoSurge: a count that is another's to set is left alone, and one of zero
// has nothing that could take over.
func testNoSurge(t *testing.T) {
	f := open(t)
	k := platformtest.Key("unsurged")
	next := func(salt, class string) workload.Revision {
		r := overNodes(revision(k, platformtest.Server{Salt: salt}))
		r.Components[0].Annotations = map[string]string{"roundhouse.dev/autoscalerClass": class}
		return r
	}
	f.MustApply(next("1", ""))
	f.MustApply(next("2", ""))
	f.wantReplicas(k, 0, false, "asleep")
	f.MustScale(k, 1)
	f.MustApply(next("3", "external"))
	f.wantReplicas(k, 1, false, "scaled by others")
	f.remove(k)
}
