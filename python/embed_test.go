package python

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestFiles: every module of the package is carried, and nothing else.
func TestFiles(t *testing.T) {
	var there, carried []string
	err := filepath.WalkDir("roundhouse", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "__pycache__" {
			return fs.SkipDir
		}
		if err == nil && !d.IsDir() {
			there = append(there, filepath.ToSlash(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	err = fs.WalkDir(Files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		carried = append(carried, path)
		has, err := fs.ReadFile(Files, path)
		if want, other := os.ReadFile(filepath.FromSlash(path)); other != nil || !bytes.Equal(has, want) {
			t.Errorf("%s differs (%v)", path, other)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(there)
	slices.Sort(carried)
	if len(carried) < 40 || !slices.Equal(there, carried) {
		t.Errorf("there are %q\ncarried are %q", there, carried)
	}
}
