package ort

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// touch makes empty files below a new folder.
func touch(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestSearchPlaces(t *testing.T) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("the names are those of linux on amd64")
	}
	dir := touch(t, "a[1]/libonnxruntime.so.1.9.0", "a[1]/libonnxruntime.so.1.20.1", "a[1]/libonnxruntime_providers_shared.so",
		"b/libonnxruntime.so", "b/libonnxruntime.so.1",
		"onnxruntime-node/bin/napi-v3/linux/x64/libonnxruntime.so.1", "onnxruntime-node/bin/napi-v6/linux/x64/libonnxruntime.so.1",
		"onnxruntime-node/bin/napi-v6/linux/arm64/libonnxruntime.so.1")
	s := Search{Dirs: []string{dir + "/a[1]", dir + "/none", dir + "/b"}, NodeModules: []string{dir}}
	for _, c := range []struct {
		got  []string
		want string
	}{
		{s.inDirs(t.Context()), "a[1]/libonnxruntime.so.1.20.1 a[1]/libonnxruntime.so.1.9.0 b/libonnxruntime.so b/libonnxruntime.so.1"},
		{s.inNode(t.Context()), "onnxruntime-node/bin/napi-v6/linux/x64/libonnxruntime.so.1 onnxruntime-node/bin/napi-v3/linux/x64/libonnxruntime.so.1"},
		{Search{Python: dir + "/none"}.inPython(t.Context()), ""},
	} {
		if got := strings.ReplaceAll(strings.Join(c.got, " "), dir+"/", ""); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

// TestExplicit tries nothing but what was named.
func TestExplicit(t *testing.T) {
	dir := touch(t, "libonnxruntime.so", "libonnxruntime.dylib")
	for _, path := range []string{dir, filepath.Join(dir, "missing.so")} {
		_, err := Search{Explicit: path, Python: "python3"}.Open(t.Context(), 1)
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("got %v, want an error that names %s", err, path)
		}
	}
}

func TestNotFound(t *testing.T) {
	message := fmt.Sprint(&NotFoundError{Tried: []string{"/x/libonnxruntime.so (broken)"}})
	for _, part := range []string{Install, "ROUNDHOUSE_ONNXRUNTIME", "/x/libonnxruntime.so (broken)"} {
		if !strings.Contains(message, part) {
			t.Errorf("%s does not say %s", message, part)
		}
	}
}
