package process

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestLayOut: parts of a model lie where the manifest says, folders of several are
// merged, and a file that two have is refused.
func TestLayOut(t *testing.T) {
	dir := t.TempDir()
	tree := func(name string, files ...string) string {
		at := filepath.Join(dir, name)
		for _, f := range files {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(at, f)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(at, f), []byte(name+"/"+f), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return at
	}
	base, extra := tree("base", "config.json", "tokens/a.txt"), tree("extra", "notes.txt", "tokens/b.txt")
	file := filepath.Join(tree("one", "model.ubj"), "model.ubj")
	var many []string
	for i := range maxLaid {
		many = append(many, strconv.Itoa(i))
	}
	full := tree("full", many...)
	const m = service.MountPath
	for _, c := range []struct {
		name  string
		at    []string // paths of containers
		paths []string
		want  string // "below=source", in order
		err   string
	}{
		{"side by side", []string{m + "/base", m + "/extra"}, []string{base, extra}, "base=base extra=extra", ""},
		{"merged", []string{m, m}, []string{base, extra}, "config.json=base/config.json notes.txt=extra/notes.txt tokens/a.txt=base/tokens/a.txt tokens/b.txt=extra/tokens/b.txt", ""},
		{"one in another", []string{m, m + "/x"}, []string{base, extra}, "config.json=base/config.json tokens=base/tokens x=extra", ""},
		{"the inner first", []string{m + "/tokens", m}, []string{extra, base}, "config.json=base/config.json tokens/a.txt=base/tokens/a.txt tokens/notes.txt=extra/notes.txt tokens/tokens=extra/tokens", ""},
		{"a file", []string{m, m + "/x"}, []string{file, extra}, "model.ubj=one/model.ubj x=extra", ""},
		{"elsewhere", []string{"/opt/a/x", "/opt/a/y"}, []string{base, extra}, "x=base y=extra", ""},
		{"one elsewhere", []string{"/opt/a"}, []string{base}, ".=base", ""},
		{"twice", []string{m, m}, []string{base, base}, "", "uri-0 and uri-1 both have config.json: give each URI a mountPath of its own"},
		{"a file for a folder", []string{m, m + "/config.json/x"}, []string{base, extra}, "", "a file of uri-0 lies where"},
		{"too many", []string{m, m}, []string{full, base}, "", "side by side"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var parts service.Parts
			for i, at := range c.at {
				parts = append(parts, service.Part{URI: "uri-" + strconv.Itoa(i), Path: at})
			}
			files, err := layOut(parts, c.paths)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got %v, want %s", err, c.err)
				}
				return
			}
			var got []string
			for _, f := range files {
				source, _ := filepath.Rel(dir, f.source)
				got = append(got, f.at+"="+source)
			}
			if text := strings.Join(got, " "); err != nil || text != c.want {
				t.Fatalf("got %s, %v\nwant %s", text, err, c.want)
			}
			linked := filepath.Join(t.TempDir(), "linked")
			for range 2 { // a replica that starts again makes them again
				if err := link(linked, files); err != nil {
					t.Fatal(err)
				}
			}
			for _, f := range files {
				if at, err := os.Readlink(filepath.Join(linked, f.at)); err != nil || at != f.source {
					t.Errorf("%s leads to %s, %v", f.at, at, err)
				}
			}
		})
	}
}
