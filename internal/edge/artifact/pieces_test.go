package artifact

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// testPiece is the size of a piece in these tests.
const testPiece = 256 << 10

// wide is a server of one large file that many connections ask for.
type wide struct {
	*httptest.Server
	content []byte
	sent    atomic.Int64
	asked   atomic.Int64 // requests
	now     atomic.Int64 // bodies under way
	most    atomic.Int64
	mu      sync.Mutex
	answer  func(w http.ResponseWriter, r *http.Request) bool // false: answered as usual
	slow    time.Duration                                     // before each 64 KiB
}

func newWide(t *testing.T, content []byte, slow time.Duration) *wide {
	s := &wide{content: content, slow: slow}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *wide) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.asked.Add(1)
	now := s.now.Add(1)
	defer s.now.Add(-1)
	for most := s.most.Load(); now > most && !s.most.CompareAndSwap(most, now); most = s.most.Load() {
	}
	s.mu.Lock()
	answer, content := s.answer, s.content
	s.mu.Unlock()
	w.Header().Set("ETag", `"v1"`)
	if answer != nil && answer(w, r) {
		return
	}
	http.ServeContent(&counter{w, s}, r, "", time.Time{}, bytes.NewReader(content))
}

func (s *wide) set(answer func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

type counter struct {
	http.ResponseWriter
	s *wide
}

func (c *counter) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		time.Sleep(c.s.slow) // a slow link
		n, err := c.ResponseWriter.Write(p[:min(len(p), 64<<10)])
		c.s.sent.Add(int64(n))
		written += n
		if err != nil {
			return written, err
		}
		p = p[n:]
	}
	return written, nil
}

func inTestPieces(c *Config) { c.PieceBytes = testPiece }

func TestPieces(t *testing.T) {
	for _, size := range []int{3 * testPiece, 20*testPiece + 1, 21*testPiece - 1, 20 * testPiece} {
		data := randomBytes(size, 60)
		o := newWide(t, data, time.Millisecond)
		s := newStore(t, inTestPieces)
		var last Progress
		path, err := s.Fetch(t.Context(), Request{URI: o.URL + "/m.bin#sha256=" + sum(data)}, func(p Progress) { last = p })
		if err != nil || mustRead(t, path) != string(data) {
			t.Fatal(path, err)
		}
		if want := (Progress{int64(size), int64(size)}); last != want {
			t.Errorf("%d bytes: last progress %+v", size, last)
		}
		pieces := int64(size+testPiece-1) / testPiece
		if most := o.most.Load(); pieces > 8 && (most < 2 || most > 9) { // a connection that is closed may still be answered
			t.Errorf("%d bytes: %d connections at a time", size, most)
		}
		if asked := o.asked.Load(); asked != pieces {
			t.Errorf("%d bytes: %d requests for %d pieces", size, asked, pieces)
		}
		if files, err := filepath.Glob(filepath.Join(s.cfg.Dir, "partial", "*", "*")); err != nil || len(files) > 0 {
			t.Error("left behind:", files, err)
		}
	}
}

// TestPiecesShareConnections: all files together have no more connections than
// Config.Concurrency.
func TestPiecesShareConnections(t *testing.T) {
	o := newWide(t, randomBytes(12*testPiece, 61), time.Millisecond)
	s := newStore(t, func(c *Config) { c.PieceBytes, c.Concurrency, c.Connections = testPiece, 3, 8 })
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			path, err := s.Fetch(t.Context(), Request{URI: fmt.Sprintf("%s/%d.bin", o.URL, i)}, nil)
			if err != nil || mustRead(t, path) != string(o.content) {
				t.Error(path, err)
			}
		})
	}
	group.Wait()
	if most := o.most.Load(); most > 3+4 { // the first body of each file is left early
		t.Errorf("%d connections at a time", most)
	}
}

