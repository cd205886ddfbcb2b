package workload

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/decide/expression"
)

// maxFilled is the size of all texts of a component once their templates are
// filled: a long annotation may stand in each of them.
const maxFilled = 16 << 20

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
	left := maxFilled
	tree, err = walk(tree, path, func(s string) (string, error) { return filled(s, data, keep, &left) })
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

// filled fills one text, of what is left of the size of all.
func filled(s string, data map[string]any, keep []string, left *int) (string, error) {
	out, err := expression.Fill(s, data, keep)
	if *left -= len(out); *left < 0 && err == nil {
		err = fmt.Errorf("all texts together are over %d bytes once their templates are filled", maxFilled)
	}
	return out, err
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
