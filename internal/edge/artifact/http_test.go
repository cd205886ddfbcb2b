package artifact

import (
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func TestFetchHTTP(t *testing.T) {
	data := randomBytes(3<<20, 1)
	o := newOrigin(t, data)
	s := newStore(t, nil)
	req := Request{URI: o.URL + "/m/model.ubj?sig=hunter2#sha256=" + sum(data)}
	var last Progress
	path, err := s.Fetch(t.Context(), req, func(p Progress) { last = p })
	if err != nil {
		t.Fatal(err)
	}
	if mustRead(t, path) != string(data) || filepath.Base(path) != "model.ubj" {
		t.Fatalf("wrong content at %s", path)
	}
	if want := (Progress{int64(len(data)), int64(len(data))}); last != want {
		t.Errorf("last progress %+v, want %+v", last, want)
	}
	if again, err := s.Fetch(t.Context(), req, nil); again != path || err != nil || o.count() != 1 {
		t.Errorf("a pinned copy: %q, %v after %d requests; want no further request", again, err, o.count())
	}
	if got, ok := s.Lookup(req); !ok || got != path {
		t.Errorf("Lookup = %q, %v", got, ok)
	}
	if got := s.Fingerprint(t.Context(), req); got == "" || got != filepath.Base(filepath.Dir(path)) {
		t.Errorf("its fingerprint is %q, its copy %s", got, path)
	}
	_ = filepath.WalkDir(s.cfg.Dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(p, ".json") && strings.Contains(mustRead(t, p), "hunter2") {
			t.Errorf("%s holds a secret", p)
		}
		return err
	})
}

func TestRevalidation(t *testing.T) {
	for _, validator := range []string{"etag", "date", "none"} {
		t.Run(validator, func(t *testing.T) {
			o := newOrigin(t, []byte("one"))
			o.header = http.Header{}
			if validator != "etag" {
				o.tag = ""
			}
			if validator == "date" {
				o.header.Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
			}
			s := newStore(t, nil)
			req := Request{URI: o.URL + "/model.bin"}
			first, err := s.Fetch(t.Context(), req, nil)
			if err != nil {
				t.Fatal(err)
			}
			if second, err := again(t, s).Fetch(t.Context(), req, nil); second != first || err != nil {
				t.Fatalf("unchanged: %q, %v; want %q", second, err, first)
			}
			if o.count() != 2 {
				t.Errorf("%d requests for two fetches", o.count())
			}
			o.set(func() {
				o.content = []byte("other")
				if validator == "etag" {
					o.tag = `"v2"`
				}
				if validator == "date" {
					o.header.Set("Last-Modified", "Tue, 03 Jan 2006 15:04:05 GMT")
				}
			})
			third, err := s.Fetch(t.Context(), req, nil)
			if err != nil || mustRead(t, third) != "other" {
				t.Fatalf("changed: %q, %v", third, err)
			}
			if mustRead(t, first) != "one" {
				t.Error("the copy in use was changed")
			}
		})
	}
}

func TestOfflineReuse(t *testing.T) {
	o := newOrigin(t, []byte("one"))
	s := newStore(t, nil)
	req := Request{URI: o.URL + "/model.bin"}
	first, err := s.Fetch(t.Context(), req, nil)
	if err != nil {
		t.Fatal(err)
	}
	o.set(func() { o.status = 503 })
	if p, err := s.Fetch(t.Context(), req, nil); p != first || err != nil {
		t.Errorf("server in trouble: %q, %v", p, err)
	}
	o.set(func() { o.status = 404 })
	_, err = s.Fetch(t.Context(), req, nil)
	wantError(t, err, "404", "check the URI")
	o.Close()
	if p, err := s.Fetch(t.Context(), req, nil); p != first || err != nil {
		t.Errorf("server gone: %q, %v", p, err)
	}
	if err := os.Remove(first); err != nil {
		t.Fatal(err)
	}
	_, err = s.Fetch(t.Context(), req, nil)
	wantError(t, err, "unreachable")
}

func TestSilentSourceDoesNotHoldUpACopy(t *testing.T) {
	o := newOrigin(t, []byte("one"))
	s := newStore(t, func(c *Config) { c.StallTimeout = time.Second })
	req := Request{URI: o.URL + "/model.bin"}
	first, err := s.Fetch(t.Context(), req, nil)
	if err != nil {
		t.Fatal(err)
	}
	o.set(func() { o.mute = make(chan struct{}) })
	defer close(o.mute)
	if p, err := s.Fetch(t.Context(), req, nil); p != first || err != nil {
		t.Errorf("%q, %v", p, err)
	}
}

