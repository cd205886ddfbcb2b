package hubcache

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
)

const weightsPath = "/org/model/resolve/main/model.safetensors"

// TestCut: the storage's connection breaks at any byte, and no client notices.
func TestCut(t *testing.T) {
	r := newRig(t, nil)
	repo := r.hub.Add("models", "org/model")
	for i, at := range []int{0, 1, 100, 64 << 10, 199_999, 200_000 - 1} {
		data := append(random(199_999), byte(i))
		name := strconv.Itoa(i) + ".bin"
		repo.Commit("main", map[string][]byte{name: data}, name)
		r.hub.Fail(hubtest.Faults{CutAfter: at, Cuts: 3})
		r.wants(r.get("/org/model/resolve/main/"+name+"?n="+name), 200, string(data))
		r.settle()
		r.hub.Fail(hubtest.Faults{})
		r.wants(r.get("/org/model/resolve/main/"+name), 200, string(data))
	}
}

// TestLies: sizes and bytes that are not what the Hub says. A client never gets
// as many bytes as it was promised unless they are right.
func TestLies(t *testing.T) {
	for name, c := range map[string]struct {
		faults hubtest.Faults
		status int // 0: the answer breaks off, or is a 502 where the fault was known before its first byte
	}{
		"wrong bytes":             {hubtest.Faults{Corrupt: true}, 0},
		"shorter than said":       {hubtest.Faults{Truncate: 1000}, 502},
		"said to be longer":       {hubtest.Faults{Extra: 1000}, 502},
		"said to be shorter":      {hubtest.Faults{Extra: -1000}, 502},
		"always cut":              {hubtest.Faults{CutAfter: 100, Cuts: 1 << 30}, 0},
		"storage refuses":         {hubtest.Faults{Storage: 403}, 502},
		"storage in trouble":      {hubtest.Faults{Storage: 503}, 502},
		"storage of another kind": {hubtest.Faults{Location: "ftp://x/y"}, 502},
		"storage in a circle":     {hubtest.Faults{Location: weightsPath}, 502},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			_, _, weights := r.example()
			r.hub.Fail(c.faults)
			got := r.get(weightsPath)
			wrong := got.status != c.status
			if c.status == 0 {
				wrong = got.status != 502 && (got.err == nil || len(got.body) >= len(weights))
			}
			if wrong || got.header.Get("X-Error-Code") != "" {
				t.Fatalf("status %d (%v), %d bytes", got.status, got.err, len(got.body))
			}
			r.settle()
			if list, err := os.ReadDir(r.cfg.Dir + "/blobs"); err != nil || len(list) != 0 {
				t.Errorf("kept: %v %v", list, err)
			}
			// Once the Hub is in order again, so is the file.
			r.hub.Fail(hubtest.Faults{})
			r.wants(r.get(weightsPath), 200, string(weights))
		})
	}
}

// TestPoisoned: a client that has part of a file whose bytes came wrong, and
// asks for the rest, is given all of it.
func TestPoisoned(t *testing.T) {
	r := newRig(t, nil)
	_, _, weights := r.example()
	r.hub.Fail(hubtest.Faults{Corrupt: true})
	if got := r.get(weightsPath); got.err == nil && got.status != 502 {
		t.Fatal("wrong bytes went out whole")
	}
	r.hub.Fail(hubtest.Faults{})
	r.wants(r.get(weightsPath, "Range: bytes=2000000-"), 200, string(weights))
}

func TestNoRanges(t *testing.T) {
	r := newRig(t, nil)
	_, _, weights := r.example()
	r.hub.Fail(hubtest.Faults{NoRange: true, CutAfter: 1 << 20, Cuts: 1})
	r.wants(r.get(weightsPath), 200, string(weights))
}

func TestStalled(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.StallTimeout, c.MetadataTimeout, c.Attempts = time.Second, 2*time.Second, 2
	})
	_, _, weights := r.example()
	r.hub.Fail(hubtest.Faults{Hold: make(chan struct{}), HoldAfter: 1000})
	if got := r.get(weightsPath); got.err == nil || len(got.body) == 0 {
		t.Errorf("a storage that stops: status %d, %d bytes, %v", got.status, len(got.body), got.err)
	}
	r.hub.Fail(hubtest.Faults{MuteHub: make(chan struct{})})
	if got := r.head("/org/model/resolve/v2/config.json"); got.status != 504 {
		t.Errorf("a Hub that does not answer: %v", got)
	}
	r.hub.Fail(hubtest.Faults{})
	r.wants(r.get(weightsPath), 200, string(weights))
}

