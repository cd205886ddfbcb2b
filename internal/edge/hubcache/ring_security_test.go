package hubcache

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
	"roundhouse.dev/roundhouse/internal/edge/hubcache/peers"
)

// TestRingSecrecy: a gated file comes to those who may read it through any node,
// and no token goes anywhere but to the Hub: not to nodes, the storage, logs,
// metrics or the disk.
func TestRingSecrecy(t *testing.T) {
	rr := newRingRig(t, 3, nil)
	data := rr.owned(2, 2<<20)
	path, etag, _ := rr.blob("gated", data)
	repo := rr.hub.Add("models", "org/gated")
	repo.Commit("main", map[string][]byte{"w.bin": data}, "w.bin")
	repo.Gate("hf_reader", "hf_second")
	rr.hub.Token("hf_stranger")
	n := rr.nodes[0]
	n.wants(n.get(path, bearer("hf_reader")), 200, string(data))
	rr.wantsHas(etag, 2)
	refused := func() {
		t.Helper()
		for i, n := range rr.nodes {
			for token, want := range map[string]int{"": 401, "hf_stranger": 403} {
				got := reply{}
				if token == "" {
					got = n.get(path)
				} else {
					got = n.get(path, bearer(token))
				}
				if got.status != want || got.header.Get("X-Error-Code") != "GatedRepo" || strings.Contains(got.body, string(data[:64])) {
					t.Errorf("node %d to %q: %v", i, token, got.status)
				}
			}
		}
	}
	refused()
	rr.hub.Forget()
	rr.nodes[1].wants(rr.nodes[1].get(path, bearer("hf_second")), 200, string(data))
	if rr.hub.Sent() != 0 {
		t.Errorf("%d bytes came from the Hub again", rr.hub.Sent())
	}
	// Who loses access loses it at every node, though the owner has the file.
	repo.Gate("hf_second")
	for _, n := range rr.nodes {
		n.cache.grants.revoke(n.cache.grants.caller("Bearer hf_reader"), mustTarget(t, path).repo)
		if got := n.get(path, bearer("hf_reader")); got.status != 403 {
			t.Errorf("%d for who lost access", got.status)
		}
	}
	refused()
	rr.mu.Lock()
	defer rr.mu.Unlock()
	if len(rr.asked) == 0 {
		t.Error("no node asked another")
	}
	for _, q := range rr.asked {
		var all bytes.Buffer
		fmt.Fprintln(&all, q.Method, q.RequestURI)
		_ = q.Header.Write(&all)
		for _, word := range []string{"hf_", "Bearer", "Cookie", "\nAuthorization"} {
			if strings.Contains(all.String(), word) {
				t.Errorf("a node was sent %q in %s", word, all.String())
			}
		}
	}
	for _, q := range rr.hub.Requests() {
		if q.Storage && (q.Authorization != "" || strings.Contains(fmt.Sprint(q.URI, q.Header), "hf_")) {
			t.Errorf("a token went to the storage: %v", q)
		}
	}
	for _, n := range rr.nodes {
		tokenless(t, n.cfg.Dir, "hf_reader", "hf_second", "hf_stranger", "Signature=secret", ringSecret)
	}
	for _, word := range []string{"hf_", "Signature", ringSecret} {
		if strings.Contains(rr.logs.String(), word) {
			t.Errorf("the logs hold %q", word)
		}
	}
}

// TestRingStrangers: who does not know the secret has nothing from a node, nor
// has who sends again what another sent, or to another node.
func TestRingStrangers(t *testing.T) {
	rr := newRingRig(t, 2, nil)
	data := rr.owned(1, 2<<20)
	path, etag, _ := rr.blob("m", data)
	rr.nodes[0].wants(rr.nodes[0].get(path), 200, string(data))
	rr.wantsHas(etag, 1)
	send := func(node int, q *http.Request, edit func(*http.Request)) reply {
		t.Helper()
		again, err := http.NewRequestWithContext(t.Context(), q.Method, rr.names[node]+q.RequestURI, nil)
		if err != nil {
			t.Fatal(err)
		}
		again.Header = q.Header.Clone()
		if edit != nil {
			edit(again)
		}
		resp, err := http.DefaultTransport.RoundTrip(again)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return reply{status: resp.StatusCode, header: resp.Header, body: string(body)}
	}
	rr.mu.Lock()
	last := rr.asked[len(rr.asked)-1]
	rr.mu.Unlock()
	if !strings.HasPrefix(last.RequestURI, peers.Prefix+"blobs/"+etag) {
		t.Fatal(last.RequestURI)
	}
	const auth = "Roundhouse-Peer-Auth"
	for name, c := range map[string]struct {
		node int
		edit func(*http.Request)
	}{
		"again":        {1, nil},
		"another node": {0, nil},
		"unsigned":     {1, func(r *http.Request) { r.Header.Del(auth) }},
		"other range":  {1, func(r *http.Request) { r.Header.Set("Range", "bytes=0-1") }},
		"other source": {1, func(r *http.Request) { r.Header.Set("Roundhouse-Peer-Source", "http://127.0.0.1:1/") }},
		"other path":   {1, func(r *http.Request) { r.URL.Path = peers.Prefix + "ping" }},
		"other method": {1, func(r *http.Request) { r.Method = "POST" }},
		"other time":   {1, func(r *http.Request) { r.Header.Set(auth, "t=1"+r.Header.Get(auth)[3:]) }},
		"long":         {1, func(r *http.Request) { r.Header.Set(auth, strings.Repeat("t=1, n=2, m=3", 1000)) }},
	} {
		if got := send(c.node, last, c.edit); got.status != 401 || strings.Contains(got.body, string(data[:64])) {
			t.Errorf("%s: %d %.80q", name, got.status, got.body)
		}
	}
	if rr.nodes[1].metric("ring_requests_received_total", "refused") < 8 {
		t.Error("refusals are not counted")
	}
	// Nothing below the peers' path ever reaches the Hub, in a ring or not.
	alone := newRig(t, nil)
	for _, p := range []string{"ping", "blobs/" + etag, "../api/whoami-v2", ""} {
		if got := alone.get(peers.Prefix + p); got.status != 404 && got.status != 400 {
			t.Errorf("%s: %d", p, got.status)
		}
	}
	if got := alone.hub.Requests(); len(got) != 0 {
		t.Errorf("the Hub was asked %v", got)
	}
}

