package artifact

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// place takes a place in the store of a folder, until the test ends or the place
// is closed.
func place(t *testing.T, dir, name string, bound int64) *Shared {
	t.Helper()
	cfg := Config{Dir: dir, StoreBytes: bound, PieceBytes: testPiece, RetryWait: time.Millisecond, Attempts: 2, StallTimeout: 5 * time.Second}
	s, err := OpenShared(cfg, name, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// given has a place get a model and returns the content of its file.
func (s *Shared) given(t *testing.T, uri string) string {
	t.Helper()
	link, err := s.Fetch(t.Context(), Request{URI: uri}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return mustRead(t, filepath.Join(link, filepath.Base(uri)))
}

// bodies counts the requests for the file, but not the questions whether it has changed.
func (o *origin) bodies() (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range o.requests {
		if r.Method == http.MethodGet && r.Header.Get("If-None-Match") == "" {
			n++
		}
	}
	return n
}

// TestSharedOnce: places that want one model at the same time download it once,
// and everybody may read what they get, but not write it.
func TestSharedOnce(t *testing.T) {
	data := randomBytes(200<<10, 1)
	o := newOrigin(t, data)
	dir := t.TempDir()
	var wg sync.WaitGroup
	for _, name := range []string{"a", "b", "c"} {
		s := place(t, dir, name, 0)
		wg.Go(func() {
			link, err := s.Fetch(t.Context(), Request{URI: o.URL + "/m.bin"}, nil)
			if err != nil {
				t.Error(err)
				return
			}
			if link != filepath.Join(dir, "places", name, "model") || mustRead(t, filepath.Join(link, "m.bin")) != string(data) {
				t.Error(name, "has another model at", link)
			}
		})
	}
	wg.Wait()
	if n := o.bodies(); n != 1 {
		t.Errorf("the model was downloaded %d times", n)
	}
	for path, mode := range map[string]os.FileMode{"": 0o755, "m.bin": 0o444} {
		info, err := os.Stat(filepath.Join(dir, "places", "a", "model", path))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%q: %v, want mode %o: %v", path, info.Mode(), mode, err)
		}
	}
	if to, err := os.Readlink(filepath.Join(dir, "places", "a", "model")); err != nil || filepath.IsAbs(to) {
		t.Error("the link must be relative: it is read where the store is mounted elsewhere:", to, err)
	}
}

// TestSharedKill: a process that is killed while it downloads leaves what it has
// to the next place, and its own place behind.
func TestSharedKill(t *testing.T) {
	data := randomBytes(200<<10, 41)
	o := newOrigin(t, data)
	hold := make(chan struct{})
	o.set(func() { o.hold = hold })
	dir := t.TempDir()
	uri := o.URL + "/m.bin"
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "ARTIFACT_TEST_DIR="+dir, "ARTIFACT_TEST_URI="+uri, "ARTIFACT_TEST_PLACE=killed")
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the process was not killed: %v\n%s", err, out)
	}
	if here(filepath.Join(dir, "places", "killed", "model")) {
		t.Error("half a model was handed out")
	}
	close(hold)
	if place(t, dir, "next", 0).given(t, uri) != string(data) {
		t.Error("another content")
	}
	if got := o.last().Header.Get("Range"); got != "bytes=1-" {
		t.Errorf("resumed with Range %q", got)
	}
}