// TestTee: many clients, one transfer, and all have bytes before it is over.
func TestTee(t *testing.T) {
	r := newRig(t, nil)
	_, _, weights := r.example()
	hold := make(chan struct{})
	r.hub.Fail(hubtest.Faults{Hold: hold, HoldAfter: 1 << 20})
	const clients = 20
	var first, all sync.WaitGroup
	errs := make(chan error, clients)
	for range clients {
		first.Add(1)
		all.Go(func() {
			resp, err := http.Get(r.url + weightsPath)
			if err != nil {
				first.Done()
				errs <- err
				return
			}
			defer resp.Body.Close()
			head := make([]byte, 1<<19)
			_, err = io.ReadFull(resp.Body, head)
			first.Done()
			rest, err2 := io.ReadAll(resp.Body)
			if err = errors.Join(err, err2); err == nil && string(head)+string(rest) != string(weights) {
				err = errors.New("other bytes")
			}
			errs <- err
		})
	}
	first.Wait() // everybody has bytes while the storage holds the rest
	close(hold)
	all.Wait()
	for range clients {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if got := r.hub.Sent(); got != int64(len(weights)) {
		t.Errorf("%d bytes came from the Hub for a file of %d", got, len(weights))
	}
}

// TestLosesAccess: the caller that began a download may read no more; another
// goes on with its own token.
func TestLosesAccess(t *testing.T) {
	r := newRig(t, nil)
	_, _, weights := r.example()
	repo := r.hub.Add("models", "org/gated")
	repo.Commit("main", map[string][]byte{"w.bin": weights}, "w.bin")
	repo.Gate("hf_one", "hf_two")
	path := "/org/gated/resolve/main/w.bin"
	hold := make(chan struct{})
	r.hub.Fail(hubtest.Faults{Hold: hold, HoldAfter: 1000, CutAfter: 2000, Cuts: 1})
	one, two := make(chan reply, 1), make(chan reply, 1)
	go func() { one <- r.get(path, bearer("hf_one")) }()
	for r.hub.Sent() < 1000 {
		time.Sleep(time.Millisecond)
	}
	r.head(path, bearer("hf_two"))
	go func() { two <- r.get(path, bearer("hf_two")) }()
	for {
		r.cache.downloads.mu.Lock()
		readers := 0
		for _, f := range r.cache.downloads.byHash {
			readers = f.readers
		}
		r.cache.downloads.mu.Unlock()
		if readers == 2 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	repo.Gate("hf_two")
	close(hold)
	if got := <-one; got.err == nil {
		t.Errorf("who lost access got all: %d", got.status)
	}
	got := <-two
	if got.body != string(weights) && got.err == nil {
		t.Errorf("wrong bytes: %d", got.status)
	}
	r.wants(r.get(path, bearer("hf_two")), 200, string(weights))
}

// TestCorruptOnDisk: a blob that was changed is not served.
func TestCorruptOnDisk(t *testing.T) {
	for name, spoil := range map[string]func(string) error{
		"changed": func(p string) error {
			f, err := os.OpenFile(p, os.O_RDWR, 0)
			if err == nil {
				_, err = f.WriteAt([]byte("wrong"), 1000)
			}
			return errors.Join(err, f.Close())
		},
		"cut": func(p string) error { return os.Truncate(p, 10) },
		"cut behind everybody's back": func(p string) error {
			info, err := os.Stat(p)
			if err == nil {
				err = os.Truncate(p, 10)
			}
			return errors.Join(err, os.Chtimes(p, info.ModTime(), info.ModTime()))
		},
		"emptied": func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"removed": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			_, _, weights := r.example()
			r.wants(r.get(weightsPath), 200, string(weights))
			r.settle()
			etag := normalETag(r.head(weightsPath).header.Get("Etag"))
			if err := spoil(r.cache.store.blobs.Path(etag)); err != nil {
				t.Fatal(err)
			}
			r.wants(r.get(weightsPath), 200, string(weights))
			r.settle()
			if got := r.hub.Sent(); got != 2*int64(len(weights)) {
				t.Errorf("%d bytes came from the Hub", got)
			}
		})
	}
	// One that was only touched is hashed, found right, and not fetched.
	r := newRig(t, nil)
	_, _, weights := r.example()
	r.get(weightsPath)
	r.settle()
	path := r.cache.store.blobs.Path(normalETag(r.head(weightsPath).header.Get("Etag")))
	if err := os.Chtimes(path, time.Now(), time.Now()); err != nil {
		t.Fatal(err)
	}
	r.wants(r.get(weightsPath), 200, string(weights))
	if info, err := os.Stat(path); err != nil || !blobs.Verified(info) || r.hub.Sent() != int64(len(weights)) {
		t.Errorf("%v, %d bytes from the Hub", err, r.hub.Sent())
	}
}

