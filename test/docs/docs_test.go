// Package docs keeps the documentation true where that is cheap: its links
// resolve, the commands and flags it shows exist, its manifests can be read,
// every field of our own kinds is described, and the bounds it states are the
// code's.
package docs

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
)

// root is the repository's folder.
var root = filepath.Join("..", "..")

// page is one document.
type page struct {
	path  string // below root
	lines []line
}

// line is a document's line, with the language of the fenced block it is in.
type line struct {
	number int
	text   string
	fenced bool
	lang   string
}

// pages reads the documents for people: those of the root, and docs/.
func pages(t *testing.T) []page {
	t.Helper()
	top, err := filepath.Glob(filepath.Join(root, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	var out []page
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			t.Fatal(err)
		}
		top = append(top, found...)
	}
	for _, path := range top {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, page{filepath.ToSlash(rel), parse(string(data))})
	}
	if len(out) < 10 {
		t.Fatalf("only %d documents found: the walk is broken", len(out))
	}
	return out
}

// parse cuts a document into lines and marks its fenced blocks.
func parse(text string) []line {
	var out []line
	fenced, lang := false, ""
	for i, s := range strings.Split(text, "\n") {
		if mark, found := strings.CutPrefix(strings.TrimSpace(s), "```"); found {
			fenced, lang = !fenced, strings.TrimSpace(mark)
			continue
		}
		out = append(out, line{i + 1, s, fenced, lang})
	}
	return out
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	code    = regexp.MustCompile("`[^`]*`")
	heading = regexp.MustCompile(`^#+ +(.*)$`)
)

// anchors are a document's headings as fragments of a link, in GitHub's way.
func anchors(p page) []string {
	var out []string
	for _, l := range p.lines {
		m := heading.FindStringSubmatch(l.text)
		if l.fenced || m == nil {
			continue
		}
		out = append(out, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, m[1]))
	}
	return out
}

func TestLinksResolve(t *testing.T) {
	all, links := pages(t), 0
	for _, p := range all {
		for _, l := range p.lines {
			if l.fenced {
				continue
			}
			for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(l.text, "``"), -1) {
				if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
					continue
				}
				links++
				target, fragment, _ := strings.Cut(m[1], "#")
				path := p.path
				if target != "" {
					path = filepath.ToSlash(filepath.Join(filepath.Dir(p.path), filepath.FromSlash(target)))
				}
				if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(path))); err != nil {
					t.Errorf("%s:%d: %s leads nowhere", p.path, l.number, m[1])
					continue
				}
				at := slices.IndexFunc(all, func(o page) bool { return o.path == path })
				if fragment != "" && (at < 0 || !slices.Contains(anchors(all[at]), fragment)) {
					t.Errorf("%s:%d: %s: %s has no such heading", p.path, l.number, m[1], path)
				}
			}
		}
	}
	if links == 0 {
		t.Fatal("no link found: the search is broken")
	}
}

// commands finds what is typed to roundhouse: in shell blocks a line of it,
// elsewhere a piece of code that begins with it. Pipes and the like end it.
func commands(l line) [][]string {
	var found []string
	switch {
	case l.fenced && (l.lang == "sh" || l.lang == "console"):
		found = []string{strings.TrimPrefix(l.text, "$ ")}
	case !l.fenced:
		for _, c := range code.FindAllString(l.text, -1) {
			found = append(found, strings.Trim(c, "`"))
		}
	}
	var out [][]string
	for _, f := range found {
		for _, part := range regexp.MustCompile(`[|;&]+`).Split(f, -1) {
			if words := strings.Fields(part); len(words) > 0 && words[0] == "roundhouse" {
				out = append(out, words[1:])
			}
		}
	}
	return out
}

