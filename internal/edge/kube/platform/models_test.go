package platform_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

// TestModelLists: models that pods load while they run are listed in a ConfigMap, and a
// change of them writes that alone and marks the pods, which stay.
func TestModelLists(t *testing.T) {
	f := open(t)
	k := platformtest.Key("lending")
	r := revision(k, platformtest.Server{})
	r.Image = "test"
	r.Components[0].Repository = workload.LayoutRoundhouse
	f.MustApply(r)
	f.MustScale(k, 1)
	id := f.AwaitReady(k, 1)[0].ID
	f.calls.writes()
	r.Guests = []workload.Guest{{Name: "oak", Model: workload.Model{URI: "s3://b/oak", Format: "xgboost"}}}
	f.MustApply(r)
	if got := f.calls.writes(); !slices.Equal(got, []string{"PATCH configmaps", "PATCH pods"}) {
		t.Errorf("calls %v", got)
	}
	key := client.ObjectKey{Namespace: k.Namespace, Name: shape.Name(k, service.RoleEngine)}
	var m corev1.ConfigMap
	if err := f.direct.Get(t.Context(), key, &m); err != nil || !strings.Contains(m.Data[shape.ModelList], "s3://b/oak") {
		t.Fatalf("the list is %v, %v", m.Data, err)
	}
	var pod corev1.Pod
	if err := f.direct.Get(t.Context(), client.ObjectKey{Namespace: k.Namespace, Name: id[strings.Index(id, "/")+1:]}, &pod); err != nil || pod.Annotations[shape.AnnotationModels] != m.Annotations[shape.AnnotationApplied] {
		t.Errorf("the pod has %v, %v", pod.Annotations, err)
	}
	f.MustApply(r)
	if got := f.calls.writes(); len(got) > 0 {
		t.Errorf("the same again: %v", got)
	}
	if rs := f.AwaitReady(k, 1); rs[0].ID != id {
		t.Errorf("%s took the place of %s", rs[0].ID, id)
	}

	// One that somebody deletes comes back.
	if err := f.direct.Delete(t.Context(), &m); err != nil {
		t.Fatal(err)
	}
	if got := f.driftedKey(); got != k {
		t.Errorf("told of %s", got)
	}
	f.MustApply(r)
	if err := f.direct.Get(t.Context(), key, &m); err != nil {
		t.Error(err)
	}
	if err := f.Remove(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, func() string {
		if err := f.direct.Get(t.Context(), key, &m); !apierrors.IsNotFound(err) {
			return "the list is left"
		}
		return ""
	})
}