func TestOffline(t *testing.T) {
	r := newRig(t, nil)
	commit, config, weights := r.example()
	gated := r.hub.Add("models", "org/gated")
	gated.Commit("main", map[string][]byte{"w.bin": weights}, "w.bin")
	gated.Gate("hf_reader")
	r.get("/org/model/resolve/main/config.json")
	r.get("/org/model/resolve/main/none.json")
	r.get("/api/models/org/model/revision/main")
	r.get("/org/gated/resolve/main/w.bin", bearer("hf_reader"))
	// Public, and read with a token alone.
	r.hub.Add("models", "org/asked").Commit("main", map[string][]byte{"c.json": config})
	r.get("/org/asked/resolve/main/c.json", bearer("hf_reader"))
	for !r.cache.isPublic(repo{"models", "org/asked"}) {
		time.Sleep(time.Millisecond)
	}
	r.settle()
	r.start(func(c *Config) { c.Offline = true })
	r.hub.Forget()
	r.wants(r.get("/org/model/resolve/main/config.json"), 200, string(config))
	r.wants(r.get("/org/model/resolve/"+commit+"/config.json"), 200, string(config))
	r.wants(r.get("/org/asked/resolve/main/c.json"), 200, string(config))
	if got := r.get("/org/model/resolve/main/none.json"); got.status != 404 || got.header.Get("X-Error-Code") != "EntryNotFound" {
		t.Error(got)
	}
	if got := r.get("/api/models/org/model/revision/main"); got.status != 200 || !strings.Contains(got.body, commit) {
		t.Error(got)
	}
	for _, path := range []string{weightsPath, "/org/nothing/resolve/main/x", "/org/gated/resolve/main/w.bin", "/api/whoami-v2", "/api/models/org/model/refs"} {
		if got := r.get(path, bearer("hf_reader")); got.status != 504 || got.header.Get("X-Error-Code") != "" {
			t.Errorf("%s: %v", path, got.status)
		}
	}
	r.start(func(c *Config) { c.OfflinePrivate = true })
	r.wants(r.get("/org/gated/resolve/main/w.bin"), 200, string(weights))
	if got := r.hub.Requests(); len(got) != 0 {
		t.Errorf("offline, the Hub was asked: %v", got)
	}
}

// TestStale: while the Hub cannot be reached, what is public is read on.
func TestStale(t *testing.T) {
	r := newRig(t, func(c *Config) { c.RefLife, c.GrantLife = time.Nanosecond, time.Nanosecond })
	_, config, _ := r.example()
	r.get("/org/model/resolve/main/config.json")
	r.get("/api/models/org/model/revision/main")
	r.settle()
	r.hub.Close()
	r.wants(r.get("/org/model/resolve/main/config.json"), 200, string(config))
	if got := r.get("/api/models/org/model/revision/main"); got.status != 200 {
		t.Error(got)
	}
}

func TestMovedBranch(t *testing.T) {
	r := newRig(t, func(c *Config) { c.RefLife = time.Nanosecond })
	repo := r.hub.Add("models", "gpt2")
	one := repo.Commit("main", map[string][]byte{"f": []byte("one")})
	r.wants(r.get("/gpt2/resolve/main/f"), 200, "one")
	repo.Commit("main", map[string][]byte{"f": []byte("two")})
	r.wants(r.get("/gpt2/resolve/main/f"), 200, "two")
	r.wants(r.get("/gpt2/resolve/"+one+"/f"), 200, "one")
}

// TestHostileHeaders: what a Hub says is not taken for a path, a link or a hash.
func TestHostileHeaders(t *testing.T) {
	for _, etag := range []string{`"../../../../etc/passwd"`, `W/"`, "", `"zz"`, strings.Repeat("a", 10000), `"` + strings.Repeat("A", 64) + `"`} {
		r := newRig(t, nil)
		_, _, weights := r.example()
		r.hub.Fail(hubtest.Faults{ETag: etag})
		if got := r.get(weightsPath); etag != "" && got.body != string(weights) {
			t.Errorf("%.20q: status %d, %d bytes", etag, got.status, len(got.body))
		}
		if list, err := os.ReadDir(r.cfg.Dir + "/blobs"); err != nil || len(list) != 0 && etag != "" {
			t.Errorf("%.20q: kept %v", etag, list)
		}
	}
	for _, link := range []string{`<https://evil.example/next>; rel="next"`, `<//evil.example>; rel=next`, `<>`, `<<<`, `x`, `</a b>; rel="next"`} {
		r := newRig(t, nil)
		commit, _, _ := r.example()
		r.hub.Fail(hubtest.Faults{Link: link})
		if got := r.get("/api/models/org/model/tree/" + commit); got.status != 200 || got.header.Get("Link") != "" {
			t.Errorf("%q: %v", link, got.header)
		}
	}
}

