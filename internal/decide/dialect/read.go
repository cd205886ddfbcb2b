package dialect

import (
	"bytes"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/secrets"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// Read reads a manifest file: YAML or JSON, any number of documents. file is
// how the user named it and appears in problems alone. A document with an
// error gives no object; the others are read all the same.
func Read(file string, data []byte) Result {
	f := &reader{file: file, seen: map[string]int{}, kept: map[weight]int{}}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if len(data) > MaxBytes {
		f.add(Problem{File: file, Message: fmt.Sprintf("%d bytes are more than a manifest may have (%d)", len(data), MaxBytes)})
		return f.result
	}
	pieces := split(data)
	if len(pieces) > MaxDocuments {
		f.add(Problem{File: file, Line: pieces[MaxDocuments].line,
			Message: fmt.Sprintf("more than %d documents in one file: split it", MaxDocuments)})
		pieces = pieces[:MaxDocuments]
	}
	for _, p := range pieces {
		f.document(p)
	}
	if len(pieces) == 0 {
		f.add(Problem{File: file, Line: 1, Message: "no manifest in here", Warning: true})
	}
	sortProblems(f.result.Problems)
	return f.result
}

// reader is one Read under way.
type reader struct {
	file   string
	result Result
	seen   map[string]int // object's identity → its line
	kept   map[weight]int
}

// weight is what a problem amounts to, and where. Each is bounded by itself:
// no number of warnings makes an error, or hides one.
type weight struct {
	warning  bool
	platform Platform
}

func (f *reader) add(p Problem) {
	w := weight{p.Warning, p.Platform}
	n := f.kept[w]
	f.kept[w]++
	switch {
	case n < MaxProblems:
		f.result.Problems = append(f.result.Problems, p)
	case n == MaxProblems:
		p.Path, p.Message = "", "and more problems after these"
		if p.Warning {
			p.Message = "and more of these after it"
		}
		f.result.Problems = append(f.result.Problems, p)
	}
}

// piece is one document's bytes and the line of the file they begin on.
type piece struct {
	data []byte
	line int
}

// split cuts a file at its document markers, which YAML allows at the start
// of a line only, so that a document that cannot be parsed does not take the
// others with it. Documents of nothing but comments are left out.
func split(data []byte) []piece {
	var out []piece
	start, startLine, content := 0, 1, false
	flush := func(end int) {
		if content {
			out = append(out, piece{data[start:end], startLine})
		}
		content = false
	}
	line := 1
	for at := 0; at < len(data); line++ {
		next := len(data)
		if i := bytes.IndexByte(data[at:], '\n'); i >= 0 {
			next = at + i + 1
		}
		l := data[at:next]
		rest := bytes.TrimSpace(l)
		switch {
		case marker(l, "---"):
			flush(at)
			start, startLine = at, line
			if rest = bytes.TrimSpace(rest[3:]); len(rest) == 0 {
				start, startLine = next, line+1
			}
		case marker(l, "..."):
			flush(at)
			rest, start, startLine = nil, next, line+1
		case !content && (len(rest) == 0 || rest[0] == '%'):
			// Blank lines and directives before a document are not of it.
			rest, start, startLine = nil, next, line+1
		}
		if len(rest) > 0 && rest[0] != '#' {
			content = true
		}
		at = next
	}
	flush(len(data))
	return out
}

// marker reports whether a line is a document marker.
func marker(line []byte, m string) bool {
	return bytes.HasPrefix(line, []byte(m)) &&
		(len(line) == 3 || bytes.IndexByte([]byte(" \t\r\n"), line[3]) >= 0)
}

// document reads one document.
func (f *reader) document(p piece) {
	root, bad := parse(p.data)
	if bad != nil {
		bad.File, bad.Line = f.file, max(bad.Line, 1)+p.line-1
		f.add(*bad)
		return
	}
	origin := service.Origin{File: f.file, Line: p.line}
	if root == nil {
		return
	}
	k, bad := f.kindOf(root, p.line-1, &origin)
	if bad != nil {
		f.add(*bad)
	}
	if k == nil {
		return
	}
	if k.APIVersion == "v1" && k.Kind == secrets.KindSecret {
		if path, n := secrets.Anchored(root); n != nil {
			f.add(Problem{File: f.file, Line: n.Line + p.line - 1, Path: path, Message: "has an anchor or an alias of YAML: put a value that begins with & or * in quotes"})
			return
		}
	}
	// Status is the server's to write, whatever it holds.
	root = without(root, "status")
	into := reflect.New(k.Shape)
	doc, problems := strict.Decode(root, p.line-1, into.Interface())
	r := manifest.NewReader(origin, doc, problems)
	r.Note(notes)
	o := Object{Origin: origin, Original: bytes.TrimRight(p.data, " \t\r\n")}
	k.Read(r, into.Interface(), &o)
	if o.Kind == KindScheduling {
		f.scheduling(r, o)
		return
	}
	r.CheckAnnotations(o.Kind)
	if first, twice := f.seen[identity(o)]; twice {
		r.Errorf("metadata.name", "%s %s is already defined on line %d", strings.ToLower(o.HubKind()), o.Key.Name, first)
	} else {
		f.seen[identity(o)] = p.line
	}
	for _, p := range r.Problems() {
		p.File = f.file
		f.add(p)
	}
	if !r.Failed() {
		f.result.Objects = append(f.result.Objects, o)
	}
}

// scheduling keeps an endpoint picker's configuration.
func (f *reader) scheduling(r *manifest.Reader, o Object) {
	for _, p := range r.Problems() {
		p.File = f.file
		f.add(p)
	}
	if !r.Failed() && o.Scheduling != nil {
		f.result.Schedulings = append(f.result.Schedulings, o)
	}
}

// identity is what may be defined once: a hub object, whatever dialect it is
// written in.
func identity(o Object) string { return o.HubKind() + " " + o.Key.String() }

// The expressions are compiled where they are used, which is seldom: a replica
// links this package too.

// grammar is what the YAML package says of a document whose tokens are right
// and their order is not. It counts those lines from 0, others from 1.
const grammar = `^did not find expected (key|node content|'-'|',' or|<document)|^found (duplicate %|incompatible|undefined)`

// mayBeSecret finds documents of kind Secret, and more, before they are parsed.
const mayBeSecret = `\bSecret\b|\bstringData\b`

const yamlLine = `^(?:yaml: )?(?:line (\d+): )?(.*)$`

// parse parses one document. A nil node without a problem is an empty one.
func parse(data []byte) (root *yaml.Node, bad *Problem) {
	// The parser is another's; a fault of it on hostile input must cost one
	// document and not the program.
	said := func(why any) string {
		if regexp.MustCompile(mayBeSecret).Match(data) { // what the parser says may quote a value
			return "is not YAML: correct it at this line or after it, and put values in quotes"
		}
		return fmt.Sprintf("is not YAML: %v", why)
	}
	defer func() {
		if e := recover(); e != nil {
			root, bad = nil, &Problem{Message: said(e)}
		}
	}()
	if t := bytes.TrimSpace(data); len(t) > 0 && t[0] == '{' {
		data = fromJSON(data)
	} else {
		data = fromPage(data)
	}
	var n yaml.Node
	if err := yaml.Unmarshal(data, &n); err != nil {
		m := regexp.MustCompile(yamlLine).FindStringSubmatch(err.Error())
		line, _ := strconv.Atoi(m[1])
		if line > 0 && regexp.MustCompile(grammar).MatchString(m[2]) {
			line++
		}
		if indentedByTab(data, line) {
			return nil, &Problem{Line: line, Message: "is not YAML: a tab is in the indentation: write spaces"}
		}
		return nil, &Problem{Line: line, Message: said(m[2])}
	}
	if n.Kind != yaml.DocumentNode || len(n.Content) != 1 {
		return nil, nil
	}
	return n.Content[0], nil
}

// indentedByTab reports whether a line, counted from 1, has a tab before its
// first word.
func indentedByTab(data []byte, line int) bool {
	lines := bytes.Split(data, []byte("\n"))
	if line < 1 || line > len(lines) {
		return false
	}
	l := lines[line-1]
	return bytes.IndexByte(l[:len(l)-len(bytes.TrimLeft(l, " \t"))], '\t') >= 0
}

// without is a mapping less one key. The node given stays as it is.
func without(n *yaml.Node, key string) *yaml.Node {
	out := *n
	out.Content = nil
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value != key {
			out.Content = append(out.Content, n.Content[i], n.Content[i+1])
		}
	}
	return &out
}

