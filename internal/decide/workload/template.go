package workload

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// placeFields are the names only a replica can fill; Render leaves their
// expressions as they are and Process.Resolve fills them.
var placeFields = []string{"Port", "GRPCPort", "MetricsPort", "ModelPath", "AdapterPaths"}

// expand fills the template expressions of one string. Only expressions that
// begin with "." or "index ." are ours: chat templates such as
// "{{ m.content }}" share the braces and pass through untouched. A missing
// key is an error: an empty argument would start the wrong thing.
func expand(s string, data map[string]any, keep []string) (string, error) {
	var out strings.Builder
	for {
		before, rest, ok := strings.Cut(s, "{{")
		out.WriteString(before)
		if !ok {
			return out.String(), nil
		}
		expr, after, ok := strings.Cut(rest, "}}")
		if !ok {
			out.WriteString("{{" + rest)
			return out.String(), nil
		}
		s = after
		body := strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(expr, "-"), "-"))
		if !ours(body) || keeps(body, keep) {
			out.WriteString("{{" + expr + "}}")
			continue
		}
		value, err := evaluate(body, data)
		if err != nil {
			return "", err
		}
		out.WriteString(value)
	}
}

func ours(body string) bool {
	return strings.HasPrefix(body, ".") || strings.HasPrefix(body, "index .")
}

func keeps(body string, keep []string) bool {
	for _, k := range keep {
		if body == "."+k || strings.HasPrefix(body, "index ."+k+" ") {
			return true
		}
	}
	return false
}

// evaluate fills one expression, as text/template would: ".Field", ".Field.key",
// or `index .Field "key"` where the key is no name. It is not text/template,
// which calls methods by their names: a program that does so keeps every
// exported method of everything it links, a quarter of this one, and each
// replica of the model server pays for that in memory.
func evaluate(body string, data map[string]any) (string, error) {
	field, key, err := parse(body)
	if err != nil {
		return "", fmt.Errorf("template {{%s}}: %w", body, err)
	}
	switch v := data[field].(type) {
	case string:
		if key == "" {
			return v, nil
		}
		err = fmt.Errorf("%s is one text and has no keys", field)
	case map[string]string:
		if value, ok := v[key]; ok {
			return value, nil
		}
		err = fmt.Errorf("no key %q", key)
	default:
		err = fmt.Errorf("no field %q", field)
	}
	return "", fmt.Errorf("template {{%s}}: %w; known are .Name, .Namespace, .Labels and .Annotations of the service", body, err)
}

// expression is what parse reads: a field and its key, by name or quoted.
var expression = regexp.MustCompile("^(?:index\\s+\\.(\\w+)\\s+(\"(?:[^\"\\\\]|\\\\.)*\"|`[^`]*`)|\\.(\\w+)(?:\\.(\\w+))?)$")

func parse(body string) (field, key string, err error) {
	m := expression.FindStringSubmatch(body)
	switch {
	case m == nil:
		return "", "", errors.New(`want .Field, .Field.key or index .Field "key"`)
	case m[1] == "":
		return m[3], m[4], nil
	}
	key, err = strconv.Unquote(m[2])
	return m[1], key, err
}

// expandAll fills the templates of every string inside v, keys excepted, and
// decodes the result into a new value of the same type. A failure names the
// JSON path of the string.
func expandAll[T any](v T, data map[string]any, keep []string, path string) (T, error) {
	var zero T
	raw, err := json.Marshal(v)
	if err != nil {
		return zero, fmt.Errorf("%s: %w", path, err)
	}
	if !strings.Contains(string(raw), "{{") {
		return v, nil
	}
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return zero, fmt.Errorf("%s: %w", path, err)
	}
	tree, err = walk(tree, path, func(s string) (string, error) { return expand(s, data, keep) })
	if err != nil {
		return zero, err
	}
	raw, err = json.Marshal(tree)
	if err != nil {
		return zero, fmt.Errorf("%s: %w", path, err)
	}
	var out T
	if err := json.Unmarshal(raw, &out); err != nil {
		return zero, fmt.Errorf("%s: %w", path, err)
	}
	return out, nil
}

func walk(v any, path string, f func(string) (string, error)) (any, error) {
	var err error
	switch v := v.(type) {
	case string:
		s, err := f(v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return s, nil
	case []any:
		for i := range v {
			if v[i], err = walk(v[i], fmt.Sprintf("%s[%d]", path, i), f); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		// In order, so that the same mistake is always reported at one place.
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if v[k], err = walk(v[k], path+"."+k, f); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}