// TestFull: what does not fit is sent and not kept; what is read or pinned stays.
func TestFull(t *testing.T) {
	r := newRig(t, func(c *Config) { c.MaxBytes, c.MinFree = 1<<20, 0 })
	repo := r.hub.Add("models", "org/many")
	files := map[string][]byte{"large": random(2 << 20)}
	for i := range 8 {
		files[strconv.Itoa(i)] = append(random(200<<10), byte(i))
	}
	repo.Commit("main", files, "large", "0", "1", "2", "3", "4", "5", "6", "7")
	at := func(name string) string { return "/org/many/resolve/main/" + name }
	r.wants(r.get(at("large")), 200, string(files["large"]))
	if _, err := r.cache.store.SetPin(Pin{Kind: "models", Repo: "org/many", Revision: "v1"}, true); err != nil {
		t.Fatal(err)
	}
	r.wants(r.get(at("0")), 200, string(files["0"]))
	r.settle()
	etag := func(name string) string { return normalETag(r.head(at(name)).header.Get("Etag")) }
	info, err := os.Stat(r.cache.store.blobs.Path(etag("0")))
	if err != nil {
		t.Fatal(err)
	}
	old := time.Unix(1e9, int64(info.ModTime().Nanosecond())) // used long ago, and verified
	if err := os.Chtimes(r.cache.store.blobs.Path(etag("0")), old, old); err != nil {
		t.Fatal(err)
	}
	held, err := r.cache.store.blobs.Open(t.Context(), etag("0"), -1, time.Unix(1e9, 0))
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i < 8; i++ {
		r.wants(r.get(at(strconv.Itoa(i))), 200, string(files[strconv.Itoa(i)]))
		r.settle()
	}
	if _, err := os.Stat(r.cache.store.blobs.Path(etag("0"))); err != nil {
		t.Errorf("the oldest was evicted while it was read: %v", err)
	}
	if got := r.metric("evictions_total"); got < 3 {
		t.Errorf("%v evictions", got)
	}
	held.Close()
	total, _ := stored(r.cache.store)
	if total > 1<<20 || float64(total) != r.metric("stored_bytes") {
		t.Errorf("%d bytes kept, %v counted", total, r.metric("stored_bytes"))
	}
	// Pinned, it stays when nobody reads it.
	if _, err := r.cache.store.SetPin(Pin{Kind: "models", Repo: "org/many"}, true); err != nil {
		t.Fatal(err)
	}
	r.hub.Add("models", "org/next").Commit("main", map[string][]byte{"w": random(900 << 10)}, "w")
	r.start(nil) // one that has not just looked for room in vain
	r.wants(r.get("/org/next/resolve/main/w"), 200, string(random(900<<10)))
	if _, err := os.Stat(r.cache.store.blobs.Path(etag("0"))); err != nil {
		t.Errorf("a pinned file was evicted: %v", err)
	}
}

func stored(s *Store) (total int64, n int) {
	_ = s.blobs.Scan(context.Background(), func(e blobs.Entry) { total, n = total+e.Size, n+1 })
	return total, n
}

// TestDiskFull: a disk that takes no more is no failure for who reads.
func TestDiskFull(t *testing.T) {
	r := newRig(t, func(c *Config) { c.MinFree = 1 << 60 })
	_, _, weights := r.example()
	r.wants(r.get(weightsPath), 200, string(weights))
	if err := os.RemoveAll(r.cfg.Dir + "/partial"); err != nil {
		t.Fatal(err)
	}
	r.wants(r.get(weightsPath), 200, string(weights))
}

func TestLocked(t *testing.T) {
	r := newRig(t, nil)
	_, err := New(r.cfg, prometheus.NewRegistry())
	if err == nil || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) || !strings.Contains(err.Error(), "--dir") {
		t.Error(err)
	}
}