// TestResume breaks the connection at every interesting byte, in one process
// and over a restart.
func TestResume(t *testing.T) {
	data := randomBytes(300<<10, 2)
	for _, cut := range []int{1, 2, 4095, 4096, 65536, 150_001, len(data) - 1} {
		t.Run(fmt.Sprint(cut), func(t *testing.T) {
			o := newOrigin(t, data)
			o.cutAfter, o.cuts = cut, 1
			s := newStore(t, func(c *Config) { c.Attempts = 1 })
			req := Request{URI: o.URL + "/model.bin"}
			// More than 64 KiB of progress earns another attempt at once.
			_, err := s.Fetch(t.Context(), req, nil)
			if cut < minProgress {
				wantError(t, err, "unreachable")
				if _, ok := s.Lookup(req); ok {
					t.Fatal("half a file was taken for whole")
				}
				_, err = again(t, s).Fetch(t.Context(), req, nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := o.last().Header.Get("Range"); got != fmt.Sprintf("bytes=%d-", cut) || o.last().Header.Get("If-Range") != `"v1"` {
				t.Errorf("resumed with Range %q, If-Range %q", got, o.last().Header.Get("If-Range"))
			}
			path, _ := s.Lookup(req)
			if mustRead(t, path) != string(data) {
				t.Error("the resumed file differs")
			}
		})
	}
}

func TestResumeMeetsAnotherVersion(t *testing.T) {
	data, other := randomBytes(200<<10, 3), randomBytes(150<<10, 4)
	for name, edit := range map[string]func(o *origin){
		"new version":           func(o *origin) { o.content, o.tag = other, `"v2"` },
		"range ignored":         func(o *origin) { o.noRange = true },
		"no validator any more": func(o *origin) { o.tag = "" },
	} {
		t.Run(name, func(t *testing.T) {
			o := newOrigin(t, data)
			o.cutAfter, o.cuts = 1000, 1
			s := newStore(t, func(c *Config) { c.Attempts = 1 })
			req := Request{URI: o.URL + "/model.bin"}
			_, err := s.Fetch(t.Context(), req, nil)
			wantError(t, err, "unreachable")
			o.set(func() { edit(o) })
			var last Progress
			path, err := s.Fetch(t.Context(), req, func(p Progress) { last = p })
			if err != nil || mustRead(t, path) != string(o.content) {
				t.Fatalf("%q, %v: wrong content", path, err)
			}
			if last.Done != last.Total || last.Done != int64(len(o.content)) {
				t.Errorf("last progress %+v for %d bytes", last, len(o.content))
			}
		})
	}
}

func TestResumeOfACompletePart(t *testing.T) {
	data := randomBytes(5000, 5)
	o := newOrigin(t, data)
	s := newStore(t, nil)
	loc, _ := parse(Request{URI: o.URL + "/model.bin"})
	dir := s.folder.partialDir(loc)
	mustWrite(t, partPath(dir, "model.bin"), string(data))
	mustWrite(t, partPath(dir, "model.bin")+".json", `{"validator":"\"v1\"","size":5000}`)
	path, err := s.Fetch(t.Context(), Request{URI: o.URL + "/model.bin"}, nil)
	if err != nil || mustRead(t, path) != string(data) || o.count() != 1 {
		t.Fatalf("%q, %v, %d requests", path, err, o.count())
	}
}

func TestBadServers(t *testing.T) {
	data := []byte("the content")
	for name, tc := range map[string]struct {
		edit  func(o *origin)
		words []string
	}{
		"wrong checksum":   {func(o *origin) { o.content = []byte("the CONTENT") }, []string{"sha256", sum(data)}},
		"404":              {func(o *origin) { o.status = 404 }, []string{"404", "check the URI"}},
		"403":              {func(o *origin) { o.status = 403 }, []string{"403", "access denied", "credentials"}},
		"500":              {func(o *origin) { o.status = 500 }, []string{"500"}},
		"always cut":       {func(o *origin) { o.cutAfter, o.cuts, o.tag = 3, 1000, "" }, []string{"unreachable"}},
		"content encoding": {func(o *origin) { o.header = http.Header{"Content-Encoding": {"br"}} }, []string{"Content-Encoding br"}},
		"too large":        {func(o *origin) { o.content = make([]byte, 2000) }, []string{"larger than 1000 B", "maxBytes"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOrigin(t, data)
			tc.edit(o)
			s := newStore(t, func(c *Config) { c.MaxBytes, c.Attempts = 1000, 3 })
			req := Request{URI: strings.Replace(o.URL, "http://", "http://user:hunter2@", 1) + "/model.bin?sig=hunter2#sha256=" + sum(data)}
			_, err := s.Fetch(t.Context(), req, nil)
			wantError(t, err, append(tc.words, "/model.bin")...)
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error shows a secret: %v", err)
			}
			if _, ok := s.Lookup(req); ok {
				t.Error("a failed download was taken for complete")
			}
		})
	}
}

// TestLyingContentLength speaks raw HTTP, as net/http refuses to lie.
func TestLyingContentLength(t *testing.T) {
	for name, length := range map[string]int{"too long": 20, "too short": 5} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				conn, buf, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				fmt.Fprintf(buf, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n0123456789", length)
				_ = buf.Flush()
				_ = conn.Close()
			}))
			defer srv.Close()
			s := newStore(t, func(c *Config) { c.Attempts = 2 })
			_, err := s.Fetch(t.Context(), Request{URI: srv.URL + "/m.bin#sha256=" + sum([]byte("0123456789"))}, nil)
			if length > 10 {
				wantError(t, err, "unreachable")
			} else {
				wantError(t, err, "sha256")
			}
		})
	}
}

