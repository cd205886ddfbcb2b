package http1

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// conn is a connection to a server and what was read from it ahead. One
// goroutine at a time owns it; cancel alone may come from others.
type conn struct {
	address string
	tcp     net.Conn
	raw     syscall.RawConn // of tcp

	buf  *[]byte // of bufferSize or, for a long header, more; nil while idle
	r, w int     // buf[r:w] was read and not yet used

	head []byte      // a request's header, encoded
	vec  net.Buffers // what is being written
	vecs [maxParts + 1][]byte

	// When reads and writes are given up. They are renewed seldom: see expect.
	readBy, writeBy time.Time

	reused    bool // it carried a request before
	idleSince time.Time
	cancelled atomic.Bool
	onCancel  func() // cancel, made once

	probe    func(fd uintptr) bool // reads one byte, made once
	probeErr error
}

var buffers = sync.Pool{New: func() any { b := make([]byte, bufferSize); return &b }}

// past is a deadline that has passed.
var past = time.Unix(1, 0)

func newConn(address string, tcp *net.TCPConn) (*conn, error) {
	c := &conn{address: address, tcp: tcp}
	var err error
	if c.raw, err = tcp.SyscallConn(); err != nil {
		return nil, err
	}
	c.onCancel = c.cancel
	c.probe = func(fd uintptr) bool {
		var one [1]byte
		n, err := syscall.Read(int(fd), one[:])
		c.probeErr = err
		if n >= 0 && err == nil {
			c.probeErr = io.EOF // or bytes without a request
		}
		return true
	}
	return c, nil
}

func (c *conn) close() {
	_ = c.tcp.Close() // its error changes nothing
	c.dropBuffer()
}

func (c *conn) dropBuffer() {
	if c.buf != nil && len(*c.buf) == bufferSize {
		buffers.Put(c.buf)
	}
	c.buf = nil
	c.r, c.w = 0, 0
}

// alive reports whether an idle connection is still open and silent. The server
// may close it right afterwards.
func (c *conn) alive() bool {
	err := c.raw.Read(c.probe)
	return err == nil && (errors.Is(c.probeErr, syscall.EAGAIN) || errors.Is(c.probeErr, syscall.EINTR))
}

// cancel ends what the owner waits for, for good.
func (c *conn) cancel() {
	c.cancelled.Store(true)
	_ = c.tcp.SetDeadline(past) // fails on a closed connection alone
}

// slack is the part of a timeout by which it may be exceeded: setting a
// deadline costs more than asking whether it is late enough.
const slack = 8

// expect gives the next reads until d from now, or up to an eighth of d later.
// The deadline is touched only when the present one is outside of that.
func (c *conn) expect(now time.Time, d time.Duration) error {
	if want := now.Add(d); c.readBy.Before(want) || c.readBy.After(want.Add(d/slack)) {
		c.readBy = want.Add(d / slack)
		if err := c.tcp.SetReadDeadline(c.readBy); err != nil {
			return err
		}
	}
	return c.gone()
}

// expectWrite is expect for writes.
func (c *conn) expectWrite(now time.Time, d time.Duration) error {
	if want := now.Add(d); c.writeBy.Before(want) || c.writeBy.After(want.Add(d/slack)) {
		c.writeBy = want.Add(d / slack)
		if err := c.tcp.SetWriteDeadline(c.writeBy); err != nil {
			return err
		}
	}
	return c.gone()
}

// gone is the error of a connection that was cancelled. It is asked after a
// deadline was set, which may have undone cancel's.
func (c *conn) gone() error {
	if c.cancelled.Load() {
		return context.Canceled
	}
	return nil
}

// failure gives an error of the connection its meaning.
func (c *conn) failure(err error) error {
	if c.cancelled.Load() {
		return context.Canceled
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ErrTimeout
	}
	return err
}

// fill reads once, behind what is buffered. The buffer has room: it is full
// only while a header is read, which makes it grow.
func (c *conn) fill() error {
	if c.buf == nil {
		c.buf = buffers.Get().(*[]byte)
	}
	if c.r == c.w {
		c.r, c.w = 0, 0
	} else if c.w == len(*c.buf) {
		c.w = copy(*c.buf, (*c.buf)[c.r:c.w])
		c.r = 0
	}
	n, err := c.read((*c.buf)[c.w:])
	c.w += n
	return err
}

// read reads past the buffer. Either some bytes or an error are returned.
func (c *conn) read(p []byte) (int, error) {
	n, err := c.tcp.Read(p)
	if n > 0 {
		return n, nil
	}
	if err == nil {
		return 0, io.ErrNoProgress
	}
	if errors.Is(err, io.EOF) {
		return 0, io.EOF
	}
	return 0, c.failure(err)
}

// buffered is what was read and not used.
func (c *conn) buffered() []byte {
	if c.buf == nil {
		return nil
	}
	return (*c.buf)[c.r:c.w]
}

// grow makes room behind what is buffered.
func (c *conn) grow() {
	bigger := make([]byte, 2*len(*c.buf))
	c.w = copy(bigger, c.buffered())
	c.r = 0
	if len(*c.buf) == bufferSize {
		buffers.Put(c.buf)
	}
	c.buf = &bigger
}

// readHead reads one header, and not past its end but for what came with it.
// None of an answer came if it fails with a *silence.
func (c *conn) readHead(limit int, h *head) error {
	scanned := 0
	for {
		b := c.buffered()
		if end := headEnd(b, scanned-3); end > 0 {
			if end > limit {
				return malformed("a header longer than %d bytes", limit)
			}
			text := string(b[:end])
			c.r += end
			return h.parse(text)
		}
		if len(b) > limit {
			return malformed("a header longer than %d bytes", limit)
		}
		scanned = len(b)
		if c.buf != nil && len(b) == len(*c.buf) {
			c.grow()
		}
		if err := c.fill(); err != nil {
			if scanned == 0 {
				return &silence{err}
			}
			if errors.Is(err, io.EOF) {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
}

// silence is a failure before the first byte of an answer.
type silence struct{ err error }

func (s *silence) Error() string { return s.err.Error() }
func (s *silence) Unwrap() error { return s.err }

func isSilence(err error) bool {
	var s *silence
	return errors.As(err, &s)
}
