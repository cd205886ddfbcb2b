//go:build peers

// Package hub has the real clients of the Hugging Face Hub download through the
// cache, from a fake Hub on loopback: huggingface_hub of today and of 2024,
// with and without Xet and hf_transfer, its command line, and transformers.
package hub

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/edge/hubcache"
	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
)

// pythons are the variables that name Pythons with the clients.
var pythons = map[string]string{"current": "ROUNDHOUSE_HUB_PYTHON", "2024": "ROUNDHOUSE_HUB_OLD_PYTHON"}

func python(t *testing.T, which string) string {
	t.Helper()
	path := os.Getenv(pythons[which])
	if path == "" {
		t.Fatalf("%s is not set: `make test-peers` installs the clients and sets it", pythons[which])
	}
	return path
}

// rig is a fake Hub, and a cache of it.
type rig struct {
	hub   *hubtest.Hub
	cfg   hubcache.Config
	url   string
	close func()
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{hub: hubtest.New(), cfg: hubcache.DefaultConfig(), close: func() {}}
	t.Cleanup(r.hub.Close)
	r.cfg.Dir, r.cfg.Upstream = t.TempDir(), r.hub.URL
	r.start(t)
	t.Cleanup(func() { r.close() })
	return r
}

func (r *rig) start(t *testing.T) {
	t.Helper()
	r.close()
	cache, err := hubcache.New(r.cfg, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(cache)
	r.url = srv.URL
	r.close = func() {
		srv.CloseClientConnections()
		srv.Close()
		cache.Close()
		r.close = func() {}
	}
}

// run runs a command as a client with nothing downloaded yet. It can reach the
// cache and no other host: everything else goes to a proxy that is not there.
func (r *rig) run(t *testing.T, env []string, name string, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	home := t.TempDir()
	cmd.Env = append([]string{"PATH=" + filepath.Dir(name) + ":" + os.Getenv("PATH"), "HOME=" + home, "HF_HOME=" + home,
		"HF_ENDPOINT=" + r.url, "HF_HUB_DISABLE_TELEMETRY=1", "HF_HUB_DISABLE_UPDATE_CHECK=1", "NO_PROXY=127.0.0.1",
		"HTTPS_PROXY=http://127.0.0.1:9", "HTTP_PROXY=http://127.0.0.1:9"}, env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s\n%s", name, args, err, out, stderr.Bytes())
	}
	return out
}

// client runs client.py and reads what it prints.
func (r *rig) client(t *testing.T, which string, env []string, args ...string) (out map[string]any) {
	t.Helper()
	raw := r.run(t, env, python(t, which), append([]string{"client.py"}, args...)...)
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	return out
}

func random(n int) []byte {
	out := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(out)
	return out
}

func hashes(files map[string][]byte) map[string]any {
	out := map[string]any{}
	for name, data := range files {
		sum := sha256.Sum256(data)
		out[name] = hex.EncodeToString(sum[:])
	}
	return out
}

func equal(t *testing.T, got, want map[string]any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func example(r *rig, kind, name, branch string) (files map[string][]byte, commit string) {
	files = map[string][]byte{"config.json": []byte(`{}`), "model.safetensors": random(30<<20 + 5), "sub/dir/ü 1.txt": []byte("text"),
		"empty.txt": nil, "a": []byte("a"), "b": []byte("b"), "c": []byte("c")}
	return files, r.hub.Add(kind, name).Commit(branch, files, "model.safetensors")
}

// modes are the ways of each client to download.
var modes = []struct {
	name, python string
	env          []string
}{
	{"current, Xet", "current", nil},
	{"current, no Xet", "current", []string{"HF_HUB_DISABLE_XET=1"}},
	{"2024", "2024", nil},
	{"2024, hf_transfer", "2024", []string{"HF_HUB_ENABLE_HF_TRANSFER=1"}},
}

func TestDownloads(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			r := newRig(t)
			files, commit := example(r, "models", "org/model", "main")
			equal(t, r.client(t, m.python, m.env, "snapshot", "org/model"), hashes(files))
			r.hub.Forget()
			// The next client has it from the cache.
			equal(t, r.client(t, m.python, m.env, "snapshot", "org/model"), hashes(files))
			equal(t, r.client(t, m.python, m.env, "snapshot", "org/model", "model", commit), hashes(files))
			equal(t, r.client(t, m.python, m.env, "file", "org/model", "sub/dir/ü 1.txt"), hashes(map[string][]byte{"sub/dir/ü 1.txt": []byte("text")}))
			if m.name != "2024, hf_transfer" && r.hub.Sent() != 0 {
				t.Errorf("%d bytes came from the Hub again", r.hub.Sent())
			}
			data, _ := example(r, "datasets", "data", "refs/pr/1")
			equal(t, r.client(t, m.python, m.env, "snapshot", "data", "dataset", "refs/pr/1"), hashes(data))
			space, _ := example(r, "spaces", "org/space", "main")
			equal(t, r.client(t, m.python, m.env, "snapshot", "org/space", "space"), hashes(space))
			r.hub.Rename("models", "org/model", "new/model")
			r.start(t) // what was allowed is forgotten
			equal(t, r.client(t, m.python, m.env, "snapshot", "org/model"), hashes(files))
			r.cfg.Offline = true
			r.start(t)
			r.hub.Close()
			equal(t, r.client(t, m.python, m.env, "snapshot", "org/model"), hashes(files))
		})
	}
}

