package helm

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"roundhouse.dev/roundhouse/internal/edge/kube/crds"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// TestNoWebhooks: an installation is in nobody's way. It has no webhook, which
// an API server would wait for, no definition that is converted by one, and
// nothing that cert-manager must make.
func TestNoWebhooks(t *testing.T) {
	groups := []string{"", "apps", "policy", "autoscaling", "networking.k8s.io", "rbac.authorization.k8s.io", "scheduling.k8s.io", "apiextensions.k8s.io", "gateway.networking.k8s.io", "monitoring.coreos.com"}
	check := func(set string, objects []*unstructured.Unstructured) {
		for _, u := range objects {
			if g := u.GroupVersionKind().Group; !slices.Contains(groups, g) {
				t.Errorf("%s: a %s of %q", set, u.GetKind(), g)
			}
			if by, _, _ := unstructured.NestedString(u.Object, "spec", "conversion", "strategy"); by != "" && by != "None" {
				t.Errorf("%s: %s is converted by a %s", set, u.GetName(), by)
			}
			for note := range u.GetAnnotations() {
				if note == "cert-manager.io/inject-ca-from" {
					t.Errorf("%s: %s waits for cert-manager", set, u.GetName())
				}
			}
		}
	}
	for name, set := range values {
		check(name, kubetest.Parse(t, render(t, set)))
	}
	check("definitions", kubetest.Parse(t, render(t, "")))
	for _, p := range crds.Projects() {
		objects, err := crds.Foreign(p)
		if err != nil {
			t.Fatal(err)
		}
		check("stand-ins of "+p, objects)
	}
}
