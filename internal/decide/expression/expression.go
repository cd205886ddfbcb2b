// Package expression fills the template expressions of manifests. They have the
// syntax of Go's text/template, as in KServe.
package expression

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template/parse"
)

// maxText is the size of a text with expressions, which are parsed recursively.
const maxText = 256 << 10

// Fill fills the expressions of a text. Those that are no template's of Go pass
// through untouched, since a chat template's "{{ m.content }}" has the same
// braces, and so do those of the fields in keep, such as "{{.Port}}". A key that
// is missing is an error where it would be written, because an empty argument
// would start the wrong thing, and false in a condition.
func Fill(s string, data map[string]any, keep []string) (string, error) {
	return common.fill(s, data, keep)
}

// Function is what expressions may call. An absent argument is nil.
type Function func(args []any) (any, error)

// Language is expressions of other fields and functions than the object's own.
type Language struct {
	// Fields says in messages which there are.
	Fields string
	// Functions may be called besides the common ones.
	Functions map[string]Function
}

var common = Language{Fields: ".Name, .Namespace, .Labels and .Annotations of the service"}

// Fill is Fill in this language.
func (l Language) Fill(s string, data map[string]any) (string, error) { return l.fill(s, data, nil) }

// Check reports what Fill would refuse in a text whatever the data.
func (l Language) Check(s string) error {
	_, err := l.read(s, nil)
	return err
}

func (l Language) fill(s string, data map[string]any, keep []string) (string, error) {
	tree, err := l.read(s, keep)
	if tree == nil || err != nil {
		return s, err
	}
	f := filler{data: data, language: l}
	if err := f.list(tree.Root, data); err != nil {
		return "", err
	}
	return f.out.String(), nil
}

// ObjectFields are what expressions may name of the object, ReplicaFields what a
// replica alone knows.
var (
	ObjectFields  = []string{"Name", "Namespace", "Labels", "Annotations"}
	ReplicaFields = []string{"Port", "GRPCPort", "MetricsPort", "KVEventsPort", "ModelPath", "AdapterPaths"}
)

// Check reports what Fill would refuse in a text whatever the object: what no
// expression may have, and fields other than ObjectFields and ReplicaFields.
func Check(s string) error {
	tree, err := common.read(s, nil)
	if tree == nil || err != nil {
		return err
	}
	return unknown(tree.Root, true)
}

// unknown reports a field that is none of the object's nor of its replicas'; at
// the root . is the object.
func unknown(n parse.Node, root bool) error {
	walkBranch := func(b *parse.BranchNode, body bool) error {
		return cmp.Or(unknown(b.Pipe, root), unknown(b.List, body), unknown(b.ElseList, root))
	}
	switch n := n.(type) {
	case *parse.ListNode:
		if n != nil {
			return firstUnknown(n.Nodes, root)
		}
	case *parse.IfNode:
		return walkBranch(&n.BranchNode, root)
	case *parse.WithNode:
		return walkBranch(&n.BranchNode, false)
	case *parse.ActionNode:
		return unknown(n.Pipe, root)
	case *parse.PipeNode:
		for _, c := range n.Cmds {
			if err := firstUnknown(c.Args, root); err != nil {
				return err
			}
		}
	case *parse.FieldNode:
		if root {
			return unknownField(n, n.Ident[0])
		}
	case *parse.VariableNode:
		if len(n.Ident) > 1 {
			return unknownField(n, n.Ident[1])
		}
	}
	return nil
}

func firstUnknown(nodes []parse.Node, root bool) error {
	for _, n := range nodes {
		if err := unknown(n, root); err != nil {
			return err
		}
	}
	return nil
}

func unknownField(n parse.Node, name string) error {
	known := slices.Concat(ObjectFields, ReplicaFields)
	if slices.Contains(known, name) {
		return nil
	}
	return fmt.Errorf("template {{%s}}: there is no field %q: write one of .%s", n, name, strings.Join(known, ", ."))
}

