// Package strict decodes a YAML node into a Go type by its json tags, without
// forgiving anything: unknown and repeated fields and values of the wrong type
// are problems, all of them reported at once, each with its place. The place
// of every field that was read is kept, so that later checks can name it too.
package strict

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
)

// Bounds of one Decode.
const (
	// MaxDepth is how deeply values may nest, aliases expanded.
	MaxDepth = 100
	// MaxNodes is how many values one document may hold, aliases expanded:
	// what keeps a small file from unfolding into gigabytes.
	MaxNodes = 200_000
	// MaxProblems is how many problems are kept; one more says there are others.
	MaxProblems = 200
)

// Position is a place in the text, both numbers 1-based.
type Position struct{ Line, Column int }

// Problem is one thing wrong with a document.
type Problem struct {
	Position
	Path    string // "spec.predictor.minReplicas"; "" for the document itself
	Message string
	// Meant is the path of the known field that an unknown one was probably
	// meant to be; "" otherwise.
	Meant string
}

// Field is one field of a struct that the document stated, in its order.
type Field struct {
	Position
	Path string
	// Owner is the struct type that declares the field, Name its json name.
	// An embedded struct owns its own fields.
	Owner reflect.Type
	Name  string
}

// Document is where everything was that Decode read.
type Document struct {
	Fields    []Field
	positions map[string]Position
}

// At is the position of a path, or of its nearest stated ancestor, or of the
// document's start.
func (d *Document) At(path string) Position {
	for {
		if p, ok := d.positions[path]; ok {
			return p
		}
		if path == "" {
			return Position{1, 1}
		}
		path = Parent(path)
	}
}

// Has reports whether the document states a value at path.
func (d *Document) Has(path string) bool { _, ok := d.positions[path]; return ok }