// TestMain lets the test binary be a cache that is killed.
func TestMain(m *testing.M) {
	if path := os.Getenv("HUBCACHE_TEST_BARE"); path != "" {
		l := mustListen()
		_, _ = os.Stdout.WriteString(l.Addr().String() + "\n")
		_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, path) }))
	}
	if dir := os.Getenv("HUBCACHE_TEST_DIR"); dir != "" {
		cfg := DefaultConfig()
		cfg.Dir, cfg.Upstream = dir, os.Getenv("HUBCACHE_TEST_UPSTREAM")
		address := "127.0.0.1:0"
		if all := os.Getenv("HUBCACHE_TEST_PEERS"); all != "" {
			address = os.Getenv("HUBCACHE_TEST_LISTEN")
			cfg.Ring.Self, cfg.Ring.Peers, cfg.Ring.Secrets = "http://"+address, strings.Split(all, ","), []string{ringSecret}
		}
		c, err := New(cfg, prometheus.NewRegistry())
		if err == nil {
			var l net.Listener
			if l, err = net.Listen("tcp", address); err == nil {
				_, _ = os.Stdout.WriteString(l.Addr().String() + "\n")
				err = (&http.Server{Handler: c}).Serve(l)
			}
		}
		_, _ = os.Stderr.WriteString(err.Error())
		os.Exit(3)
	}
	os.Exit(m.Run())
}

// TestKilled: after kill -9 in the middle of a download the next cache asks for
// what is missing.
func TestKilled(t *testing.T) {
	r := newRig(t, nil)
	_, _, weights := r.example()
	r.close()
	hold := make(chan struct{})
	const sent = 2 << 20
	r.hub.Fail(hubtest.Faults{Hold: hold, HoldAfter: sent})
	cmd, url := child(t, "HUBCACHE_TEST_DIR="+r.cfg.Dir, "HUBCACHE_TEST_UPSTREAM="+r.hub.URL)
	resp, err := http.Get(url + weightsPath)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(resp.Body, make([]byte, sent)); err != nil { // what a client has is on the disk
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // its lock goes with it
	if _, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Error("the client took the file for whole")
	}
	resp.Body.Close()
	close(hold)
	r.hub.Fail(hubtest.Faults{})
	r.hub.Forget()
	r.close = nil
	r.start(nil)
	r.wants(r.get(weightsPath), 200, string(weights))
	r.wantsRange("bytes=" + strconv.Itoa(sent) + "-")
}

// TestAbandoned: a download that nobody waits for ends, and the next goes on
// from there.
func TestAbandoned(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Linger = time.Millisecond })
	_, _, weights := r.example()
	hold := make(chan struct{})
	r.hub.Fail(hubtest.Faults{Hold: hold, HoldAfter: 1 << 20})
	resp, err := http.Get(r.url + weightsPath)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(resp.Body, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	r.settle()
	if _, err := os.Stat(r.cache.store.blobs.Path(normalETag(r.head(weightsPath).header.Get("Etag")))); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal("the download went on", err)
	}
	close(hold)
	r.hub.Forget()
	r.wants(r.get(weightsPath), 200, string(weights))
	r.wantsRange("bytes=1048576-")
}

// TestFarRange: a part far ahead of a download does not wait for it.
func TestFarRange(t *testing.T) {
	r := newRig(t, nil)
	big := random(near + 2<<20)
	r.hub.Add("datasets", "org/big").Commit("main", map[string][]byte{"x.parquet": big}, "x.parquet")
	path := "/datasets/org/big/resolve/main/x.parquet"
	r.wants(r.get(path, "Range: bytes=-1000"), 206, string(big[len(big)-1000:]))
	if got := r.hub.Sent(); got != 1000 {
		t.Errorf("%d bytes for 1000", got)
	}
	r.wants(r.get(path), 200, string(big))
}

// wantsRange checks what alone was asked of the storage. The bytes it sent say
// less: it still writes to connections that are gone.
func (r *rig) wantsRange(want string) {
	r.t.Helper()
	var ranges []string
	for _, q := range r.hub.Requests() {
		if q.Storage {
			ranges = append(ranges, q.Range)
		}
	}
	if len(ranges) != 1 || ranges[0] != want {
		r.t.Errorf("the storage was asked for the ranges %q, want %q", ranges, want)
	}
}

// TestXetOnly: a file too large for anything but Xet keeps what leads there.
func TestXetOnly(t *testing.T) {
	r := newRig(t, nil)
	commit, _, _ := r.example()
	r.hub.Fail(hubtest.Faults{Extra: xetOnly})
	for range 2 { // asked, and known
		got := r.head(weightsPath)
		if got.header.Get("X-Xet-Hash") == "" || got.header.Get("X-Xet-Refresh-Route") != r.hub.URL+"/api/models/org/model/xet-read-token/"+commit {
			t.Errorf("%v", got.header)
		}
	}
}
