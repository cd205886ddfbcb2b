package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
)

// hubCommand runs `roundhouse hub-cache …` and returns what it prints.
func hubCommand(ctx context.Context, args ...string) (string, error) {
	cmd := newRootCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append([]string{"hub-cache"}, args...))
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}

// TestHubCache runs the process, asks it for a file and for its metrics, and
// then has what it kept looked at.
func TestHubCache(t *testing.T) {
	hub := hubtest.New()
	defer hub.Close()
	data := bytes.Repeat([]byte("weights"), 100000)
	hub.Add("models", "org/m").Commit("main", map[string][]byte{"w": data}, "w")
	dir := t.TempDir()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r, w := io.Pipe()
	cmd := newRootCommand()
	cmd.SetOut(w)
	cmd.SetErr(io.Discard)
	cmd.SetArgs([]string{"hub-cache", "--listen", "127.0.0.1:0", "--dir", dir, "--upstream", hub.URL, "--max-size", "1.5GB"})
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	line := make([]byte, 1000)
	n, err := r.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	_, url, found := strings.Cut(string(line[:n]), "HF_ENDPOINT=")
	if !found {
		t.Fatalf("it says %q", line[:n])
	}
	url, _, _ = strings.Cut(url, "\n")
	go func() { _, _ = io.Copy(io.Discard, r) }()
	for path, want := range map[string]string{"/org/m/resolve/main/w": string(data), "/healthz": "ok\n"} {
		if got := httpGet(t, url+path); got != want {
			t.Errorf("%s: %d bytes, %.40q", path, len(got), got)
		}
	}
	if got := httpGet(t, url+"/metrics"); !strings.Contains(got, "roundhouse_hub_cache_upstream_bytes_total 700000") {
		t.Errorf("metrics: %s", got)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, c := range [][]string{{"stats", "Files         1, 683.6 KiB"}, {"verify", "1 files hashed, 683.6 KiB; 0 removed"}, {"gc", "0 files removed"}} {
		if out, err := hubCommand(t.Context(), c[0], "--dir", dir); err != nil || !strings.Contains(out, c[1]) {
			t.Errorf("%s: %q %v", c[0], out, err)
		}
	}
	blobs, err := filepath.Glob(filepath.Join(dir, "blobs", "*", "*"))
	if err != nil || len(blobs) != 1 {
		t.Fatal(blobs, err)
	}
	if err := os.WriteFile(blobs[0], []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := hubCommand(t.Context(), "verify", "--dir", dir); err == nil || !strings.Contains(out, "1 removed") {
		t.Errorf("verify: %q %v", out, err)
	}
}

func httpGet(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int64{"1": 1, "20GB": 20e9, "1.5GiB": 3 << 29, "7 tib": 7 << 40, "": 0, "x": 0, "5q": 0, "-1": 0, "0": 0, "1e30": 0, "9999999TiB": 0} {
		if got, err := parseSize("--max-size", in); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d %v", in, got, err)
		}
	}
}