func TestSecretsInRedirectsAndDialErrors(t *testing.T) {
	srv := httptest.NewServer(http.RedirectHandler("http://127.0.0.1:1/x?token=hunter2", http.StatusFound))
	defer srv.Close()
	s := newStore(t, func(c *Config) { c.Attempts = 1 })
	_, err := s.Fetch(t.Context(), Request{URI: srv.URL + "/m.bin"}, nil)
	wantError(t, err, "refused")
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the error shows a secret: %v", err)
	}
}

func TestRedirectFromHTTPS(t *testing.T) {
	plain := newOrigin(t, []byte("x"))
	tls := httptest.NewTLSServer(http.RedirectHandler(plain.URL+"/m.bin", http.StatusFound))
	defer tls.Close()
	s, err := New(Config{Dir: t.TempDir(), RetryWait: time.Millisecond}, tls.Client(), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Fetch(t.Context(), Request{URI: tls.URL + "/m.bin"}, nil)
	wantError(t, err, "from https to http")
	if plain.count() != 0 {
		t.Error("the redirect was followed")
	}
}

func TestStalledServer(t *testing.T) {
	o := newOrigin(t, randomBytes(1000, 6))
	o.hold = make(chan struct{})
	s := newStore(t, func(c *Config) { c.StallTimeout, c.Attempts = 50*time.Millisecond, 2 })
	_, err := s.Fetch(t.Context(), Request{URI: o.URL + "/m.bin"}, nil)
	wantError(t, err, "no byte arrived in time")
}

func TestSingleFlight(t *testing.T) {
	data := randomBytes(100<<10, 7)
	o := newOrigin(t, data)
	o.hold = make(chan struct{})
	s := newStore(t, nil)
	req := Request{URI: o.URL + "/model.bin"}
	const callers = 20
	var started, group sync.WaitGroup
	var failed atomic.Int32
	started.Add(callers)
	for range callers {
		group.Go(func() {
			once := sync.OnceFunc(started.Done)
			path, err := s.Fetch(t.Context(), req, func(p Progress) {
				if p.Total > 0 {
					once()
				}
			})
			if err != nil || len(mustRead(t, path)) != len(data) {
				failed.Add(1)
				t.Error(path, err)
			}
		})
	}
	started.Wait() // every caller has seen progress of the one download
	close(o.hold)
	group.Wait()
	if o.count() != 1 || failed.Load() != 0 {
		t.Errorf("%d requests, %d failures for %d callers", o.count(), failed.Load(), callers)
	}
}

func TestOneWaiterLeaves(t *testing.T) {
	data := randomBytes(100<<10, 8)
	o := newOrigin(t, data)
	o.hold = make(chan struct{})
	s := newStore(t, nil)
	req := Request{URI: o.URL + "/model.bin"}
	impatient, cancel := context.WithCancel(t.Context())
	running := make(chan struct{})
	left, stayed := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := s.Fetch(impatient, req, func(p Progress) {
			if p.Done > 0 {
				cancel()
			}
		})
		left <- err
	}()
	go func() {
		once := sync.OnceFunc(func() { close(running) })
		_, err := s.Fetch(t.Context(), req, func(Progress) { once() })
		stayed <- err
	}()
	<-running
	if err := <-left; !cancelled(err) {
		t.Errorf("the one who left got %v", err)
	}
	close(o.hold)
	if err := <-stayed; err != nil {
		t.Errorf("the one who stayed got %v", err)
	}
}

