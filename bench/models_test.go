package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestModelFile writes the chapter's file and reads it both ways.
func TestModelFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), modelFile)
	const size = tensorBytes + 1000
	if err := writeModel(path, size); err != nil {
		t.Fatal(err)
	}
	whole, hash, err := hashFile(path)
	if err != nil || len(hash) != 64 || whole <= size {
		t.Fatal(whole, hash, err)
	}
	raw, err := readRaw(path)
	if err != nil || raw.Bytes != whole || raw.Seconds <= 0 {
		t.Errorf("%+v, %v", raw, err)
	}
	tensors, err := readTensors(path)
	if err != nil || tensors.Bytes != size || tensors.Ring == 0 {
		t.Errorf("%+v, %v", tensors, err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("it left %v, %v", left, err)
	}
	if runtime.GOOS == "linux" && peak() < 1<<20 {
		t.Errorf("this process never had more than %d bytes", peak())
	}
}

// TestPull gets a file whole and in ranges, and notices what is not the file.
func TestPull(t *testing.T) {
	data := bytes.Repeat([]byte("weights "), 100_000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/file":
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
		case "/short":
			_, _ = w.Write(data[:1000])
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	address, size := strings.TrimPrefix(server.URL, "http://"), int64(len(data))
	var sum bytes.Buffer
	if err := pull(t.Context(), address, "/file", 0, size, size, &sum); err != nil || !bytes.Equal(sum.Bytes(), data) {
		t.Errorf("%v, %d bytes", err, sum.Len())
	}
	for _, ranges := range []int{1, 7} {
		if err := pullAll(t.Context(), address, "/file", size/2, size, ranges); err != nil {
			t.Errorf("%d ranges: %v", ranges, err)
		}
	}
	for path, want := range map[string]string{"/short": "1000 bytes", "/none": "404"} {
		if err := pull(t.Context(), address, path, 0, size, size, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

func TestNoRoom(t *testing.T) {
	m := &modelBench{bench: &bench{modelMB: 1}, dir: t.TempDir()}
	if err := m.checkDisk(1e6); err != nil {
		t.Skip("the disk is nearly full:", err)
	}
	if err := m.checkDisk(1e18); err == nil || !strings.Contains(err.Error(), "-model-mb") {
		t.Error(err)
	}
}