// TestPiecesOfServers lists what servers do to someone who asks for ranges.
func TestPiecesOfServers(t *testing.T) {
	data := randomBytes(10*testPiece+17, 62)
	ranged := func(r *http.Request) bool { return r.Header.Get("Range") != "" }
	var broken atomic.Int64
	for name, answer := range map[string]func(o *wide, w http.ResponseWriter, r *http.Request) bool{
		"whole for every range": func(o *wide, w http.ResponseWriter, r *http.Request) bool {
			r.Header.Del("Range")
			return false
		},
		"other ranges than asked for": func(o *wide, w http.ResponseWriter, r *http.Request) bool {
			if ranged(r) {
				r.Header.Set("Range", "bytes=0-9")
			}
			return false
		},
		"no ranges offered": func(o *wide, w http.ResponseWriter, r *http.Request) bool {
			if ranged(r) {
				t.Error("a range was asked for")
			}
			w.Header().Set("Content-Length", strconv.Itoa(len(data)))
			_, _ = w.Write(data)
			return true
		},
		"no version": func(o *wide, w http.ResponseWriter, r *http.Request) bool {
			if ranged(r) {
				t.Error("a range was asked for")
			}
			w.Header().Del("ETag")
			return false
		},
		"bodies that break": func(o *wide, w http.ResponseWriter, r *http.Request) bool {
			if n := broken.Add(1); n%3 != 0 || n > 20 {
				return false
			}
			http.ServeContent(&cutter{ResponseWriter: w, left: 100_000}, r, "", time.Time{}, bytes.NewReader(data))
			return true
		},
		"trouble now and then": func(o *wide, w http.ResponseWriter, r *http.Request) bool {
			if n := broken.Add(1); ranged(r) && n%4 == 0 {
				http.Error(w, "busy", http.StatusServiceUnavailable)
				return true
			}
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			broken.Store(0)
			o := newWide(t, data, 0)
			o.set(func(w http.ResponseWriter, r *http.Request) bool { return answer(o, w, r) })
			s := newStore(t, inTestPieces)
			var last Progress
			path, err := s.Fetch(t.Context(), Request{URI: o.URL + "/m.bin"}, func(p Progress) { last = p })
			if name == "other ranges than asked for" {
				if err == nil {
					t.Error("taken")
				}
				return
			}
			if err != nil || mustRead(t, path) != string(data) {
				t.Fatal(path, err)
			}
			if last.Done != int64(len(data)) || last.Total != last.Done {
				t.Errorf("last progress %+v", last)
			}
		})
	}
}

