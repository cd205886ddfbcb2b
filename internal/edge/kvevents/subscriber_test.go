package kvevents

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/kvblocks"
	"roundhouse.dev/roundhouse/internal/edge/simulate"
)

// recorder is a Sink that follows an engine.
type recorder struct {
	mu     sync.Mutex
	engine kvblocks.Engine
	resets int
	events int
	news   chan struct{}
}

func newRecorder() *recorder { return &recorder{news: make(chan struct{}, 1)} }

func (r *recorder) KVEvent(_ string, e *kvblocks.Event) {
	r.mu.Lock()
	r.engine.Apply(e, nil, nil)
	r.events++
	r.mu.Unlock()
	r.tell()
}

func (r *recorder) KVReset(string) {
	r.mu.Lock()
	r.engine = kvblocks.Engine{}
	r.resets++
	r.mu.Unlock()
	r.tell()
}

func (r *recorder) tell() {
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// until waits until f is true.
func (r *recorder) until(t *testing.T, what string, f func() bool) {
	t.Helper()
	late := time.After(20 * time.Second)
	for {
		r.mu.Lock()
		ok := f()
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-r.news:
		case <-late:
			t.Fatalf("not in 20 s: %s (%d events, %d blocks, %d resets)", what, r.events, r.engine.Len(), r.resets)
		}
	}
}

func follow(t *testing.T, sink Sink, sources ...Source) *Subscriber {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Sink, cfg.Pause, cfg.MaxPause = sink, time.Millisecond, 20*time.Millisecond
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if err := s.SetPool("p", sources); err != nil {
		t.Fatal(err)
	}
	return s
}

// freeAddress is an address that nobody listens at.
func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// engine runs a simulated engine that publishes, until stop.
func engine(t *testing.T, publish, replay string) (url string, stop func()) {
	t.Helper()
	cfg := simulate.DefaultConfig()
	cfg.KVEvents, cfg.KVReplay, cfg.KVTopic, cfg.Speed, cfg.Physics.KVBlocks = publish, replay, "kv@sim", 1000, 256
	return serve(t, cfg)
}

// serve runs a simulated engine, until stop.
func serve(t *testing.T, cfg simulate.Config) (url string, stop func()) {
	t.Helper()
	e, err := simulate.New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Serve(ctx, l) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return "http://" + l.Addr().String(), stop
}

func post(t *testing.T, url, body string) []byte {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	out, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s: %d %s %v", url, resp.StatusCode, out, err)
	}
	return out
}

func ask(t *testing.T, url string, words int) {
	t.Helper()
	post(t, url+"/v1/completions", fmt.Sprintf(`{"model":"simulated","prompt":%q,"max_tokens":4,"ignore_eos":true}`, strings.Repeat("word ", words)))
}

// TestFollowsAnEngine: what is held is what the engine holds, also of before the
// subscription, after evictions, and after the engine began anew.
func TestFollowsAnEngine(t *testing.T) {
	publish, replay := freeAddress(t), freeAddress(t)
	url, stop := engine(t, publish, replay)
	ask(t, url, 640) // 50 blocks
	sink := newRecorder()
	s := follow(t, sink, Source{ID: "e", Address: publish, Replay: replay, Topic: "kv@"})
	sink.until(t, "the blocks of before", func() bool { return sink.engine.Len() == 50 })

	var answer struct{ Tokens []uint32 }
	if err := json.Unmarshal(post(t, url+"/tokenize", fmt.Sprintf(`{"model":"simulated","prompt":%q}`, strings.Repeat("word ", 640))), &answer); err != nil {
		t.Fatal(err)
	}
	var a kvblocks.Alignment
	p := kvblocks.Prompt{BlockBytes: 256, Bytes: 3200, Tokens: answer.Tokens, BlockTokens: sink.engine.BlockTokens()}
	for i := range 12 {
		p.Texts = append(p.Texts, uint64(i))
	}
	held := 0
	a.Learn(&p, func(_, chain uint64) {
		if sink.engine.Holds(chain) {
			held++
		}
	})
	if held != 12 {
		t.Errorf("%d of 12 blocks of the prompt's text are held", held)
	}

	ask(t, url, 2560) // 200 blocks of 256, 50 of them the same
	ask(t, url, 640)
	sink.until(t, "the longer prompt", func() bool { return sink.engine.Len() >= 200 && sink.engine.Len() <= 256 })
	post(t, url+"/v1/completions", fmt.Sprintf(`{"model":"simulated","prompt":%q,"max_tokens":4}`, strings.Repeat("else ", 3000)))
	sink.until(t, "the eviction", func() bool { return sink.engine.Len() <= 256 && sink.engine.Len() > 230 })

	before := sink.resets
	stop()
	url, _ = engine(t, publish, replay)
	ask(t, url, 320)
	sink.until(t, "the next process", func() bool { return sink.resets > before && sink.engine.Len() == 25 })
	got := counted(t, s, "e", func(m map[string]float64) bool { return m["replays_total complete"] >= 2 })
	if got["failures_total lost"] < 1 || got["failures_total malformed"] != 0 || got["replays_total stale"] != 1 || got["exact"] != 1 ||
		got["read_total stored"] < 3 || got["blocks_total stored"] < 50+200+25 || got["blocks_total removed"] < 1 {
		t.Errorf("the metrics say %v", got)
	}
}

