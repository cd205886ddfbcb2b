package hubcache

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
)

// TestCutAnywhere cuts at every byte: of what the storage sends and of what the
// Hub sends itself, of a download and of a range that is not kept.
func TestCutAnywhere(t *testing.T) {
	r := newRig(t, nil)
	repo := r.hub.Add("models", "org/model")
	const size = 150
	for at := range size {
		for _, large := range []bool{true, false} {
			name := strconv.Itoa(at) + strconv.FormatBool(large)
			data := append(random(size-2), byte(at), strconv.FormatBool(large)[0])
			if large {
				repo.Commit("main", map[string][]byte{name: data}, name)
			} else {
				repo.Commit("main", map[string][]byte{name: data})
			}
			r.hub.Fail(hubtest.Faults{CutAfter: at, Cuts: 1})
			r.wants(r.get("/org/model/resolve/main/"+name+"?x="+name), 200, string(data))
		}
	}
	big := random(near + size)
	repo.Commit("main", map[string][]byte{"big": big}, "big")
	for at := 0; at < size; at += 3 {
		r.hub.Fail(hubtest.Faults{CutAfter: at, Cuts: 1})
		r.wants(r.get("/org/model/resolve/main/big?y", "Range: bytes="+strconv.Itoa(near)+"-"), 206, string(big[near:]))
	}
}

// TestRenamedRemembered: what was asked for by its old name is there by it after
// a restart, and without the Hub.
func TestRenamedRemembered(t *testing.T) {
	r := newRig(t, nil)
	commit, config, weights := r.example()
	r.hub.Rename("models", "org/model", "org/other")
	read := func() {
		t.Helper()
		r.wants(r.get("/org/model/resolve/main/config.json"), 200, string(config))
		r.wants(r.get("/org/model/resolve/"+commit+"/model.safetensors"), 200, string(weights))
		for next := "/api/models/org/model/tree/" + commit + "?recursive=True"; next != ""; {
			got := r.get(next)
			if got.status != 200 {
				t.Fatalf("%s: %v", next, got)
			}
			links := parseLinks(got.header.Values("Link"))
			if next = ""; len(links) > 0 {
				next = strings.TrimPrefix(links[0].to, r.url)
			}
		}
	}
	read()
	r.settle()
	r.start(func(c *Config) { c.Offline = true })
	r.hub.Forget()
	read()
	if got := r.hub.Requests(); len(got) != 0 {
		t.Errorf("offline, the Hub was asked: %v", got)
	}
}

// TestTwoProcesses: a second process over one store does not start and says who
// has it; what works beside a cache does, while the cache serves on.
func TestTwoProcesses(t *testing.T) {
	r := newRig(t, nil)
	_, _, weights := r.example()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "HUBCACHE_TEST_DIR="+r.cfg.Dir, "HUBCACHE_TEST_UPSTREAM="+r.hub.URL)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err == nil || !strings.Contains(stderr.String(), "in use by the process "+strconv.Itoa(os.Getpid())) {
		t.Errorf("%v: %s", err, stderr.String())
	}
	r.wants(r.get(weightsPath), 200, string(weights))
	r.close()
	// Once it is free, another process has it, with all that is in it.
	r.hub.Forget()
	_, url := child(t, "HUBCACHE_TEST_DIR="+r.cfg.Dir, "HUBCACHE_TEST_UPSTREAM="+r.hub.URL)
	other := &rig{t: t, url: url}
	other.wants(other.get(weightsPath), 200, string(weights))
	if r.hub.Sent() != 0 {
		t.Errorf("%d bytes came from the Hub again", r.hub.Sent())
	}
}

// TestSlowHub: a Hub that is slow and not silent is waited for.
func TestSlowHub(t *testing.T) {
	r := newRig(t, nil)
	_, _, weights := r.example()
	r.hub.Fail(hubtest.Faults{Drip: 64 << 10})
	r.wants(r.get(weightsPath), 200, string(weights))
	if got := r.hub.Sent(); got != int64(len(weights)) {
		t.Errorf("%d bytes came from the Hub", got)
	}
}

// brokenOff reports whether an answer began well and did not end.
func brokenOff(got reply) bool { return got.status == 200 && got.err != nil }

// isOfHash reports whether an answer says that the content has a wrong hash. A
// client that came when the download was about to end gets this one.
func isOfHash(got reply) bool { return got.status == 502 && strings.Contains(got.body, "hash") }

