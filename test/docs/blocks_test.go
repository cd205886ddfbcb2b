package docs

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/decide/dialect/kserve"
	"roundhouse.dev/roundhouse/test/document"
)

// translations are pages and what they are translations of.
var translations = map[string]string{
	"README.zh-CN.md":               "README.md",
	"docs/zh-CN/getting-started.md": "docs/getting-started.md",
}

func readPage(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestCommandsAreRunOrSayWhy: every block of commands is in a page that test/e2e runs,
// or has a reason why it is not run.
func TestCommandsAreRunOrSayWhy(t *testing.T) {
	blocks := 0
	for _, p := range pages(t) {
		if _, translated := translations[p.path]; translated {
			continue // its blocks are those of its original
		}
		for _, b := range document.Blocks(readPage(t, p.path)) {
			if b.Lang != "sh" {
				continue
			}
			blocks++
			if run := slices.Contains(document.Run, p.path); !run && len(b.NotRun) < 10 {
				t.Errorf("%s:%d: no test runs these commands: add the page to document.Run, or write <!-- not run: REASON --> before the block", p.path, b.Line)
			}
		}
	}
	if blocks < 50 {
		t.Fatalf("only %d blocks found: the search is broken", blocks)
	}
}

// comment is a comment of a shell, which a translation translates.
var comment = regexp.MustCompile(`(?m) {2,}# .*$`)

// TestTranslationsAreInStep: a translation has the headings and the blocks of its
// original, in their order.
func TestTranslationsAreInStep(t *testing.T) {
	for path, of := range translations {
		levels := func(path string) (out []string) {
			for _, l := range parse(readPage(t, path)) {
				if heading.MatchString(l.text) && !l.fenced {
					out = append(out, strings.TrimRight(l.text[:strings.IndexByte(l.text, ' ')], " "))
				}
			}
			return out
		}
		if a, b := levels(of), levels(path); !slices.Equal(a, b) || len(a) == 0 {
			t.Errorf("%s has the headings %v, %s has %v", path, b, of, a)
		}
		original, translated := document.Blocks(readPage(t, of)), document.Blocks(readPage(t, path))
		if len(original) != len(translated) {
			t.Errorf("%s has %d blocks, %s has %d", path, len(translated), of, len(original))
			continue
		}
		for i, b := range original {
			if o := translated[i]; b.Lang != o.Lang || comment.ReplaceAllString(b.Text, "") != comment.ReplaceAllString(o.Text, "") {
				t.Errorf("%s:%d is not the block at %s:%d", path, o.Line, of, b.Line)
			}
		}
	}
}

// TestFieldsOfKServe: the table of docs/tutorials/kserve.md has every field of an
// InferenceService that is read, below a pod's and a container's own.
func TestFieldsOfKServe(t *testing.T) {
	table := map[string]bool{}
	first := regexp.MustCompile(`^\| (.*?) \| `)
	within := false
	for line := range strings.Lines(readPage(t, "docs/tutorials/kserve.md")) {
		if strings.HasPrefix(line, "<!-- ") {
			within = strings.Contains(line, "fields of an InferenceService")
		}
		if m := first.FindStringSubmatch(line); within && m != nil {
			for _, c := range code.FindAllString(m[1], -1) {
				table[strings.Trim(c, "`")] = true
			}
		}
	}
	fields := 0
	var walk func(at string, rt reflect.Type)
	walk = func(at string, rt reflect.Type) {
		for rt.Kind() == reflect.Pointer {
			rt = rt.Elem()
		}
		if rt.Kind() != reflect.Struct || rt.PkgPath() == "k8s.io/api/core/v1" {
			return
		}
		for i := range rt.NumField() {
			f := rt.Field(i)
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch path := strings.TrimPrefix(at+"."+name, "."); {
			case name == "" && options == "inline":
				walk(at, f.Type)
			case path == "predictor" || path == "predictor.model":
				walk(path, f.Type)
			default:
				if fields++; !table[path] {
					t.Errorf("docs/tutorials/kserve.md has no row of %s", path)
				}
			}
		}
	}
	for _, s := range kserve.Schemas {
		if s.APIVersion == "serving.kserve.io/v1beta1" && s.Kind == "InferenceService" {
			spec, _ := s.Shape.FieldByName("Spec")
			walk("", spec.Type)
		}
	}
	if fields < 40 {
		t.Fatalf("only %d fields found: the walk is broken", fields)
	}
}
