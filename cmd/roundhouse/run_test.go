package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestModelURI: a file is one, ORG/NAME without a file is a model of the Hub, and what
// looks like a file that is not there is neither.
func TestModelURI(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.MkdirAll("models", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("models/iris.ubj", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	here, err := filepath.Abs("models/iris.ubj")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ model, uri, why string }{
		{"models/iris.ubj", "file://" + here, ""},
		{"s3://bucket/model.ubj", "s3://bucket/model.ubj", ""},
		{"Qwen/Qwen2.5-0.5B-Instruct", "hf://Qwen/Qwen2.5-0.5B-Instruct", ""},
		{"Qwen/Qwen2.5-0.5B-Instruct:main", "hf://Qwen/Qwen2.5-0.5B-Instruct:main", ""},
		{"hf://nosuch/file.ubj", "hf://nosuch/file.ubj", ""},
		{"nosuch/file.ubj", "", "no such file or directory; if it is a model of the Hugging Face Hub, write hf://nosuch/file.ubj"},
		{"nosuch/File.GGUF", "", "write hf://nosuch/File.GGUF"},
		{"models/irises", "", "no such file or directory; if it is a model of the Hugging Face Hub, write hf://models/irises"},
		{"./nosuch", "", "give a file, a folder, a URI such as"},
	} {
		uri, err := modelURI(c.model)
		if uri != c.uri || (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %q %v, want %q %q", c.model, uri, err, c.uri, c.why)
		}
	}
}
