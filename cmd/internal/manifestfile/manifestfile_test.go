package manifestfile

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// TestInOrder: lines are numbers, and a file's name may begin another's.
func TestInOrder(t *testing.T) {
	files := []admin.File{{Name: "b.yaml"}, {Name: "a.yaml"}}
	got := InOrder(files, []string{"nowhere", "a.yaml:3: x", "b.yaml:10: warning: y", "a.yaml:1: z", "b.yaml:9: v", "b.yaml:10: w", "b.yaml: whole"})
	want := []string{"b.yaml: whole", "b.yaml:9: v", "b.yaml:10: warning: y", "b.yaml:10: w", "a.yaml:1: z", "a.yaml:3: x", "nowhere"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestLocalPathsStartAtTheManifest: the folder that the server runs in must not
// decide which model a manifest names.
func TestLocalPathsStartAtTheManifest(t *testing.T) {
	for dialect, manifest := range map[string]string{
		"roundhouse": "apiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: a}\nspec: {model: {uri: URI, adapters: [{name: b, uri: lora}]}}\n",
		"kserve":     "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: a}\nspec: {predictor: {model: {modelFormat: {name: xgboost}, storageUri: URI}}}\n",
		"ome":        "apiVersion: ome.io/v1beta1\nkind: ClusterBaseModel\nmetadata: {name: a}\nspec: {modelFormat: {name: safetensors}, storage: {storageUri: URI}}\n",
		"seldon":     "apiVersion: machinelearning.seldon.io/v1\nkind: SeldonDeployment\nmetadata: {name: a}\nspec: {protocol: v2, predictors: [{name: p, graph: {name: g, implementation: XGBOOST_SERVER, modelUri: URI}}]}\n",
	} {
		t.Run(dialect, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "m.yaml")
			for _, uri := range []string{"m.ubj", "./m.ubj", "file://m.ubj", "FILE://./m.ubj", "sub/../m.ubj"} {
				if err := os.WriteFile(file, []byte(strings.ReplaceAll(manifest, "URI", uri)), 0o600); err != nil {
					t.Fatal(err)
				}
				got, err := Read([]string{file}, nil)
				if err != nil {
					t.Fatal(err)
				}
				if at, want := got[0].URIs[uri], "file://"+dir+"/m.ubj"; at != want {
					t.Errorf("%s is at %q, want %q", uri, at, want)
				}
				if at, want := got[0].URIs["lora"], "file://"+dir+"/lora"; dialect == "roundhouse" && at != want {
					t.Errorf("the adapter is at %q, want %q", at, want)
				}
			}
		})
	}
}
