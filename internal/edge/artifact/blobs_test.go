package artifact

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/edge/hubcache"
	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
)

// newCachedStore is a store whose Hub is a cache with its own folder.
func newCachedStore(t *testing.T, hub *hubtest.Hub, cacheBytes int64, edit func(*Config)) (s *Store, cache string) {
	t.Helper()
	cfg := hubcache.DefaultConfig()
	cfg.Dir, cfg.Upstream, cfg.MaxBytes, cfg.MinFree = filepath.Join(t.TempDir(), "hub"), hub.URL, cacheBytes, 0
	c, err := hubcache.New(cfg, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(c)
	t.Cleanup(func() { srv.Close(); c.Close() })
	return newStore(t, func(cfg2 *Config) {
		cfg2.HubEndpoint, cfg2.Blobs = srv.URL, hubcache.At(cfg.Dir).Blobs()
		if edit != nil {
			edit(cfg2)
		}
	}), cfg.Dir
}

func sameFile(t *testing.T, a, b string) bool {
	t.Helper()
	x, err := os.Stat(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := os.Stat(b)
	if err != nil {
		t.Fatal(err)
	}
	return os.SameFile(x, y)
}

func blobsIn(t *testing.T, cache string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(cache, "blobs", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestLinkedToCache: models of the Hub are the files that its cache keeps, whether
// that has them, downloads them, or had no room.
func TestLinkedToCache(t *testing.T) {
	for _, c := range []struct {
		name string
		room int64
	}{{"room", 1 << 30}, {"no room", 100 << 10}} {
		t.Run(c.name, func(t *testing.T) {
			hub, _, files := newHub(t)
			s, cache := newCachedStore(t, hub, c.room, nil)
			path, err := s.Fetch(t.Context(), Request{URI: "hf://org/m"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			sent := hub.Sent()
			one, err := s.Fetch(t.Context(), Request{URI: "hf://org/m/model.safetensors"}, nil) // linked to what is there
			if err != nil {
				t.Fatal(err)
			}
			if hub.Sent() != sent {
				t.Errorf("the Hub sent %d bytes more for the same file", hub.Sent()-sent)
			}
			for name, content := range files {
				at := filepath.Join(path, filepath.FromSlash(name))
				if got, err := os.ReadFile(at); err == nil && !bytes.Equal(got, content) {
					t.Errorf("%s has other content", name)
				}
			}
			weights, found := filepath.Join(path, "model.safetensors"), false
			for _, b := range blobsIn(t, cache) {
				found = found || sameFile(t, b, weights)
			}
			if !found || !sameFile(t, weights, one) {
				t.Error("the model's files are copies")
			}
			_, _, total, err := s.retention.copies()
			if err != nil {
				t.Fatal(err)
			}
			want := int64(0)
			for _, name := range []string{"config.json", "model.safetensors", "sub dir/é+.txt"} {
				want += int64(len(files[name]))
			}
			if total != want {
				t.Errorf("%d bytes are counted for two models that share a file, want %d", total, want)
			}
		})
	}
}

// TestEvictedWithItsBlobs: a model that makes room does so for good.
func TestEvictedWithItsBlobs(t *testing.T) {
	hub, _, _ := newHub(t)
	s, cache := newCachedStore(t, hub, 1<<30, func(c *Config) {
		c.StoreBytes, c.InUse = 1, func() []string { return nil }
	})
	path, err := s.Fetch(t.Context(), Request{URI: "hf://org/m/config.json"}, nil)
	if err == nil {
		t.Fatal("it is larger than the bound", path)
	}
	s.retention.bound = 1 << 20
	if path, err = s.Fetch(t.Context(), Request{URI: "hf://org/m/config.json"}, nil); err != nil {
		t.Fatal(err)
	}
	if n := len(blobsIn(t, cache)); n != 1 {
		t.Fatalf("%d blobs", n)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(filepath.Dir(filepath.Dir(path)), "record.json"), old, old); err != nil {
		t.Fatal(err)
	}
	s.retention.bound = 1
	freed, err := s.Prune(t.Context())
	if err != nil || freed != int64(len(llama)) {
		t.Errorf("%d bytes freed (%v), want %d", freed, err, len(llama))
	}
	if left := blobsIn(t, cache); len(left) != 0 {
		t.Errorf("the cache keeps %v", left)
	}
}

// TestCopiesOfEarlierVersions: a data directory in which models and blobs are
// different files, that their owner may write to, goes on as it is.
func TestCopiesOfEarlierVersions(t *testing.T) {
	hub, _, _ := newHub(t)
	s, cache := newCachedStore(t, hub, 1<<30, nil)
	uri := Request{URI: "hf://org/m/model.safetensors"}
	path, err := s.Fetch(t.Context(), uri, nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, path, string(raw))
	blob := blobsIn(t, cache)[0]
	if err := os.Chmod(blob, 0o600); err != nil {
		t.Fatal(err)
	}
	hub.Forget()
	if again, err := s.Fetch(t.Context(), uri, nil); err != nil || again != path || sameFile(t, path, blob) {
		t.Errorf("%s, %v", again, err)
	}
	// Another model links to the blob, which nobody can write to from then on.
	other, err := s.Fetch(t.Context(), Request{URI: "hf://org/m"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	linked := filepath.Join(other, "model.safetensors")
	if info, err := os.Stat(linked); err != nil || !sameFile(t, linked, blob) || info.Mode().Perm() != 0o400 {
		t.Errorf("%v, %v", info, err)
	}
}

// TestCacheCannotBeWritten: a model does not fail because the cache of the Hub, which
// had no room for it, cannot link to it either.
func TestCacheCannotBeWritten(t *testing.T) {
	hub, _, _ := newHub(t)
	s, cache := newCachedStore(t, hub, 1, nil)
	if err := os.Remove(filepath.Join(cache, "blobs")); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, filepath.Join(cache, "blobs"), "where a folder should be")
	if _, err := s.Fetch(t.Context(), Request{URI: "hf://org/m/model.safetensors"}, nil); err != nil {
		t.Error(err)
	}
}

// TestDownloadLeftOff: a download that the cache left off brings nothing, so it is
// not waited for while the content goes by.
func TestDownloadLeftOff(t *testing.T) {
	hub, _, _ := newHub(t)
	s, cache := newCachedStore(t, hub, 1<<30, nil)
	kept := hubcache.At(cache).Blobs()
	loc, err := parse(Request{URI: "hf://org/m/model.safetensors"})
	if err != nil {
		t.Fatal(err)
	}
	src, err := s.source(loc)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.cfg.HubEndpoint, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &part{object: object{oid: strings.Repeat("a", 64)}}
	follows := func() bool {
		return (&transfer{downloader: s.downloader, loc: loc, src: src}).follows(p, &http.Response{Request: req})
	}
	mustWrite(t, kept.PartPath(p.object.oid), "left off")
	if follows() {
		t.Error("nobody downloads it")
	}
	f, err := kept.Part(p.object.oid)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if !follows() {
		t.Error("it is being downloaded")
	}
	if err := kept.Install(f, p.object.oid, time.Now()); err != nil {
		t.Fatal(err)
	}
	if !follows() {
		t.Error("it is here")
	}
}

type tightDisk struct {
	realDisk
	left int64
}

func (d tightDisk) free(string) (int64, error) { return d.left, nil }

// TestReserveResumed: what an interrupted download has linked to the cache is on the
// disk once, and makes no room for the rest.
func TestReserveResumed(t *testing.T) {
	s := newStore(t, func(c *Config) { c.InUse = func() []string { return nil } })
	content := strings.Repeat("x", 1000)
	old := Upload{SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(content))), Name: "m", Size: 1000}
	if _, err := s.PutUpload(t.Context(), old, strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	aged(t, s, s.uploads.uploadPath(old), time.Hour)
	blob := filepath.Join(s.cfg.Dir, "blob")
	mustWrite(t, blob, strings.Repeat("b", 4096))
	partial := filepath.Join(s.cfg.Dir, "partial", "key")
	if err := errors.Join(os.MkdirAll(partial, 0o700), os.Link(blob, filepath.Join(partial, "a.blob"))); err != nil {
		t.Fatal(err)
	}
	s.folder.disk = tightDisk{left: 150}
	done, err := s.retention.reserve("key", "m", 4096+200, 4096)
	if err != nil {
		t.Fatal(err)
	}
	done()
	if s.HasUpload(old) {
		t.Error("200 bytes are to come, 150 are free, and what nobody uses stays")
	}
}