func TestInfo(t *testing.T) {
	for which := range pythons {
		r := newRig(t)
		files, commit := example(r, "models", "org/model", "main")
		names := []any{}
		for _, n := range slices.Sorted(maps.Keys(files)) {
			names = append(names, n)
		}
		equal(t, r.client(t, which, nil, "info", "org/model"), map[string]any{"sha": commit, "files": names, "tree": names,
			"size": float64(30<<20 + 5), "lfs": hashes(files)["model.safetensors"], "branches": []any{"main"}})
	}
}

func TestErrors(t *testing.T) {
	for which := range pythons {
		r := newRig(t)
		example(r, "models", "org/model", "main")
		gated := r.hub.Add("models", "org/gated")
		gated.Commit("main", map[string][]byte{"f": []byte("f")})
		gated.Gate("hf_reader")
		r.hub.Token("hf_stranger")
		private := r.hub.Add("models", "org/private")
		private.Commit("main", map[string][]byte{"f": []byte("f")})
		private.Hide("hf_reader")
		for _, c := range []struct{ token, repo, file, want string }{
			{"hf_reader", "org/gated", "f", ""},
			{"hf_reader", "org/private", "f", ""},
			{"", "org/gated", "f", "GatedRepoError"},
			{"hf_stranger", "org/gated", "f", "GatedRepoError"},
			{"", "org/private", "f", "RepositoryNotFoundError"},
			{"hf_stranger", "org/private", "f", "RepositoryNotFoundError"},
			{"", "org/none", "f", "RepositoryNotFoundError"},
			{"", "org/model", "none", "EntryNotFoundError"},
		} {
			var env []string
			if c.token != "" {
				env = []string{"HF_TOKEN=" + c.token}
			}
			got := r.client(t, which, env, "error", c.repo, c.file)["error"]
			if got != c.want && got != "Remote"+c.want {
				t.Errorf("%s: %s of %s as %q: %v, want %q", which, c.file, c.repo, c.token, got, c.want)
			}
		}
	}
}

func TestCommandLine(t *testing.T) {
	for which, tool := range map[string]string{"current": "hf", "2024": "huggingface-cli"} {
		r := newRig(t)
		files, _ := example(r, "models", "org/model", "main")
		to := t.TempDir()
		r.run(t, nil, filepath.Join(filepath.Dir(python(t, which)), tool), "download", "org/model", "--local-dir", to)
		for name, want := range files {
			if got, err := os.ReadFile(filepath.Join(to, name)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %s: %v", tool, name, err)
			}
		}
	}
}

// TestCut: the storage's connection breaks, and neither client nor file suffers.
func TestCut(t *testing.T) {
	for _, m := range modes {
		r := newRig(t)
		files, _ := example(r, "models", "org/model", "main")
		r.hub.Fail(hubtest.Faults{CutAfter: 7 << 20, Cuts: 2})
		equal(t, r.client(t, m.python, m.env, "snapshot", "org/model"), hashes(files))
	}
}

func TestTransformers(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	r.client(t, "current", nil, "tokenizer", dir)
	files := map[string][]byte{}
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if files[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	r.hub.Add("models", "org/tiny").Commit("main", files)
	want := map[string]any{"type": "bert", "hidden": float64(12), "ids": []any{1., 2., 1.}}
	equal(t, r.client(t, "current", nil, "transformers", "org/tiny"), want)
	r.cfg.Offline = true
	r.start(t)
	r.hub.Close()
	equal(t, r.client(t, "current", nil, "transformers", "org/tiny"), want)
}
