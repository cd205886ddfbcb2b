package artifact

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestFullDisk: a disk that others have filled, and one that others fill in the
// middle of a download, on a real file system.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount a small file system")
	}
	data := randomBytes(40*testPiece, 68)
	for name, small := range map[string]bool{"too small from the start": true, "filled meanwhile": false} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=16m,mode=0700"); err != nil {
				t.Skipf("no file system can be mounted here: %v", err)
			}
			t.Cleanup(func() {
				if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
					t.Error(err)
				}
			})
			filler := filepath.Join(dir, "filler")
			fill := func() {
				if err := os.WriteFile(filler, make([]byte, 32<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
					t.Errorf("the disk did not fill: %v", err)
				}
			}
			o := newWide(t, data, 0)
			s := newStore(t, func(c *Config) {
				inTestPieces(c)
				c.Dir = filepath.Join(dir, "models")
			})
			req := Request{URI: o.URL + "/m.bin"}
			if small {
				fill()
			} else {
				var once sync.Once
				o.set(func(http.ResponseWriter, *http.Request) bool {
					if o.asked.Load() > 10 {
						once.Do(fill)
					}
					return false
				})
			}
			_, err := s.Fetch(t.Context(), req, nil)
			wantError(t, err, "disk full", s.cfg.Dir)
			if _, ok := s.Lookup(req); ok {
				t.Error("half a file was taken for whole")
			}
			if err := os.Remove(filler); err != nil {
				t.Fatal(err)
			}
			path, err := s.Fetch(t.Context(), req, nil)
			if err != nil || mustRead(t, path) != string(data) {
				t.Fatal("after making room:", err)
			}
		})
	}
}

// TestCacheOnAnotherDisk: what the cache has on another file system must be written
// here, so room is made for it.
func TestCacheOnAnotherDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount a small file system")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		t.Skipf("no file system can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	hub, _, files := newHub(t)
	s, cache := newCachedStore(t, hub, 1<<30, func(c *Config) {
		c.Dir, c.InUse = filepath.Join(dir, "models"), func() []string { return nil }
	})
	resp, err := http.Get(s.cfg.HubEndpoint + "/org/m/resolve/main/model.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	content := string(randomBytes(900<<10, 69))
	old := Upload{SHA256: digest(content), Name: "m", Size: int64(len(content))}
	if _, err := s.PutUpload(t.Context(), old, strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	aged(t, s, s.uploads.uploadPath(old), time.Hour)
	path, err := s.Fetch(t.Context(), Request{URI: "hf://org/m/model.safetensors"}, nil)
	if err != nil || mustRead(t, path) != string(files["model.safetensors"]) {
		t.Error("nothing was removed for it:", err)
	}
	if len(blobsIn(t, cache)) != 1 {
		t.Error("the cache does not have it")
	}
}
