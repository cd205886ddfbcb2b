package objects_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/kube/crds"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/internal/edge/kube/objects"
)

// TestForeignKindsAreAdoptedOnRequest has KServe's kinds read with the flag, or
// where a namespace says so, and installed while the source runs.
func TestForeignKindsAreAdoptedOnRequest(t *testing.T) {
	c := kubetest.Client(t)
	for _, u := range must(crds.Foreign("kserve"))(t) {
		if err := client.IgnoreNotFound(c.Delete(t.Context(), u)); err != nil {
			t.Fatal(err)
		}
	}
	by := map[string]*sink{}
	by["flag"], _ = start(t, service.DialectKServe)
	by["label"], _ = start(t)
	kubetest.Client(t, "kserve") // installed later
	plain, labelled := kubetest.Namespace(t, c, nil), kubetest.Namespace(t, c, map[string]string{objects.LabelAdopt: "ome.kserve"})
	for _, ns := range []string{plain, labelled} {
		kubetest.Apply(t, c, ns, kserveIris)
	}
	is(t, by["flag"], "service", plain, "iris", kserveKind)
	is(t, by["flag"], "service", labelled, "iris", kserveKind)
	is(t, by["label"], "service", labelled, "iris", kserveKind)
	if got := by["label"].origin("service", plain, "iris"); got != "" {
		t.Errorf("a namespace that did not ask has its manifest read as %s", got)
	}

	label := func(ns, value string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, objects.LabelAdopt, value)
		o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: ns}}
		o.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"})
		if err := c.Patch(t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	label(plain, "kserve")
	is(t, by["label"], "service", plain, "iris", kserveKind)
	label(plain, "ome")
	is(t, by["label"], "service", plain, "iris", "")

	for _, u := range must(crds.Foreign("kserve"))(t) {
		if err := c.Delete(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	is(t, by["flag"], "service", plain, "iris", "")
	is(t, by["label"], "service", labelled, "iris", "")
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