// TestPiecesOfAnotherVersion: a file that changes while it comes is of one
// version in the end.
func TestPiecesOfAnotherVersion(t *testing.T) {
	data, other := randomBytes(10*testPiece, 63), randomBytes(11*testPiece, 64)
	o := newWide(t, data, 0)
	var asked atomic.Int64
	o.set(func(w http.ResponseWriter, r *http.Request) bool {
		if asked.Add(1) <= 4 {
			return false
		}
		w.Header().Set("ETag", `"v2"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(other))
		return true
	})
	path, err := newStore(t, inTestPieces).Fetch(t.Context(), Request{URI: o.URL + "/m.bin"}, nil)
	if err != nil || mustRead(t, path) != string(other) {
		t.Fatal(path, err)
	}
}

// TestPiecesResumed breaks off again and again, spoils what is on the disk,
// and counts what is asked for anew.
func TestPiecesResumed(t *testing.T) {
	data := randomBytes(16*testPiece+3, 65)
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 1))
		o := newWide(t, data, 0)
		dir := t.TempDir()
		req := Request{URI: o.URL + "/m.bin"}
		for range 3 {
			left := atomic.Int64{}
			left.Store(rng.Int64N(int64(len(data)) / 2))
			o.set(func(w http.ResponseWriter, r *http.Request) bool {
				http.ServeContent(&dropper{w, &left}, r, "", time.Time{}, bytes.NewReader(data))
				return true
			})
			s := newStore(t, func(c *Config) { c.Dir, c.PieceBytes, c.Attempts = dir, testPiece, 1 })
			if _, err := s.Fetch(t.Context(), req, nil); err == nil {
				t.Fatal("fetched over connections that broke")
			}
		}
		parts, _ := filepath.Glob(filepath.Join(dir, "partial", "*", "*.part"))
		if len(parts) != 1 {
			t.Fatal(parts)
		}
		if info, err := os.Stat(parts[0] + ".index"); err == nil && info.Size() > 0 && seed%2 == 0 {
			spoil(t, parts[0], rng)
		}
		o.set(nil)
		var last Progress
		s := newStore(t, func(c *Config) { c.Dir, c.PieceBytes = dir, testPiece })
		path, err := s.Fetch(t.Context(), Request{URI: req.URI}, func(p Progress) { last = p })
		if err != nil || mustRead(t, path) != string(data) {
			t.Fatal(seed, path, err)
		}
		if last.Done != int64(len(data)) || last.Total != last.Done {
			t.Errorf("last progress %+v", last)
		}
	}
}

// spoil changes some bytes of a file in place.
func spoil(t *testing.T, path string, rng *rand.Rand) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("spoilt"), rng.Int64N(info.Size()-6)); err != nil {
		t.Fatal(err)
	}
}

// dropper breaks every connection once a number of bytes was sent over all.
type dropper struct {
	http.ResponseWriter
	left *atomic.Int64
}

func (d *dropper) Write(p []byte) (int, error) {
	if d.left.Add(-int64(len(p))) < 0 {
		panic(http.ErrAbortHandler)
	}
	return d.ResponseWriter.Write(p)
}

// TestPiecesAfterKill kills a process at 60 % of a download: what is asked for
// again is what is missing and at most one piece a connection.
func TestPiecesAfterKill(t *testing.T) {
	data := randomBytes(40*testPiece, 66)
	for _, kind := range []string{"http", "hf"} {
		t.Run(kind, func(t *testing.T) {
			o := newWide(t, data, 2*time.Millisecond)
			uri, sent := o.URL+"/m.bin", o.sent.Load
			if kind == "hf" {
				hub, repo, _ := newHub(t)
				repo.Commit("main", map[string][]byte{"big.safetensors": data}, "big.safetensors")
				uri, sent = "hf://org/m/big.safetensors", hub.Sent
			}
			s := newStore(t, inTestPieces)
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			at := len(data) * 6 / 10
			cmd.Env = append(os.Environ(), "ARTIFACT_TEST_DIR="+s.cfg.Dir, "ARTIFACT_TEST_URI="+uri, fmt.Sprint("ARTIFACT_TEST_KILL_AT=", at))
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the process was not killed: %v\n%s", err, out)
			}
			eventuallyStill(t, sent)
			before := sent()
			path, err := s.Fetch(t.Context(), Request{URI: uri}, nil)
			if err != nil || mustRead(t, path) != string(data) {
				t.Fatal(path, err)
			}
			again := sent() - before
			if limit := int64(len(data)-at) + 8*testPiece; again > limit || again == 0 {
				t.Errorf("%d bytes came again; want at most %d", again, limit)
			}
		})
	}
}

// eventuallyStill waits until a count no longer moves: a server notices that a
// client was killed when it next writes.
func eventuallyStill(t *testing.T, count func() int64) {
	t.Helper()
	for last, same := count(), 0; same < 10; {
		time.Sleep(10 * time.Millisecond)
		if now := count(); now == last {
			same++
		} else {
			last, same = now, 0
		}
	}
}

// TestPiecesWithoutRoom: a disk that fills up ends the download, and what is
// here is gone on from.
func TestPiecesWithoutRoom(t *testing.T) {
	data := randomBytes(10*testPiece, 67)
	o := newWide(t, data, 0)
	s := newStore(t, inTestPieces)
	var left atomic.Int64
	left.Store(4 * testPiece)
	s.folder.disk = tinyDisk{left: &left}
	_, err := s.Fetch(t.Context(), Request{URI: o.URL + "/m.bin"}, nil)
	wantError(t, err, "disk full")
	left.Store(1 << 30)
	path, err := s.Fetch(t.Context(), Request{URI: o.URL + "/m.bin"}, nil)
	if err != nil || mustRead(t, path) != string(data) || strings.Contains(path, "partial") {
		t.Error(path, err)
	}
}

// BenchmarkPieces measures sizes of pieces and numbers of connections, against
// servers of some latency and rate a connection.
func BenchmarkPieces(b *testing.B) {
	data := make([]byte, 512<<20)
	for _, link := range []struct {
		latency time.Duration
		rate    int64 // bytes a second, a connection; 0: as fast as it goes
	}{{0, 0}, {20 * time.Millisecond, 100 << 20}} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(link.latency)
			w.Header().Set("ETag", `"v"`)
			http.ServeContent(&paced{w, link.rate, time.Now(), 0}, r, "", time.Time{}, bytes.NewReader(data))
		}))
		for _, connections := range []int{1, 2, 4, 8} {
			for _, piece := range []int64{4 << 20, 8 << 20, 16 << 20, 32 << 20} {
				if connections == 1 && piece != 16<<20 {
					continue
				}
				b.Run(fmt.Sprintf("%s,%dMBps/%d×%dMiB", link.latency, link.rate>>20, connections, piece>>20), func(b *testing.B) {
					b.SetBytes(int64(len(data)))
					for b.Loop() {
						s, err := New(Config{Dir: b.TempDir(), PieceBytes: piece, Connections: connections}, nil, nil)
						if err != nil {
							b.Fatal(err)
						}
						if _, err := s.Fetch(b.Context(), Request{URI: srv.URL + "/m.bin"}, nil); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
		srv.Close()
	}
}

// paced writes no faster than a rate.
type paced struct {
	http.ResponseWriter
	rate  int64
	begun time.Time
	sent  int64
}

func (p *paced) Write(b []byte) (int, error) {
	n, err := p.ResponseWriter.Write(b)
	p.sent += int64(n)
	if p.rate > 0 {
		time.Sleep(time.Duration(float64(p.sent)/float64(p.rate)*1e9) - time.Since(p.begun))
	}
	return n, err
}

// TestPiecesOfHubs: the Hub leads to its storage, which is asked for pieces; a
// Hub that sends bytes itself is a cache, and asked for the file once.
func TestPiecesOfHubs(t *testing.T) {
	hub, repo, _ := newHub(t)
	data := randomBytes(8*testPiece, 68)
	repo.Commit("main", map[string][]byte{"big.safetensors": data}, "big.safetensors")
	var asked atomic.Int64
	cache := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/resolve/") {
			asked.Add(1)
			w.Header().Set("ETag", `"x"`)
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
			return
		}
		resp, err := http.Get(hub.URL + r.URL.RequestURI())
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		if link := resp.Header.Get("Link"); link != "" {
			w.Header().Set("Link", strings.ReplaceAll(link, hub.URL, "http://"+r.Host))
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	}))
	defer cache.Close()
	for _, c := range []struct {
		endpoint string
		want     int
	}{{cache.URL, 1}, {hub.URL, 8}} {
		asked.Store(0)
		hub.Forget()
		s := newStore(t, func(cfg *Config) { cfg.PieceBytes, cfg.HubEndpoint = testPiece, c.endpoint })
		path, err := s.Fetch(t.Context(), Request{URI: "hf://org/m/big.safetensors"}, nil)
		if err != nil || mustRead(t, path) != string(data) {
			t.Fatal(path, err)
		}
		got := int(asked.Load())
		for _, r := range hub.Requests() {
			if r.Storage {
				got++
			}
		}
		if got != c.want {
			t.Errorf("%s: %d requests for the file, want %d", c.endpoint, got, c.want)
		}
	}
}
