package jsonschema

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// compiled is a schema that documents are checked against.
func compiled(t *testing.T, schema []byte) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	out, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestExamples: the schemas take every manifest of ours among the examples.
func TestExamples(t *testing.T) {
	kinds, err := Kinds()
	if err != nil {
		t.Fatal(err)
	}
	checks, checked := map[string]*jsonschema.Schema{}, map[string]int{}
	for kind, schema := range kinds {
		checks[kind] = compiled(t, schema)
	}
	err = filepath.WalkDir("../../../examples", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".yaml") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
			var doc map[string]any
			if d.Decode(&doc) != nil {
				return nil
			}
			kind, _ := doc["kind"].(string)
			if api, _ := doc["apiVersion"].(string); !strings.HasPrefix(api, "roundhouse.dev/") || checks[kind] == nil {
				continue
			}
			checked[kind]++
			if err := checks[kind].Validate(doc); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	})
	if err != nil || checked["ModelService"] == 0 || checked["Pool"] == 0 {
		t.Errorf("checked %v, %v", checked, err)
	}
}

// TestRefuses: what is misspelt or of another type is not taken.
func TestRefuses(t *testing.T) {
	kinds, err := Kinds()
	if err != nil {
		t.Fatal(err)
	}
	services := compiled(t, kinds["ModelService"])
	for name, text := range map[string]string{
		"a field that is misspelt": `{apiVersion: roundhouse.dev/v1alpha1, kind: ModelService, metadata: {name: a}, spec: {modle: {}}}`,
		"a word for a number":      `{apiVersion: roundhouse.dev/v1alpha1, kind: ModelService, metadata: {name: a}, spec: {scaling: {minReplicas: some}}}`,
		"another version":          `{apiVersion: roundhouse.dev/v9, kind: ModelService, metadata: {name: a}, spec: {}}`,
		"no name":                  `{apiVersion: roundhouse.dev/v1alpha1, kind: ModelService, metadata: {}, spec: {}}`,
	} {
		var doc any
		if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
			t.Fatal(err)
		}
		if services.Validate(doc) == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// TestFlags: the schema of a file of flags takes what the flags take.
func TestFlags(t *testing.T) {
	f := pflag.NewFlagSet("x", pflag.ContinueOnError)
	f.Bool("watch", false, "")
	f.Int("most", 3, "")
	f.Duration("wait", time.Minute, "")
	f.StringArray("filename", nil, "")
	f.String("secret", "", "")
	schema, err := Flags("x", f, "secret")
	if err != nil {
		t.Fatal(err)
	}
	check := compiled(t, schema)
	for text, fine := range map[string]bool{
		"{watch: true, most: 1, wait: 1m30s, filename: a}": true,
		"{filename: [a, b]}": true,
		"{watch: perhaps}":   false,
		"{most: 1.5}":        false,
		"{wait: soon}":       false,
		"{secret: x}":        false,
	} {
		var doc any
		if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
			t.Fatal(err)
		}
		if err := check.Validate(doc); (err == nil) != fine {
			t.Errorf("%s: %v", text, err)
		}
	}
}