// Keys are the paths of stated map keys with a prefix, in no order of the text but
// always in the same.
func (d *Document) Keys(prefix string) []string {
	var out []string
	for path := range d.positions {
		if i := strings.LastIndexByte(path, '['); i >= 0 && strings.HasSuffix(path, "]") && strings.HasPrefix(path[i+1:], prefix) {
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return out
}

// Parent is the path without its last step; "" has no parent but itself.
func Parent(path string) string {
	for i := len(path) - 1; i >= 0; i-- {
		switch path[i] {
		case ']':
			// A key in brackets may hold dots and slashes; Key lets it hold no
			// brackets.
			for i > 0 && path[i] != '[' {
				i--
			}
			return path[:i]
		case '.':
			return path[:i]
		}
	}
	return ""
}

// Key appends a map's key to a path: labels[app.kubernetes.io/name].
func Key(path, key string) string {
	b := []byte(excerpt.Of(key, 80))
	for i, c := range b {
		if c == '[' || c == ']' {
			b[i] = '_'
		}
	}
	return path + "[" + string(b) + "]"
}

// Index appends a list's index to a path.
func Index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// Join appends a field's name to a path.
func Join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// Decode checks root against the type that into points to and fills into with
// every field that has no problem. Lines are those of root's own text plus
// lineOffset.
func Decode(root *yaml.Node, lineOffset int, into any) (*Document, []Problem) {
	d := &decoder{
		doc:    &Document{positions: map[string]Position{}},
		offset: lineOffset,
		tables: map[reflect.Type]*table{},
	}
	v, ok := d.value(root, reflect.TypeOf(into).Elem(), "")
	if ok {
		raw, err := json.Marshal(v)
		if err == nil {
			err = json.Unmarshal(raw, into)
		}
		if err != nil {
			d.problem(root, "", "cannot be read: %v", err)
		}
	}
	return d.doc, d.problems
}

// decoder is one Decode under way.
type decoder struct {
	doc      *Document
	problems []Problem
	offset   int
	nodes    int
	depth    int
	tables   map[reflect.Type]*table
	parents  []parent
}

// parent is a struct that encloses the value being decoded.
type parent struct {
	path  string
	table *table
}

func (d *decoder) position(n *yaml.Node) Position {
	return Position{max(n.Line, 1) + d.offset, max(n.Column, 1)}
}

func (d *decoder) problem(n *yaml.Node, path, format string, args ...any) {
	path = excerpt.Of(path, 240)
	switch {
	case len(d.problems) < MaxProblems:
		d.problems = append(d.problems, Problem{Position: d.position(n), Path: path, Message: fmt.Sprintf(format, args...)})
	case len(d.problems) == MaxProblems:
		d.problems = append(d.problems, Problem{Position: d.position(n), Path: path, Message: "and more problems after these"})
	}
}

// enter counts a node against the bounds and follows aliases. It returns nil
// when a bound is passed; that is reported once.
func (d *decoder) enter(n *yaml.Node, path string) *yaml.Node {
	d.nodes++
	if d.nodes == MaxNodes+1 {
		d.problem(n, path, "the document holds more than %d values, aliases unfolded: make it smaller", MaxNodes)
	}
	if d.nodes > MaxNodes {
		return nil
	}
	if d.depth > MaxDepth {
		d.problem(n, path, "nested more than %d levels deep", MaxDepth)
		d.nodes = MaxNodes + 1 // one report is enough
		return nil
	}
	for depth := 0; n.Kind == yaml.AliasNode; depth++ {
		if n.Alias == nil || depth > MaxDepth {
			d.problem(n, path, "alias *%s leads nowhere", excerpt.Of(n.Value, 40))
			return nil
		}
		n = n.Alias
	}
	return n
}

// value checks n against t and returns it as json.Marshal takes it; ok is
// false when there is nothing to use, because it is null or has a problem.
func (d *decoder) value(n *yaml.Node, t reflect.Type, path string) (v any, ok bool) {
	d.depth++
	defer func() { d.depth-- }()
	at := n
	if n = d.enter(n, path); n == nil {
		return nil, false
	}
	d.doc.positions[path] = d.position(at)
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return nil, false
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(unmarshaler) {
		return d.custom(n, t, path)
	}
	switch t.Kind() {
	case reflect.Struct:
		return d.structure(n, t, path)
	case reflect.Map:
		return d.mapping(n, t, path)
	case reflect.Slice:
		if t.Elem().Kind() != reflect.Uint8 {
			return d.list(n, t, path)
		}
	case reflect.Interface:
		return d.free(n, path)
	}
	return d.scalar(n, t, path)
}

// structure decodes a mapping into a struct's fields.
func (d *decoder) structure(n *yaml.Node, t reflect.Type, path string) (any, bool) {
	tab := d.table(t)
	entries, ok := d.entries(n, path, "a mapping of fields")
	if !ok {
		return nil, false
	}
	d.parents = append(d.parents, parent{path, tab})
	defer func() { d.parents = d.parents[:len(d.parents)-1] }()
	out := map[string]any{}
	for _, p := range entries {
		f, known := tab.fields[p.name]
		at := Join(path, p.name)
		if !known {
			best := Nearest(p.name, tab.names())
			d.problem(p.key, Join(path, excerpt.Of(p.name, 80)), "%s", d.unknown(p.name, best, tab))
			if best != "" {
				d.problems[len(d.problems)-1].Meant = Join(path, best)
			}
			continue
		}
		v, ok := d.value(p.value, f.typ, at)
		// The key's place is the field's place: it is where one looks.
		d.doc.positions[at] = d.position(p.key)
		d.doc.Fields = append(d.doc.Fields, Field{d.position(p.key), at, f.owner, p.name})
		if ok {
			out[p.name] = v
		}
	}
	return out, true
}

// mapping decodes a mapping into a Go map, whose keys are strings.
func (d *decoder) mapping(n *yaml.Node, t reflect.Type, path string) (any, bool) {
	entries, ok := d.entries(n, path, "a mapping")
	if !ok {
		return nil, false
	}
	out := map[string]any{}
	for _, p := range entries {
		at := Key(path, p.name)
		if v, ok := d.value(p.value, t.Elem(), at); ok {
			out[p.name] = v
		}
		d.doc.positions[at] = d.position(p.key)
	}
	return out, true
}

// list decodes a sequence. An item with a problem stays, empty, so that the
// indexes of the others hold.
func (d *decoder) list(n *yaml.Node, t reflect.Type, path string) (any, bool) {
	if n.Kind != yaml.SequenceNode {
		d.problem(n, path, "expected a list, got %s", describe(n))
		return nil, false
	}
	out := []any{}
	for i, c := range n.Content {
		v, _ := d.value(c, t.Elem(), Index(path, i))
		if d.nodes > MaxNodes {
			return nil, false
		}
		if c.Kind == yaml.ScalarNode && c.ShortTag() == "!!null" && t.Elem().Kind() != reflect.Interface {
			d.problem(c, Index(path, i), "an empty item: fill it in or remove it")
		}
		out = append(out, v)
	}
	return out, true
}
