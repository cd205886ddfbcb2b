package main

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNoLocalModels: however a manifest spells it, the controller reads no
// model from its own files.
func TestNoLocalModels(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	model := filepath.Join(dir, "secret")
	for name, text := range map[string]string{"config.json": `{"architectures":["LlamaForCausalLM"]}`} {
		if err := os.MkdirAll(model, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(model, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	i, err := newInspector(t.TempDir(), false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, uri := range []string{"file://" + model, "FILE://" + model, " file://" + model, "File://secret", model, "secret", "upload://x", "Upload://x",
		"./x://../secret", dir + "/x://../secret", "file://" + model + "#sha256=" + strings.Repeat("0", 64)} {
		got, err := i.Inspect(t.Context(), uri)
		var gone interface{ NotExist() bool }
		if err == nil || !errors.As(err, &gone) || !gone.NotExist() || got.Architecture != "" {
			t.Errorf("%q: %+v, %v", uri, got, err)
		}
	}
}