func TestCommandsAndFlagsExist(t *testing.T) {
	known, checked := readCommands(t), 0
	for _, p := range pages(t) {
		for _, l := range p.lines {
			for _, words := range commands(l) {
				checked++
				if problem := known.check(words); problem != "" {
					t.Errorf("%s:%d: roundhouse %s: %s", p.path, l.number, strings.Join(words, " "), problem)
				}
			}
		}
	}
	if checked < 20 {
		t.Fatalf("only %d commands found: the search is broken", checked)
	}
}

func TestManifestsAreRead(t *testing.T) {
	manifest := regexp.MustCompile(`(?m)^apiVersion: *(roundhouse\.dev|serving\.kserve\.io|ome\.io|(inference|gateway)\.networking\.(x-)?k8s\.io)/`)
	read := 0
	for _, p := range pages(t) {
		for _, b := range blocks(p, "yaml") {
			text := strings.Repeat("\n", b[0].number-1)
			for _, l := range b {
				text += l.text + "\n"
			}
			if !manifest.MatchString(text) {
				continue
			}
			read++
			// The blank lines in front make the line numbers the document's.
			for _, problem := range dialect.Read(p.path, []byte(text)).Errors(dialect.Process) {
				t.Error(problem)
			}
		}
	}
	if read < 5 {
		t.Fatalf("only %d manifests found: the search is broken", read)
	}
}

// blocks are the fenced blocks of a language.
func blocks(p page, lang string) [][]line {
	var out [][]line
	last := 0
	for _, l := range p.lines {
		if !l.fenced || l.lang != lang {
			continue
		}
		if n := len(out); n > 0 && last == l.number-1 {
			out[n-1] = append(out[n-1], l)
		} else {
			out = append(out, []line{l})
		}
		last = l.number
	}
	return out
}

func TestEveryFieldIsDescribed(t *testing.T) {
	var text strings.Builder
	for _, p := range pages(t) {
		if p.path != "docs/manifests.md" {
			continue
		}
		for _, l := range p.lines {
			for _, c := range code.FindAllString(l.text, -1) {
				text.WriteString(c)
			}
		}
	}
	seen := map[reflect.Type]bool{}
	for _, kind := range []any{v1alpha1.ModelService{}, v1alpha1.ServingRuntime{}, v1alpha1.ClusterServingRuntime{}, v1alpha1.Route{}, v1alpha1.Pool{}} {
		fields(reflect.TypeOf(kind), seen, func(owner reflect.Type, name string) {
			if !regexp.MustCompile(`\b` + name + `\b`).MatchString(text.String()) {
				t.Errorf("docs/manifests.md does not describe %s of %s", name, owner.Name())
			}
		})
	}
	if len(seen) < 10 {
		t.Fatalf("only %d types found: the walk is broken", len(seen))
	}
}

// fields calls f for the json fields of a type of ours and those below it.
func fields(t reflect.Type, seen map[reflect.Type]bool, f func(owner reflect.Type, name string)) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t.PkgPath() != reflect.TypeFor[v1alpha1.ModelService]().PkgPath() || seen[t] {
		return
	}
	seen[t] = true
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name != "" && name != "metadata" && name != "spec" && name != "status" {
			f(t, name)
		}
		fields(field.Type, seen, f)
	}
}

func TestEveryPackageIsOnTheMap(t *testing.T) {
	var text strings.Builder
	for _, p := range pages(t) {
		if p.path == "docs/architecture.md" {
			for _, l := range p.lines {
				text.WriteString(l.text + "\n")
			}
		}
	}
	found, err := filepath.Glob(filepath.Join(root, "internal", "*", "*"))
	if err != nil || len(found) < 15 {
		t.Fatalf("only %d packages found: %v", len(found), err)
	}
	for _, path := range found {
		rel, err := filepath.Rel(filepath.Join(root, "internal"), path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(path, ".go") { // of a package without floors
			rel = filepath.Dir(rel)
		}
		name := filepath.ToSlash(rel)
		if !strings.Contains(text.String(), "`"+name+"`") && !strings.Contains(text.String(), "`"+name+"/…`") {
			t.Errorf("docs/architecture.md does not say what internal/%s is", name)
		}
	}
}
