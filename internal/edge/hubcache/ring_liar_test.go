package hubcache

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/hubcache/peers"
)

// liar is a node that knows the secret and does as it likes.
func liar(t *testing.T, blob func(*peers.Request, http.ResponseWriter, *http.Request, peers.Question), rest func(http.ResponseWriter, *http.Request) bool) (url string, join func(all []string)) {
	t.Helper()
	var group *peers.Group
	ready := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-ready
		if rest != nil && rest(w, r) {
			return
		}
		group.Serve(w, r, blob, func(string) {})
	}))
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	return srv.URL, func(all []string) {
		cfg := peers.DefaultConfig()
		cfg.Self, cfg.Peers, cfg.Secrets = srv.URL, all, []string{ringSecret}
		var err error
		if group, err = peers.New(cfg); err != nil {
			t.Fatal(err)
		}
		close(ready)
	}
}

// TestRingLiars: a node that sends what was not asked for, less, other bytes, or
// nothing for ever. Clients have the right bytes but where wrong ones went out
// already: then never the last, and asked again they have them.
func TestRingLiars(t *testing.T) {
	type blobHandler = func(*peers.Request, http.ResponseWriter, *http.Request, peers.Question)
	answer := func(v *peers.Request, w http.ResponseWriter, hash string, length int64, body []byte, wait <-chan struct{}) {
		w.Header().Set("Etag", `"`+hash+`"`)
		w.Header().Set("Content-Length", fmt.Sprint(length))
		v.Sign(w.Header(), 200)
		w.WriteHeader(200)
		_, _ = w.Write(body[:min(int64(len(body)), length)])
		if wait != nil {
			_ = http.NewResponseController(w).Flush()
			<-wait
		}
		panic(http.ErrAbortHandler)
	}
	const size = 2 << 20
	other := random(size + 1)[:size]
	for name, c := range map[string]struct {
		blob   blobHandler
		result string // of ring_requests_sent_total
		breaks bool   // the first client's answer breaks off
		rest   func(http.ResponseWriter, *http.Request) bool
	}{
		"other bytes": {result: "wrong", breaks: true, blob: func(v *peers.Request, w http.ResponseWriter, _ *http.Request, q peers.Question) {
			answer(v, w, q.Hash, q.Size, other, nil)
		}},
		"said to be longer": {result: "malformed", blob: func(v *peers.Request, w http.ResponseWriter, _ *http.Request, q peers.Question) {
			answer(v, w, q.Hash, q.Size+1, other, nil)
		}},
		"said to be shorter": {result: "malformed", blob: func(v *peers.Request, w http.ResponseWriter, _ *http.Request, q peers.Question) {
			answer(v, w, q.Hash, q.Size-1, other, nil)
		}},
		"of another hash": {result: "malformed", blob: func(v *peers.Request, w http.ResponseWriter, _ *http.Request, q peers.Question) {
			answer(v, w, strings.Repeat("0", 64), q.Size, other, nil)
		}},
		"too short": {result: "dead", blob: func(v *peers.Request, w http.ResponseWriter, _ *http.Request, q peers.Question) {
			answer(v, w, q.Hash, q.Size, []byte("x"), nil)
		}},
		"a status of its own": {result: "malformed", blob: func(v *peers.Request, w http.ResponseWriter, _ *http.Request, _ peers.Question) {
			w.Header().Set("Content-Length", "0")
			v.Sign(w.Header(), 204)
			w.WriteHeader(204)
		}},
		"reasons without end": {result: "declined", blob: func(v *peers.Request, w http.ResponseWriter, _ *http.Request, _ peers.Question) {
			v.Decline(w, 404, reasonSource)
		}},
		"unsigned": {result: "refused", rest: func(w http.ResponseWriter, _ *http.Request) bool {
			_, _ = w.Write(other)
			return true
		}},
		"no such node": {result: "refused", rest: func(w http.ResponseWriter, _ *http.Request) bool {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return true
		}},
		"a redirect": {result: "refused", rest: func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
			return true
		}},
	} {
		t.Run(name, func(t *testing.T) {
			url, join := liar(t, c.blob, c.rest)
			rr := newRingRig(t, 1, nil, url)
			join(rr.nodes[0].cfg.Ring.Peers)
			data := rr.owned(-1, size-2)
			path, etag, _ := rr.blob("m", data)
			n := rr.nodes[0]
			got := n.get(path)
			if c.breaks {
				if got.err == nil || len(got.body) >= len(data) {
					t.Fatalf("wrong bytes went out whole: %d", len(got.body))
				}
				got = n.get(path, "Range: bytes="+strconv.Itoa(len(got.body))+"-")
			}
			n.wants(got, 200, string(data))
			if n.metric("ring_requests_sent_total", c.result) == 0 {
				t.Errorf("requests to nodes: no %q", c.result)
			}
			rr.wantsHas(etag, 0)
			n.wants(n.get(path), 200, string(data))
		})
	}
}

