package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// decodeYAML fills into, by its JSON names, as kubectl reads YAML.
func decodeYAML(raw []byte, into any) error {
	var n yaml.Node
	if err := yaml.Unmarshal(raw, &n); err != nil {
		return err
	}
	if n.Kind == 0 {
		return nil // empty
	}
	asWritten(&n)
	var v any
	if err := n.Decode(&v); err != nil {
		return err
	}
	text, err := json.Marshal(named(v))
	if err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber() // as written, also where a float could not hold it
	return dec.Decode(into)
}

// asWritten has what looks like a time be the text it is in JSON.
func asWritten(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!timestamp" {
		n.Tag = "!!str"
	}
	for _, c := range n.Content {
		asWritten(c)
	}
}

// named has all keys be strings.
func named(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			v[k] = named(e)
		}
	case map[any]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[fmt.Sprint(k)] = named(e)
		}
		return out
	case []any:
		for i, e := range v {
			v[i] = named(e)
		}
	}
	return v
}

// encodeYAML writes what came as JSON, numbers as they are.
func encodeYAML(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	err := enc.Encode(numbered(v))
	return b.Bytes(), err
}

// numbered has JSON's numbers be Go's.
func numbered(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
		return v.String()
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = numbered(e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = numbered(e)
		}
		return out
	}
	return v
}
