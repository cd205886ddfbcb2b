package http1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/test/loopback"
)

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// many accepts connections and serves each in a goroutine of its own.
func many(t testing.TB, serve func(n int, c net.Conn, r *bufio.Reader)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { serve(n, c, bufio.NewReader(c)); _ = c.Close() })
		}
	})
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	return l.Addr().String()
}

func ask(t *testing.T, c *Client, q *Request) (string, error) {
	t.Helper()
	x, err := c.Do(t.Context(), q)
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(x)
	_ = x.Close()
	return string(b), err
}

func TestConnectionsAreKept(t *testing.T) {
	var opened atomic.Int32
	address := many(t, func(_ int, c net.Conn, r *bufio.Reader) {
		opened.Add(1)
		for {
			if _, err := request(r); err != nil {
				return
			}
			_, _ = io.WriteString(c, ok)
		}
	})
	cfg := DefaultConfig()
	cfg.MaxIdlePerHost, cfg.IdleTimeout = 2, 50*time.Millisecond
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseIdle()
	for range 10 {
		if b, err := ask(t, c, post(address, "x")); b != "ok" || err != nil {
			t.Fatal(b, err)
		}
	}
	if opened.Load() != 1 {
		t.Errorf("%d connections for requests one after the other", opened.Load())
	}
	var open []*Response
	for range 5 { // at once
		x, err := c.Do(t.Context(), post(address, "x"))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, x)
	}
	for _, x := range open {
		if body(t, x) != "ok" {
			t.Error("not ok")
		}
		_ = x.Close()
	}
	idle := func() int { c.idle.mu.Lock(); defer c.idle.mu.Unlock(); return c.idle.n }
	if n := idle(); n != 2 {
		t.Errorf("%d connections are kept, at most 2", n)
	}
	for limit := time.Now().Add(time.Minute); idle() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("idle connections are kept for ever")
		}
	}
	c.idle.mu.Lock()
	defer c.idle.mu.Unlock()
	if len(c.idle.hosts) != 0 || c.idle.armed {
		t.Errorf("%d hosts, timer %v", len(c.idle.hosts), c.idle.armed)
	}
}

// TestStaleConnection: a kept connection that the server closed, before or
// while the next request comes, costs no request; bytes nobody asked for are
// not taken for its answer.
func TestStaleConnection(t *testing.T) {
	for name, then := range map[string]func(c net.Conn, r *bufio.Reader){
		"closed":          func(net.Conn, *bufio.Reader) {},
		"closed on sight": func(_ net.Conn, r *bufio.Reader) { _, _ = r.ReadByte() },
		"closed behind a request": func(_ net.Conn, r *bufio.Reader) {
			_, _ = request(r)
		},
		"unasked answer": func(_ net.Conn, r *bufio.Reader) { _, _ = r.ReadByte() },
	} {
		t.Run(name, func(t *testing.T) {
			first, done := make(chan struct{}), make(chan struct{})
			address := many(t, func(n int, c net.Conn, r *bufio.Reader) {
				if _, err := request(r); err != nil {
					return
				}
				_, _ = io.WriteString(c, ok)
				if n == 0 {
					<-first
					if name == "unasked answer" {
						_, _ = io.WriteString(c, strings.ReplaceAll(ok, "ok", "no"))
					}
					close(done)
					then(c, r)
				}
			})
			c := client(t)
			if b, err := ask(t, c, post(address, "1")); b != "ok" || err != nil {
				t.Fatal(b, err)
			}
			close(first)
			<-done
			if b, err := ask(t, c, post(address, "2")); b != "ok" || err != nil {
				t.Errorf("%q %v", b, err)
			}
		})
	}
	t.Run("a streamed body is not sent twice", func(t *testing.T) {
		var asked atomic.Int32
		address := many(t, func(n int, c net.Conn, r *bufio.Reader) {
			if _, err := request(r); err != nil {
				return
			}
			if n == 0 {
				_, _ = io.WriteString(c, ok)
				_, _ = request(r)
			}
			asked.Add(1)
		})
		c := client(t)
		if b, err := ask(t, c, post(address, "1")); b != "ok" || err != nil {
			t.Fatal(b, err)
		}
		q := post(address)
		q.Tail, q.Length = strings.NewReader("tail"), 4
		_, err := c.Do(t.Context(), q)
		var failed *Error
		if !errors.As(err, &failed) || failed.Unsent || !q.TailRead || asked.Load() != 1 {
			t.Errorf("%v, read %v, asked %d times", err, q.TailRead, asked.Load())
		}
	})
}

func TestUnsent(t *testing.T) {
	gone := loopback.Reserve(t)
	bad := post(gone, "x")
	bad.Target = "/x y"
	for _, q := range []*Request{post(gone, "x"), bad} {
		var failed *Error
		if _, err := client(t).Do(t.Context(), q); !errors.As(err, &failed) || !failed.Unsent {
			t.Errorf("%v", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client(t).Do(ctx, post(gone, "x")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before: %v", err)
	}
}

// TestEarlyAnswer: a server that answers before it has read a long body, and
// never does, is heard.
func TestEarlyAnswer(t *testing.T) {
	answered := make(chan struct{})
	address := many(t, func(_ int, c net.Conn, r *bufio.Reader) {
		_, _ = r.ReadString('\n')
		_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
		<-answered
	})
	c := client(t)
	q := post(address, strings.Repeat("\n", 16<<20))
	x, err := c.Do(t.Context(), q)
	if err != nil || x.Status != 413 || body(t, x) != "no" {
		t.Fatalf("%v", err)
	}
	_ = x.Close()
	close(answered)
}

// TestTailFails: a body that cannot be read ends the request with that error.
func TestTailFails(t *testing.T) {
	address := many(t, func(_ int, _ net.Conn, r *bufio.Reader) { _, _ = io.Copy(io.Discard, r) })
	lost := errors.New("the client is gone")
	for _, length := range []int64{100, -1} {
		q := post(address, "head")
		q.Tail, q.Length = io.MultiReader(strings.NewReader("x"), failing{lost}), length
		var tail *TailError
		if _, err := client(t).Do(t.Context(), q); !errors.Is(err, lost) || !errors.As(err, &tail) {
			t.Errorf("length %d: %v", length, err)
		}
	}
	q := post(address, "head")
	q.Tail, q.Length = strings.NewReader("short"), 100
	if _, err := client(t).Do(t.Context(), q); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a short body: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestManyAtOnce mixes requests that end well, are cancelled, and are closed
// early; under the race detector.
func TestManyAtOnce(t *testing.T) {
	address := many(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for i := 0; ; i++ {
			if _, err := request(r); err != nil {
				return
			}
			if i%7 == 6 {
				return
			}
			_, _ = io.WriteString(c, ok)
		}
	})
	c := client(t)
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for j := range 100 {
				ctx, cancel := context.WithCancel(t.Context())
				if (i+j)%5 == 0 {
					go cancel()
				}
				q := post(address, strings.Repeat("x", (i*j*997)%(3*inlineBytes)))
				x, err := c.Do(ctx, q)
				if err == nil {
					b := []byte("ok")
					if (i+j)%3 != 0 {
						b, err = io.ReadAll(x)
					}
					if err == nil && string(b) != "ok" {
						t.Errorf("%q", b)
					}
					_ = x.Close()
				}
				cancel()
			}
		})
	}
	all.Wait()
}
