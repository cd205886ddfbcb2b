package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestUpToDate: what is in deploy/crds is what the types say now.
func TestUpToDate(t *testing.T) {
	dir := t.TempDir()
	if err := run("../../../../../api/v1alpha1", dir); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) != len(kinds) {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, f := range files {
		got, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join("../../../../../deploy/crds", filepath.Base(f)))
		if err != nil || string(got) != string(want) {
			t.Errorf("deploy/crds/%s is of other types: go generate ./internal/edge/kube/crds ./deploy/manifests (%v)", filepath.Base(f), err)
		}
	}
}