// TestSharedBound: room is made by removing the least recently used copy that no
// place has; a place counts while it is held, and some minutes more.
func TestSharedBound(t *testing.T) {
	data := randomBytes(100<<10, 2)
	o := newOrigin(t, data)
	dir, bound := t.TempDir(), int64(250<<10)
	old := func(s *Shared, uri string) {
		t.Helper()
		s.given(t, uri)
		aged(t, s.store, s.linked(), time.Hour)
	}
	a, b := place(t, dir, "a", bound), place(t, dir, "b", bound)
	old(a, o.URL+"/1.bin")
	old(b, o.URL+"/2.bin")
	third := Request{URI: o.URL + "/3.bin"}
	c := place(t, dir, "c", bound)
	_, err := c.Fetch(t.Context(), third, nil)
	wantError(t, err, "more than there is beside the models in use", "the store's bound")
	ofB := b.linked()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b.store.retention.locked[ofB].Close() // its process has ended
	_, err = c.Fetch(t.Context(), third, nil)
	wantError(t, err, "the store's bound") // it may be started again
	ended := filepath.Join(dir, "places", "b", endedName)
	long := time.Now().Add(-endedFor)
	if err := os.Chtimes(ended, long, long); err != nil {
		t.Fatal(err)
	}
	if c.given(t, third.URI) != string(data) {
		t.Error("another content")
	}
	if here(ofB) || here(filepath.Dir(ended)) || !here(a.linked()) {
		t.Error("not the copy was removed that nobody has")
	}
}

// TestSharedStartedAgain: a place that is taken again has the files that it had,
// although the model has changed since, and they stay while it is held.
func TestSharedStartedAgain(t *testing.T) {
	o := newOrigin(t, []byte("one"))
	dir, uri := t.TempDir(), o.URL+"/m.bin"
	a := place(t, dir, "a", 0)
	a.given(t, uri)
	was := a.linked()
	_ = a.Close()
	a.store.retention.locked[was].Close()
	o.set(func() { o.content, o.tag = []byte("other"), `"v2"` })
	b := place(t, dir, "b", 0)
	if got := b.given(t, uri); got != "other" {
		t.Errorf("a new place has %q", got)
	}
	if !here(filepath.Join(dir, "places", "a", endedName)) {
		t.Fatal("nobody has seen that the place is not held")
	}
	a = place(t, dir, "a", 0)
	if here(filepath.Join(dir, "places", "a", endedName)) {
		t.Error("the place is held again, and counts as given back")
	}
	if got := a.given(t, uri); got != "one" || a.linked() != was {
		t.Errorf("the place taken again has %q", got)
	}
	for _, s := range []*Shared{a, b} {
		if _, err := s.store.Prune(t.Context()); err != nil || !here(was) {
			t.Error("a copy in use was removed", err)
		}
	}
}

// TestSharedChangedFiles: what somebody wrote into a copy is not handed out.
func TestSharedChangedFiles(t *testing.T) {
	data := randomBytes(50<<10, 4)
	folder := t.TempDir()
	for name, content := range map[string][]byte{"m.bin": data, "m.tar": tarOf(t, tarFile("config.json", "{}"))} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	url := newFiles(t, folder)
	for name, c := range map[string]struct {
		model, file string
		change      func(path string) error
		again       bool // it must be fetched again
	}{
		"content":  {"m.bin", "m.bin", func(p string) error { return os.WriteFile(p, randomBytes(len(data), 5), 0o600) }, true},
		"size":     {"m.bin", "m.bin", func(p string) error { return os.Truncate(p, 10) }, true},
		"gone":     {"m.bin", "m.bin", os.Remove, true},
		"a pipe":   {"m.bin", "m.bin", func(p string) error { return errors.Join(os.Remove(p), syscall.Mkfifo(p, 0o600)) }, true},
		"a link":   {"m.bin", "m.bin", func(p string) error { return errors.Join(os.Remove(p), os.Symlink("/etc/passwd", p)) }, true},
		"one more": {"m.bin", "more", func(p string) error { return os.WriteFile(p, nil, 0o600) }, true},
		"date":     {"m.bin", "m.bin", func(p string) error { return os.Chtimes(p, time.Now(), time.Unix(1, 0)) }, false},
		"unpacked": {"m.tar", "config.json", func(p string) error { return os.WriteFile(p, []byte("[]"), 0o600) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			uri := url + "/" + c.model
			a := place(t, dir, "a", 0)
			if _, err := a.Fetch(t.Context(), Request{URI: uri}, nil); err != nil {
				t.Fatal(err)
			}
			before, err := os.Stat(a.linked())
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(a.linked(), c.file)
			_ = os.Chmod(file, 0o600)
			if err := c.change(file); err != nil {
				t.Fatal(err)
			}
			b := place(t, dir, "b", 0)
			link, err := b.Fetch(t.Context(), Request{URI: uri}, nil)
			if err != nil {
				t.Fatal(err)
			}
			want := string(data)
			if c.model == "m.tar" {
				want = "{}"
			}
			name := c.file
			if name == "more" {
				name = "m.bin"
			}
			if mustRead(t, filepath.Join(link, name)) != want || len(listed(t, link)) != 1 {
				t.Error("the changed files were handed out")
			}
			after, err := os.Stat(b.linked())
			if err != nil || os.SameFile(before, after) == c.again {
				t.Errorf("fetched again: %v, want %v: %v", !os.SameFile(before, after), c.again, err)
			}
			if mustRead(t, filepath.Join(a.linked(), name)) != want {
				t.Error("the first place is left with the changed files")
			}
		})
	}
}

