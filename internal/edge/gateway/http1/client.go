package http1

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

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
