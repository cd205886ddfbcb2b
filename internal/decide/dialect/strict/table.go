package strict

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
)

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// table is what a struct type takes, embedded structs included.
type table struct {
	name   string
	fields map[string]field
}

type field struct {
	typ   reflect.Type
	owner reflect.Type
}

// table lists a struct's fields by json name. As in encoding/json a shallower
// field hides a deeper one.
func (d *decoder) table(t reflect.Type) *table {
	if tab, ok := d.tables[t]; ok {
		return tab
	}
	tab := &table{name: t.Name(), fields: map[string]field{}}
	d.tables[t] = tab
	var embedded []reflect.Type
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
			continue
		case name == "" && f.Anonymous:
			e := f.Type
			if e.Kind() == reflect.Pointer {
				e = e.Elem()
			}
			embedded = append(embedded, e)
			continue
		case name == "":
			name = f.Name
		}
		tab.fields[name] = field{f.Type, t}
	}
	for _, e := range embedded {
		for name, f := range d.table(e).fields {
			if _, hidden := tab.fields[name]; !hidden {
				tab.fields[name] = f
			}
		}
	}
	return tab
}

// unknown returns what is wrong with a field the struct does not take, and what
// was probably meant: best, the nearest spelling if there is one, or the level
// that does take it.
func (d *decoder) unknown(name, best string, tab *table) string {
	if best != "" {
		return fmt.Sprintf("unknown field; did you mean %q?", best)
	}
	for i := len(d.parents) - 2; i >= 0; i-- {
		p := d.parents[i]
		if _, ok := p.table.fields[name]; ok && p.path != "" {
			return fmt.Sprintf("unknown field here; %s takes it: is the indentation right?", p.path)
		}
	}
	var below []string
	for _, n := range tab.names() {
		t := tab.fields[n].typ
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(unmarshaler) {
			continue
		}
		if _, ok := d.table(t).fields[name]; ok {
			below = append(below, n)
		}
	}
	if n := len(below); n > 0 && n <= 3 {
		return fmt.Sprintf("unknown field here; it belongs in %s: is the indentation right?", strings.Join(below, " or "))
	}
	if names := tab.names(); len(names) > 0 && len(names) <= 12 {
		return "unknown field; known here: " + strings.Join(names, ", ")
	}
	return "unknown field"
}

func (t *table) names() []string {
	out := make([]string, 0, len(t.fields))
	for n := range t.fields {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// Nearest is the candidate that s is most likely a misspelling of, or "". Case
// counts for nothing; otherwise up to a third of the letters may differ.
func Nearest(s string, candidates []string) string {
	if len(s) > 64 {
		return ""
	}
	best, bound := "", max(1, len(s)/3)+1
	for _, c := range candidates {
		if n := distance(strings.ToLower(s), strings.ToLower(c)); n < bound {
			best, bound = c, n
		}
	}
	return best
}

// distance is the edit distance of two strings in bytes, a swap of neighbours
// counting one (the restricted Damerau-Levenshtein distance).
func distance(a, b string) int {
	before, prev, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, prev, row = prev, row, before
	}
	return prev[len(b)]
}

// entry is one key of a mapping with its value.
type entry struct {
	name       string
	key, value *yaml.Node
}

// entries lists a mapping's keys in order, merge keys (<<) unfolded: a key
// stated here wins over a merged one, and an earlier merge over a later one.
// A repeated key is a problem, since one of the two would be lost.
func (d *decoder) entries(n *yaml.Node, path, want string) ([]entry, bool) {
	if n.Kind != yaml.MappingNode {
		d.problem(n, path, "expected %s, got %s", want, describe(n))
		return nil, false
	}
	var out []entry
	var merges []*yaml.Node
	seen := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind == yaml.ScalarNode && k.ShortTag() == "!!merge" {
			merges = append(merges, v)
			continue
		}
		if k = d.enter(k, path); k == nil {
			continue
		}
		if k.Kind != yaml.ScalarNode {
			d.problem(k, path, "a key must be a word, got %s", describe(k))
			continue
		}
		if first, twice := seen[k.Value]; twice {
			d.problem(n.Content[i], Join(path, excerpt.Of(k.Value, 80)),
				"stated twice, first on line %d: remove one", d.position(first).Line)
			continue
		}
		seen[k.Value] = n.Content[i]
		out = append(out, entry{k.Value, n.Content[i], v})
	}
	for _, m := range merges {
		for _, p := range d.merged(m, path) {
			if _, stated := seen[p.name]; !stated {
				seen[p.name] = p.key
				out = append(out, p)
			}
		}
	}
	return out, true
}

// merged lists the pairs of what a merge key names: a mapping, or a list of
// mappings.
func (d *decoder) merged(n *yaml.Node, path string) []entry {
	d.depth++
	defer func() { d.depth-- }()
	if n = d.enter(n, path); n == nil {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		out, _ := d.entries(n, path, "a mapping to merge")
		return out
	}
	var out []entry
	for _, c := range n.Content {
		if c = d.enter(c, path); c == nil {
			return nil
		}
		got, _ := d.entries(c, path, "a mapping to merge")
		out = append(out, got...)
	}
	return out
}
