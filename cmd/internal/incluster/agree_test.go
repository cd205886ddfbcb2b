package incluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/kube/demand"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

const (
	conversations = 24
	turns         = 8
	engines       = 4
)

// chats are engines that answer a turn of a conversation once that turn of every
// conversation has arrived: all of a turn is in flight at once.
type chats struct {
	servers [engines]*httptest.Server
	mu      sync.Mutex
	arrived int
	all     chan struct{} // closed when all have
	where   [conversations]int
	held    [engines][conversations]int // bytes of the longest prompt
}

func newChats(t *testing.T) *chats {
	c := &chats{all: make(chan struct{})}
	for i := range c.servers {
		c.servers[i] = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/completions" {
				http.NotFound(w, r)
				return
			}
			body, _ := io.ReadAll(r.Body)
			var n int
			_, text, _ := bytes.Cut(body, []byte("conversation "))
			if _, err := fmt.Sscanf(string(text), "%d", &n); err != nil || n >= conversations {
				http.Error(w, "which?", http.StatusBadRequest)
				return
			}
			c.mu.Lock()
			c.where[n], c.held[i][n] = i, max(c.held[i][n], len(text)+len("conversation ")-len(`"}`))
			all := c.all
			if c.arrived++; c.arrived == conversations {
				c.arrived, c.all = 0, make(chan struct{})
				close(all)
			}
			c.mu.Unlock()
			<-all
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"object":"text_completion","choices":[{"index":0,"text":"ok","finish_reason":"stop"}]}`)
		}))
		t.Cleanup(c.servers[i].Close)
	}
	return c
}

// turn sends a turn of every conversation and returns which engine had it.
func (c *chats) turn(ctx context.Context, t *testing.T, gateways []*running, turn int) [conversations]int {
	t.Helper()
	var all sync.WaitGroup
	for n := range conversations {
		text := fmt.Sprintf("conversation %d: ", n) + strings.Repeat("word ", 300*(turn+1))
		g := gateways[(n+turn)%len(gateways)]
		all.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+g.address()+"/v1/completions", strings.NewReader(`{"model":"chat","prompt":"`+text+`"}`))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := g.http.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
				t.Errorf("conversation %d, turn %d: %s %s %v", n, turn, resp.Status, body, err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.where
}

// blocks is how many blocks of prompts an engine was sent.
func (c *chats) blocks(engine int) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, bytes := range c.held[engine] {
		n += bytes / 256
	}
	return n
}

// kept is how many of the follow-up turns went to the engine of the turn before.
// between is called after each turn.
func (c *chats) kept(t *testing.T, gateways []*running, between func(turn int)) (kept int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	before := c.turn(ctx, t, gateways, 0)
	for turn := 1; turn < turns; turn++ {
		between(turn)
		now := c.turn(ctx, t, gateways, turn)
		for n := range now {
			if now[n] == before[n] {
				kept++
			}
		}
		before = now
	}
	return kept
}

// TestGatewaysAgree: two real gateways that take the turns of conversations in turn,
// and tell each other over the controllers what they sent, keep at least 95 % as many
// follow-up turns on their engines as one does. One of the controllers dies meanwhile.
func TestGatewaysAgree(t *testing.T) {
	const followUps = conversations * (turns - 1)
	for _, c := range []struct {
		name     string
		gateways int
		tell     bool
	}{{"one gateway", 1, false}, {"two that know nothing of each other", 2, false}, {"two", 2, true}} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			engines := newChats(t)
			port := func(i int) int32 { return int32(engines.servers[i].Listener.Addr().(*net.TCPAddr).Port) }
			chat := r.serveAs(service.ProtocolOpenAI, "chat", port(0), int32(len(engines.servers)))
			for i := range engines.servers {
				r.endpoint(chat, fmt.Sprintf("chat-engine-%d", i), port(i), true)
			}
			stop := func() {}
			if c.tell {
				user, token := r.account("gateway", demand.Audience)
				_, _, stop = r.stoppable("leader", user)
				r.controller("other", user)
				if err := os.WriteFile(r.path("token"), []byte(token), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var gateways []*running
			for i := range c.gateways {
				gateways = append(gateways, r.gateway(func(o *Options) { o.Pod = fmt.Sprintf("gateway-%d", i+1) }))
			}
			kept := engines.kept(t, gateways, func(turn int) {
				if !c.tell {
					return
				}
				if turn == turns/2 {
					stop()
				}
				kubetest.Eventually(t, func() string {
					for _, g := range gateways {
						for _, e := range g.traffic.Dispatcher.AllEndpoints() {
							if want := engines.blocks(int(e.ID[len(e.ID)-1] - '0')); e.Blocks != want {
								return fmt.Sprintf("%s knows %d blocks on %s, %d were sent", g.o.Pod, e.Blocks, e.ID, want)
							}
						}
					}
					return ""
				})
			})
			t.Logf("%d of %d follow-up turns kept", kept, followUps)
			if least := followUps * 95 / 100; kept < least && (c.tell || c.gateways == 1) {
				t.Errorf("%d of %d follow-up turns kept, want at least %d", kept, followUps, least)
			}
		})
	}
}
