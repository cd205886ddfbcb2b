package hubcache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/decide/ring"
	"roundhouse.dev/roundhouse/internal/edge/blobs"
	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
	"roundhouse.dev/roundhouse/internal/edge/hubcache/peers"
	"roundhouse.dev/roundhouse/test/loopback"
)

const ringSecret = "a secret of all the nodes in tests"

// ringRig is a Hub and a ring of caches of it.
type ringRig struct {
	t     testing.TB
	hub   *hubtest.Hub
	nodes []*rig
	names []string
	logs  *safeBuffer
	// asked are the requests that nodes sent each other, as they came.
	mu    sync.Mutex
	asked []*http.Request
}

// safeBuffer takes the logs of all nodes.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// newRingRig starts n nodes. Those whose URLs are in others are nodes too, which
// the test plays.
func newRingRig(t testing.TB, n int, edit func(*Config), others ...string) *ringRig {
	t.Helper()
	rr := &ringRig{t: t, hub: hubtest.New(), logs: &safeBuffer{}}
	t.Cleanup(rr.hub.Close)
	for range n {
		rr.names = append(rr.names, "http://"+loopback.Reserve(t))
	}
	for i := range n {
		cfg := DefaultConfig()
		cfg.Dir, cfg.Upstream, cfg.RetryWait = t.TempDir(), rr.hub.URL, time.Millisecond
		cfg.Log = slog.New(slog.NewTextHandler(rr.logs, nil))
		cfg.Ring.Self, cfg.Ring.Peers, cfg.Ring.Secrets = rr.names[i], slices.Concat(rr.names, others), []string{ringSecret}
		cfg.Ring.AnswerTimeout, cfg.Ring.StallTimeout, cfg.Ring.FirstPause = 20*time.Second, 20*time.Second, 20*time.Millisecond
		if edit != nil {
			edit(&cfg)
		}
		rr.nodes = append(rr.nodes, &rig{t: t, hub: rr.hub, cfg: cfg, url: rr.names[i]})
		rr.up(i)
		t.Cleanup(func() { rr.nodes[i].close() })
	}
	return rr
}

// up starts a node at its address.
func (rr *ringRig) up(i int) {
	rr.t.Helper()
	r := rr.nodes[i]
	l, err := net.Listen("tcp", strings.TrimPrefix(rr.names[i], "http://"))
	if err != nil {
		rr.t.Fatal(err)
	}
	r.reg = prometheus.NewRegistry()
	if r.cache, err = New(r.cfg, r.reg); err != nil {
		rr.t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if strings.HasPrefix(q.URL.Path, peers.Prefix) {
			rr.mu.Lock()
			rr.asked = append(rr.asked, q.Clone(context.Background()))
			rr.mu.Unlock()
		}
		r.cache.ServeHTTP(w, q)
	}))
	_ = srv.Listener.Close()
	srv.Listener = l
	srv.Start()
	r.close = sync.OnceFunc(func() {
		srv.CloseClientConnections()
		srv.Close()
		r.cache.Close()
	})
}

// blob adds a file to the Hub and says which nodes have it in which order.
func (rr *ringRig) blob(name string, data []byte) (path, etag string, order []int) {
	rr.t.Helper()
	rr.hub.Add("models", "org/"+name).Commit("main", map[string][]byte{"w.bin": data}, "w.bin")
	path = "/org/" + name + "/resolve/main/w.bin"
	etag = hashOf(data)
	return path, etag, rr.order(etag)
}

func hashOf(data []byte) string {
	h := blobs.NewHash(strings.Repeat("0", 64), int64(len(data)))
	_, _ = h.Write(data)
	return fmt.Sprintf("%x", h.Sum(nil))
}

func (rr *ringRig) order(etag string) (order []int) {
	for _, n := range ring.New(rr.nodes[0].cfg.Ring.Peers).Owners(etag, 99) {
		order = append(order, slices.Index(rr.names, n)) // -1: the test's
	}
	return order
}

// owned makes a file that node i keeps.
func (rr *ringRig) owned(i, size int) []byte {
	rr.t.Helper()
	for n := range 1000 {
		data := append(random(size), byte(n), byte(n>>8))
		if rr.order(hashOf(data))[0] == i {
			return data
		}
	}
	rr.t.Fatal("no content belongs to the node")
	return nil
}

