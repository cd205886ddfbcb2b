package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestServedPath(t *testing.T) {
	full, empty := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args         []string
		models, want string
	}{
		{[]string{"a"}, full, "a"}, {nil, full, full}, {nil, empty, "home"}, {nil, filepath.Join(empty, "none"), "home"},
		{nil, filepath.Join(full, "x"), filepath.Join(full, "x")},
	} {
		if got, err := servedPath(test.args, test.models, "home"); err != nil || got != test.want {
			t.Errorf("%v %s: %s %v, want %s", test.args, test.models, got, err, test.want)
		}
	}
	if _, err := servedPath(nil, "", "home"); err == nil {
		t.Error("nothing to serve is no error")
	}
}

func TestModelDir(t *testing.T) {
	for _, test := range []struct{ folder, dir, want string }{
		{"/models", "", "/models"}, {"", "/models", "/models"}, {"/models", "/models", "/models"}, {"/models/", "/models/base", "/models/base"},
		{"/models", "/opt/model", "/models"}, {"/models", "/models/../etc", "/models"}, {"/models", "/models2", "/models"}, {"models", "/models", "models"},
	} {
		var args []string
		if test.folder != "" {
			args = []string{test.folder}
		}
		if got := withModelDir(args, test.dir); len(got) != 1 || got[0] != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}