// pageSpace is the no-break space that web pages put after a key, or the
// question mark some turn it into, in front of what is an API version.
const pageSpace = `(?m)^([ \t]*(?:- )?[A-Za-z][A-Za-z0-9._/-]*:)\x{a0}|^(apiVersion:)\?([a-z0-9.-]+/v[0-9a-z]+[ \t\r]*)$`

// fromPage makes of a manifest copied from a web page what was meant: a space
// after the colon.
func fromPage(data []byte) []byte {
	if !bytes.Contains(data, []byte("\u00a0")) && !bytes.Contains(data, []byte("apiVersion:?")) {
		return data
	}
	return regexp.MustCompile(pageSpace).ReplaceAll(data, []byte("$1$2 $3"))
}

const jsonEscape = `\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|.)`

// fromJSON makes of JSON what a YAML parser takes: spaces for tabs (a JSON
// string holds none) and characters for the escapes YAML has not, a slash's
// and pairs of surrogates.
func fromJSON(data []byte) []byte {
	data = bytes.ReplaceAll(data, []byte("\t"), []byte(" "))
	return regexp.MustCompile(jsonEscape).ReplaceAllFunc(data, func(b []byte) []byte {
		switch {
		case len(b) == 2 && b[1] == '/':
			return b[1:]
		case len(b) < 12:
			return b
		}
		s, err := strconv.Unquote(`"` + string(utf16Escape(b)) + `"`)
		if err != nil {
			return b
		}
		return []byte(s)
	})
}

