package crds_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/edge/kube/crds"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// published are the projects' own definitions, in the module of theirs; make
// published-crds downloads it.
var published = []struct {
	project, module, files string
	// probe is refused by these definitions and by no stand-in.
	probe string
}{
	{"kserve", "github.com/kserve/kserve@v0.15.2", "config/crd/full/serving.kserve.io_*.yaml",
		`{"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": {"name": "a"}, "spec": {"predictor": 7}}`},
	{"gie", "sigs.k8s.io/gateway-api-inference-extension@v1.1.0", "config/crd/bases/*.yaml",
		`{"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": {"name": "a"}, "spec": 7}`},
	{"gie", "sigs.k8s.io/gateway-api-inference-extension@v0.5.1", "config/crd/bases/*.yaml",
		`{"apiVersion": "inference.networking.x-k8s.io/v1alpha2", "kind": "InferenceModel", "metadata": {"name": "a"}, "spec": {"modelName": ["a"]}}`},
}

// unlike are the manifests that a project's own definitions refuse and why we
// read them all the same.
var unlike = map[string]string{
	"examples/manifests/kserve-legacy-schema.yaml InferenceService xgboost-legacy": "cpu: 0.1 without quotes, as KServe's own pages write it",
	"examples/manifests/kserve-legacy-schema.yaml InferenceService wine":           "predictor.mlflow, as MLServer's pages write it",
	"examples/manifests/kserve-custom.yaml InferenceService custom-simple":         "a container without a name, as KServe's own pages write it",
}

// TestPublished gives the manifests of other projects that we have to their
// own definitions and to our stand-ins: both take them.
func TestPublished(t *testing.T) {
	c := kubetest.Client(t)
	cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Skipf("go env GOMODCACHE: %v", err)
	}
	docs := foreignDocuments(t)
	for _, p := range published {
		t.Run(p.module, func(t *testing.T) {
			files, _ := filepath.Glob(filepath.Join(strings.TrimSpace(string(cache)), p.module, p.files))
			if len(files) == 0 {
				t.Skipf("%s is not in the module cache: make published-crds", p.module)
			}
			remove(t, c, p.project)
			install(t, c, p.project)
			theirs, kinds := definitions(t, p.project, files)
			try := func(by string) int {
				n := 0
				for name, u := range docs {
					gvk := u.GroupVersionKind()
					if !kinds[gvk.Group+" "+gvk.Kind] {
						continue
					}
					n++
					want := by == "their own" && unlike[name] != ""
					if err := dry(t.Context(), c, u); err != nil != want {
						t.Errorf("%s: %s definitions: %v", name, by, err)
					}
				}
				return n
			}
			n := try("our")
			replace(t, c, theirs)
			await(t, c, p.probe)
			if m := try("their own"); m != n || n == 0 {
				t.Errorf("%d manifests for ours, %d for theirs", n, m)
			}
			t.Logf("%d manifests", n)
			got := install(t, c, p.project)
			for _, u := range theirs {
				if got[u.GetName()] != crds.Theirs {
					t.Errorf("%s: %q, want %q", u.GetName(), got[u.GetName()], crds.Theirs)
				}
			}
			remove(t, c, p.project)
		})
	}
}

// remove deletes a project's definitions and waits until they are gone.
func remove(t *testing.T, c client.Client, project string) {
	t.Helper()
	all, err := crds.Foreign(project)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range all {
		if err := client.IgnoreNotFound(c.Delete(t.Context(), u)); err != nil {
			t.Fatal(err)
		}
		until(t, u.GetName()+" is gone", func() bool {
			return c.Get(t.Context(), client.ObjectKeyFromObject(u), u.DeepCopy()) != nil
		})
	}
}

// definitions are those of a project's own that we have a stand-in for, and
// the kinds they define.
func definitions(t *testing.T, project string, files []string) ([]*unstructured.Unstructured, map[string]bool) {
	t.Helper()
	known, kinds := map[string]bool{}, map[string]bool{}
	ours, err := crds.Foreign(project)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range ours {
		known[u.GetName()] = true
	}
	var out []*unstructured.Unstructured
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var u unstructured.Unstructured
		if err := yaml.Unmarshal(text, &u.Object); err != nil {
			t.Fatal(err)
		}
		if !known[u.GetName()] {
			continue
		}
		group, _, _ := unstructured.NestedString(u.Object, "spec", "group")
		kind, _, _ := unstructured.NestedString(u.Object, "spec", "names", "kind")
		kinds[group+" "+kind] = true
		out = append(out, &u)
	}
	return out, kinds
}

// replace puts definitions over those that are there.
func replace(t *testing.T, c client.Client, all []*unstructured.Unstructured) {
	t.Helper()
	for _, u := range all {
		have := definition(t, c, u.GetName())
		have.Object["spec"] = u.Object["spec"]
		if err := c.Update(t.Context(), have); err != nil {
			t.Fatal(err)
		}
	}
}

// await waits until the definitions in force refuse what only they refuse.
func await(t *testing.T, c client.Client, probe string) {
	t.Helper()
	var u unstructured.Unstructured
	if err := json.Unmarshal([]byte(probe), &u.Object); err != nil {
		t.Fatal(err)
	}
	u.SetNamespace("default")
	until(t, "the new definitions are in force", func() bool {
		err := dry(t.Context(), c, &u)
		return err != nil && strings.Contains(err.Error(), "Invalid value")
	})
}

// until waits for what the API server does in its own time.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it never came to be that %s", what)
		}
	}
}

// foreignDocuments are the manifests of other projects among the examples and
// in the catalog, by file and name.
func foreignDocuments(t *testing.T) map[string]*unstructured.Unstructured {
	out := map[string]*unstructured.Unstructured{}
	for _, pattern := range []string{"examples/manifests/*", "catalog/*/*.yaml"} {
		files, err := filepath.Glob(root + pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("nothing in %s: %v", pattern, err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range dialect.Read(f, text).Objects {
				var u unstructured.Unstructured
				unmarshal := func(in []byte, into any) error { return yaml.Unmarshal(in, into) }
				if o.Original[0] == '{' {
					unmarshal = json.Unmarshal
				}
				if err := unmarshal(o.Original, &u.Object); err != nil {
					t.Fatalf("%s: %v", f, err)
				}
				if o.Key.Namespace != "" {
					u.SetNamespace("default")
				}
				out[strings.TrimPrefix(f, root)+" "+u.GetKind()+" "+u.GetName()] = &u
			}
		}
	}
	return out
}
