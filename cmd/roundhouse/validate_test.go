package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestValidateFindsConflicts: runtimes that `apply` refuses together are
// refused by `validate`, and those that it takes are not.
func TestValidateFindsConflicts(t *testing.T) {
	runtime := func(version, name, sizes, runs string) string {
		return fmt.Sprintf(`---
apiVersion: %s
kind: ClusterServingRuntime
metadata: {name: %s}
spec:
  supportedModelFormats:
  - {modelFormat: {name: safetensors, version: 1.0.0}, modelArchitecture: LlamaForCausalLM, autoSelect: true, priority: 1}
  protocolVersions: [openAI]
  modelSizeRange: {%s}
  %s
`, version, name, sizes, runs)
	}
	const own, ome = "roundhouse.dev/v1alpha1", "ome.io/v1beta1"
	runs := map[string]string{own: "local: {command: [engine]}", ome: "engineConfig: {runner: {name: ome-container, image: example.com/engine}}"}
	for _, c := range []struct {
		name, version, second string
		want                  string
		refused               bool
	}{
		{"equal ranges", own, "min: 5B, max: 9000M", "b.yaml:2: b: spec.supportedModelFormats[0].priority: priority 1 for safetensors 1.0.0, LlamaForCausalLM is also that of a", true},
		{"equal ranges in OME, which takes them", ome, "min: 5B, max: 9000M", "b.yaml:2: warning: b: spec.supportedModelFormats[0].priority: priority 1 for", false},
		{"overlapping ranges", own, "min: 6B, max: 9B", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{"a.yaml": runtime(c.version, "a", "min: 5B, max: 9B", runs[c.version]), "b.yaml": runtime(c.version, "b", c.second, runs[c.version])} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			out, err := runHere(t, "validate", dir)
			if refused := err != nil && strings.Contains(err.Error(), "1 problem in 2 files"); refused != c.refused || (strings.Count(out, "is valid") == 2) == c.refused {
				t.Errorf("%v\n%s", err, out)
			}
			if !strings.Contains(out, c.want) || c.want == "" && strings.Contains(out, "priority") {
				t.Errorf("want %q in\n%s", c.want, out)
			}
		})
	}
}