// TestHopeless: clients begin anew without end where content is wrong, and each
// time costs the whole file; so they are refused for a while.
func TestHopeless(t *testing.T) {
	r := newRig(t, nil)
	_, _, weights := r.example()
	etag := hashOf(weights)
	r.hub.Fail(hubtest.Faults{Corrupt: true})
	for range maxWrongs {
		if got := r.get(weightsPath); !brokenOff(got) && !isOfHash(got) {
			t.Fatalf("wrong bytes went out whole, or the answer does not name the hash: %v", got)
		}
		r.settle()
	}
	r.hub.Forget()
	for _, options := range [][]string{nil, {"Range: bytes=3145744-"}} {
		if got := r.get(weightsPath, options...); !isOfHash(got) || got.header.Get("X-Error-Code") != "" {
			t.Errorf("%v", got)
		}
	}
	if r.hub.Sent() != 0 {
		t.Error("it is fetched again")
	}
	later := func() {
		r.cache.failures.mu.Lock()
		defer r.cache.failures.mu.Unlock()
		w := r.cache.failures.byHash[etag]
		r.cache.failures.byHash[etag] = wrongs{w.last.Add(-wrongPause), w.times}
	}
	later()
	if got := r.get(weightsPath); !brokenOff(got) && !isOfHash(got) { // it is tried once
		t.Fatalf("wrong bytes went out whole, or the answer does not name the hash: %v", got)
	}
	r.settle()
	if got := r.get(weightsPath); got.status != 502 {
		t.Errorf("after another: %v", got)
	}
	later()
	r.hub.Fail(hubtest.Faults{})
	r.wants(r.get(weightsPath), 200, string(weights))
	r.settle()
	if r.cache.failures.hopeless(etag) || !r.cache.failures.recent(etag) {
		t.Error("what came right is still refused, or who has wrong parts is not known any more")
	}
}

// TestRemovedBeforeFollowed: a client that opens the file of a download after the
// download has removed it gets the download's error, also if that comes later.
func TestRemovedBeforeFollowed(t *testing.T) {
	r := newRig(t, nil)
	wrong := fmt.Errorf("%w: %w", errOdd, blobs.ErrCorrupt)
	for _, late := range []bool{false, true} {
		f := &flight{etag: hashOf([]byte("never stored")), size: 100, at: 100, changed: make(chan struct{})}
		ends := func() { f.set(func() { f.over, f.err = true, wrong }) }
		if late {
			go ends()
		} else {
			ends()
		}
		s := &sending{c: r.cache, r: httptest.NewRequestWithContext(t.Context(), http.MethodGet, weightsPath, nil), part: span{0, 100}}
		if err := s.followFlight(f); !errors.Is(err, wrong) {
			t.Errorf("late %v: %v, want the download's error", late, err)
		}
	}
}

// TestResumedFar: a client that goes on far into a file whose download was broken
// off further on, by a kill, has what is here, and the rest is asked for once.
func TestResumedFar(t *testing.T) {
	r := newRig(t, nil)
	big := random(near + 6<<20)
	r.hub.Add("models", "org/big").Commit("main", map[string][]byte{"w": big}, "w")
	const path, from, had = "/org/big/resolve/main/w", near + 2<<20, near + 4<<20
	r.head(path)
	if err := os.WriteFile(r.cache.store.blobs.PartPath(hashOf(big)), big[:had], 0o600); err != nil {
		t.Fatal(err)
	}
	r.hub.Forget()
	r.wants(r.get(path, "Range: bytes="+strconv.Itoa(from)+"-"), 206, string(big[from:]))
	r.settle()
	r.wants(r.get(path), 200, string(big))
	r.wantsRange("bytes=" + strconv.Itoa(had) + "-")
}

// TestResumedAtOnce: what an earlier download left is sent before it is hashed,
// but for the last byte of the file.
func TestResumedAtOnce(t *testing.T) {
	r := newRig(t, nil)
	_, _, weights := r.example()
	r.head(weightsPath)
	wrong := append([]byte(nil), weights...) // as a crash of the machine leaves it
	clear(wrong[1<<20 : 2<<20])
	if err := os.WriteFile(r.cache.store.blobs.PartPath(hashOf(weights)), wrong, 0o600); err != nil {
		t.Fatal(err)
	}
	r.hub.Forget()
	// Hashed before a byte went out, it is an answer that says so.
	if got := r.get(weightsPath); got.err == nil && got.status < 500 || len(got.body) >= len(weights) {
		t.Errorf("zeros went out whole: status %d, %d bytes, %v: %.200q", got.status, len(got.body), got.err, got.body)
	}
	if r.hub.Sent() != 0 {
		t.Error("a whole download was asked for again before it was hashed")
	}
	r.settle()
	r.wants(r.get(weightsPath), 200, string(weights))
}
