// Record writes facts about the manifests that a project publishes: of each document
// its path, its kind, and a manifest with the same fields, in which names, addresses,
// commands and texts are replaced by placeholders.
//
//	go run ./test/published/record kserve CHECKOUT > test/published/testdata/kserve.jsonl
//
// Of llm-d there are several checkouts, whose names begin the paths.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// project is what is recorded of one.
type project struct {
	groups *regexp.Regexp // the API groups of its documents
	kinds  *regexp.Regexp // of them; nil for all
	// nested: documents are looked for in texts of other documents too, such as the
	// values of charts.
	nested bool
}

var projects = map[string]project{
	"kserve": {groups: regexp.MustCompile(`(?m)^apiVersion:\s*"?(serving\.kserve\.io|serving\.kubeflow\.org)/`)},
	"ome":    {groups: regexp.MustCompile(`(?m)^apiVersion:\s*"?ome\.io/`)},
	"llm-d": {groups: regexp.MustCompile(`(?m)^apiVersion:\s*"?(llm-d\.ai|inference\.networking\.x-k8s\.io)/`),
		kinds: regexp.MustCompile(`(?m)^kind:\s*"?EndpointPickerConfig\b`), nested: true},
}

// leftOut are folders that hold no manifests for users: definitions, charts'
// templates, the installation itself, and proposals of what may come.
var leftOut = regexp.MustCompile(`^(oeps|charts|hack|install|\.github|config/(crd|default|rbac|manager|webhook)|test/crds)(/|$)`)

var (
	fence    = regexp.MustCompile("(?ms)^([ \t]*)```ya?ml[^\n]*\n(.*?)^[ \t]*```")
	boundary = regexp.MustCompile(`(?m)^---.*$`)
	version  = regexp.MustCompile(`(?m)^apiVersion:\s*"?([\w./-]+)`)
	kind     = regexp.MustCompile(`(?m)^kind:\s*"?(\w+)`)
)

