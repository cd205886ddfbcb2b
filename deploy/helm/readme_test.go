package helm

import (
	"encoding/json"
	"os"
	"slices"
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
		if part, rest, _ := strings.Cut(path, "."); rest != "" && slices.Contains([]string{"controller", "gateway", "endpointPicker", "hubCache"}, part) && strings.Contains(string(readme), "`"+rest+"`") {
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

// TestSchemaDescribes: the schema has every value, each with a description, and
// nothing that is no value.
func TestSchemaDescribes(t *testing.T) {
	type schema struct {
		Description          string
		Properties           map[string]schema
		AdditionalProperties any
	}
	var root schema
	text, err := os.ReadFile("roundhouse/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if text, err = os.ReadFile("roundhouse/values.yaml"); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	delete(root.Properties, "global")
	var walk func(path string, s schema, v map[string]any)
	walk = func(path string, s schema, v map[string]any) {
		if s.AdditionalProperties != false {
			t.Errorf("%s takes any value", path)
		}
		for name, value := range v {
			is, ok := s.Properties[name]
			if !ok || is.Description == "" {
				t.Errorf("%s.%s is not described", path, name)
			}
			if inner, ok := value.(map[string]any); ok && len(is.Properties) > 0 {
				walk(path+"."+name, is, inner)
			}
		}
		for name := range s.Properties {
			if _, ok := v[name]; !ok {
				t.Errorf("%s.%s is no value", path, name)
			}
		}
	}
	walk("", root, values)
}
