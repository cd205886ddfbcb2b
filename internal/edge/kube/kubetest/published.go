package kubetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// The modules whose definitions tests install; make published-crds downloads
// them.
const (
	GatewayAPI         = "sigs.k8s.io/gateway-api@v1.5.1/config/crd/standard/gateway.networking.k8s.io_*s.yaml"
	InferenceExtension = "sigs.k8s.io/gateway-api-inference-extension@v1.1.0/config/crd/bases/*.yaml"
)

// Published installs definitions that other projects have published, from the
// module cache, over what is there. A test is skipped where they are not.
func Published(t testing.TB, c client.Client, modules ...string) {
	t.Helper()
	cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Skipf("go env GOMODCACHE: %v", err)
	}
	for _, m := range modules {
		files, _ := filepath.Glob(filepath.Join(strings.TrimSpace(string(cache)), m))
		if len(files) == 0 {
			t.Skipf("%s is not in the module cache: make published-crds", m)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			var u unstructured.Unstructured
			if err := yaml.Unmarshal(text, &u.Object); err != nil {
				t.Fatal(err)
			}
			if u.GetKind() != "CustomResourceDefinition" {
				continue
			}
			delete(u.Object, "status")
			if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(&u), client.FieldOwner("published"), client.ForceOwnership); err != nil {
				t.Fatal(err)
			}
			Eventually(t, func() string {
				if err := c.Get(t.Context(), client.ObjectKeyFromObject(&u), &u); err != nil {
					return err.Error()
				}
				all, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
				for _, e := range all {
					if e, ok := e.(map[string]any); ok && e["type"] == "Established" && e["status"] == "True" {
						return ""
					}
				}
				return u.GetName() + " is not established"
			})
		}
	}
}