type record struct {
	Path     string `json:"path"`
	Number   int    `json:"n"` // of the document in its file, among those recorded
	Kind     string `json:"kind"`
	Broken   string `json:"broken,omitempty"`
	Manifest any    `json:"manifest,omitempty"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 || projects[args[0]].groups == nil || len(args) > 2 && !projects[args[0]].nested {
		return fmt.Errorf("usage: record kserve|ome CHECKOUT, or record llm-d CHECKOUT…")
	}
	out := bufio.NewWriter(os.Stdout)
	for _, checkout := range args[1:] {
		prefix := ""
		if projects[args[0]].nested {
			prefix = filepath.Base(checkout)
		}
		if err := walk(out, projects[args[0]], checkout, prefix); err != nil {
			return err
		}
	}
	return out.Flush()
}

func walk(out *bufio.Writer, p project, checkout, prefix string) error {
	return filepath.WalkDir(checkout, func(path string, d fs.DirEntry, err error) error {
		at, relErr := filepath.Rel(checkout, path)
		if err = errors.Join(err, relErr); err != nil || leftOut.MatchString(at) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return err
		}
		return file(out, p, path, filepath.Join(prefix, at))
	})
}

func file(out *bufio.Writer, p project, path, at string) error {
	ext := filepath.Ext(path)
	if ext != ".yaml" && ext != ".yml" && ext != ".md" {
		return nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	parts := []string{string(data)}
	if ext == ".md" {
		parts = nil
		for _, m := range fence.FindAllStringSubmatch(string(data), -1) {
			parts = append(parts, regexp.MustCompile("(?m)^"+m[1]).ReplaceAllString(m[2], ""))
		}
	}
	n := 0
	for _, part := range parts {
		docs := boundary.Split(part, -1)
		if p.nested {
			docs = nested(part)
		}
		for _, doc := range docs {
			if !p.groups.MatchString(doc) || p.kinds != nil && !p.kinds.MatchString(doc) {
				continue
			}
			n++
			line, err := json.Marshal(facts(at, n, doc))
			if err != nil {
				return err
			}
			_, _ = out.Write(append(line, '\n'))
		}
	}
	return nil
}

// head is the first line of a document, which may be indented, and behind the marks of a
// comment.
var head = regexp.MustCompile(`^(\s*(?:# ?)?\s*)apiVersion:`)

// nested are the documents in a text, and in texts within it: each from its first line
// to the next that is indented less.
func nested(text string) (out []string) {
	var doc []string
	indent := ""
	flush := func() {
		if len(doc) > 0 {
			out = append(out, strings.Join(doc, "\n")+"\n")
		}
		doc = nil
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \t\r\n")
		m := head.FindStringSubmatch(line)
		switch {
		case m != nil:
			flush()
			indent, doc = m[1], []string{line[len(m[1]):]}
		case doc == nil:
		case line == strings.TrimRight(indent, " "):
			doc = append(doc, "")
		case !strings.HasPrefix(line, indent) || boundary.MatchString(line[len(indent):]):
			flush()
		default:
			doc = append(doc, line[len(indent):])
		}
	}
	flush()
	return out
}

func facts(at string, n int, doc string) record {
	r := record{Path: at, Number: n, Kind: version.FindStringSubmatch(doc)[1]}
	if m := kind.FindStringSubmatch(doc); m != nil {
		r.Kind += " " + m[1]
	}
	var tree any
	if err := yaml.Unmarshal([]byte(doc), &tree); err != nil {
		r.Broken = "is not YAML"
		return r
	}
	r.Manifest = scrub(nil, tree)
	return r
}

// word is a text that is a term of the field rather than its author's: a format, a
// protocol, a mode.
var word = regexp.MustCompile(`^[A-Za-z0-9$][A-Za-z0-9.$_-]{0,40}$`)

// percentage is a value and no text.
var percentage = regexp.MustCompile(`^[0-9]{1,3}%$`)

// expressions are those of templates, which a manifest may have in commands.
var expressions = regexp.MustCompile(`(?s)\{\{.*?\}\}`)

// scrub replaces what authors wrote by placeholders.
func scrub(path []string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			out[k] = scrub(append(path[:len(path):len(path)], k), e)
		}
		return out
	case map[any]any: // of keys that are no texts, as templates have
		out := map[string]any{}
		for k, e := range v {
			out[fmt.Sprint(k)] = scrub(append(path[:len(path):len(path)], "?"), e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = scrub(append(path[:len(path):len(path)], strconv.Itoa(i)), v[i])
		}
		return out
	case string:
		return text(path, v)
	}
	return v
}

// uri is an address with the scheme of s, and with what of s decides how it is read.
func uri(scheme, s string) string {
	switch {
	case strings.ContainsAny(s, "{}<>"):
		return scheme + "://example.{$domain}/model"
	case strings.HasPrefix(s, "oci://n/"): // Oracle's object storage, which is no registry
		return "oci://n/example/b/example/o/model"
	}
	return scheme + "://example/model"
}

func text(path []string, s string) string {
	key := path[len(path)-1]
	above := ""
	if len(path) > 1 {
		above = path[len(path)-2]
	}
	scheme, _, isURI := strings.Cut(s, "://")
	isURI = isURI && word.MatchString(strings.ReplaceAll(scheme, "+", "-"))
	switch {
	case above == "args" || above == "command":
		if found := expressions.FindAllString(s, -1); len(found) > 0 {
			return "--word=" + strings.Join(found, "")
		}
		return "--word"
	case key == "image":
		return "example/image:1"
	case isURI:
		return uri(scheme, s)
	case key == "path" && (above == "local" || above == "hostPath") && strings.HasPrefix(s, "/"):
		return "/text"
	case key == "value" || above == "annotations" && len(s) > 20:
		return "v"
	case word.MatchString(s), percentage.MatchString(s), key == "apiVersion", key == "condition", above == "trafficScenarios":
		return s
	case strings.ContainsAny(s, "<>{}"):
		return "<placeholder>"
	}
	return "text"
}
