package artifact

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// bounded is a store of at most some bytes; used is what is in use.
func bounded(t *testing.T, dir string, limit int64, used *[]string) *Store {
	t.Helper()
	return newStore(t, func(c *Config) {
		c.StoreBytes, c.InUse = limit, func() []string { return *used }
		if dir != "" {
			c.Dir = dir
		}
	})
}

// aged makes a copy look as if it was last used so long ago.
func aged(t *testing.T, s *Store, path string, ago time.Duration) {
	t.Helper()
	_, touched := s.folder.copyOf(path)
	at := time.Now().Add(-ago)
	if err := os.Chtimes(touched, at, at); err != nil {
		t.Fatal(err)
	}
}

func fetchAged(t *testing.T, s *Store, uri string, ago time.Duration) string {
	t.Helper()
	path, err := s.Fetch(t.Context(), Request{URI: uri}, nil)
	if err != nil {
		t.Fatal(err)
	}
	aged(t, s, path, ago)
	return path
}

func here(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestPruneReplaced(t *testing.T) {
	o := newOrigin(t, []byte("one"))
	var used []string
	s := bounded(t, "", 0, &used)
	req := Request{URI: o.URL + "/m.bin"}
	first := fetchAged(t, s, req.URI, time.Hour)
	used = []string{first}
	o.set(func() { o.content, o.tag = []byte("second"), `"v2"` })
	second := fetchAged(t, s, req.URI, time.Hour)
	if !here(first) {
		t.Fatal("a copy in use was removed")
	}
	used = nil
	if freed, err := s.Prune(t.Context()); err != nil || freed != 3 || here(first) {
		t.Errorf("freed %d, %v", freed, err)
	}
	if got, ok := s.Lookup(req); !ok || got != second {
		t.Errorf("Lookup = %q, %v: without a bound what is current stays", got, ok)
	}
}

// TestCopies: what is kept is listed and removed by its URI; what another process
// was given stays.
func TestCopies(t *testing.T) {
	o := newOrigin(t, []byte("content"))
	s := newStore(t, nil)
	uri := o.URL + "/m.bin?X-Amz-Signature=secret"
	path := fetchAged(t, s, uri, time.Hour)
	list, err := s.Copies()
	if err != nil || len(list) != 1 || list[0].Source != Redact(uri) || list[0].Path != filepath.Dir(path) || list[0].Bytes != 7 || time.Since(list[0].Used) < time.Hour {
		t.Fatalf("%+v, %v", list, err)
	}
	other := newStore(t, func(c *Config) { c.Dir = s.folder.dir })
	_, err = other.Remove(uri)
	wantError(t, err, "uses it", Redact(uri))
	if strings.Contains(err.Error(), "secret") || !here(path) {
		t.Errorf("%v, there: %t", err, here(path))
	}
	s.retention.release([]kept{{path: filepath.Dir(path)}}, func(kept) bool { return false })
	if _, err := other.Remove("https://example.com/other"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of what is not there: %v", err)
	}
	if freed, err := other.Remove(list[0].Source); err != nil || freed != 7 || here(path) {
		t.Errorf("freed %d, %v, there: %t", freed, err, here(path))
	}
	if list, err := s.Copies(); err != nil || len(list) != 0 {
		t.Errorf("left are %+v, %v", list, err)
	}
}

// TestPin: what is pinned stays when there is no room, in this process and in others,
// also as a newer version, until it is unpinned.
func TestPin(t *testing.T) {
	o := newOrigin(t, randomBytes(1000, 70))
	var used []string
	s := bounded(t, "", 2500, &used)
	uri := func(i int) string { return fmt.Sprintf("%s/%d.bin", o.URL, i) }
	first := fetchAged(t, s, uri(0), 10*time.Hour)
	for _, want := range []bool{true, false} {
		if changed, err := s.SetPin(uri(0), true); changed != want || err != nil {
			t.Errorf("pinned: %t, %v", changed, err)
		}
	}
	second := fetchAged(t, s, uri(1), time.Hour)
	fetchAged(t, s, uri(2), time.Minute)
	if !here(first) || here(second) {
		t.Errorf("here: the pinned %t, the other %t", here(first), here(second))
	}
	_, err := newStore(t, func(c *Config) { c.Dir = s.folder.dir }).Remove(uri(0))
	wantError(t, err, "pinned")
	if list, err := s.Copies(); err != nil || len(list) != 2 || !list[0].Pinned || list[1].Pinned || list[0].FileCount != 1 || !slices.Equal(list[0].Files, []CopyFile{{"0.bin", 1000}}) {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := s.SetPin(uri(1), true); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("pinned what is not there: %v", err)
	}
	if changed, err := s.SetPin(uri(0), false); !changed || err != nil {
		t.Errorf("unpinned: %t, %v", changed, err)
	}
	used = []string{uri(0)}
	_, err = s.Remove(uri(0))
	wantError(t, err, "services or their replicas use it")
	used = nil
	if freed, err := s.Remove(uri(0)); err != nil || freed != 1000 || here(first) {
		t.Errorf("freed %d, %v", freed, err)
	}
}

// TestEvict: the least recently used goes first, and never what is in use, by
// its URI or by a path in it.
func TestEvict(t *testing.T) {
	o := newOrigin(t, randomBytes(1000, 70))
	var used []string
	s := bounded(t, "", 4500, &used)
	uri := func(i int) string { return fmt.Sprintf("%s/%d.bin", o.URL, i) }
	var paths []string
	for i := range 4 {
		paths = append(paths, fetchAged(t, s, uri(i), time.Duration(10-i)*time.Hour))
	}
	used = []string{uri(0), filepath.Join(filepath.Dir(paths[1]))}
	if _, ok := s.Lookup(Request{URI: uri(2)}); !ok { // used just now
		t.Fatal("not here")
	}
	aged(t, s, paths[2], 2*time.Minute)
	fetchAged(t, s, uri(4), time.Hour)
	if got := []bool{here(paths[0]), here(paths[1]), here(paths[2]), here(paths[3])}; !slices.Equal(got, []bool{true, true, true, false}) {
		t.Errorf("here: %v", got)
	}
	u := Upload{SHA256: sum(randomBytes(900, 71)), Size: 900, Name: "u"}
	upload, err := s.PutUpload(t.Context(), u, strings.NewReader(string(randomBytes(900, 71))))
	if err != nil || here(s.recordFor(t, uri(4))) {
		t.Error("an upload makes room too:", err)
	}
	aged(t, s, s.uploadPath(u), 30*time.Hour)
	fetchAged(t, s, uri(5), time.Hour)
	if s.HasUpload(u) {
		t.Errorf("%s is the oldest and stays", upload)
	}
	used = []string{uri(0), uri(1), uri(2), uri(5)}
	_, err = s.Fetch(t.Context(), Request{URI: uri(6)}, nil)
	wantError(t, err, "1000 B needed", "500 B more", "--models-max-bytes", "/6.bin")
	if got, err := filepath.Glob(filepath.Join(s.cfg.Dir, "models", "*", "*", "*.bin")); err != nil || len(got) != 4 {
		t.Error(got, err)
	}
}

// recordFor is the record of a URI's copy.
func (s *Store) recordFor(t *testing.T, uri string) string {
	t.Helper()
	loc, err := parse(Request{URI: uri})
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(s.folder.modelDir(loc), "record.json")
}

// TestEvictFromTwo: what one process was given, another does not remove; what
// is being fetched stays too.
func TestEvictFromTwo(t *testing.T) {
	o := newOrigin(t, randomBytes(1000, 72))
	var used []string
	a := bounded(t, "", 1500, &used)
	b := again(t, a) // as `roundhouse pull` opens it
	uri := o.URL + "/a.bin"
	path := fetchAged(t, b, uri, time.Hour)
	_, err := a.Fetch(t.Context(), Request{URI: o.URL + "/b.bin"}, nil)
	wantError(t, err, "--models-max-bytes")
	if !here(path) {
		t.Fatal("what another process has was removed")
	}
	b.retention.mu.Lock() // the other process ends
	for _, f := range b.retention.locked {
		_ = f.Close()
	}
	b.retention.mu.Unlock()
	unlock, err := b.folder.lock(t.Context(), filepath.Base(filepath.Dir(filepath.Dir(path))))
	if err != nil {
		t.Fatal(err)
	}
	if _, err = a.Fetch(t.Context(), Request{URI: o.URL + "/b.bin"}, nil); err == nil || !here(path) {
		t.Error("removed while it is being fetched anew:", err)
	}
	unlock()
	if _, err = a.Fetch(t.Context(), Request{URI: o.URL + "/b.bin"}, nil); err != nil || here(path) {
		t.Error(here(path), err)
	}
}

// TestEvictUnderLoad: two processes with one bound fetch more than it holds,
// and every path they get is whole while it is held.
func TestEvictUnderLoad(t *testing.T) {
	o := newOrigin(t, randomBytes(10_000, 73))
	dir := t.TempDir()
	var group sync.WaitGroup
	for p := range 2 {
		group.Go(func() {
			var mu sync.Mutex
			now := ""
			s := newStore(t, func(c *Config) {
				c.Dir, c.StoreBytes = dir, 45_000
				c.InUse = func() []string { mu.Lock(); defer mu.Unlock(); return []string{now} }
			})
			for i := range 30 {
				uri := fmt.Sprintf("%s/%d.bin", o.URL, (i*7+p*3)%11)
				mu.Lock()
				now = uri
				mu.Unlock()
				path, err := s.Fetch(t.Context(), Request{URI: uri}, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if got, err := os.ReadFile(path); err != nil || len(got) != 10_000 {
					t.Errorf("%s: %d bytes, %v", uri, len(got), err)
				}
				aged(t, s, path, time.Hour)
			}
		})
	}
	group.Wait()
	if total := onDisk(filepath.Join(dir, "models"), true); total > 100_000 {
		t.Errorf("%d bytes are kept", total)
	}
}

func TestPruneAbandoned(t *testing.T) {
	var used []string
	s := bounded(t, "", 0, &used)
	old, fresh := filepath.Join(s.cfg.Dir, "partial", "old"), filepath.Join(s.cfg.Dir, "partial", "new")
	for _, d := range []string{old, fresh} {
		mustWrite(t, filepath.Join(d, "x.part"), strings.Repeat("x", 5000))
	}
	at := time.Now().Add(-abandoned - time.Hour)
	if err := os.Chtimes(old, at, at); err != nil {
		t.Fatal(err)
	}
	if freed, err := s.Prune(t.Context()); err != nil || freed < 5000 || here(old) || !here(fresh) {
		t.Error(freed, err, here(old), here(fresh))
	}
	if _, err := os.Stat(old); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if freed, err := newStore(t, nil).Prune(t.Context()); freed != 0 || err != nil {
		t.Error("without InUse:", freed, err)
	}
}