// utf16Escape turns \ud83d\ude00 into \U0001f600.
func utf16Escape(b []byte) []byte {
	hi, _ := strconv.ParseUint(string(b[2:6]), 16, 32)
	lo, _ := strconv.ParseUint(string(b[8:12]), 16, 32)
	return fmt.Appendf(nil, `\U%08x`, 0x10000+(hi-0xd800)<<10+(lo-0xdc00))
}

// kindOf finds how to read a document by its apiVersion and kind; nil with a
// problem, an error or a warning, when it is not read.
func (f *reader) kindOf(root *yaml.Node, offset int, origin *service.Origin) (*manifest.Schema, *Problem) {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	at := func(n *yaml.Node, path, format string, args ...any) *Problem {
		return &Problem{File: f.file, Line: n.Line + offset, Column: n.Column, Path: path, Message: fmt.Sprintf(format, args...)}
	}
	if root.Kind != yaml.MappingNode {
		return nil, at(root, "", "is not a manifest: expected apiVersion, kind, metadata and spec")
	}
	nodes := map[string]*yaml.Node{"apiVersion": root, "kind": root}
	for i := 0; i+1 < len(root.Content); i += 2 {
		k, v := root.Content[i], root.Content[i+1]
		if nodes[k.Value] != root || v.Kind != yaml.ScalarNode {
			continue
		}
		nodes[k.Value] = k
		switch k.Value {
		case "apiVersion":
			head.APIVersion = v.Value
		case "kind":
			head.Kind = v.Value
		}
	}
	origin.APIVersion, origin.Kind = head.APIVersion, head.Kind
	for i := range schemas {
		if schemas[i].APIVersion == head.APIVersion && schemas[i].Kind == head.Kind {
			return &schemas[i], nil
		}
	}
	return nil, f.unread(head.APIVersion, head.Kind, nodes, at)
}

// unread returns why a document is not read and what is.
func (f *reader) unread(apiVersion, kindName string, nodes map[string]*yaml.Node,
	at func(*yaml.Node, string, string, ...any) *Problem) *Problem {
	switch {
	case apiVersion == "":
		return at(nodes["apiVersion"], "apiVersion", "is missing: write one of %s", strings.Join(versions(), ", "))
	case kindName == "":
		return at(nodes["kind"], "kind", "is missing: write one of %s", strings.Join(kindsOf(apiVersion), ", "))
	}
	id := apiVersion + " " + kindName
	if why, ok := foreign[id]; ok {
		p := at(nodes["kind"], "kind", "%s %s", kindName, why.Message)
		p.Warning, p.Platform = why.Warning, why.Platform
		return p
	}
	if p := misspelt(apiVersion, kindName, nodes, at); p != nil {
		return p
	}
	var ids []string
	for _, k := range schemas {
		if k.Kind == kindName {
			ids = append(ids, k.APIVersion)
		}
	}
	if len(ids) == 0 {
		ids = versions()
	}
	return at(nodes["apiVersion"], "apiVersion", "%s %s is not read; the apiVersions that are: %s",
		manifest.Clip(apiVersion), manifest.Clip(kindName), strings.Join(ids, ", "))
}

// misspelt returns which kind or version was probably meant, nil when none is
// near.
func misspelt(apiVersion, kindName string, nodes map[string]*yaml.Node,
	at func(*yaml.Node, string, string, ...any) *Problem) *Problem {
	group, _, _ := strings.Cut(apiVersion, "/")
	for _, k := range schemas {
		if g, _, _ := strings.Cut(k.APIVersion, "/"); g == group && k.Kind == kindName {
			return at(nodes["apiVersion"], "apiVersion", "%s has no %s that is read; did you mean %q?", manifest.Clip(apiVersion), kindName, k.APIVersion)
		}
	}
	if known := kindsOf(apiVersion); len(known) > 0 {
		if near := strict.Nearest(kindName, known); near != "" {
			return at(nodes["kind"], "kind", "unknown kind %q; did you mean %q?", manifest.Clip(kindName), near)
		}
		return at(nodes["kind"], "kind", "unknown kind %q; of %s these are read: %s", manifest.Clip(kindName), apiVersion, strings.Join(known, ", "))
	}
	if near := strict.Nearest(apiVersion, versions()); near != "" && slices.Contains(kindsOf(near), kindName) {
		return at(nodes["apiVersion"], "apiVersion", "unknown version %q; did you mean %q?", manifest.Clip(apiVersion), near)
	}
	return nil
}
