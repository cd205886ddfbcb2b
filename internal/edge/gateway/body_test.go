package gateway

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// TestOneClientLocksNobodyOut: what a request states takes no memory, and one
// client's bodies leave room for others'.
func TestOneClientLocksNobodyOut(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) {
		c.MaxBodyBytes, c.MaxBufferedBytes, c.MaxReplayBytes, c.ClientTimeout = 1<<20, 4<<20, 1<<20, 30*time.Second
	})
	echo := replicaServer(t, func(w http.ResponseWriter, q *http.Request) { _, _ = io.Copy(w, q.Body) })
	r.d.SetPool(pool("chat", echo))
	from := func(local string) *http.Client {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}}
		tr := &http.Transport{DialContext: d.DialContext}
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr}
	}
	// begin sends the first bytes of a body that says it is 1 MiB long.
	begin := func(c *http.Client, first int) *io.PipeWriter {
		body, w := io.Pipe()
		q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/v1/chat/completions", body)
		if err != nil {
			t.Fatal(err)
		}
		q.ContentLength = 1 << 20
		go func() {
			res, err := c.Do(q)
			if err == nil {
				_ = res.Body.Close()
			}
			_ = body.CloseWithError(io.ErrClosedPipe)
		}()
		if _, err := w.Write(bytes.Repeat([]byte(" "), first)); err != nil {
			t.Log("refused early:", err)
		}
		t.Cleanup(func() { _ = w.Close() })
		return w
	}
	greedy, other := from("127.0.0.2"), from("127.0.0.3")
	for range 40 { // 40 MiB stated, ten times what may be held
		begin(greedy, 1)
	}
	until(t, func() bool { return r.gw.running.Load() == 40 })
	if held := r.gw.buffered.Used(); held > 40*firstBuffer {
		t.Errorf("%d bytes are held for 40 that came", held)
	}
	for range 12 {
		begin(greedy, 1<<19)
	}
	ask := func(c *http.Client, size int) int {
		res, err := c.Post(r.url+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"chat","prompt":"`+strings.Repeat("x", size)+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode
	}
	until(t, func() bool { return ask(greedy, 900_000) == http.StatusTooManyRequests })
	if code := ask(other, 900_000); code != http.StatusOK {
		t.Errorf("another client's request: %d", code)
	}
	if code := ask(greedy, 100); code != http.StatusOK {
		t.Errorf("a short request of the same client: %d", code)
	}
}

// TestTricklesAreCut: a body that is held must come at a least rate.
func TestTricklesAreCut(t *testing.T) {
	now := time.Now()
	var by time.Time
	p := &patientReader{rc: http.NewResponseController(readDeadline{&by}), from: strings.NewReader(strings.Repeat("x", 3*leastRate)), timeout: time.Minute,
		began: now.Add(-time.Hour), got: 3590 * leastRate, held: true}
	if _, err := p.Read(make([]byte, 3*leastRate)); err != nil || by.After(now.Add(51*time.Second)) || by.Before(now.Add(45*time.Second)) {
		t.Errorf("an hour for %d bytes: the next may take %v, %v", p.got, by.Sub(now), err)
	}
	p.held = false
	if _, _ = p.Read(nil); by.Before(now.Add(time.Minute)) {
		t.Errorf("what is passed on as it comes may be as slow as it likes: %v", by.Sub(now))
	}
}

// readDeadline is a ResponseWriter that notes when the next read must be done.
type readDeadline struct{ by *time.Time }

func (readDeadline) Header() http.Header                 { return nil }
func (readDeadline) Write([]byte) (int, error)           { return 0, nil }
func (readDeadline) WriteHeader(int)                     {}
func (d readDeadline) SetReadDeadline(t time.Time) error { *d.by = t; return nil }

// TestPromptIsForgotten: what stands for pictures is let go once a request has its place,
// and still counts as tokens of the prompt.
func TestPromptIsForgotten(t *testing.T) {
	q := request{prompt: [][]byte{[]byte("four"), make([]byte, 5<<10)}}
	parts := q.prompt
	was := q.promptLength()
	q.forgetPrompt()
	if parts[1] != nil || len(q.prompt) != 0 || q.promptLength() != was || was != 5<<10+4 {
		t.Errorf("%d bytes of the prompt are held, its length is %d and was %d", length(parts), q.promptLength(), was)
	}
}