// read parses a text, nil where there is nothing to fill. What passes through is
// a quoted text to the parser.
func (l Language) read(s string, keep []string) (*parse.Tree, error) {
	var text strings.Builder
	found := false
	for rest := s; ; {
		before, after, open := strings.Cut(rest, "{{")
		text.WriteString(before)
		if !open {
			break
		}
		body, next, closed := strings.Cut(after, "}}")
		switch {
		case !closed:
			text.WriteString("{{" + strconv.Quote("{{"+after) + "}}")
		case !isGo(body) || keeps(body, keep):
			text.WriteString("{{" + strconv.Quote("{{"+body+"}}") + "}}")
		default:
			found = true
			text.WriteString("{{" + body + "}}")
		}
		rest = next
	}
	if !found {
		return nil, nil
	}
	if text.Len() > maxText {
		return nil, fmt.Errorf("a text with templates is over %d bytes", maxText)
	}
	t := parse.New("template")
	t.Mode = parse.SkipFuncCheck
	trees := map[string]*parse.Tree{}
	if _, err := t.Parse(text.String(), "", "", trees); err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "template: "))
	}
	if len(trees) > 1 {
		return nil, errors.New("template: define and block are not known here")
	}
	return t, l.check(t.Root)
}

var (
	quoted = regexp.MustCompile("\"(?:[^\"\\\\]|\\\\.)*\"|'[^']*'|`[^`]*`")
	field  = regexp.MustCompile(`(?:^|[\s(|])(?:\$\.?|\.)[A-Za-z_]`)
)

// isGo reports whether the text between braces is an expression of Go's
// templates: it begins with a keyword, or has a field or a variable.
func isGo(body string) bool {
	body = trimMarkers(body)
	word, rest, _ := strings.Cut(body, " ")
	switch word {
	case "if", "with", "range":
		return rest != ""
	case "else":
		return rest == "" || strings.HasPrefix(rest, "if ") || strings.HasPrefix(rest, "with ")
	case "define", "template", "block":
		return strings.HasPrefix(rest, `"`)
	case "end", ".", "$":
		return rest == ""
	}
	return strings.HasPrefix(body, "/*") || field.MatchString(quoted.ReplaceAllString(body, ""))
}

// trimMarkers removes the "-" markers that trim white space around an expression.
func trimMarkers(body string) string {
	return strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(body, "-"), "-"))
}

func keeps(body string, keep []string) bool {
	body = trimMarkers(body)
	return slices.ContainsFunc(keep, func(k string) bool {
		return body == "."+k || strings.HasPrefix(body, "index ."+k+" ")
	})
}

// functions are those that may be called, with the fewest arguments. What can
// grow a text beyond what stands there, or loop, is left out: manifests come
// from people who may not stop their controller.
var functions = map[string]int{"and": 1, "or": 1, "not": 1, "eq": 2, "ne": 2, "index": 2}

// check refuses what no filler evaluates.
func (l Language) check(n parse.Node) error {
	switch n := n.(type) {
	case *parse.ListNode:
		if n == nil {
			return nil
		}
		return l.all(n.Nodes)
	case *parse.IfNode:
		return errors.Join(l.check(n.Pipe), l.check(n.List), l.check(n.ElseList))
	case *parse.WithNode:
		return errors.Join(l.check(n.Pipe), l.check(n.List), l.check(n.ElseList))
	case *parse.ActionNode:
		return l.check(n.Pipe)
	case *parse.PipeNode:
		if len(n.Decl) > 0 {
			return fmt.Errorf("template {{%s}}: variables are not known here", n)
		}
		var errs []error
		for _, c := range n.Cmds {
			errs = append(errs, l.all(c.Args))
		}
		return errors.Join(errs...)
	case *parse.VariableNode:
		if n.Ident[0] != "$" {
			return fmt.Errorf("template {{%s}}: variables are not known here", n)
		}
	case *parse.IdentifierNode:
		if _, known := functions[n.Ident]; !known && l.Functions[n.Ident] == nil {
			return fmt.Errorf("template {{%s}}: the function is not known here: there are and, or, not, eq, ne and index%s", n, l.more())
		}
	case *parse.TextNode, *parse.FieldNode, *parse.DotNode, *parse.StringNode, *parse.NumberNode, *parse.BoolNode:
	default:
		return fmt.Errorf("template %s: is not known here: write .Field, .Field.key, index .Field \"key\", if or with", n)
	}
	return nil
}

