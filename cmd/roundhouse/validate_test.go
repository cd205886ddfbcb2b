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
	runtime := func(name, sizes string) string {
		return fmt.Sprintf(`---
apiVersion: ome.io/v1beta1
kind: ClusterServingRuntime
metadata: {name: %s}
spec:
  supportedModelFormats:
  - {modelFormat: {name: safetensors, version: 1.0.0}, modelArchitecture: LlamaForCausalLM, autoSelect: true, priority: 1}
  protocolVersions: [openAI]
  modelSizeRange: {%s}
  engineConfig: {runner: {name: ome-container, image: example.com/engine}}
`, name, sizes)
	}
	for _, c := range []struct {
		name, second, want string
	}{
		{"equal ranges", "min: 5B, max: 9000M", `b.yaml:2: b: spec.supportedModelFormats[0].priority: priority 1 for safetensors 1.0.0, LlamaForCausalLM is also that of a`},
		{"overlapping ranges", "min: 6B, max: 9B", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{"a.yaml": runtime("a", "min: 5B, max: 9B"), "b.yaml": runtime("b", c.second)} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			out, err := runHere(t, "validate", dir)
			if c.want == "" {
				if err != nil || strings.Count(out, "is valid") != 2 {
					t.Errorf("%v\n%s", err, out)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), "1 problem in 2 files") || !strings.Contains(out, c.want) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