// has returns which nodes keep a blob.
func (rr *ringRig) has(etag string) (out []int) {
	for i, n := range rr.nodes {
		n.settle()
		if _, err := os.Stat(n.cache.store.blobs.Path(etag)); err == nil {
			out = append(out, i)
		}
	}
	return out
}

func (rr *ringRig) wantsHas(etag string, want ...int) {
	rr.t.Helper()
	if got := rr.has(etag); !slices.Equal(got, want) {
		rr.t.Errorf("kept by the nodes %v, want %v", got, want)
	}
}

// until waits for what nobody tells of.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}

// left waits until node i asks the other no more, or again.
func (rr *ringRig) waitAsked(i, other int, asked bool) {
	rr.t.Helper()
	until(rr.t, fmt.Sprintf("node %d asks %d: %v", i, other, asked), func() bool {
		for _, n := range rr.nodes[i].cache.ring.State().Nodes {
			if n.Name == rr.names[other] {
				return n.Asked == asked
			}
		}
		return false
	})
}

// TestRing: whichever node is asked, the content comes from the Hub once and is
// kept by one.
func TestRing(t *testing.T) {
	rr := newRingRig(t, 3, nil)
	data := random(3<<20 + 11)
	path, etag, order := rr.blob("m", data)
	hold := make(chan struct{})
	rr.hub.Fail(hubtest.Faults{Hold: hold, HoldAfter: 1 << 20})
	var first, all sync.WaitGroup
	for i := range 20 {
		first.Add(1)
		all.Go(func() {
			began := sync.OnceFunc(first.Done)
			defer began()
			resp, err := http.Get(rr.nodes[i%3].url + path)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			head := make([]byte, 1<<19)
			_, err = io.ReadFull(resp.Body, head)
			began()
			rest, err2 := io.ReadAll(resp.Body)
			if err = errors.Join(err, err2); err != nil || string(head)+string(rest) != string(data) {
				t.Errorf("node %d: %v, %d bytes", i%3, err, len(head)+len(rest))
			}
		})
	}
	first.Wait() // everybody has bytes while the storage holds the rest
	close(hold)
	all.Wait()
	if got := rr.hub.Sent(); got != int64(len(data)) {
		t.Errorf("%d bytes came from the Hub for a file of %d", got, len(data))
	}
	rr.wantsHas(etag, order[0])
	// Hits, through another node and at the owner, with all that clients ask for.
	rr.hub.Forget()
	size := len(data)
	for i, n := range rr.nodes {
		n.wants(n.get(path), 200, string(data))
		for spec, want := range map[string]span{"bytes=0-9": {0, 10}, "bytes=1000-": {1000, int64(size)}, "bytes=-5": {int64(size - 5), int64(size)},
			"bytes=2000000-99999999": {2000000, int64(size)}} {
			got := n.get(path, "Range: "+spec)
			n.wants(got, 206, string(data[want.from:want.to]))
			if from, total := parseContentRange(got.header.Get("Content-Range")); from != want.from || total != int64(size) {
				t.Errorf("%s: %v", spec, got.header)
			}
		}
		got := n.get(path, "Range: bytes=99999999-")
		if got.status != 416 || got.header.Get("Content-Range") != fmt.Sprintf("bytes */%d", size) {
			t.Errorf("beyond the end: %v", got)
		}
		if got := n.head(path); got.header.Get("X-Linked-Etag") != `"`+etag+`"` || got.header.Get("Content-Length") != fmt.Sprint(size) {
			t.Errorf("%v", got.header)
		}
		if got := n.get(path, "If-None-Match: \""+etag+`"`); got.status != 304 {
			t.Errorf("%v", got)
		}
		if i != order[0] && (n.metric("sent_bytes_total", "peer") == 0 || n.metric("ring_requests_sent_total", "sent") < 5 || n.metric("ring_nodes") != 3) {
			t.Errorf("node %d sent %v bytes of others", i, n.metric("sent_bytes_total", "peer"))
		}
	}
	if rr.hub.Sent() != 0 || rr.nodes[order[0]].metric("peer_sent_bytes_total") == 0 || rr.nodes[order[0]].metric("ring_requests_received_total", "sent") == 0 {
		t.Errorf("%d bytes came from the Hub again", rr.hub.Sent())
	}
	rr.wantsHas(etag, order[0])
	for i, n := range rr.nodes {
		st, ok := n.cache.store.Ring()
		if !ok || st.Self != rr.names[i] || len(st.Nodes) != 2 || !st.Nodes[0].Asked {
			t.Errorf("what stats shows of the ring: %+v %v", st, ok)
		}
	}
}