// counted are the metrics of an endpoint, without their prefix and with the label
// besides service and endpoint, once they are as wanted. The sink hears of a thing
// before it is counted.
func counted(t *testing.T, s *Subscriber, endpoint string, wanted func(map[string]float64) bool) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(s)
	for late := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := strings.TrimPrefix(f.GetName(), "roundhouse_kv_events_")
				labels := map[string]string{}
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = l.GetValue()
				}
				if labels["endpoint"] != endpoint {
					continue
				}
				got["of "+labels["service"]]++
				delete(labels, "endpoint")
				delete(labels, "service")
				for _, v := range labels {
					name += " " + v
				}
				got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
		if wanted(got) {
			return got
		}
		if time.Now().After(late) {
			t.Fatalf("not in 20 s: the metrics say %v", got)
		}
	}
}

// storedBatch is a batch with block n, without a parent.
func storedBatch(n byte) []byte {
	return []byte("\x93\x01\x91\x96\xabBlockStored\x91" + string(n) + "\xc0\x91" + string(n) + "\x01\xc0\x00")
}

// TestWithoutReplay: after a lost connection nothing of before counts.
func TestWithoutReplay(t *testing.T) {
	var sent atomic.Uint32
	pub := script(t, "PUB", func(z *conn) {
		_, _ = z.message() // the subscription
		if n := sent.Add(1); n <= 2 {
			_ = z.send(nil, binary.BigEndian.AppendUint64(nil, uint64(n)), storedBatch(byte(n)))
		}
		if sent.Load() > 1 {
			_, _ = z.message() // until the client is gone
		}
	})
	sink := newRecorder()
	follow(t, sink, Source{ID: "e", Address: pub})
	sink.until(t, "the second block alone", func() bool { return sink.events == 2 && sink.resets >= 1 && sink.engine.Len() == 1 })
}

// TestGaps: batches that were missed are asked for; without an answer what is
// known is dropped.
func TestGaps(t *testing.T) {
	for _, lost := range []bool{false, true} {
		pub := script(t, "PUB", func(z *conn) {
			if m, err := z.message(); err != nil || string(m[0]) != "\x01" {
				t.Errorf("the subscription is %q, %v", m, err)
			}
			for _, n := range []byte{0, 1, 4} { // 2 and 3 are lost
				_ = z.send([]byte("topic"), binary.BigEndian.AppendUint64(nil, uint64(n)), storedBatch(n))
			}
			_, _ = z.message() // until the client is gone
		})
		router := script(t, "ROUTER", func(z *conn) {
			m, err := z.message()
			if err != nil || len(m) != 2 || len(m[0]) != 0 {
				t.Errorf("the question is %q, %v", m, err)
				return
			}
			from := binary.BigEndian.Uint64(m[1])
			for n := from; n < 5 && from > 0 && !lost; n++ { // at first there is nothing
				_ = z.send(nil, binary.BigEndian.AppendUint64(nil, n), storedBatch(byte(n)))
			}
			_ = z.send(nil, bytes.Repeat([]byte{0xff}, 8), nil)
		})
		sink := newRecorder()
		s := follow(t, sink, Source{ID: "e", Address: pub, Replay: router})
		want, resets := 5, 0
		if lost {
			want, resets = 1, 1
		}
		sink.until(t, "the last batch", func() bool { return sink.engine.Len() == want && sink.events >= 3 && sink.resets == resets })
		// The first question is before any batch.
		whole, part := 2., 0.
		if lost {
			whole, part = 1, 1
		}
		counted(t, s, "e", func(m map[string]float64) bool {
			return m["gaps_total"] == 1 && m["replays_total complete"] == whole && m["replays_total partial"] == part &&
				m["blocks_total stored"] == m["read_total stored"] && m["failures_total malformed"] == 0
		})
	}
}

