package artifact

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestFingerprint: it changes with what a server would load, and with nothing
// else.
func TestFingerprint(t *testing.T) {
	dir := t.TempDir()
	s, err := New(Config{Dir: t.TempDir(), MaxFiles: 20}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string, data []byte) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	of := func(uri string) string { return s.Fingerprint(t.Context(), Request{URI: uri}) }
	all := func() string { return of("file://" + dir) }
	large := bytes.Repeat([]byte{1}, maxDigested+1)
	put("m/model.txt", []byte("one"))
	put("m/large.bin", large)
	if err := os.Symlink("model.txt", filepath.Join(dir, "m", "link")); err != nil {
		t.Fatal(err)
	}
	last := all()
	if last == "" {
		t.Fatal("there is none")
	}
	changes := func(what string, want bool, change func()) {
		t.Helper()
		change()
		now := all()
		if now == "" || (now != last) != want {
			t.Errorf("%s: %s, was %s", what, now, last)
		}
		last = now
	}
	touch := func(name string, at time.Time) {
		if err := os.Chtimes(filepath.Join(dir, name), at, at); err != nil {
			t.Fatal(err)
		}
	}
	day := time.Now().Add(-24 * time.Hour)
	touch("m/large.bin", day)
	last = all()
	changes("nothing", false, func() {})
	changes("a touched file", false, func() { touch("m/model.txt", day) })
	changes("as long, at the same time", true, func() { put("m/model.txt", []byte("two")); touch("m/model.txt", day) })
	changes("a large file with another end, of the same time", true, func() { large[maxDigested] = 2; put("m/large.bin", large); touch("m/large.bin", day) })
	changes("a large file written again", true, func() { touch("m/large.bin", day.Add(time.Hour)) })
	changes("one more", true, func() { put("m/more", nil) })
	changes("renamed", true, func() { _ = os.Rename(filepath.Join(dir, "m/more"), filepath.Join(dir, "m/less")) })
	changes("gone", true, func() { _ = os.Remove(filepath.Join(dir, "m/less")) })
	changes("left by servers", false, func() {
		put("m/__pycache__/code.cpython-312.pyc", []byte("x"))
		put("m/.cache/x", []byte("x"))
		put("m/server.log", []byte("x"))
	})
	if one, other := of("file://"+dir+"/m/model.txt"), of("file://"+dir+"/m/link"); one == "" || one != other {
		t.Errorf("a file has %q, a link to it %q", one, other)
	}
	for _, uri := range []string{"file://" + dir + "/nothing", "https://example.com/m", "upload://x/y", "::"} {
		if got := of(uri); got != "" {
			t.Errorf("%s has %q", uri, got)
		}
	}
	for i := range 20 {
		put("many/"+string(rune('a'+i)), nil)
	}
	if got := all(); got != "" {
		t.Errorf("a folder of too many files has %q", got)
	}
}