// TestRingFarRange: a part far ahead of what the owner has comes from the Hub, and
// an interrupted download through another node goes on where it was.
func TestRingFarRange(t *testing.T) {
	rr := newRingRig(t, 2, nil)
	data := rr.owned(1, near+2<<20)
	path, etag, _ := rr.blob("m", data)
	n := rr.nodes[0]
	n.wants(n.get(path, "Range: bytes=-1000"), 206, string(data[len(data)-1000:]))
	if got := rr.hub.Sent(); got != 1000 {
		t.Errorf("%d bytes for 1000", got)
	}
	rr.wantsHas(etag)
	resp, err := http.Get(n.url + path)
	if err != nil {
		t.Fatal(err)
	}
	head := make([]byte, 1<<20)
	if _, err := io.ReadFull(resp.Body, head); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	rr.hub.Forget()
	n.wants(n.get(path, "Range: bytes=1048576-"), 206, string(data[1<<20:]))
	rr.wantsHas(etag, 1)
}

// TestRingSmall: what is small is every node's own; of what the Hub sends itself,
// what is public is kept by the owner, and the rest by who asked.
func TestRingSmall(t *testing.T) {
	rr := newRingRig(t, 3, nil)
	small := random(1000)
	path, etag, _ := rr.blob("small", small)
	for _, n := range rr.nodes {
		n.wants(n.get(path), 200, string(small))
	}
	rr.wantsHas(etag, 0, 1, 2)

	rr = newRingRig(t, 3, func(c *Config) { c.RingMinBytes = 0 })
	text := random(1 << 20)
	open := rr.hub.Add("models", "org/open")
	open.Commit("main", map[string][]byte{"t": text, "empty": nil})
	gated := rr.hub.Add("models", "org/gated")
	secret := append(random(1<<20), 1)
	gated.Commit("main", map[string][]byte{"t": secret})
	gated.Gate("hf_reader")
	for _, n := range rr.nodes {
		n.wants(n.get("/org/open/resolve/main/t"), 200, string(text))
		n.wants(n.get("/org/open/resolve/main/empty"), 200, "")
		n.wants(n.get("/org/gated/resolve/main/t", bearer("hf_reader")), 200, string(secret))
		if got := n.get("/org/open/resolve/main/empty", "Range: bytes=0-"); got.status != 416 {
			t.Error(got)
		}
	}
	etagOf := func(path string, o ...string) string {
		return normalETag(rr.nodes[0].head(path, o...).header.Get("Etag"))
	}
	publicTag := etagOf("/org/open/resolve/main/t")
	rr.wantsHas(publicTag, rr.order(publicTag)[0])
	gatedTag := etagOf("/org/gated/resolve/main/t", bearer("hf_reader"))
	rr.wantsHas(gatedTag, []int{0, 1, 2}[:rr.order(gatedTag)[0]+1]...) // those after the owner had it from there
	for _, q := range rr.hub.Requests() {
		if q.Authorization != "" && !strings.Contains(q.URI, "gated") {
			t.Errorf("a token for %s", q.URI)
		}
	}
}

// TestRingOffline: offline nodes read each other's blobs and ask nobody else.
func TestRingOffline(t *testing.T) {
	rr := newRingRig(t, 2, nil)
	data := rr.owned(1, 2<<20)
	path, _, _ := rr.blob("m", data)
	other, _, _ := rr.blob("other", rr.owned(1, 3<<20))
	n := rr.nodes[0]
	n.wants(n.get(path), 200, string(data))
	n.head(other)
	for i, r := range rr.nodes {
		r.settle()
		r.close()
		r.cfg.Offline = true
		rr.up(i)
	}
	rr.hub.Forget()
	n.wants(n.get(path), 200, string(data))
	if got := n.get(other); got.status != 504 {
		t.Error(got)
	}
	if got := rr.hub.Requests(); len(got) != 0 {
		t.Errorf("offline, the Hub was asked: %v", got)
	}
}