// script is a ZeroMQ server whose connections do as f says.
func script(t *testing.T, socket string, f func(z *conn)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var open sync.WaitGroup
	open.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open.Go(func() {
				defer func() { _ = c.Close() }()
				if z, err := handshake(c, socket); err == nil {
					f(z)
				}
			})
		}
	})
	t.Cleanup(func() { _ = l.Close() }) // connections end with the subscriber
	return l.Addr().String()
}

// TestHostilePublishers: whatever a server sends, it costs neither memory nor
// more than a connection at a time.
func TestHostilePublishers(t *testing.T) {
	greeting := append([]byte("\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL"), make([]byte, 48)...)
	ready := "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"
	for name, c := range map[string]struct {
		says string
		why  reason
	}{
		"HTTP":                 {"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\nX-Padding: 0123456789\r\n\r\n", unreachable},
		"another mechanism":    {strings.Replace(string(greeting), "NULL", "CURV", 1), unreachable},
		"an old version":       {strings.Replace(string(greeting), "\x7f\x03", "\x7f\x01", 1), unreachable},
		"an error":             {string(greeting) + "\x04\x0a\x05ERROR\x03no!", unreachable},
		"a huge frame":         {string(greeting) + ready + "\x02\x7f\xff\xff\xff\xff\xff\xff\xff", malformed},
		"unknown flags":        {string(greeting) + ready + "\xf0\x00", malformed},
		"too many frames":      {string(greeting) + ready + strings.Repeat("\x01\x00", 100), malformed},
		"a message too short":  {string(greeting) + ready + "\x00\x01x", malformed},
		"no MessagePack":       {string(greeting) + ready + "\x01\x00\x01\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\xc1", malformed},
		"a command in between": {string(greeting) + ready + "\x01\x00\x04\x01x", malformed},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, server) }()
			t.Cleanup(func() { _ = server.Close() }) // not before: what it says is what fails
			go func() { _, _ = server.Write([]byte(c.says)) }()
			s := &subscription{counts: &counts{}, cfg: &Config{Sink: newRecorder(), Dial: func(context.Context, string, string) (net.Conn, error) { return client, nil }}, source: Source{Address: "peer:1"}}
			if err := s.follow(t.Context()); err == nil || reasonOf(err) != c.why {
				t.Errorf("it is %q (%v), want %q", reasonLabels[reasonOf(err)], err, reasonLabels[c.why])
			}
		})
	}
}

func TestSetPool(t *testing.T) {
	sink := newRecorder()
	s := follow(t, sink, Source{ID: "a", Address: "127.0.0.1:1"}, Source{ID: "b", Address: "127.0.0.1:1", Service: "ns/s"})
	none := func(m map[string]float64) bool { return len(m) == 0 }
	counted(t, s, "a", func(m map[string]float64) bool { return m["failures_total unreachable"] > 1 && m["of "] > 0 })
	failures := counted(t, s, "b", func(m map[string]float64) bool { return m["failures_total unreachable"] > 1 && m["of ns/s"] > 0 })
	count := func() int { s.mu.Lock(); defer s.mu.Unlock(); return len(s.sources) }
	_ = s.SetPool("q", []Source{{ID: "b", Address: "127.0.0.1:2"}})
	_ = s.SetPool("p", nil)
	counted(t, s, "a", none)
	counted(t, s, "b", func(m map[string]float64) bool { // at another address it is the same endpoint
		return m["failures_total unreachable"] >= failures["failures_total unreachable"]
	})
	if count() != 1 {
		t.Errorf("%d endpoints are followed, want b", count())
	}
	sink.until(t, "the reset of a", func() bool { return sink.resets > 0 })
	var many []Source
	for i := range maxSources + 1 {
		many = append(many, Source{ID: fmt.Sprint(i), Address: "127.0.0.1:1"})
	}
	if err := s.SetPool("p", many); err == nil || count() > maxSources {
		t.Errorf("%d endpoints are followed, error %v", count(), err)
	}
}