// TestRingLiesAndGoes: a node sends wrong bytes and goes before they can be told;
// the rest comes from elsewhere, and the client does not take it for whole.
func TestRingLiesAndGoes(t *testing.T) {
	for name, sent := range map[string]int{"the rest is followed": 1 << 20, "the rest is not kept": near + 1<<20} {
		t.Run(name, func(t *testing.T) {
			url, join := liar(t, func(v *peers.Request, w http.ResponseWriter, r *http.Request, q peers.Question) {
				if r.Header.Get("Range") != "" {
					v.Decline(w, http.StatusNotFound, reasonFar)
					return
				}
				w.Header().Set("Etag", `"`+q.Hash+`"`)
				w.Header().Set("Content-Length", fmt.Sprint(q.Size))
				v.Sign(w.Header(), http.StatusOK)
				w.WriteHeader(http.StatusOK)
				_, _ = w.Write(make([]byte, sent))
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			}, nil)
			rr := newRingRig(t, 1, nil, url)
			join(rr.nodes[0].cfg.Ring.Peers)
			data := rr.owned(-1, near+3<<20)
			path, etag, _ := rr.blob("m", data)
			n := rr.nodes[0]
			got := n.get(path)
			if got.err == nil || len(got.body) >= len(data) {
				t.Fatalf("wrong bytes went out whole: status %d, %d bytes", got.status, len(got.body))
			}
			if n.metric("ring_requests_sent_total", "wrong") != 1 {
				t.Error("the node is not blamed")
			}
			n.wants(n.get(path, "Range: bytes="+strconv.Itoa(len(got.body))+"-"), 200, string(data))
			rr.wantsHas(etag, 0)
		})
	}
}

// TestRingSilent: a node that takes a question and never answers, and one that
// sends a byte now and then.
func TestRingSilent(t *testing.T) {
	for name, drip := range map[string]bool{"silent": false, "drips": true} {
		t.Run(name, func(t *testing.T) {
			over := make(chan struct{})
			url, join := liar(t, func(v *peers.Request, w http.ResponseWriter, r *http.Request, q peers.Question) {
				if drip {
					w.Header().Set("Etag", `"`+q.Hash+`"`)
					w.Header().Set("Content-Length", fmt.Sprint(q.Size))
					v.Sign(w.Header(), 200)
					w.WriteHeader(200)
				}
				tick := time.NewTicker(20 * time.Millisecond)
				defer tick.Stop()
				for {
					select {
					case <-tick.C:
						if drip {
							_, _ = w.Write([]byte{0})
							_ = http.NewResponseController(w).Flush()
						}
					case <-over:
						return
					case <-r.Context().Done():
						return
					}
				}
			}, nil)
			defer close(over)
			rr := newRingRig(t, 1, func(c *Config) {
				c.Ring.AnswerTimeout, c.Ring.StallTimeout = 100*time.Millisecond, 300*time.Millisecond
			}, url)
			join(rr.nodes[0].cfg.Ring.Peers)
			data := rr.owned(-1, 2<<20)
			if drip { // what came by drips goes out: it must be right
				data = append(make([]byte, 1<<20), data...)
				for rr.order(hashOf(data))[0] != -1 {
					data = append(data, 1)
				}
			}
			path, _, _ := rr.blob("m", data)
			rr.nodes[0].wants(rr.nodes[0].get(path), 200, string(data))
			if rr.nodes[0].metric("ring_requests_sent_total", "slow") == 0 {
				t.Error("it is not taken for slow")
			}
		})
	}
}