// TestRingBadSources: what a node tells another to fetch from is held to what is
// followed from the Hub, and good for a while.
func TestRingBadSources(t *testing.T) {
	rr := newRingRig(t, 1, nil)
	data := random(2 << 20)
	_, etag, _ := rr.blob("m", data)
	group, err := peers.New(rr.nodes[0].cfg.Ring)
	if err != nil {
		t.Fatal(err)
	}
	for source, want := range map[string]string{
		"":                           reasonSource,
		"ftp://127.0.0.1/x":          reasonBad,
		"http://user:pw@127.0.0.1/x": reasonBad,
		"//127.0.0.1/x":              reasonBad,
		"/api/whoami-v2":             reasonBad,
		"/org/m/resolve/main/w.bin":  reasonBad, // a branch may move
		"/org/m/resolve/../../etc":   reasonBad,
		"http:///x":                  reasonBad,
		"x":                          reasonBad,
		rr.hub.URL + "/no/such/path": reasonSource,
		"/org/none/resolve/" + strings.Repeat("a", 40) + "/w.bin": reasonSource,
	} {
		answer, err := group.Get(t.Context(), rr.names[0], peers.Question{Hash: etag, Size: int64(len(data)), To: int64(len(data)), Source: source})
		if err != nil || answer.Reason != want {
			t.Errorf("%q: %v, %v, want %q", source, answer, err, want)
		}
	}
	// A size that the content does not have costs it neither its place nor others
	// their download.
	n := rr.nodes[0]
	n.wants(n.get("/org/m/resolve/main/w.bin"), 200, string(data))
	rr.wantsHas(etag, 0)
	answer, err := group.Get(t.Context(), rr.names[0], peers.Question{Hash: etag, Size: 5, To: 5})
	if err != nil || answer.Reason != reasonBad {
		t.Errorf("another size: %v, %v", answer, err)
	}
	rr.wantsHas(etag, 0)
	// Over https the Hub's word is not followed to http.
	c := &Cache{base: mustURL(t, "https://hub.example")}
	if _, err := c.parseSource("http://storage.example/x"); err == nil {
		t.Error("from https to http")
	}
	if _, err := c.parseSource("https://storage.example/" + strings.Repeat("x", maxSource)); err == nil {
		t.Error("a source without end")
	}
}

// TestRingStaleSource: the address at the storage ends in the middle of a download;
// the node that asked gets another, and its client notices nothing.
func TestRingStaleSource(t *testing.T) {
	rr := newRingRig(t, 2, nil)
	data := rr.owned(1, 4<<20)
	path, etag, _ := rr.blob("m", data)
	// The storage breaks off once, and then knows the first address no more.
	rr.hub.Fail(hubtest.Faults{CutAfter: 2 << 20, Cuts: 1, Addresses: 1})
	n := rr.nodes[0]
	n.wants(n.get(path), 200, string(data))
	rr.wantsHas(etag, 1)
	if got := n.metric("ring_requests_sent_total", "broken"); got != 1 {
		t.Errorf("%v broken requests", got)
	}
	if got := rr.hub.Sent(); got > int64(len(data)+2*chunk) {
		t.Errorf("%d bytes came from the Hub for %d", got, len(data))
	}
}

// TestRingClientLeaves: who goes in the middle leaves nothing behind.
func TestRingClientLeaves(t *testing.T) {
	rr := newRingRig(t, 2, func(c *Config) { c.Linger = 1 })
	data := rr.owned(1, 4<<20)
	path, _, _ := rr.blob("m", data)
	hold := make(chan struct{})
	defer close(hold)
	rr.hub.Fail(hubtest.Faults{Hold: hold, HoldAfter: 1 << 20})
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", rr.nodes[0].url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 1<<19)); err != nil {
		t.Fatal(err)
	}
	leave()
	rr.nodes[1].settle() // the download ends, for nobody waits
	if got := rr.nodes[0].metric("ring_nodes_ejected"); got != 0 {
		t.Error("the owner is blamed for a client that left")
	}
}
