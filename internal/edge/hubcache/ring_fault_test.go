package hubcache

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
	"roundhouse.dev/roundhouse/test/loopback"
)

// readers has clients read a file whole from nodes, and returns once all have
// the first bytes; wait says when all are done, and fails for wrong ones.
func (rr *ringRig) readers(path string, data []byte, first int, from ...int) (wait func()) {
	rr.t.Helper()
	var begun, all sync.WaitGroup
	for _, i := range from {
		begun.Add(1)
		all.Go(func() {
			began := sync.OnceFunc(begun.Done)
			defer began()
			resp, err := http.Get(rr.nodes[i].url + path)
			if err != nil {
				rr.t.Error(err)
				return
			}
			defer resp.Body.Close()
			head := make([]byte, first)
			_, err = io.ReadFull(resp.Body, head)
			began()
			rest, err2 := io.ReadAll(resp.Body)
			if err = errors.Join(err, err2); err != nil || string(head)+string(rest) != string(data) {
				rr.t.Errorf("from node %d: %v, %d bytes of %d", i, err, len(head)+len(rest), len(data))
			}
		})
	}
	begun.Wait()
	return all.Wait
}

// TestRingOwnerDies: the owner goes in the middle of a download; clients of the
// other nodes notice nothing. Back again, it is asked again.
func TestRingOwnerDies(t *testing.T) {
	for name, size := range map[string]int{"near": 5 << 20, "far": near + 12<<20} {
		t.Run(name, func(t *testing.T) {
			rr := newRingRig(t, 3, nil)
			data := rr.owned(2, size)
			path, etag, order := rr.blob("m", data)
			hold := make(chan struct{})
			held := size * 6 / 10
			rr.hub.Fail(hubtest.Faults{Hold: hold, HoldAfter: held})
			wait := rr.readers(path, data, held-chunk, 0, 1, 0, 1, 0, 1)
			rr.hub.Fail(hubtest.Faults{})
			rr.nodes[2].close()
			close(hold)
			wait()
			second := order[1]
			// New clients are served by who stands in.
			for _, i := range order[1:] {
				rr.nodes[i].wants(rr.nodes[i].get(path), 200, string(data))
			}
			if got := rr.has(etag); !slices.Contains(got, second) {
				t.Errorf("kept by %v, not by %d, which stands in", got, second)
			}
			rr.up(2)
			rr.waitAsked(0, 2, true)
			rr.waitAsked(1, 2, true)
			other, otherTag, _ := rr.blob("other", rr.owned(2, 1<<20+5))
			rr.nodes[0].get(other)
			rr.wantsHas(otherTag, 2)
		})
	}
}

// TestRingKilled: kill -9 of the owner at 60 % of a download: clients have all in
// the end, and the owner, back, asks for what it misses alone.
func TestRingKilled(t *testing.T) {
	address := loopback.Reserve(t)
	rr := newRingRig(t, 2, nil, "http://"+address)
	dir := t.TempDir()
	start := func() *exec.Cmd {
		cmd, _ := child(t, "HUBCACHE_TEST_DIR="+dir, "HUBCACHE_TEST_UPSTREAM="+rr.hub.URL, "HUBCACHE_TEST_LISTEN="+address,
			"HUBCACHE_TEST_PEERS="+strings.Join(rr.nodes[0].cfg.Ring.Peers, ","))
		return cmd
	}
	cmd := start()
	const size = near + 8<<20
	data := rr.owned(-1, size)
	path, etag, _ := rr.blob("m", data)
	hold := make(chan struct{})
	const held = size * 6 / 10
	rr.hub.Fail(hubtest.Faults{Hold: hold, HoldAfter: held})
	wait := rr.readers(path, data, held-chunk, 0, 1, 0, 1)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	rr.hub.Fail(hubtest.Faults{})
	rr.hub.Forget()
	close(hold)
	wait()
	for _, q := range rr.hub.Requests() {
		from, _, _ := strings.Cut(strings.TrimPrefix(q.Range, "bytes="), "-")
		if n, err := strconv.Atoi(from); q.Storage && (err != nil || n < held-chunk) {
			t.Errorf("asked for %q, of which %d bytes were there", q.Range, held)
		}
	}
	start()
	for _, n := range rr.nodes {
		until(t, "the owner is asked again", func() bool {
			_, away := n.cache.ringNodes()
			return away == 0
		})
	}
	rr.hub.Forget()
	rr.nodes[0].wants(rr.nodes[0].get(path), 200, string(data))
	for _, q := range rr.hub.Requests() {
		from, _, _ := strings.Cut(strings.TrimPrefix(q.Range, "bytes="), "-")
		if n, err := strconv.Atoi(from); q.Storage && (err != nil || n < held-2*chunk) {
			t.Errorf("the owner asked for %q, of which it had about %d bytes", q.Range, held)
		}
	}
	path = filepath.Join(dir, "blobs", etag[:2], etag)
	until(t, "the owner keeps it", func() bool { _, err := os.Stat(path); return err == nil })
}

