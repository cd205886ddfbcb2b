// Package http1 is a client of cleartext HTTP/1.1 for a proxy. A request runs
// on the goroutine that sends it: no goroutine reads or writes on its behalf,
// but one for a body too long to be written at once. That is what it is for:
// net/http's transport needs two goroutines a connection and four hand-overs a
// request, more than half of a proxy's CPU time.
//
// Answers are parsed strictly: where readers are known to disagree on where an
// answer ends (Content-Length with Transfer-Encoding, folded lines, lengths
// that are no plain number) the answer is refused. Everything that is accepted
// means what it means to net/http; tests compare the two.
//
// TLS, HTTP/2, proxies, redirects, cookies, compression and upgrades are not
// its business.
package http1

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// Config bounds a Client. Start from DefaultConfig.
type Config struct {
	// DialTimeout is the time to connect.
	DialTimeout time.Duration
	// IdleTimeout is how long a connection is kept that is not in use.
	IdleTimeout time.Duration
	// MaxIdlePerHost and MaxIdle are how many of those are kept per address
	// and in all.
	MaxIdlePerHost, MaxIdle int
	// MaxHeaderBytes bounds an answer's header.
	MaxHeaderBytes int
}

// DefaultConfig keeps a connection for 4 s: less than the 5 s after which
// uvicorn, behind most Python servers, closes it.
func DefaultConfig() Config {
	return Config{
		DialTimeout:    5 * time.Second,
		IdleTimeout:    4 * time.Second,
		MaxIdlePerHost: 256,
		MaxIdle:        4096,
		MaxHeaderBytes: 256 << 10,
	}
}

// Bounds that are no settings.
const (
	// maxInterim is how many 1xx answers may come before the answer.
	maxInterim = 5
	// maxChunkLine bounds the line before a chunk, its extension included, and
	// maxTrailerBytes all of a trailer, in bytes.
	maxChunkLine    = 512
	maxTrailerBytes = 16 << 10
	// maxFields is how many fields a header may have, and a trailer.
	maxFields = 1000
	// inlineBytes is the longest body that is written before anything of the
	// answer is read. A server that answers before it has read a longer one
	// would wait for us while we wait for it, so a goroutine writes those.
	inlineBytes = 64 << 10
	// bufferSize is the size of the buffer answers are read through, in bytes.
	bufferSize = 4 << 10
	// pieceSize is what is read of a streamed body at once, in bytes.
	pieceSize = 32 << 10
)

// Validate reports every field that is out of range.
func (c Config) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		n    int64
	}{
		{"DialTimeout", int64(c.DialTimeout)}, {"IdleTimeout", int64(c.IdleTimeout)},
		{"MaxIdlePerHost", int64(c.MaxIdlePerHost)}, {"MaxIdle", int64(c.MaxIdle)},
		{"MaxHeaderBytes", int64(c.MaxHeaderBytes)},
	} {
		if f.n <= 0 {
			errs = append(errs, fmt.Errorf("http1: %s must be more than 0, is %d", f.name, f.n))
		}
	}
	return errors.Join(errs...)
}

// Client sends requests over connections that it keeps. Its methods are safe
// for concurrent use.
type Client struct {
	cfg    Config
	dialer net.Dialer
	idle   pool
}

// New makes a Client.
func New(cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Client{cfg: cfg, dialer: net.Dialer{Timeout: cfg.DialTimeout, KeepAlive: 30 * time.Second},
		idle: pool{cfg: cfg, hosts: map[string][]*conn{}}}, nil
}

// ErrTimeout is wrapped by errors of a server that kept silent for too long.
var ErrTimeout = errors.New("the server kept silent for too long")

// Error is a request that failed before its answer's header was there.
type Error struct {
	Address string
	// Unsent reports that no byte of the request was sent.
	Unsent bool
	Err    error
}

// Error is the address and what went wrong.
func (e *Error) Error() string { return e.Address + ": " + e.Err.Error() }

// Unwrap returns what went wrong: ErrTimeout, ErrMalformed, the context's
// error, or the network's.
func (e *Error) Unwrap() error { return e.Err }

// Do sends a request and returns when the answer's header is there; 1xx
// answers are skipped. The caller closes the answer. When ctx ends, whatever
// the request waits for fails with its error.
//
// A server may close a kept connection just as a request is sent on it. If
// none of the answer came and the request can be sent again it goes over a new
// connection, once. The error is an *Error.
func (c *Client) Do(ctx context.Context, q *Request) (*Response, error) {
	if err := q.check(); err != nil {
		return nil, &Error{q.Address, true, err}
	}
	now := time.Now()
	sent := false
	kept := c.kept(q, now)
	for {
		cn := kept
		if cn == nil {
			var err error
			if cn, err = c.dial(ctx, q.Address); err != nil {
				return nil, &Error{q.Address, !sent, cause(ctx, err)}
			}
		}
		x := responses.Get().(*Response)
		x.conn, x.client = cn, c
		err := x.exchange(ctx, q, now)
		if err == nil {
			return x, nil
		}
		x.abandon()
		sent = sent || x.sent.Load()
		q.TailRead = !x.tail.CompareAndSwap(tailUnread, tailSpared)
		if q.TailRead && ctx.Err() != nil {
			if failed := <-x.written; failed != nil { // from here on the Tail's reader knows why
				err = failed
			}
		}
		if kept == nil || q.TailRead || !x.stale(err) || ctx.Err() != nil {
			return nil, &Error{q.Address, !sent, cause(ctx, err)}
		}
		kept = nil
	}
}

// stale reports whether the server seems to have closed a kept connection before it
// read the request.
func (x *Response) stale(err error) bool {
	return isSilence(err) && !x.interim && !errors.Is(err, ErrTimeout)
}

// cause prefers the context's error to that of a connection it ended.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// kept takes a connection that works from the pool.
func (c *Client) kept(q *Request, now time.Time) *conn {
	for {
		cn := c.idle.take(q.Address)
		if cn == nil {
			return nil
		}
		if now.Sub(cn.idleSince) < c.cfg.IdleTimeout && cn.expect(now, q.Timeout) == nil && cn.alive() {
			cn.reused = true
			return cn
		}
		cn.close()
	}
}

func (c *Client) dial(ctx context.Context, address string) (*conn, error) {
	nc, err := c.dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
			err = fmt.Errorf("no connection within %v: %w", c.cfg.DialTimeout, err)
		}
		return nil, err
	}
	cn, err := newConn(address, nc.(*net.TCPConn))
	if err != nil {
		_ = nc.Close() // the first error counts
	}
	return cn, err
}

// CloseIdle closes the connections that are not in use.
func (c *Client) CloseIdle() { c.idle.clear() }
