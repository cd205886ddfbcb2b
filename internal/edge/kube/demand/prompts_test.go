package demand

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/state/prompts"
)

// wires are between gateways and controllers, without a network: a request or
// its answer can get lost.
type wires struct {
	controllers           map[string]*Server
	loseRequest, loseNext bool
	largest               int // answer
}

var errLost = errors.New("lost")

func (w *wires) RoundTrip(r *http.Request) (*http.Response, error) {
	s := w.controllers[r.URL.Host]
	if s == nil || w.loseRequest {
		return nil, errLost
	}
	out := httptest.NewRecorder()
	s.Handler().ServeHTTP(out, r)
	if w.loseNext {
		return nil, errLost
	}
	w.largest = max(w.largest, out.Body.Len())
	return out.Result(), nil
}

func wiredController(t testing.TB, change ...func(*Config)) *Server {
	t.Helper()
	cfg := DefaultConfig()
	for _, f := range change {
		f(&cfg)
	}
	cfg.Reviewer, cfg.Accounts = tokens{"good": {User: account}}, []string{account}
	s, err := NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// held is which blocks an endpoint is known to hold.
type held map[string]map[uint64]bool

func (h held) add(endpoint string, blocks []uint64) {
	if h[endpoint] == nil {
		h[endpoint] = map[uint64]bool{}
	}
	for _, b := range blocks {
		h[endpoint][b] = true
	}
}

// wiredGateway is a gateway whose reports are sent by hand, and what it has heard.
func wiredGateway(t testing.TB, w *wires, pod string, heard held) *Client {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("good"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := DefaultClientConfig()
	cfg.Pod, cfg.Token, cfg.Transport, cfg.Every = pod, token, w, 1
	cfg.Roots = func(context.Context) (*x509.CertPool, error) { return nil, errors.New("no TLS here") }
	cfg.InFlight = func(string) map[string]int { return nil }
	if heard != nil {
		cfg.Heard = heard.add
	}
	c, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.SetTargets(slices.Sorted(maps.Keys(w.controllers)))
	return c
}

func (c *Client) sendAll(t testing.TB) {
	for _, target := range c.mu.targets {
		if err := c.send(t.Context(), target); err != nil && !errors.Is(err, errLost) {
			t.Fatal(err)
		}
	}
}

// FuzzGatewaysAgree compares what gateways hear over two controllers, any of which
// may lose reports and answers, restart or be gone, with the union of what was sent.
func FuzzGatewaysAgree(f *testing.F) {
	f.Add([]byte("\x00\x11\x22\x33\x44\x55\x66\x77"))
	f.Add([]byte("aA0bB1cC2dD3eE4fF5\xff\xfe\xfd\x80\x81\x90\x91\xa0"))
	f.Add(bytes.Repeat([]byte{7, 0x31, 0x52, 0x83, 0xc4, 0xf5}, 20))
	f.Fuzz(func(t *testing.T, script []byte) {
		script = script[:min(len(script), 300)]
		w := &wires{controllers: map[string]*Server{"one": wiredController(t), "two": wiredController(t)}}
		var gateways []*Client
		knows := []held{{}, {}, {}}
		want := []held{{}, {}, {}}
		for i := range knows {
			gateways = append(gateways, wiredGateway(t, w, fmt.Sprintf("gw-%d", i), knows[i]))
		}
		for _, op := range script {
			who, what := int(op)%3, int(op)/3
			switch {
			case what < 50: // a prompt of some blocks
				endpoint, blocks := fmt.Sprint("pod-", what%4), []uint64{uint64(what / 4), uint64(what), uint64(op)}
				gateways[who].Sent(endpoint, blocks)
				for i := range want {
					if i != who {
						want[i].add(endpoint, blocks)
					}
				}
			case what < 70:
				w.loseRequest, w.loseNext = what%5 == 0, what%5 == 1
				gateways[who].sendAll(t)
				w.loseRequest, w.loseNext = false, false
			case what < 80:
				w.controllers[[]string{"one", "two"}[what%2]] = wiredController(t) // restarted
			default: // gone for a report, and back as it was
				name := []string{"one", "two"}[what%2]
				s := w.controllers[name]
				w.controllers[name] = nil
				gateways[who].sendAll(t)
				w.controllers[name] = s
			}
		}
		for range 4 { // what was asked for once more is told in the second
			for _, g := range gateways {
				g.sendAll(t)
			}
		}
		for i := range gateways {
			for endpoint, blocks := range want[i] {
				for b := range blocks {
					if !knows[i][endpoint][b] {
						t.Errorf("gateway %d did not hear of block %d on %s", i, b, endpoint)
					}
				}
			}
			for endpoint, blocks := range knows[i] {
				for b := range blocks {
					if !want[i][endpoint][b] {
						t.Errorf("gateway %d heard of block %d on %s, which no other sent", i, b, endpoint)
					}
				}
			}
		}
	})
}

// TestPromptsAreBounded: neither a gateway that tells without end nor one that is
// told all at once makes more than the bounds allow, and the newest stays.
func TestPromptsAreBounded(t *testing.T) {
	instant := time.Now()
	w := &wires{controllers: map[string]*Server{"one": wiredController(t, func(c *Config) { c.Now = func() time.Time { return instant } })}}
	heard := held{}
	teller, listener := wiredGateway(t, w, "a", held{}), wiredGateway(t, w, "b", heard)
	blocks := make([]uint64, 1024)
	for i := range 2000 { // 16 MiB
		for j := range blocks {
			blocks[j] = uint64(i)<<32 | uint64(j)
		}
		teller.Sent("pod", blocks)
	}
	for range 40 {
		teller.sendAll(t)
	}
	book := w.controllers["one"].mu.book
	took, n := 0, 0
	for all, next := book.prompts.Since(0, prompts.Source{}, 1<<30, instant); n < len(all); n++ {
		if took += all[n].Size(); next != book.prompts.Next() {
			t.Fatal("not all are listed")
		}
	}
	if took > 2*prompts.MaxTold || n == 0 {
		t.Errorf("a controller took %d bytes in an instant", took)
	}
	listener.sendAll(t)
	if w.largest > maxAnswerBytes || len(heard["pod"]) == 0 {
		t.Errorf("an answer of %d bytes; %d blocks heard", w.largest, len(heard["pod"]))
	}
}

// TestReleasesMeet: a gateway of an older release neither tells nor is told of
// prompts, and one that meets an older controller reports on.
func TestReleasesMeet(t *testing.T) {
	s := wiredController(t)
	w := &wires{controllers: map[string]*Server{"one": s}}
	g := wiredGateway(t, w, "new", held{})
	g.Sent("pod", []uint64{1, 2, 3})
	g.sendAll(t)
	ask := func(body string) (int, string) {
		r := httptest.NewRequest(http.MethodPost, Path, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer good")
		out := httptest.NewRecorder()
		s.Handler().ServeHTTP(out, r)
		return out.Code, strings.TrimSpace(out.Body.String())
	}
	if code, text := ask(`{"pod":"old","instance":5,"number":1,"full":true}`); code != http.StatusOK || text != "{}" {
		t.Errorf("an older gateway: %d %s", code, text)
	}
	if code, text := ask(`{"pod":"x","instance":5,"number":1,"full":true,"heard":0,"later":[1]}`); code != http.StatusOK || !strings.Contains(text, `"prompts":[{"e":"pod","b":"AQAAAAAAAAACAAAAAAAAAAMAAAAAAAAA"`) {
		t.Errorf("a newer gateway: %d %s", code, text)
	}
	for _, prompts := range []string{`[{"e":"","b":"AQAAAAAAAAA="}]`, `[{"e":"pod","b":"AQAA"}]`, `[{"e":"pod"}]`, `[{"e":"pod","b":"?"}]`, `[{"e":"pod","b":"AQAAAAAAAAA=","o":-1}]`,
		`[{"e":"` + strings.Repeat("x", maxNameBytes+1) + `","b":"AQAAAAAAAAA="}]`, `[{"e":"pod","b":"` + strings.Repeat("AAAA", prompts.MaxTold/4) + `"}]`} {
		if code, text := ask(`{"pod":"x","instance":5,"number":2,"heard":0,"prompts":` + prompts + `}`); code != http.StatusBadRequest {
			t.Errorf("prompts %.60s: %d %s", prompts, code, text)
		}
	}
	if all, _ := s.mu.book.prompts.Since(0, prompts.Source{}, maxHeardBytes, time.Now()); len(all) != 1 {
		t.Errorf("%d prompts are kept, one was told", len(all))
	}

	// What a controller tells that cannot be is left out, and the rest is heard.
	heard := held{}
	g = wiredGateway(t, w, "gw", heard)
	blocks := binary.LittleEndian.AppendUint64(nil, 7)
	g.heard([]prompts.Prompt{{Endpoint: "", Blocks: blocks}, {Endpoint: "p", Blocks: blocks[:5]}, {Endpoint: "p", Blocks: blocks, Ago: time.Hour.Milliseconds()}, {Endpoint: "q", Blocks: blocks}})
	if len(heard) != 1 || !heard["q"][7] {
		t.Errorf("heard %v", heard)
	}

	old := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, `{}`) })
	g.http.Transport = roundTrip(func(r *http.Request) *http.Response {
		out := httptest.NewRecorder()
		old(out, r)
		return out.Result()
	})
	g.Sent("pod", []uint64{4})
	g.sendAll(t)
	for _, target := range g.mu.targets {
		if !target.answered || target.told != g.teller.Next() {
			t.Errorf("an older controller answered %v, and was told up to %d of %d", target.answered, target.told, g.teller.Next())
		}
	}
}

type roundTrip func(*http.Request) *http.Response

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r), nil }
