package brought

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/edge/process/containers"
)

// TestNoEngine: one line says what is missing; a variable that only a pod has is refused.
func TestNoEngine(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for mode, want := range map[string]string{containers.Off: "this roundhouse runs no containers (--containers=off)", containers.Auto: "install podman or docker"} {
		s := New(Config{Dir: t.TempDir(), Engines: &containers.Finder{Mode: mode}})
		_, err := s.Fetch(t.Context(), Request{URI: "registry://key:secret@oak", Container: corev1.Container{Image: "example.com/fetch:1"}})
		if err == nil || !strings.HasSuffix(err.Error(), want) || !strings.Contains(err.Error(), "the container of image example.com/fetch:1 does not fetch it") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", mode, err)
		}
	}
}

// here puts a model there as a fetch does.
func here(t *testing.T, s *Store, r Request, whole bool) string {
	t.Helper()
	dir := s.folder(r)
	raw, err := json.Marshal(record{r.URI, r.Container.Image})
	if err = errors.Join(err, os.MkdirAll(filepath.Join(dir, filesName), 0o700)); err == nil && whole {
		err = os.WriteFile(filepath.Join(dir, recordName), raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestTidy: what is here is given without an engine; what nobody uses goes, and what was cut
// off, but nothing that a replica has.
func TestTidy(t *testing.T) {
	s := New(Config{Dir: filepath.Join(t.TempDir(), "brought"), Engines: &containers.Finder{Mode: containers.Off}})
	if err := s.Tidy(t.Context(), func(string) bool { return false }, nil); err != nil {
		t.Error(err)
	}
	named, held := Request{URI: "registry://named"}, Request{URI: "registry://held"}
	gone, other, cut := Request{URI: "registry://gone"}, Request{URI: "registry://named", Variables: map[string]string{"TOKEN": "a"}}, Request{URI: "registry://named", Container: corev1.Container{Image: "b"}}
	dirs := map[string]bool{here(t, s, named, true): true, here(t, s, held, true): true, here(t, s, gone, true): false, here(t, s, other, true): true, here(t, s, cut, false): false}
	if len(dirs) != 5 {
		t.Fatal("two requests have one folder")
	}
	path, err := s.Fetch(t.Context(), held)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Tidy(t.Context(), func(uri string) bool { return uri == "registry://named" }, []string{path}); err != nil {
		t.Error(err)
	}
	for dir, want := range dirs {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: there %v", dir, !want)
		}
	}
}

// TestCheck: what a container leaves must be files of its own.
func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		link, want string
	}{
		"nothing":           {"", "left no file"},
		"within":            {"model.bin", ""},
		"absolute":          {"/etc/passwd", "leads out"},
		"above":             {"../../secret", "leads out"},
		"through a folder":  {"sub/../../secret", "leads out"},
		"back to the files": {"sub/../model.bin", ""},
	} {
		dir := t.TempDir()
		if c.link != "" {
			if err := errors.Join(os.WriteFile(filepath.Join(dir, "model.bin"), nil, 0o600), os.Symlink(c.link, filepath.Join(dir, "link"))); err != nil {
				t.Fatal(err)
			}
		}
		if err := check(dir); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCheckChain: links that are harmless one by one, and together lead out.
func TestCheckChain(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "files")
	err := errors.Join(os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700), os.Mkdir(filepath.Join(dir, "top"), 0o700), os.WriteFile(filepath.Join(base, "secret"), []byte("x"), 0o600),
		os.WriteFile(filepath.Join(dir, "model.bin"), nil, 0o600), os.Symlink("../../top", filepath.Join(dir, "a", "b", "up")))
	if err != nil {
		t.Fatal(err)
	}
	if err := check(dir); err != nil {
		t.Errorf("a link to a folder of the model: %v", err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("a/b/up/../../secret", link); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(link); string(b) != "x" {
		t.Fatalf("the link does not lead out: %v", err)
	}
	if err := check(dir); err == nil || !strings.Contains(err.Error(), "leads out") {
		t.Errorf("a chain of links: %v", err)
	}
}
