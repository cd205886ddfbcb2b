// Package jsonschema makes the JSON schemas by which editors complete and check our
// manifests, and the configuration file of a command.
package jsonschema

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"roundhouse.dev/roundhouse/deploy"
)

const draft = "http://json-schema.org/draft-07/schema#" // what editors read best

type object = map[string]any

// Kinds are the schemas of our kinds, made of their CRDs, by kind.
func Kinds() (map[string][]byte, error) {
	out := map[string][]byte{}
	err := fs.WalkDir(deploy.CRDs, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := deploy.CRDs.ReadFile(path)
		if err != nil {
			return err
		}
		kind, schema, err := ofCRD(text)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		out[kind] = schema
		return nil
	})
	return out, err
}

// ofCRD makes the schema of a definition's stored version.
func ofCRD(text []byte) (kind string, schema []byte, err error) {
	var crd struct {
		Spec struct {
			Group    string
			Names    struct{ Kind string }
			Versions []struct {
				Name    string
				Storage bool
				Schema  struct{ OpenAPIV3Schema object }
			}
		}
	}
	if err := yaml.Unmarshal(text, &crd); err != nil {
		return "", nil, err
	}
	for _, v := range crd.Spec.Versions {
		if !v.Storage {
			continue
		}
		s := v.Schema.OpenAPIV3Schema
		kind = crd.Spec.Names.Kind
		plain(s)
		fields, _ := s["properties"].(object)
		fields["apiVersion"], fields["kind"] = object{"const": crd.Spec.Group + "/" + v.Name}, object{"const": kind}
		delete(fields, "status") // is written by Roundhouse
		fields["metadata"] = metadata()
		s["$schema"], s["title"], s["required"] = draft, kind, []string{"apiVersion", "kind", "metadata", "spec"}
		schema, err = encode(s)
		return kind, schema, err
	}
	return "", nil, fmt.Errorf("no version is stored")
}

func metadata() object {
	words := object{"type": "object", "additionalProperties": object{"type": "string"}}
	return object{"type": "object", "required": []string{"name"},
		"properties": object{"name": object{"type": "string"}, "namespace": object{"type": "string"}, "labels": words, "annotations": words}}
}

// plain takes what only Kubernetes reads out of a schema, and says in the words of JSON
// Schema what it means.
func plain(v any) {
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			plain(x)
		}
	case object:
		if v["x-kubernetes-int-or-string"] == true {
			delete(v, "type")
			delete(v, "anyOf")
			v["type"] = []string{"integer", "string"}
			delete(v, "pattern") // it is for the string alone
		}
		if v["type"] == "object" && v["properties"] != nil && v["additionalProperties"] == nil && v["x-kubernetes-preserve-unknown-fields"] != true {
			v["additionalProperties"] = false
		}
		if v["nullable"] == true {
			if t, ok := v["type"].(string); ok {
				v["type"] = []string{t, "null"}
			}
			delete(v, "nullable")
		}
		for exclusive, bound := range map[string]string{"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"} {
			if v[exclusive] == true { // as OpenAPI 3.0 and JSON Schema's fourth draft say it
				v[exclusive] = v[bound]
				delete(v, bound)
			}
		}
		for name, x := range v {
			if strings.HasPrefix(name, "x-kubernetes-") {
				delete(v, name)
				continue
			}
			plain(x)
		}
	}
}

// Flags is the schema of a file that has the flags of a command by their names.
func Flags(title string, flags *pflag.FlagSet, leaveOut ...string) ([]byte, error) {
	fields := object{}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || slices.Contains(leaveOut, f.Name) {
			return
		}
		one := object{"type": "string"}
		switch f.Value.Type() {
		case "bool":
			one["type"] = "boolean"
		case "int", "int64":
			one["type"] = "integer"
		case "float64":
			one["type"] = "number"
		case "duration":
			one["pattern"] = `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$|^0$`
		}
		if _, list := f.Value.(pflag.SliceValue); list {
			one = object{"anyOf": []object{{"type": "string"}, {"type": "array", "items": object{"type": "string"}}}}
		}
		one["description"] = f.Usage
		if f.DefValue != "" && f.DefValue != "[]" && !strings.HasPrefix(f.DefValue, "/") { // a folder is this machine's
			one["default"] = standard(f)
		}
		fields[f.Name] = one
	})
	return encode(object{"$schema": draft, "title": title, "type": "object", "additionalProperties": false, "properties": fields})
}

// standard is a flag's default, as the file would state it.
func standard(f *pflag.Flag) any {
	var v any
	if slices.Contains([]string{"bool", "int", "int64", "float64"}, f.Value.Type()) && json.Unmarshal([]byte(f.DefValue), &v) == nil {
		return v
	}
	return f.DefValue
}

func encode(v object) ([]byte, error) {
	out, err := json.MarshalIndent(v, "", "  ")
	return append(out, '\n'), err
}

// Names are the kinds in order.
func Names(kinds map[string][]byte) []string { return slices.Sorted(maps.Keys(kinds)) }
