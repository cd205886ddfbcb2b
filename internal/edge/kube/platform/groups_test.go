package platform_test

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