// TestRingFrozen: an owner that stands still costs the waits of the
// configuration, and nothing else.
func TestRingFrozen(t *testing.T) {
	address := loopback.Reserve(t)
	rr := newRingRig(t, 2, func(c *Config) {
		c.Ring.AnswerTimeout, c.Ring.StallTimeout = 500*time.Millisecond, 3*time.Second
	}, "http://"+address)
	cmd, _ := child(t, "HUBCACHE_TEST_DIR="+t.TempDir(), "HUBCACHE_TEST_UPSTREAM="+rr.hub.URL, "HUBCACHE_TEST_LISTEN="+address,
		"HUBCACHE_TEST_PEERS="+strings.Join(rr.nodes[0].cfg.Ring.Peers, ","))
	data := rr.owned(-1, 4<<20)
	path, _, _ := rr.blob("m", data)
	hold := make(chan struct{})
	rr.hub.Fail(hubtest.Faults{Hold: hold, HoldAfter: 1 << 20})
	wait := rr.readers(path, data, 1<<19, 0, 1)
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	rr.hub.Fail(hubtest.Faults{})
	close(hold)
	wait()
	slow := rr.nodes[0].metric("ring_requests_sent_total", "slow")
	rr.nodes[0].wants(rr.nodes[0].get(path), 200, string(data))
	if again := rr.nodes[0].metric("ring_requests_sent_total", "slow"); again != slow {
		t.Errorf("%v waits for a node known to stand still", again-slow)
	}
}

// TestRingCorrupt: what the owner keeps was changed on its disk.
func TestRingCorrupt(t *testing.T) {
	rr := newRingRig(t, 2, nil)
	data := rr.owned(1, 2<<20)
	path, etag, _ := rr.blob("m", data)
	n, owner := rr.nodes[0], rr.nodes[1]
	n.wants(n.get(path), 200, string(data))
	rr.wantsHas(etag, 1)
	blob := owner.cache.store.blobs.Path(etag)
	spoil := func(hide bool) {
		t.Helper()
		info, err := os.Stat(blob)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(blob, append([]byte("wrong"), data[5:]...), 0o600); err != nil {
			t.Fatal(err)
		}
		if hide {
			if err := os.Chtimes(blob, info.ModTime(), info.ModTime()); err != nil {
				t.Fatal(err)
			}
		}
	}
	// By a write: it is never served, and fetched again.
	spoil(false)
	rr.hub.Forget()
	n.wants(n.get(path), 200, string(data))
	rr.wantsHas(etag, 1)
	if rr.hub.Sent() != int64(len(data)) || owner.metric("corrupt_total") != 1 {
		t.Errorf("%d bytes came from the Hub, %v found", rr.hub.Sent(), owner.metric("corrupt_total"))
	}
	// Behind everybody's back: the client never gets the last byte, and what it
	// has of it is given anew; the owner is told.
	spoil(true)
	if got := n.get(path); got.err == nil {
		t.Fatal("wrong bytes went out whole")
	}
	n.wants(n.get(path, "Range: bytes=1000000-"), 200, string(data))
	if n.metric("ring_requests_sent_total", "wrong") != 1 || n.metric("ring_nodes_ejected") != 1 {
		t.Error("the owner is not ejected")
	}
	until(t, "the owner hashes it again", func() bool {
		info, err := os.Stat(blob)
		return err != nil || !blobs.Verified(info)
	})
	owner.wants(owner.get(path), 200, string(data))
	if owner.metric("corrupt_total") != 2 {
		t.Error("the owner served it on")
	}
}