func (l Language) all(nodes []parse.Node) error {
	var errs []error
	for _, n := range nodes {
		errs = append(errs, l.check(n))
	}
	return errors.Join(errs...)
}

// more lists the language's own functions, for messages.
func (l Language) more() string {
	if len(l.Functions) == 0 {
		return ""
	}
	return ", " + strings.Join(slices.Sorted(maps.Keys(l.Functions)), ", ")
}

// absent is the value of a key that is missing.
type absent struct{ why error }

// filler writes a text of one template.
type filler struct {
	data     map[string]any
	language Language
	out      strings.Builder
}

// maxFilled is the size of a text once its expressions are filled: a long value may
// stand in it many times.
const maxFilled = 16 << 20

func (f *filler) list(l *parse.ListNode, dot any) error {
	if l == nil {
		return nil
	}
	for _, n := range l.Nodes {
		if err := f.node(n, dot); err != nil {
			return err
		}
	}
	return nil
}

func (f *filler) node(n parse.Node, dot any) error {
	switch n := n.(type) {
	case *parse.TextNode:
		f.out.Write(n.Text)
	case *parse.ActionNode:
		v, err := f.pipe(n.Pipe, dot)
		if err != nil {
			return f.at(n.Pipe, err)
		}
		text, err := written(v)
		if err == nil && f.out.Len()+len(text) > maxFilled {
			err = fmt.Errorf("the text is over %d bytes once its templates are filled", maxFilled)
		}
		if err == nil {
			f.out.WriteString(text)
		}
		return f.at(n.Pipe, err)
	case *parse.IfNode:
		return f.branch(&n.BranchNode, dot, false)
	case *parse.WithNode:
		return f.branch(&n.BranchNode, dot, true)
	}
	return nil
}

func (f *filler) branch(n *parse.BranchNode, dot any, with bool) error {
	v, err := f.pipe(n.Pipe, dot)
	switch {
	case err != nil:
		return f.at(n.Pipe, err)
	case !truth(v):
		return f.list(n.ElseList, dot)
	case with:
		dot = v
	}
	return f.list(n.List, dot)
}

func (f *filler) at(n *parse.PipeNode, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("template {{%s}}: %w; known are %s", n, err, f.language.Fields)
}

func written(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case bool, int64:
		return fmt.Sprint(v), nil
	case nil:
		return "", errors.New("it is not stated")
	case absent:
		return "", v.why
	case unset:
		return "", v.why
	}
	return "", errors.New(`it is no text: want .Field, .Field.key or index .Field "key"`)
}

