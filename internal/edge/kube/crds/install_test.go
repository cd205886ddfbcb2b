package crds_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"roundhouse.dev/roundhouse/internal/edge/kube/crds"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// definition reads a CRD.
func definition(t *testing.T, c client.Client, name string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	u.SetAPIVersion("apiextensions.k8s.io/v1")
	u.SetKind("CustomResourceDefinition")
	if err := c.Get(t.Context(), client.ObjectKey{Name: name}, u); err != nil {
		t.Fatal(err)
	}
	return u
}

func install(t *testing.T, c client.Client, projects ...string) map[string]crds.Action {
	t.Helper()
	changes, err := crds.Install(t.Context(), c, crds.Options{Foreign: projects, FieldManager: "test", Established: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]crds.Action{}
	for _, ch := range changes {
		out[ch.Name] = ch.Action
	}
	return out
}

// version is a definition's first version, to change.
func version(u *unstructured.Unstructured) map[string]any {
	versions, _, _ := unstructured.NestedSlice(u.Object, "spec", "versions")
	_ = unstructured.SetNestedSlice(u.Object, versions, "spec", "versions")
	list, _, _ := unstructured.NestedFieldNoCopy(u.Object, "spec", "versions")
	return list.([]any)[0].(map[string]any)
}

// TestUpgrade: ours are brought up to date from an older release's, whoever
// wrote those, and left where a newer release's are there; what is equal costs
// no write.
func TestUpgrade(t *testing.T) {
	c := kubetest.Client(t)
	const name = "pools.roundhouse.dev"
	before := definition(t, c, name)
	for n, a := range install(t, c) {
		if a != crds.Same {
			t.Errorf("%s: %s, though it is there", n, a)
		}
	}
	if got := definition(t, c, name); got.GetResourceVersion() != before.GetResourceVersion() {
		t.Errorf("an equal definition was written: %s, then %s", before.GetResourceVersion(), got.GetResourceVersion())
	}
	change := func(revision string) *unstructured.Unstructured {
		u := definition(t, c, name)
		u.SetAnnotations(map[string]string{crds.AnnotationRevision: revision, "kept": "by us"})
		delete(version(u), "additionalPrinterColumns")
		if err := c.Update(t.Context(), u, client.FieldOwner("kubectl-client-side-apply")); err != nil {
			t.Fatal(err)
		}
		return u
	}
	newer := change("99")
	if a := install(t, c)[name]; a != crds.Newer {
		t.Errorf("%s, want %s", a, crds.Newer)
	}
	if got := definition(t, c, name); got.GetResourceVersion() != newer.GetResourceVersion() {
		t.Error("a newer release's definition was written")
	}
	change("0")
	if a := install(t, c)[name]; a != crds.Updated {
		t.Errorf("%s, want %s", a, crds.Updated)
	}
	got := definition(t, c, name)
	if version(got)["additionalPrinterColumns"] == nil || got.GetAnnotations()["kept"] != "by us" || got.GetAnnotations()[crds.AnnotationRevision] == "0" {
		t.Errorf("not up to date, or an annotation of somebody else is gone: %v", got.GetAnnotations())
	}
}

// TestStandIns: they are made where a project's definitions are absent, and
// nowhere else; the project's own may be put over them.
func TestStandIns(t *testing.T) {
	c := kubetest.Client(t)
	const name = "seldondeployments.machinelearning.seldon.io"
	for _, p := range crds.Projects() {
		if _, err := crds.Foreign(p); err != nil {
			t.Error(err)
		}
	}
	if got := install(t, c); slices.ContainsFunc(slices.Collect(maps.Keys(got)), func(n string) bool { return n == name }) {
		t.Errorf("without being asked: %v", got)
	}
	if a := install(t, c, "seldon")[name]; a != crds.Created {
		t.Fatalf("%s, want %s", a, crds.Created)
	}
	standIn := definition(t, c, name)
	if !crds.Permissive(standIn) {
		t.Errorf("not known as a stand-in: %v", standIn.Object)
	}
	if a := install(t, c, "seldon")[name]; a != crds.Same {
		t.Errorf("%s, want %s", a, crds.Same)
	}
	// The project's own is applied over it: the label stays, and yet it is theirs.
	theirs := standIn.DeepCopy()
	version(theirs)["schema"] = map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "description": "Seldon's"}}
	if err := c.Update(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	if a := install(t, c, "seldon")[name]; a != crds.Theirs {
		t.Errorf("%s, want %s", a, crds.Theirs)
	}
	if got := definition(t, c, name); got.GetResourceVersion() != theirs.GetResourceVersion() || crds.Permissive(got) {
		t.Error("the project's own was written to, or is taken for a stand-in")
	}
	if _, err := crds.Install(t.Context(), c, crds.Options{Foreign: []string{"kubeflow"}, FieldManager: "test"}); err == nil {
		t.Error("a project that is unknown: no error")
	}
}

// TestInstallGoesOn: one definition's fault does not keep the others from
// being installed, and the error names it.
func TestInstallGoesOn(t *testing.T) {
	kubetest.Client(t)
	fault := errors.New("no more room")
	inner, err := client.NewWithWatch(kubetest.Server(t), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := interceptor.NewClient(inner, interceptor.Funcs{
		Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if key.Name == "pools.roundhouse.dev" {
				return fault
			}
			return w.Get(ctx, key, obj, opts...)
		}})
	changes, err := crds.Install(t.Context(), c, crds.Options{FieldManager: "test"})
	if !errors.Is(err, fault) || len(changes) != 5 {
		t.Errorf("%d changes, %v", len(changes), err)
	}
}
