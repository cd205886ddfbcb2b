package kubetest_test

import (
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/edge/kube/crds"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

func TestMain(m *testing.M) { kubetest.Main(m) }

// TestClientAfterDeletion: a test that comes after one that deleted a project's
// definitions has them, although the API server still ends those before.
func TestClientAfterDeletion(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	all, err := crds.Foreign("kserve")
	if err != nil {
		t.Fatal(err)
	}
	patch := func(u client.Object, finalizers string) {
		t.Helper()
		if err := c.Patch(t.Context(), u, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":`+finalizers+`}}`))); err != nil {
			t.Fatal(err)
		}
	}
	for _, u := range all {
		patch(u, `["roundhouse.dev/held"]`)
		if err := c.Delete(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	installed := make(chan struct{})
	go func() {
		defer close(installed)
		kubetest.Client(t, "kserve")
	}()
	select {
	case <-installed:
		t.Error("it did not wait for the definitions that are being deleted")
	case <-time.After(time.Second):
	}
	for _, u := range all {
		patch(u, `[]`)
	}
	<-installed
	for _, u := range all {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(u), u); err != nil || u.GetDeletionTimestamp() != nil {
			t.Errorf("%s is deleted since %v: %v", u.GetName(), u.GetDeletionTimestamp(), err)
		}
	}
}