func TestTokenizer(t *testing.T) {
	calls := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		if body, _ := io.ReadAll(r.Body); r.URL.Path != "/tokenize" || string(body) != "{}" {
			t.Errorf("%s %s", r.URL, body)
		}
		if calls > 1 {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, `{"count":2,"tokens":[5,70000],"max_model_len":100}`)
	}))
	defer srv.Close()
	at := strings.TrimPrefix(srv.URL, "http://")
	k := NewTokenizer()
	defer k.Close()
	got := make(chan []uint32, 1)
	if !k.Tokenize(at, "/v1/completions", []byte("{}"), func(tokens []uint32) { got <- tokens }) {
		t.Fatal("refused")
	}
	if tokens := <-got; len(tokens) != 2 || tokens[1] != 70000 {
		t.Errorf("the tokens are %v", tokens)
	}
	// An engine without the call is asked once.
	if !k.Tokenize(at, "/v1/completions", []byte("{}"), func([]uint32) { t.Error("an error has tokens") }) {
		t.Fatal("refused")
	}
	for deadline := time.Now().Add(10 * time.Second); !k.refused(at); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is asked again")
		}
	}
	if k.Tokenize(at, "/v1/completions", []byte("{}"), nil) || k.Tokenize("127.0.0.1:1", "/v1/completions", make([]byte, tokenizeBytes+1), nil) {
		t.Error("an engine that does not tokenize, or too large a body, is not refused")
	}
	if !k.Tokenize("127.0.0.1:1", "/v1/completions", []byte("{}"), nil) {
		t.Error("an engine that is not there is refused before it was asked")
	}
	for label, want := range map[string]float64{"tokenized": 1, "refused": 2, "skipped": 1, "failed": 1} {
		for deadline := time.Now().Add(10 * time.Second); testutil.ToFloat64(k.prompts.WithLabelValues(label)) != want; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%v prompts are %s, want %v", testutil.ToFloat64(k.prompts.WithLabelValues(label)), label, want)
			}
		}
	}
}

// TestTokenizesAsChats: the tokens of a call of the Responses or the Messages API are
// those of the chat that engines make of it.
func TestTokenizesAsChats(t *testing.T) {
	var cases []struct {
		Name, Path string
		Body, Chat json.RawMessage
	}
	raw, err := os.ReadFile("../../core/openai/testdata/chats.json")
	if err == nil {
		err = json.Unmarshal(raw, &cases)
	}
	if err != nil {
		t.Fatal(err)
	}
	cfg := simulate.DefaultConfig()
	cfg.Models = []string{"m"}
	url, _ := serve(t, cfg)
	k := NewTokenizer()
	defer k.Close()
	unlike := 0.
	for _, c := range cases {
		got := make(chan []uint32, 1)
		if !k.Tokenize(strings.TrimPrefix(url, "http://"), c.Path, c.Body, func(tokens []uint32) { got <- tokens }) {
			t.Fatalf("%s: refused", c.Name)
		}
		if string(c.Chat) == "null" {
			unlike++
			continue
		}
		chat, _ := openai.AsChat(c.Path, c.Body) // c.Chat, but written as it is sent
		var want struct{ Tokens []uint32 }
		if err := json.Unmarshal(post(t, url+"/tokenize", string(chat)), &want); err != nil {
			t.Fatal(err)
		}
		select {
		case tokens := <-got:
			if len(tokens) == 0 || !slices.Equal(tokens, want.Tokens) {
				t.Errorf("%s: the tokens are %v, want %v", c.Name, tokens, want.Tokens)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s: no tokens", c.Name)
		}
	}
	for deadline := time.Now().Add(20 * time.Second); testutil.ToFloat64(k.prompts.WithLabelValues("unsupported")) != unlike; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%v prompts are unsupported, want %v", testutil.ToFloat64(k.prompts.WithLabelValues("unsupported")), unlike)
		}
	}
}

// freeRun is a free address of which the next port is free too.
func freeRun(t *testing.T) (first, second string) {
	for {
		first = freeAddress(t)
		second = replica.OffsetPort(first, 1)
		if l, err := net.Listen("tcp", second); err == nil {
			_ = l.Close()
			return first, second
		}
	}
}

// TestFollowsEachRank: data-parallel ranks publish at ports that follow one another, each
// what it holds itself.
func TestFollowsEachRank(t *testing.T) {
	var publish, replay [2]string
	publish[0], publish[1] = freeRun(t)
	replay[0], replay[1] = freeRun(t)
	cfg := simulate.DefaultConfig()
	cfg.DataParallelSize, cfg.Speed, cfg.KVEvents, cfg.KVReplay = 2, 1000, publish[0], replay[0]
	url, _ := serve(t, cfg)
	for rank, words := range []int{640, 320} { // 50 blocks, and 25
		body := fmt.Sprintf(`{"model":"simulated","prompt":%q,"max_tokens":4,"ignore_eos":true}`, strings.Repeat("word ", words))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(routing.HeaderRank, strconv.Itoa(rank))
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		sink := newRecorder()
		follow(t, sink, Source{ID: replica.RankID("e", rank), Address: publish[rank], Replay: replay[rank]})
		sink.until(t, fmt.Sprintf("the blocks of rank %d", rank), func() bool { return sink.engine.Len() == words*5/64 })
	}
}