// TestSharedAsksTheSource: a copy is no way around the source's answer to a pod.
func TestSharedAsksTheSource(t *testing.T) {
	o := newOrigin(t, []byte("secret"))
	dir := t.TempDir()
	place(t, dir, "a", 0).given(t, o.URL+"/m.bin")
	b := place(t, dir, "b", 0)
	o.set(func() { o.status = http.StatusForbidden })
	if _, err := b.Fetch(t.Context(), Request{URI: o.URL + "/m.bin"}, nil); !Denied(err) {
		t.Error("refused by the source:", err)
	}
	o.Close()
	if _, err := b.Fetch(t.Context(), Request{URI: o.URL + "/m.bin"}, nil); err == nil {
		t.Error("a copy was used that the source could not confirm")
	}
	if here(filepath.Join(b.dir, modelName)) {
		t.Error("the place has a model")
	}
}

// TestSharedFullDisk: the error says so, and nothing half is handed out.
func TestSharedFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount a small file system")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=3m,mode=0700"); err != nil {
		t.Skipf("no file system can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	data := randomBytes(2<<20, 6)
	o := newOrigin(t, data)
	a := place(t, dir, "a", 0)
	a.given(t, o.URL+"/1.bin")
	aged(t, a.store, a.linked(), time.Hour)
	b := place(t, dir, "b", 0)
	_, err := b.Fetch(t.Context(), Request{URI: o.URL + "/2.bin"}, nil)
	wantError(t, err, "disk full")
	if here(filepath.Join(b.dir, modelName)) || mustRead(t, filepath.Join(a.dir, modelName, "1.bin")) != string(data) {
		t.Error("half a model was handed out, or the other's was taken")
	}
	was := a.linked()
	_ = a.Close()
	a.store.retention.locked[was].Close()
	if err := os.RemoveAll(a.dir); err != nil {
		t.Fatal(err)
	}
	if b.given(t, o.URL+"/2.bin") != string(data) {
		t.Error("another content")
	}
}

// TestSharedHostile: places and records that are not ours to follow.
func TestSharedHostile(t *testing.T) {
	for _, name := range []string{"", ".", "..", "../x", "a/b", "/a", "a\x00"} {
		if _, err := OpenShared(Config{Dir: t.TempDir()}, name, nil, nil); err == nil {
			t.Errorf("%q is a place", name)
		}
	}
	dir, outside := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "places"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink(outside, filepath.Join(dir, "places", "link")), os.WriteFile(filepath.Join(dir, "places", "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link", "file"} {
		if _, err := OpenShared(Config{Dir: dir}, name, nil, nil); err == nil {
			t.Errorf("a %s is a place", name)
		}
	}
	o := newOrigin(t, []byte("model"))
	a := place(t, dir, "a", 0)
	if err := os.Symlink(outside, filepath.Join(a.dir, modelName)); err != nil { // led elsewhere before
		t.Fatal(err)
	}
	uri := o.URL + "/m.bin"
	if got := a.given(t, uri); got != "model" || !strings.HasPrefix(a.linked(), filepath.Join(dir, "models")) {
		t.Errorf("%q at %s", got, a.linked())
	}
	record := filepath.Join(filepath.Dir(a.linked()), "record.json")
	if err := os.WriteFile(record, []byte(`{"version": "../../../..", "objects": [{"name": "x"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := place(t, dir, "b", 0).given(t, uri); got != "model" {
		t.Errorf("by a record of another folder: %q", got)
	}
}

// TestSharedBucket: object stores are read through the same store.
func TestSharedBucket(t *testing.T) {
	b := newS3(t)
	b.put("llama/config.json", []byte("{}"))
	b.put("llama/w/1.bin", randomBytes(10<<10, 7))
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		link, err := place(t, dir, name, 0).Fetch(t.Context(), Request{URI: "s3://bucket/llama"}, nil)
		if err != nil || mustRead(t, filepath.Join(link, "config.json")) != "{}" || !here(filepath.Join(link, "w", "1.bin")) {
			t.Fatal(name, err)
		}
	}
	gets := 0
	for _, r := range b.requests() {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "1.bin") {
			gets++
		}
	}
	if gets != 1 {
		t.Errorf("the object was read %d times", gets)
	}
}

// TestSharedDrop: a place that is given back for good takes its copy along, and what there
// is of a download; a copy that another place has stays until that goes too.
func TestSharedDrop(t *testing.T) {
	o := newOrigin(t, randomBytes(100<<10, 7))
	dir := t.TempDir()
	uri := o.URL + "/m.bin"
	copies := func() int {
		all, _ := filepath.Glob(filepath.Join(dir, "models", "*", "*", "m.bin"))
		return len(all)
	}
	drop := func(name string, frees bool) {
		t.Helper()
		s := place(t, dir, name, 0) // as of another process than that which fetched
		freed, err := s.Drop(Request{URI: uri})
		if err != nil || freed > 0 != frees {
			t.Errorf("%s: %d bytes freed, %v", name, freed, err)
		}
		if _, err := os.Lstat(filepath.Join(dir, "places", name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the place %s is there: %v", name, err)
		}
	}
	a, b := place(t, dir, "a", 0), place(t, dir, "b", 0)
	a.given(t, uri)
	b.given(t, uri)
	for _, s := range []*Shared{a, b} { // their processes end
		s.store.retention.mu.Lock()
		for _, f := range s.store.retention.locked {
			_ = f.Close()
		}
		s.store.retention.mu.Unlock()
		_ = s.Close()
	}
	drop("a", false)
	if copies() != 1 {
		t.Error("the copy that b has is gone")
	}
	drop("b", true)
	if copies() != 0 {
		t.Error("the copy is there")
	}
	loc, err := parse(Request{URI: uri})
	if err != nil {
		t.Fatal(err)
	}
	part := filepath.Join(dir, "partial", loc.key(), "m.bin.part")
	if err := errors.Join(os.MkdirAll(filepath.Dir(part), 0o700), os.WriteFile(part, make([]byte, 1000), 0o600)); err != nil {
		t.Fatal(err)
	}
	drop("c", true)
	if _, err := os.Stat(part); !errors.Is(err, os.ErrNotExist) {
		t.Error("the download that was left off is there:", err)
	}
	drop("c", false)
}

// TestSharedFolderInPlace: a folder that the kubelet made where the link is to be keeps the
// model from no place; one with files is not deleted.
func TestSharedFolderInPlace(t *testing.T) {
	dir, o := t.TempDir(), newOrigin(t, []byte("model"))
	a, b := place(t, dir, "a", 0), place(t, dir, "b", 0)
	if err := errors.Join(os.Mkdir(filepath.Join(a.dir, modelName), 0o755), os.MkdirAll(filepath.Join(b.dir, modelName, "mine"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if got := a.given(t, o.URL+"/m.bin"); got != "model" {
		t.Errorf("%q", got)
	}
	if _, err := b.Fetch(t.Context(), Request{URI: o.URL + "/m.bin"}, nil); err == nil {
		t.Error("a folder with files was replaced")
	}
}
