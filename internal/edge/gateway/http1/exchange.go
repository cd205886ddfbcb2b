package http1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
)

// exchange sends q over the connection and reads the answer's header.
func (x *Response) exchange(ctx context.Context, q *Request, now time.Time) error {
	c := x.conn
	x.stop = context.AfterFunc(ctx, c.onCancel)
	if err := c.expect(now, q.Timeout); err != nil {
		return &silence{err}
	}
	var failed error
	if q.inline() {
		failed = x.writeWhole(q, now)
	} else {
		// The writer may outlast a failure, after which q is the caller's again.
		long := *q
		long.Body = slices.Clone(q.Body)
		x.written = make(chan error, 1)
		go x.write(&long, q.appendHead(nil))
	}
	// A server may refuse a request and close before it has read all of it:
	// its answer is then there although the writing failed.
	err := x.readHead(q.Method)
	if failed != nil {
		x.close = true
		if isSilence(err) {
			return &silence{c.failure(failed)}
		}
	}
	if why := x.aborted.Load(); why != nil && err != nil {
		return *why
	}
	return err
}

// writeWhole writes the header and the body's parts at once.
func (x *Response) writeWhole(q *Request, now time.Time) error {
	c := x.conn
	if err := c.expectWrite(now, q.Timeout); err != nil {
		return err
	}
	n, err := c.write(q)
	if n > 0 {
		x.sent.Store(true)
	}
	return err
}

// write writes the header and the body's parts.
func (c *conn) write(q *Request) (int64, error) {
	c.head = q.appendHead(c.head[:0])
	c.vecs[0] = c.head
	k := 1
	for _, b := range q.Body {
		if len(b) > 0 {
			c.vecs[k] = b
			k++
		}
	}
	c.vec = c.vecs[:k]
	n, err := c.vec.WriteTo(c.tcp)
	clear(c.vecs[:])
	if cap(c.head) > bufferSize {
		c.head = nil
	}
	return n, err
}

// readHead reads the answer's header, past those of 1xx answers.
func (x *Response) readHead(method string) error {
	for range maxInterim + 1 {
		h := head{fields: x.storage[:0]}
		if err := x.conn.readHead(x.client.cfg.MaxHeaderBytes, &h); err != nil {
			return err
		}
		switch {
		case h.status == 101:
			return malformed("a switch of protocols nobody asked for")
		case h.status >= 200:
			x.begin(&h, method)
			return nil
		}
		x.interim = true
	}
	return malformed("more than %d interim answers", maxInterim)
}

// write writes a long request while its answer is awaited. An error of the
// Tail ends the exchange; one of the connection is left to the reader, who
// finds an answer or the same error.
func (x *Response) write(q *Request, head []byte) {
	err := x.writeLong(q, head)
	var tail *TailError
	if errors.As(err, &tail) || errors.Is(err, ErrTimeout) {
		x.aborted.Store(&err)
		x.conn.cancel()
	}
	x.written <- err
}

// TailError is a failure to read a request's Tail.
type TailError struct{ Err error }

func (e *TailError) Error() string { return "reading the request's body: " + e.Err.Error() }

// Unwrap returns the reader's error.
func (e *TailError) Unwrap() error { return e.Err }

func (x *Response) writeLong(q *Request, head []byte) error {
	w := &longWriter{x: x, limit: q.Timeout}
	chunked := q.Length < 0
	held := int64(0)
	for _, b := range q.Body {
		held += int64(len(b))
	}
	if chunked && held > 0 {
		head = append(strconv.AppendInt(head, held, 16), "\r\n"...)
	}
	parts := append(net.Buffers{head}, q.Body...)
	if chunked && held > 0 {
		parts = append(parts, []byte("\r\n"))
	}
	for _, b := range parts {
		if err := w.write(b); err != nil {
			return err
		}
	}
	if q.Tail == nil || !x.tail.CompareAndSwap(tailUnread, tailRead) {
		return nil
	}
	return w.tail(q, q.Length-held)
}

// longWriter writes pieces, each with a deadline of its own.
type longWriter struct {
	x     *Response
	limit time.Duration
}

func (w *longWriter) write(b []byte) error {
	c := w.x.conn
	for len(b) > 0 {
		piece := b[:min(len(b), 8*pieceSize)]
		if err := c.expectWrite(time.Now(), w.limit); err != nil {
			return err
		}
		n, err := c.tcp.Write(piece)
		if n > 0 {
			w.x.sent.Store(true)
		}
		if err != nil {
			return c.failure(err)
		}
		b = b[n:]
	}
	return nil
}

// tail passes on the Tail: left bytes of it, or in chunks if left is negative.
func (w *longWriter) tail(q *Request, left int64) error {
	chunked := q.Length < 0
	// Room for a chunk's size before, and its line end behind.
	const before = 10
	buf := make([]byte, before+pieceSize+2)
	for chunked || left > 0 {
		room := buf[before : before+pieceSize]
		if !chunked && left < pieceSize {
			room = room[:left]
		}
		n, err := q.Tail.Read(room)
		if n > 0 {
			piece := room[:n]
			if chunked {
				size := fmt.Appendf(nil, "%x\r\n", n)
				at := before - copy(buf[before-len(size):], size)
				piece = append(buf[at:before+n], "\r\n"...)
			}
			left -= int64(n)
			if err := w.write(piece); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return &TailError{err}
		}
	}
	if chunked {
		return w.write([]byte("0\r\n\r\n"))
	}
	if left > 0 {
		return &TailError{io.ErrUnexpectedEOF}
	}
	return nil
}

// flags are shared with the goroutine that writes.
type flags struct {
	sent    atomic.Bool           // some of the request
	tail    atomic.Int32          // whose the Tail is
	aborted atomic.Pointer[error] // why the writer ended the exchange
}

// Whose a Tail is. It leaves tailUnread once: when the writer begins to read
// it, or when the exchange fails, after which the writer must not.
const (
	tailUnread int32 = iota
	tailRead
	tailSpared
)
