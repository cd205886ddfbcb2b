package helm

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestReadme: the chart's README names every value.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("roundhouse/README.md")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("roundhouse/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	named := 0
	var walk func(path string, v any)
	walk = func(path string, v any) {
		if path != "" && strings.Contains(string(readme), "`"+path+"`") {
			named++
			return
		}
		if part, rest, _ := strings.Cut(path, "."); rest != "" && (part == "controller" || part == "gateway" || part == "endpointPicker") && strings.Contains(string(readme), "`"+rest+"`") {
			named++
			return
		}
		inner, ok := v.(map[string]any)
		if !ok || len(inner) == 0 {
			t.Errorf("the README does not name %s", path)
		}
		for k, v := range inner {
			walk(strings.TrimPrefix(path+"."+k, "."), v)
		}
	}
	walk("", values)
	if named < 40 {
		t.Errorf("only %d values are named", named)
	}
}
