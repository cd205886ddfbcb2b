package process

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestUnstatedReadiness: a process without a probe is ready when it listens,
// but not while it says itself that it is not.
func TestUnstatedReadiness(t *testing.T) {
	var code, asked atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.URL.Path != "/v2/health/ready" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.WriteHeader(int(code.Load()))
	}))
	address := strings.TrimPrefix(srv.URL, "http://")
	check := checkUnstated(address, checkTCP(address))
	for _, c := range []struct {
		code  int64
		ready bool
	}{{503, false}, {400, false}, {200, true}, {503, false}, {404, true}} {
		code.Store(c.code)
		if err := check(t.Context()); (err == nil) != c.ready {
			t.Errorf("answering %d: %v", c.code, err)
		}
	}
	before := asked.Load()
	code.Store(503) // it has shown that it does not know the question
	if err := check(t.Context()); err != nil || asked.Load() != before {
		t.Errorf("asked %d times more, %v", asked.Load()-before, err)
	}
	srv.Close()
	if check(t.Context()) == nil {
		t.Error("nobody listens, and it is ready")
	}
}

// TestUnstatedReadinessOfOthers: what speaks no HTTP is ready when it listens;
// what accepts and says nothing may be busy loading.
func TestUnstatedReadinessOfOthers(t *testing.T) {
	for name, c := range map[string]struct {
		serve func(net.Conn)
		ready bool
	}{
		"another protocol": {func(c net.Conn) { _, _ = c.Write([]byte("220 hello\r\n")); _ = c.Close() }, true},
		"closes":           {func(c net.Conn) { _ = c.Close() }, true},
		"silent":           {func(net.Conn) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			go func() {
				var held []net.Conn
				defer func() {
					for _, conn := range held {
						_ = conn.Close()
					}
				}()
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					held = append(held, conn)
					c.serve(conn)
				}
			}()
			limit := time.Minute
			if !c.ready {
				limit = 300 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			if err := checkUnstated(l.Addr().String(), checkTCP(l.Addr().String()))(ctx); (err == nil) != c.ready {
				t.Errorf("want ready %v, got %v", c.ready, err)
			}
		})
	}
}

// TestSuspectedIsAskedAtOnce: a ready process that somebody could not reach is
// asked at once, however long its period; one that listens no more is not ready
// without further questions, one that fails otherwise after as many as its probe
// states.
func TestSuspectedIsAskedAtOnce(t *testing.T) {
	for name, failure := range map[string]error{"refused": syscall.ECONNREFUSED, "another failure": errors.New("503")} {
		t.Run(name, func(t *testing.T) {
			var bad atomic.Bool
			var asked atomic.Int64
			suspect := make(chan struct{}, 1)
			b := &prober{verdict: make(chan bool), said: make(chan struct{}, 1), suspect: suspect, period: time.Hour,
				timeout: time.Second, successes: 1, patience: 3, check: func(context.Context) error {
					asked.Add(1)
					if bad.Load() {
						return failure
					}
					return nil
				}}
			go b.watchReadiness(t.Context())
			if !<-b.verdict {
				t.Fatal("not ready at first")
			}
			suspect <- struct{}{} // it is well
			for asked.Load() < 2 {
				time.Sleep(time.Millisecond)
			}
			bad.Store(true)
			before := asked.Load()
			suspect <- struct{}{}
			select {
			case ready := <-b.verdict:
				if want := map[error]int64{syscall.ECONNREFUSED: 1}[failure]; ready || want > 0 && asked.Load()-before != want || want == 0 && asked.Load()-before != 3 {
					t.Errorf("ready %v after %d questions", ready, asked.Load()-before)
				}
			case <-time.After(time.Minute):
				t.Fatal("nobody noticed")
			}
		})
	}
}
