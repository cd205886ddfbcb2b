package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/decide/dialect/kserve"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
)

// notManifests are names with our prefix that no manifest which people write has:
// labels, what the product writes on objects of its own, and an annotation of a
// GatewayClass.
var notManifests = []string{"adopt", "any-host", "applied", "benchmark", "dropping-since", "endpoint-picker", "fetches", "gateway", "image", "installation", "keeper", "model-cache", "models", "node", "permissive",
	"record", "record-format", "replica", "reserve", "revision", "role", "schema-revision", "service", "surge", "usage"}

// TestAnnotationsAreTheCodes compares the table of annotations in docs/manifests.md
// with that of the code, and both with the names that are in the sources.
func TestAnnotationsAreTheCodes(t *testing.T) {
	var known []string
	for _, a := range manifest.Annotations {
		known = append(known, a.Name)
	}
	row := regexp.MustCompile("^\\| `roundhouse\\.dev/([a-zA-Z-]+)`")
	var documented []string
	for _, p := range pages(t) {
		if p.path != "docs/manifests.md" {
			continue
		}
		for _, l := range p.lines {
			if m := row.FindStringSubmatch(l.text); m != nil {
				documented = append(documented, m[1])
			}
		}
	}
	slices.Sort(documented)
	if !slices.Equal(documented, known) {
		t.Errorf("docs/manifests.md has the annotations\n%s\nthe code reads\n%s", strings.Join(documented, " "), strings.Join(known, " "))
	}
	for name, file := range annotationsOfSources(t) {
		if !slices.Contains(known, name) && !slices.Contains(notManifests, name) {
			t.Errorf("%s has roundhouse.dev/%s, which is neither in manifest.Annotations nor one of those that no manifest has", file, name)
		}
	}
}

// TestAnnotationsOfKServe compares the table of KServe's annotations in
// docs/manifests.md with that of the code: on what each stands, and the reasons of those
// without effect.
func TestAnnotationsOfKServe(t *testing.T) {
	row := regexp.MustCompile("^\\| `([a-z.]+/[a-zA-Z0-9-]+)` \\| ([a-zA-Z, ]+) \\| (.*) \\|$")
	documented := map[string][2]string{}
	for _, p := range pages(t) {
		if p.path != "docs/manifests.md" {
			continue
		}
		within := false
		for _, l := range p.lines {
			if strings.HasPrefix(l.text, "#") {
				within = l.text == "### Annotations of KServe"
			}
			if m := row.FindStringSubmatch(l.text); within && m != nil {
				documented[m[1]] = [2]string{m[2], m[3]}
			}
		}
	}
	for name, a := range kserve.Annotations {
		row, ok := documented[name]
		text := row[1]
		if delete(documented, name); !ok || row[0] != a.On.String() || a.Lacks != "" && text != "no effect: "+a.Lacks || a.Lacks == "" && strings.HasPrefix(text, "no effect") {
			t.Errorf("%s: the docs have %q, the code %s: %q", name, row, a.On, a.Lacks)
		}
	}
	if len(documented) > 0 {
		t.Errorf("the code does not know %v", documented)
	}
}

// annotationsOfSources are the names with our prefix in the product's sources, and
// one file that has each.
func annotationsOfSources(t *testing.T) map[string]string {
	t.Helper()
	name := regexp.MustCompile(`"roundhouse\.dev/([a-zA-Z-]+)"`)
	out := map[string]string{}
	for _, dir := range []string{"internal", "cmd", "api"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			data, err := os.ReadFile(path)
			for _, m := range name.FindAllStringSubmatch(string(data), -1) {
				out[strings.TrimSuffix(m[1], "-")] = path
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	delete(out, "residency") // only a prefix
	if len(out) < 20 {
		t.Fatalf("only %d names found: the search is broken", len(out))
	}
	return out
}
