package blobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// put installs content as a download does.
func put(t *testing.T, s *Store, content string) (hash string) {
	t.Helper()
	sum := sha256.Sum256([]byte(content))
	hash = hex.EncodeToString(sum[:])
	if err := os.MkdirAll(filepath.Dir(s.PartPath(hash)), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := s.Part(hash)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(content); err != nil {
		t.Fatal(err)
	}
	if err := s.Install(f, hash, time.Now()); err != nil {
		t.Fatal(err)
	}
	f.Close()
	return hash
}

func same(t *testing.T, a, b string) bool {
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

// TestLinked: a blob that a model links to is neither evicted nor counted, and is
// both again when the model is gone.
func TestLinked(t *testing.T) {
	dir := t.TempDir()
	s := At(filepath.Join(dir, "hub"))
	hash, other := put(t, s, "weights"), put(t, s, "others")
	model := filepath.Join(dir, "model.bin")
	if err := s.Link(t.Context(), hash, 7, model); err != nil {
		t.Fatal(err)
	}
	if !same(t, s.Path(hash), model) {
		t.Error("the model is a second file")
	}
	if info, _ := os.Stat(model); info.Mode().Perm() != 0o400 {
		t.Errorf("the model has mode %v: whoever writes to it would change the blob", info.Mode())
	}
	if err := s.Count(t.Context()); err != nil || s.Total() != 6 {
		t.Errorf("%d bytes are counted (%v), want those of the other blob", s.Total(), err)
	}
	gone, err := s.Evict(0)
	if err != nil || len(gone) != 1 || gone[0].Hash != other {
		t.Errorf("evicted %v (%v), want only %s", gone, err, other)
	}
	if err := os.Remove(model); err != nil {
		t.Fatal(err)
	}
	if gone, err = s.Evict(0); err != nil || len(gone) != 1 || gone[0].Hash != hash {
		t.Errorf("evicted %v (%v), want %s", gone, err, hash)
	}
}

// TestDrop: a model that makes room takes its blobs with it, unless another links
// to them, or they are pinned or read.
func TestDrop(t *testing.T) {
	s := At(t.TempDir())
	contents := []string{"plain", "linked", "pinned", "read", "other"}
	hashes, inodes := map[string]string{}, map[uint64]bool{}
	for _, c := range contents {
		hashes[c] = put(t, s, c)
	}
	if err := s.Scan(t.Context(), func(e Entry) { inodes[e.inode] = e.Hash != hashes["other"] }); err != nil {
		t.Fatal(err)
	}
	if err := s.Link(t.Context(), hashes["linked"], 6, filepath.Join(t.TempDir(), "m")); err != nil {
		t.Fatal(err)
	}
	s.Pinned = func() (map[string]bool, error) { return map[string]bool{hashes["pinned"]: true}, nil }
	reader, err := s.Open(t.Context(), hashes["read"], 4, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := s.Drop(inodes); err != nil {
		t.Fatal(err)
	}
	for _, c := range contents {
		if _, whole, _ := s.Has(hashes[c]); whole != (c != "plain") {
			t.Errorf("%s: here %v", c, whole)
		}
	}
}

// TestWrittenThroughALink: whoever writes to a model's file all the same (root may)
// does not change what the cache serves.
func TestWrittenThroughALink(t *testing.T) {
	s := At(t.TempDir())
	hash := put(t, s, "weights")
	model := filepath.Join(t.TempDir(), "m")
	if err := s.Link(t.Context(), hash, 7, model); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(model, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(model, []byte("WEIGHTS"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(t.Context(), hash, 7, time.Now()); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a changed blob is served: %v", err)
	}
	if raw, err := os.ReadFile(model); err != nil || string(raw) != "WEIGHTS" {
		t.Errorf("the edited file is %q (%v)", raw, err)
	}
	if err := s.Link(t.Context(), hash, 7, model+"2"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("linked to a blob that is gone: %v", err)
	}
}

// TestAwait: whoever follows a download waits while somebody brings it, and no
// longer.
func TestAwait(t *testing.T) {
	s := At(t.TempDir())
	sum := sha256.Sum256([]byte("weights"))
	hash := hex.EncodeToString(sum[:])
	if err := s.Await(t.Context(), hash, func() {}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nobody downloads it: %v", err)
	}
	if err := os.MkdirAll(filepath.Dir(s.PartPath(hash)), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := s.Part(hash)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("weights"); err != nil {
		t.Fatal(err)
	}
	waits := make(chan struct{}, 1)
	done := make(chan error, 1)
	go func() {
		done <- s.Await(t.Context(), hash, func() {
			select {
			case waits <- struct{}{}:
			default:
			}
		})
	}()
	<-waits
	if err := errors.Join(s.Install(f, hash, time.Now()), f.Close()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	left := strings.Repeat("a", 64) // of a process that was killed
	if err := os.WriteFile(s.PartPath(left), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Await(t.Context(), left, func() {}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a download that was left off is waited for: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if f, err = s.Part(left); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := s.Await(ended, left, func() {}); !errors.Is(err, context.Canceled) {
		t.Errorf("the caller has gone: %v", err)
	}
}

// TestAdd: a file that was downloaded elsewhere becomes a blob, and stays one file.
func TestAdd(t *testing.T) {
	s := At(t.TempDir())
	path := filepath.Join(t.TempDir(), "m")
	sum := sha256.Sum256([]byte("weights"))
	hash := hex.EncodeToString(sum[:])
	if err := os.WriteFile(path, []byte("weights"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Add(path, hash, time.Now())
	f, err := s.Open(t.Context(), hash, 7, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if !same(t, path, f.Name()) {
		t.Error("the blob is a second file")
	}
}

// TestInstallInterrupted: a download that ends before its blob has its name can be
// resumed, so its file stays writable until then.
func TestInstallInterrupted(t *testing.T) {
	s := At(t.TempDir())
	sum := sha256.Sum256([]byte("weights"))
	hash := hex.EncodeToString(sum[:])
	if err := os.MkdirAll(filepath.Dir(s.PartPath(hash)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "blobs"), nil, 0o600); err != nil { // where a folder should be
		t.Fatal(err)
	}
	f, err := s.Part(hash)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := s.Install(f, hash, time.Now()); err == nil {
		t.Fatal("installed below a file")
	}
	if info, err := f.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the partial file has mode %v (%v): nobody but root can resume it", info.Mode(), err)
	}
}

// TestReserve: what could not be made room for is not looked for again at once.
func TestReserve(t *testing.T) {
	s := At(t.TempDir())
	hash := put(t, s, "weights")
	if err := s.Count(t.Context()); err != nil {
		t.Fatal(err)
	}
	reader, err := s.Open(t.Context(), hash, 7, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if _, _, err := s.Reserve(8, 10, now); !errors.Is(err, ErrNoRoom) {
		t.Errorf("there is no room beside a blob that is read: %v", err)
	}
	reader.Close()
	if _, _, err := s.Reserve(8, 10, now.Add(fruitlessFor/2)); !errors.Is(err, ErrNoRoom) {
		t.Errorf("the folder was read again at once: %v", err)
	}
	done, gone, err := s.Reserve(8, 10, now.Add(fruitlessFor))
	if err != nil || len(gone) != 1 {
		t.Fatalf("%v evicted, %v", gone, err)
	}
	done(8)
	if s.Total() != 8 {
		t.Errorf("%d bytes are counted", s.Total())
	}
}
