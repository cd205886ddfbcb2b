package workload

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"
)

// placeFields are the names only a replica can fill; Render leaves their
// expressions as they are and Process.Resolve fills them.
var placeFields = []string{"Port", "GRPCPort", "ModelPath"}

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
		if body == "."+k {
			return true
		}
	}
	return false
}

func evaluate(body string, data map[string]any) (string, error) {
	t, err := template.New("").Option("missingkey=error").Funcs(template.FuncMap{"index": index}).Parse("{{" + body + "}}")
	if err != nil {
		return "", fmt.Errorf("template {{%s}}: %s", body, plain(err))
	}
	var b strings.Builder
	if err := t.Execute(&b, data); err != nil {
		return "", fmt.Errorf("template {{%s}}: %s; known are .Name, .Namespace, .Labels and .Annotations of the service", body, plain(err))
	}
	return b.String(), nil
}

// plain strips text/template's own position prefix, which names a template
// nobody wrote.
func plain(err error) string {
	s := err.Error()
	if i := strings.LastIndex(s, ">: "); i >= 0 {
		return s[i+3:]
	}
	return strings.TrimPrefix(s, "template: ")
}

// index is text/template's, but a missing key is an error.
func index(m any, keys ...string) (string, error) {
	labels, ok := m.(map[string]string)
	if !ok || len(keys) != 1 {
		return "", fmt.Errorf("index takes .Labels or .Annotations and one key")
	}
	v, ok := labels[keys[0]]
	if !ok {
		return "", fmt.Errorf("no key %q", keys[0])
	}
	return v, nil
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