func truth(v any) bool {
	switch v := v.(type) {
	case string:
		return v != ""
	case bool:
		return v
	case int64:
		return v != 0
	case map[string]string:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return false
}

func (f *filler) pipe(p *parse.PipeNode, dot any) (v any, err error) {
	for i, c := range p.Cmds {
		var before []any
		if i > 0 {
			before = []any{v}
		}
		if v, err = f.command(c, dot, before); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// command evaluates a value, or calls a function with the value of the command
// before it in the pipe as its last argument.
func (f *filler) command(c *parse.CommandNode, dot any, before []any) (any, error) {
	name, called := c.Args[0].(*parse.IdentifierNode)
	if !called {
		if len(c.Args) > 1 || len(before) > 0 {
			return nil, fmt.Errorf("%s is no function", c.Args[0])
		}
		return f.value(c.Args[0], dot)
	}
	var args []any
	for _, n := range c.Args[1:] {
		v, err := f.value(n, dot)
		if err != nil {
			return nil, err
		}
		args = append(args, v)
	}
	return f.call(name.Ident, append(args, before...))
}

func (f *filler) value(n parse.Node, dot any) (any, error) {
	switch n := n.(type) {
	case *parse.FieldNode:
		return lookup(dot, n.Ident)
	case *parse.VariableNode:
		return lookup(f.data, n.Ident[1:])
	case *parse.DotNode:
		return dot, nil
	case *parse.StringNode:
		return n.Text, nil
	case *parse.BoolNode:
		return n.True, nil
	case *parse.NumberNode:
		if !n.IsInt {
			return nil, fmt.Errorf("%s is no whole number", n)
		}
		return n.Int64, nil
	case *parse.PipeNode:
		return f.pipe(n, dot)
	case *parse.IdentifierNode:
		return f.call(n.Ident, nil)
	}
	return nil, fmt.Errorf("%s is no value", n)
}

func lookup(v any, path []string) (any, error) {
	for i, name := range path {
		switch in := v.(type) {
		case map[string]any:
			next, there := in[name]
			if !there {
				return nil, fmt.Errorf("no field %q", name)
			}
			v = next
		case map[string]string:
			next, there := in[name]
			if !there {
				return absent{fmt.Errorf("no key %q", name)}, nil
			}
			v = next
		case nil: // of a field that is not stated
			return absent{fmt.Errorf("%s is not stated", strings.Join(append([]string{""}, path[:i]...), "."))}, nil
		default:
			return nil, fmt.Errorf("%s is one text and has no keys", strings.Join(append([]string{""}, path[:i]...), "."))
		}
	}
	return v, nil
}

func (f *filler) call(name string, args []any) (any, error) {
	if own := f.language.Functions[name]; own != nil {
		for i, v := range args {
			if _, none := v.(absent); none {
				args[i] = nil
			}
		}
		return own(args)
	}
	return call(name, args)
}

func call(name string, args []any) (any, error) {
	if least := functions[name]; len(args) < least {
		return nil, fmt.Errorf("%s wants %d arguments or more", name, least)
	}
	switch name {
	case "not":
		if len(args) > 1 {
			return nil, errors.New("not wants one argument")
		}
		return !truth(args[0]), nil
	case "and", "or":
		for _, v := range args[:len(args)-1] {
			if truth(v) == (name == "or") {
				return v, nil
			}
		}
		return args[len(args)-1], nil
	case "index":
		return index(args)
	case "ne":
		if len(args) > 2 {
			return nil, errors.New("ne wants two arguments")
		}
		same, err := equal(args[0], args[1])
		return !same, err
	}
	for _, v := range args[1:] {
		if same, err := equal(args[0], v); same || err != nil {
			return same, err
		}
	}
	return false, nil
}

// unset is the value of a key that index does not find: an empty text in
// comparisons, and an error where it would be written.
type unset struct{ absent }

func index(args []any) (any, error) {
	in, isMap := args[0].(map[string]string)
	key, isText := args[1].(string)
	if !isMap || !isText || len(args) > 2 {
		return nil, errors.New(`want index .Field "key", of .Labels or .Annotations`)
	}
	if v, there := in[key]; there {
		return v, nil
	}
	return unset{absent{fmt.Errorf("no key %q", key)}}, nil
}

func equal(a, b any) (bool, error) {
	for _, v := range []*any{&a, &b} {
		switch (*v).(type) {
		case unset:
			*v = ""
		case absent, nil:
			return false, nil
		case map[string]string, map[string]any:
			return false, errors.New("only texts, numbers and true or false are compared")
		}
	}
	if fmt.Sprintf("%T", a) != fmt.Sprintf("%T", b) {
		return false, errors.New("values of two kinds are compared")
	}
	return a == b, nil
}
