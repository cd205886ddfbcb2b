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
	"time"

	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
	"roundhouse.dev/roundhouse/test/loopback"
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
	httpGet(t, url+"/org/m/resolve/main/missing") // whose record has no hash
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
	for _, c := range []struct {
		args        []string
		want, fault string
	}{
		{[]string{"pin", "org/m@main", "datasets/a/b"}, "pinned org/m@main: 1 files, 683.6 KiB are cached\npinned datasets/a/b: nothing of it is cached yet\n", ""},
		{[]string{"pin", "org/m@main"}, "org/m@main was pinned already: 1 files, 683.6 KiB are cached\n", ""},
		{[]string{"stats"}, "Pinned        2 repositories or revisions: 1 files, 683.6 KiB\n" +
			"              org/m@main: 1 files, 683.6 KiB are cached\n              datasets/a/b: nothing of it is cached yet\n", ""},
		{[]string{"unpin", "datasets/a/b"}, "unpinned datasets/a/b\n", ""},
		{[]string{"unpin", "datasets/a/b"}, "", "datasets/a/b is not pinned: `roundhouse hub-cache stats` lists the pins"},
		{[]string{"unpin", "org/m"}, "", "org/m is not pinned"},
		{[]string{"pin", "nonsense"}, "", `"nonsense" is no repository that is cached: want OWNER/NAME`},
		{[]string{"pin", "a/b/c"}, "", `"a/b/c" is no repository: want OWNER/NAME`},
		{[]string{"pin", "a/b@"}, "", "a revision is missing after the @"},
		{[]string{"unpin", "org/m@main"}, "unpinned org/m@main\n", ""},
		{[]string{"stats"}, "Pinned        0 repositories or revisions: 0 files, 0 B\nRepo", ""},
	} {
		out, err := hubCommand(t.Context(), append(c.args, "--dir", dir)...)
		if !strings.Contains(out, c.want) || (err != nil) != (c.fault != "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%v: %q %v; want %q %s", c.args, out, err, c.want, c.fault)
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

// TestHubCacheRing runs two nodes of a ring from the command line, one of which
// is asked for everything, and has stats show the ring.
func TestHubCacheRing(t *testing.T) {
	hub := hubtest.New()
	defer hub.Close()
	repo := hub.Add("models", "org/m")
	files := map[string][]byte{}
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}
	for i, n := range names {
		files[n] = bytes.Repeat([]byte{byte(i), 1, 2, 3}, 300000)
	}
	repo.Commit("main", files, names...)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("\na secret of the two of us\n\nand an old one of before\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var urls, dirs []string
	for range 2 {
		urls = append(urls, "http://"+loopback.Reserve(t))
		dirs = append(dirs, t.TempDir())
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 2)
	for i, url := range urls {
		r, w := io.Pipe()
		cmd := newRootCommand()
		cmd.SetOut(w)
		cmd.SetErr(io.Discard)
		cmd.SetArgs([]string{"hub-cache", "--listen", strings.TrimPrefix(url, "http://"), "--dir", dirs[i], "--upstream", hub.URL,
			"--self", url, "--peers", strings.Join(urls, ","), "--peers-secret-file", secret, "--ring-min-size", "1MB"})
		go func() { ended <- cmd.ExecuteContext(ctx) }()
		if _, err := r.Read(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, r) }()
	}
	for n, data := range files {
		for _, url := range urls {
			if got := httpGet(t, url+"/org/m/resolve/main/"+n); got != string(data) {
				t.Errorf("%s: %d bytes", n, len(got))
			}
		}
	}
	if got, want := hub.Sent(), int64(len(names)*1200000); got != want {
		t.Errorf("%d bytes came from the Hub, %d are there", got, want)
	}
	if got := httpGet(t, urls[0]+"/metrics"); !strings.Contains(got, "roundhouse_hub_cache_ring_nodes 2") {
		t.Errorf("metrics: %s", got)
	}
	out, err := hubCommand(t.Context(), "stats", "--dir", dirs[0])
	if err != nil || !strings.Contains(out, "Ring          2 nodes, 0 unreachable") || !strings.Contains(out, urls[0]+"  this node") || !strings.Contains(out, urls[1]+"  up, since") {
		t.Errorf("stats: %v\n%s", err, out)
	}
	stop()
	for range urls {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestHubCacheRingFlags(t *testing.T) {
	dir := t.TempDir()
	short := filepath.Join(dir, "short")
	if err := os.WriteFile(short, []byte("short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	long := filepath.Join(dir, "long")
	if err := os.WriteFile(long, make([]byte, 64<<10+1), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // a flag that is not refused starts a cache
	defer cancel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--self", "http://a"}, "go with --peers"},
		{[]string{"--peers", "http://a"}, "--self is missing"},
		{[]string{"--peers", "http://a", "--self", "http://a"}, "openssl rand -hex 32"},
		{[]string{"--peers", "http://a", "--self", "http://a", "--peers-secret-file", dir + "/none"}, "no such file"},
		{[]string{"--peers", "http://a", "--self", "http://a", "--peers-secret-file", long}, "longer than"},
		{[]string{"--peers", "http://a", "--self", "http://a", "--peers-secret-file", short}, "has 5 bytes"},
		{[]string{"--peers", "a:8083", "--self", "http://a", "--peers-secret-file", short}, "is no origin"},
		{[]string{"--peers-dns", "ring", "--self", "http://a", "--peers-secret-file", short}, "HOST:PORT"},
		{[]string{"--peers-dns", "ring:1", "--self", "http://a", "--peers-secret-file", short}, "must be the address"},
		{[]string{"--peers", "http://a", "--self", "http://a", "--peers-secret-file", short, "--ring-min-size", "x"}, "--ring-min-size"},
	} {
		if _, err := hubCommand(ctx, append([]string{"--dir", dir, "--listen", "127.0.0.1:0"}, c.args...)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.args, err)
		}
	}
}
