package sharing

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"roundhouse.dev/roundhouse/internal/state/prompts"
)

const secret = "a secret of the test, of 32 bytes and more"

// gateway is a group of the test, and what it has heard.
type gateway struct {
	*Group
	address string
	mu      sync.Mutex
	knows   map[string]bool // endpoint/block
	changed chan struct{}
	end     func() // returns when it has ended
}

// listening is an address of this machine that a gateway will have.
func listening(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func start(t *testing.T, l net.Listener, secret string, peers ...string) *gateway {
	t.Helper()
	g := &gateway{address: l.Addr().String(), knows: map[string]bool{}, changed: make(chan struct{}, 1)}
	var err error
	log := slog.New(slog.NewTextHandler(g, nil))
	g.Group, err = NewGroup(Config{Peers: peers, Secret: []byte(secret), Log: log, Heard: func(endpoint string, blocks []uint64) {
		g.mu.Lock()
		for _, b := range blocks {
			g.knows[fmt.Sprint(endpoint, "/", b)] = true
		}
		g.mu.Unlock()
		g.change()
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx, l) }()
	g.end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(g.end)
	return g
}

func (g *gateway) change() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// Write takes a line of the log, which tells that a peer cannot be told.
func (g *gateway) Write(line []byte) (int, error) {
	g.change()
	return len(line), nil
}

// hears waits until a gateway knows of blocks.
func (g *gateway) hears(t *testing.T, want ...string) {
	t.Helper()
	for deadline := time.After(30 * time.Second); ; {
		g.mu.Lock()
		missing := slices.DeleteFunc(slices.Clone(want), func(b string) bool { return g.knows[b] })
		g.mu.Unlock()
		if len(missing) == 0 {
			return
		}
		select {
		case <-g.changed:
		case <-deadline:
			t.Fatalf("not heard of: %v", missing)
		}
	}
}

// TestGroup: what one gateway sends all others hear of, also one that was away, which is
// told all. A gateway may be listed among its own peers, and hears nothing of itself.
func TestGroup(t *testing.T) {
	listeners := []net.Listener{listening(t), listening(t), listening(t)}
	var all []string
	for _, l := range listeners {
		all = append(all, l.Addr().String())
	}
	a, b, c := start(t, listeners[0], secret, all...), start(t, listeners[1], secret, all...), start(t, listeners[2], secret, all...)
	a.Sent("one", []uint64{1, 2})
	b.Sent("two", []uint64{3})
	a.hears(t, "two/3")
	b.hears(t, "one/1", "one/2")
	c.hears(t, "one/1", "one/2", "two/3")

	c.end()
	a.Sent("one", []uint64{4})
	b.hears(t, "one/4")
	again, err := net.Listen("tcp", c.address)
	if err != nil {
		t.Fatal(err)
	}
	c = start(t, again, secret, all...)
	a.Sent("one", []uint64{5})
	c.hears(t, "one/1", "one/2", "one/4", "one/5")

	big := make([]uint64, 15_000) // of which one message holds a part
	for i := range big {
		big[i] = uint64(100 + i)
	}
	for part := range slices.Chunk(big, 1_000) {
		a.Sent("one", part)
	}
	c.hears(t, "one/100", fmt.Sprint("one/", 100+len(big)-1))
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.knows) != 1 {
		t.Errorf("the first heard of its own prompts: %d", len(a.knows))
	}
}

// TestSecret: who has another secret neither tells nor is told, and who has none is not
// even answered.
func TestSecret(t *testing.T) {
	mine, theirs := listening(t), listening(t)
	a := start(t, mine, secret, theirs.Addr().String())
	b := start(t, theirs, strings.ToUpper(secret), mine.Addr().String())
	a.Sent("one", []uint64{1})
	b.Sent("two", []uint64{2})
	for _, g := range []*gateway{a, b} {
		for deadline := time.After(30 * time.Second); testutil.ToFloat64(g.failing) != 1; {
			select {
			case <-g.changed:
			case <-deadline:
				t.Fatal("a peer with another secret is told")
			}
		}
		if g.mu.Lock(); len(g.knows) != 0 {
			t.Errorf("heard of %v", g.knows)
		}
		g.mu.Unlock()
	}
	conn, err := tls.Dial("tcp", a.address, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}) //nolint:gosec // it is the attacker
	if err == nil {
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", Path)
		if err == nil {
			_, err = io.ReadFull(conn, make([]byte, 1))
		}
		_ = conn.Close()
	}
	if err == nil {
		t.Error("a client without the secret is answered")
	}
}

// TestRefused: what no gateway of ours would tell is refused as a whole.
func TestRefused(t *testing.T) {
	l := listening(t)
	g := start(t, l, secret, "127.0.0.1:1")
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: g.tls}}
	defer client.CloseIdleConnections()
	valid := prompts.Prompt{Endpoint: "one", Blocks: make([]byte, 8)}
	for name, body := range map[string]any{
		"half a block":    message{5, []prompts.Prompt{valid, {Endpoint: "one", Blocks: make([]byte, 7)}}},
		"no endpoint":     message{5, []prompts.Prompt{valid, {Blocks: make([]byte, 8)}}},
		"of the future":   message{5, []prompts.Prompt{valid, {Endpoint: "one", Blocks: make([]byte, 8), Ago: -1}}},
		"too much":        message{5, []prompts.Prompt{valid, {Endpoint: "one", Blocks: make([]byte, prompts.MaxTold)}}},
		"larger than any": strings.Repeat("x", maxBody+1),
		"no object":       []int{1},
	} {
		raw, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Post("https://"+g.address+Path, "application/json", bytes.NewReader(raw))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _ = resp.Body.Close(); resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s is answered %s", name, resp.Status)
		}
	}
	if g.mu.Lock(); len(g.knows) != 0 {
		t.Errorf("heard of %v", g.knows)
	}
	g.mu.Unlock()
}

func TestConfig(t *testing.T) {
	heard := func(string, []uint64) {}
	for want, cfg := range map[string]Config{
		"Peers and Heard": {Secret: []byte(secret), Heard: heard},
		"bytes: want 32":  {Peers: []string{"x:1"}, Secret: []byte("short"), Heard: heard},
		"want host:port":  {Peers: []string{"x"}, Secret: []byte(secret), Heard: heard},
		"want at most 32": {Peers: make([]string, maxPeers+1), Secret: []byte(secret), Heard: heard},
	} {
		if _, err := NewGroup(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", cfg, err, want)
		}
	}
}
