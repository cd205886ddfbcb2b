// Record writes facts about the manifests that a project publishes: of each document
// its path, its kind, and a manifest with the same fields, in which names, addresses,
// commands and texts are replaced by placeholders.
//
//	go run ./test/published/record kserve CHECKOUT > test/published/testdata/kserve.jsonl
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// groups are the API groups of each project whose documents are recorded.
var groups = map[string]*regexp.Regexp{
	"kserve": regexp.MustCompile(`(?m)^apiVersion:\s*"?(serving\.kserve\.io|serving\.kubeflow\.org)/`),
	"ome":    regexp.MustCompile(`(?m)^apiVersion:\s*"?ome\.io/`),
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
	if len(args) != 2 || groups[args[0]] == nil {
		return fmt.Errorf("usage: record kserve|ome CHECKOUT")
	}
	out := bufio.NewWriter(os.Stdout)
	err := filepath.WalkDir(args[1], func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		at, err := filepath.Rel(args[1], path)
		if err != nil || leftOut.MatchString(at) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return err
		}
		return file(out, groups[args[0]], path, at)
	})
	if err != nil {
		return err
	}
	return out.Flush()
}

func file(out *bufio.Writer, group *regexp.Regexp, path, at string) error {
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
		for _, doc := range boundary.Split(part, -1) {
			if !group.MatchString(doc) {
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
	case isURI && strings.ContainsAny(s, "{}<>"):
		return scheme + "://example.{$domain}/model"
	case isURI:
		return scheme + "://example/model"
	case key == "value" || above == "annotations" && len(s) > 20:
		return "v"
	case word.MatchString(s), key == "apiVersion", key == "condition":
		return s
	case strings.ContainsAny(s, "<>{}"):
		return "<placeholder>"
	}
	return "text"
}