func TestLastWaiterCancels(t *testing.T) {
	o := newOrigin(t, randomBytes(100<<10, 9))
	o.hold = make(chan struct{})
	s := newStore(t, nil)
	req := Request{URI: o.URL + "/model.bin"}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := s.Fetch(ctx, req, func(p Progress) {
		if p.Done > 0 {
			cancel()
		}
	})
	if !cancelled(err) {
		t.Fatal(err)
	}
	<-o.gone // the download ended, not only the wait for it
	close(o.hold)
	// The next caller starts afresh and resumes after the bytes that were kept.
	path, err := s.Fetch(t.Context(), req, nil)
	if err != nil || mustRead(t, path) != string(o.content) {
		t.Fatal(path, err)
	}
	if h := o.last().Header; h.Get("Range") != "bytes=1-" || h.Get("If-Range") != `"v1"` {
		t.Errorf("not resumed: Range %q, If-Range %q", h.Get("Range"), h.Get("If-Range"))
	}
}

// tinyDisk has room for a number of bytes.
type tinyDisk struct {
	realDisk
	left   *atomic.Int64
	honest bool // says beforehand that there is no room
}

func (d tinyDisk) open(path string) (diskFile, error) {
	f, err := d.realDisk.open(path)
	return &tinyFile{diskFile: f, left: d.left}, err
}

func (d tinyDisk) free(string) (int64, error) {
	if d.honest {
		return d.left.Load(), nil
	}
	return 1 << 40, nil
}

type tinyFile struct {
	diskFile
	left *atomic.Int64
}

func (f *tinyFile) WriteAt(p []byte, at int64) (int, error) {
	if f.left.Add(-int64(len(p))) < 0 {
		return 0, &fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}
	}
	return f.diskFile.WriteAt(p, at)
}

func (f *tinyFile) Write(p []byte) (int, error) {
	if room := f.left.Add(-int64(len(p))); room < 0 {
		n, _ := f.diskFile.Write(p[:max(0, int64(len(p))+room)])
		return n, &fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}
	}
	return f.diskFile.Write(p)
}

func TestDiskFull(t *testing.T) {
	data := randomBytes(500<<10, 10)
	o := newOrigin(t, data)
	for _, honest := range []bool{true, false} {
		s := newStore(t, nil)
		var left atomic.Int64
		left.Store(100 << 10)
		s.folder.disk = tinyDisk{left: &left, honest: honest}
		req := Request{URI: o.URL + "/model.bin"}
		_, err := s.Fetch(t.Context(), req, nil)
		wantError(t, err, s.cfg.Dir, "disk full", "needed", "free")
		if _, ok := s.Lookup(req); ok {
			t.Error("half a file was taken for whole")
		}
		left.Store(1 << 30) // room was made
		path, err := s.Fetch(t.Context(), req, nil)
		if err != nil || mustRead(t, path) != string(data) {
			t.Error("after making room:", err)
		}
	}
}

func TestRequestHeadersFromEnvironment(t *testing.T) {
	o := newOrigin(t, []byte("x"))
	t.Setenv("127.0.0.1-headers", `{"Authorization":"Bearer t"}`)
	s := newStore(t, nil)
	if _, err := s.Fetch(t.Context(), Request{URI: o.URL + "/m.bin"}, nil); err != nil {
		t.Fatal(err)
	}
	if got := o.last().Header.Get("Authorization"); got != "Bearer t" {
		t.Errorf("Authorization %q", got)
	}
	t.Setenv("127.0.0.1-headers", `nonsense`)
	_, err := s.Fetch(t.Context(), Request{URI: o.URL + "/other.bin"}, nil)
	wantError(t, err, "127.0.0.1-headers", "JSON")
}