// cutTransport is a network of which some ways are cut.
type cutTransport struct {
	mu  sync.Mutex
	cut map[string]bool // hosts
}

func (c *cutTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	cut := c.cut[r.URL.Host]
	c.mu.Unlock()
	if cut {
		return nil, &net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}
	}
	return http.DefaultTransport.RoundTrip(r)
}

// TestRingPartition: one node reaches no other; all clients have what they ask
// for, and when the network is whole again so is the ring.
func TestRingPartition(t *testing.T) {
	network := &cutTransport{cut: map[string]bool{}}
	first := true
	rr := newRingRig(t, 3, func(c *Config) {
		if first { // node 0's way to others
			c.Ring.Transport, first = network, false
		}
	})
	network.mu.Lock()
	for _, name := range rr.names[1:] {
		network.cut[strings.TrimPrefix(name, "http://")] = true
	}
	network.mu.Unlock()
	data := rr.owned(2, 2<<20)
	path, etag, _ := rr.blob("m", data)
	rr.hub.Forget()
	for _, n := range rr.nodes {
		n.wants(n.get(path), 200, string(data))
	}
	rr.wantsHas(etag, 0, 2)
	if got := rr.hub.Sent(); got != 2*int64(len(data)) {
		t.Errorf("%d bytes came from the Hub, twice %d are due", got, len(data))
	}
	network.mu.Lock()
	clear(network.cut)
	network.mu.Unlock()
	rr.waitAsked(0, 1, true)
	rr.waitAsked(0, 2, true)
	other := rr.owned(1, 1<<20+9)
	path, etag, _ = rr.blob("other", other)
	rr.nodes[0].wants(rr.nodes[0].get(path), 200, string(other))
	rr.wantsHas(etag, 1)
}

// TestRingUnderLoad: a node goes and comes while clients read many files from all
// others; every answer is right.
func TestRingUnderLoad(t *testing.T) {
	rr := newRingRig(t, 3, nil)
	type batch struct {
		paths    []string
		contents [][]byte
	}
	var now atomic.Pointer[batch] // those that node 2 keeps, new ones for each round
	next := func(round int) {
		b := &batch{}
		for i := range 4 {
			b.contents = append(b.contents, rr.owned(2, 1<<20+100*round+10*i))
			path, _, _ := rr.blob(fmt.Sprintf("m%d-%d", round, i), b.contents[i])
			b.paths = append(b.paths, path)
		}
		now.Store(b)
	}
	next(0)
	stop := make(chan struct{})
	var all sync.WaitGroup
	for client := range 6 {
		all.Go(func() {
			for k := client; ; k++ {
				select {
				case <-stop:
					return
				default:
				}
				b := now.Load()
				got := k % len(b.paths)
				resp, err := http.Get(rr.nodes[client%2].url + b.paths[got])
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != 200 || string(body) != string(b.contents[got]) {
					t.Errorf("%s: %v, status %d, %d bytes of %d", b.paths[got], err, resp.StatusCode, len(body), len(b.contents[got]))
					return
				}
			}
		})
	}
	for round := range 3 {
		before := rr.nodes[0].metric("ring_requests_sent_total", "sent")
		until(t, "the node is used", func() bool { return rr.nodes[0].metric("ring_requests_sent_total", "sent") > before+5 })
		rr.nodes[2].close()
		rr.waitAsked(0, 2, false)
		rr.waitAsked(1, 2, false)
		rr.up(2)
		rr.waitAsked(0, 2, true)
		rr.waitAsked(1, 2, true)
		next(round + 1)
	}
	close(stop)
	all.Wait()
}

// TestRingOneStore: two nodes cannot have one store.
func TestRingOneStore(t *testing.T) {
	rr := newRingRig(t, 2, nil)
	cfg := rr.nodes[1].cfg
	cfg.Dir = rr.nodes[0].cfg.Dir
	_, err := New(cfg, prometheus.NewRegistry())
	if err == nil || !strings.Contains(err.Error(), "in use by the process") {
		t.Error(err)
	}
	data := rr.owned(0, 1<<20+3)
	path, etag, _ := rr.blob("m", data)
	rr.nodes[1].wants(rr.nodes[1].get(path), 200, string(data))
	rr.wantsHas(etag, 0)
}
