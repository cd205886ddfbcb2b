//go:build kubernetes && linux

package kubernetes

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// request is one question to a model and how its answer is judged.
type request struct {
	address string // of a gateway, host:port
	host    string // the service's, as its status says
	path    string
	body    string
	ok      func(status int, body []byte) error
}

// asking bounds one request, a wake from zero included.
const asking = 90 * time.Second

// do asks once.
func (r request) do(ctx context.Context, client *http.Client) error {
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.address+r.path, bytes.NewReader([]byte(r.body)))
	if err != nil {
		return err
	}
	req.Host = r.host
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return fmt.Errorf("%s, then %w", res.Status, err)
	}
	return r.ok(res.StatusCode, body)
}

// must asks once, and fails the test without a good answer.
func (r request) must(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	if err := r.do(t.Context(), http.DefaultClient); err != nil {
		t.Fatalf("%s at %s: %v", r.path, r.host, err)
	}
	return time.Since(began)
}

// load is many clients that ask again and again.
type load struct {
	asked   atomic.Int64
	stop    context.CancelFunc
	workers sync.WaitGroup
	changed chan struct{} // holds one while asked has grown

	mu struct {
		sync.Mutex
		failures []failure
		slowest  time.Duration
	}
}

type failure struct {
	at  time.Time
	err error
}

// start has n clients ask r, each over connections of its own, which it keeps
// unless fresh says that every request takes a new one.
func start(t *testing.T, r request, n int, fresh bool) *load {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	l := &load{stop: stop, changed: make(chan struct{}, 1)}
	t.Cleanup(func() { l.end() })
	for range n {
		transport := &http.Transport{DisableKeepAlives: fresh, DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext}
		client := &http.Client{Transport: transport}
		l.workers.Go(func() {
			defer transport.CloseIdleConnections()
			for ctx.Err() == nil {
				began := time.Now()
				err := r.do(context.WithoutCancel(ctx), client) // what was asked is waited for
				l.count(began, err)
				select {
				case <-ctx.Done():
				case <-time.After(5 * time.Millisecond): // the machine has others to run, too
				}
			}
		})
	}
	return l
}

func (l *load) count(began time.Time, err error) {
	l.mu.Lock()
	if err != nil {
		l.mu.failures = append(l.mu.failures, failure{began, err})
	}
	l.mu.slowest = max(l.mu.slowest, time.Since(began))
	l.mu.Unlock()
	l.asked.Add(1)
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// reach waits until n more requests were answered.
func (l *load) reach(t *testing.T, n int64) {
	t.Helper()
	target, late := l.asked.Load()+n, time.After(asking)
	for l.asked.Load() < target {
		select {
		case <-l.changed:
		case <-late:
			t.Fatalf("%d of %d further requests were answered within %s", l.asked.Load()-target+n, n, asking)
		}
	}
}

// end stops the load and gives what failed.
func (l *load) end() []failure {
	l.stop()
	l.workers.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.mu.failures)
}

// flawless ends the load and fails the test if a request did.
func (l *load) flawless(t *testing.T, what string) {
	t.Helper()
	failures := l.end()
	if len(failures) > 0 {
		t.Errorf("%s: %d of %d requests failed, the first: %v", what, len(failures), l.asked.Load(), failures[0].err)
	}
	t.Logf("%s: %d requests, none slower than %d ms", what, l.asked.Load(), l.mu.slowest.Milliseconds())
}
