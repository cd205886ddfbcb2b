package manifests_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/deploy/manifests"
	"roundhouse.dev/roundhouse/internal/edge/kube/crds"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/internal/edge/kube/objects"
)

var update = flag.Bool("update", false, "write golden files anew")

func TestMain(m *testing.M) { kubetest.Main(m) }

var plain = manifests.Options{Image: "roundhouse:1", Namespace: manifests.Namespace}

// sets are the options that goldens and the API server see.
var sets = map[string]manifests.Options{
	"default": plain,
	"filled": {Image: "registry.example/roundhouse@sha256:" + strings.Repeat("0", 64), Namespace: "serving", Watch: []string{"team-a", "team-b"}, Adopt: []string{"kserve", "ome"},
		InstallCRDs: []string{"kserve", "gie"}, GatewayURL: "https://{name}.{namespace}.example.com"},
	"everywhere": {Image: "roundhouse:1", Namespace: "default", InstallCRDs: []string{"ome"}, NoCRDs: true},
}

func write(t *testing.T, o manifests.Options) string {
	t.Helper()
	var b bytes.Buffer
	if err := manifests.Write(&b, o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestGolden(t *testing.T) {
	for name, o := range sets {
		o.NoCRDs = true
		got, file := write(t, o), filepath.Join("testdata", name+".yaml")
		if again := write(t, o); again != got {
			t.Errorf("%s: not the same twice", name)
		}
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatalf("%v: make it with -update", err)
		}
		if got != string(want) {
			t.Errorf("%s differs: rerun with -update and read the diff", file)
		}
	}
}

// TestServerTakes gives what is printed, CRDs first, to an API server, as
// kubectl does: in its order, unknown fields being errors.
func TestServerTakes(t *testing.T) {
	c := kubetest.Client(t)
	for _, ns := range []string{"team-a", "team-b"} {
		kubetest.Apply(t, c, "", fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", ns))
	}
	for name, o := range sets {
		t.Run(name, func(t *testing.T) {
			for i, u := range kubetest.Parse(t, write(t, o)) {
				if crd := u.GetKind() == "CustomResourceDefinition"; crd != (i < 6 && !o.NoCRDs) {
					t.Errorf("%d is the %s %s", i, u.GetKind(), u.GetName())
				}
				err := c.Create(t.Context(), u.DeepCopy(), client.DryRunAll, client.FieldValidation("Strict"))
				if client.IgnoreAlreadyExists(err) != nil {
					t.Errorf("%s %s: %v", u.GetKind(), u.GetName(), err)
				}
				if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("kubectl"), client.ForceOwnership); err != nil {
					t.Errorf("%s %s: %v", u.GetKind(), u.GetName(), err)
				}
			}
		})
	}
}

// TestLikeTheChart compares what is printed with what Helm renders of the
// chart now, with the same values: the embedded file is up to date, and every
// option is filled in as the chart does it.
func TestLikeTheChart(t *testing.T) {
	const helm = "../../bin/helm"
	if _, err := os.Stat(helm); err != nil {
		t.Skip("no bin/helm: make bin/helm")
	}
	for name, o := range sets {
		image := map[string]any{"tag": "1"}
		if repository, digest, ok := strings.Cut(o.Image, "@"); ok {
			image = map[string]any{"repository": repository, "digest": digest}
		}
		values, err := json.Marshal(map[string]any{"crds": map[string]any{"keep": false}, "adopt": append([]string{}, o.Adopt...),
			"installCRDs": append([]string{}, o.InstallCRDs...), "watchNamespaces": append([]string{}, o.Watch...),
			"gateway": map[string]any{"url": o.GatewayURL}, "image": image})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, values, 0o600); err != nil {
			t.Fatal(err)
		}
		args := []string{"template", "roundhouse", "../helm/roundhouse", "--namespace", o.Namespace, "--values", file}
		rendered, err := exec.Command(helm, args...).Output()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		o.NoCRDs = false
		got, want := flat(t, kubetest.Parse(t, write(t, o))), flat(t, kubetest.Parse(t, string(rendered)))
		for id, v := range want {
			if !reflect.DeepEqual(got[id], v) {
				g, _ := json.Marshal(got[id])
				w, _ := json.Marshal(v)
				t.Errorf("%s: %s: go generate ./deploy/manifests\n  printed %s\n  chart   %s", name, id, g, w)
			}
			delete(got, id)
		}
		for id := range got {
			if !strings.HasPrefix(id, "Namespace") {
				t.Errorf("%s: %s is not in the chart", name, id)
			}
		}
	}
}

// flat is objects by kind, namespace and name, without Helm's labels; flags in
// no order.
func flat(t *testing.T, all []*unstructured.Unstructured) map[string]map[string]any {
	t.Helper()
	out := map[string]map[string]any{}
	for _, u := range all {
		drop(u.Object)
		out[u.GetKind()+" "+u.GetNamespace()+"/"+u.GetName()] = u.Object
	}
	return out
}

func drop(v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range []string{"helm.sh/chart", "app.kubernetes.io/version", "app.kubernetes.io/managed-by"} {
			delete(v, k)
		}
		for k, c := range v {
			if args, ok := c.([]any); ok && k == "args" {
				slices.SortFunc(args, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
			}
			drop(c)
		}
	case []any:
		for _, c := range v {
			drop(c)
		}
	}
}

// TestNames: what may be named is what the controller knows.
func TestNames(t *testing.T) {
	var foreign []string
	for _, d := range objects.Foreign {
		foreign = append(foreign, string(d))
	}
	if !slices.Equal(manifests.Adoptable, foreign) || !slices.Equal(manifests.Installable, crds.Projects()) {
		t.Errorf("%v %v, the controller knows %v %v", manifests.Adoptable, manifests.Installable, foreign, crds.Projects())
	}
}
