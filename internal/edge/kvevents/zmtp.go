package kvevents

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// The client speaks ZMTP 3.0 with the NULL mechanism (rfc.zeromq.org/spec/23),
// as libzmq 4 and later do: a greeting, a READY command, then frames.
const (
	greetingBytes = 64
	flagMore      = 1
	flagLong      = 2
	flagCommand   = 4
)

// Bounds of what a publisher may send.
const (
	maxFrameBytes = 4 << 20
	maxFrames     = 8
	maxMetadata   = 4 << 10
)

// dialTimeout bounds connecting and the handshake.
const dialTimeout = 10 * time.Second

// conn is a connection to a ZeroMQ socket.
type conn struct {
	net.Conn
	r *bufio.Reader
}

// handshake greets the peer as a socket of the kind ("SUB", "DEALER").
func handshake(c net.Conn, kind string) (*conn, error) {
	_ = c.SetDeadline(time.Now().Add(dialTimeout)) // a connection that has gone fails when it is read
	defer func() { _ = c.SetDeadline(time.Time{}) }()
	z := &conn{c, bufio.NewReaderSize(c, 64<<10)}
	var hello [greetingBytes]byte
	hello[0], hello[8], hello[9], hello[10] = 0xff, 1, 0x7f, 3
	copy(hello[12:], "NULL")
	ready := append([]byte("\x05READY\x0bSocket-Type"), binary.BigEndian.AppendUint32(nil, uint32(len(kind)))...)
	if _, err := z.Write(appendFrame(hello[:], flagCommand, append(ready, kind...))); err != nil {
		return nil, err
	}
	var peer [greetingBytes]byte
	if _, err := io.ReadFull(z.r, peer[:]); err != nil {
		return nil, fmt.Errorf("no ZeroMQ greeting: %w", err)
	}
	switch {
	case peer[0] != 0xff || peer[9] != 0x7f:
		return nil, errors.New("the server does not speak ZeroMQ's protocol")
	case peer[10] < 3:
		return nil, fmt.Errorf("the server speaks ZMTP %d: version 3 is needed", peer[10])
	case string(peer[12:17]) != "NULL\x00":
		return nil, fmt.Errorf("the server wants the security mechanism %.20q: only NULL is supported", peer[12:32])
	}
	body, flags, err := z.frame(maxMetadata)
	if err != nil {
		return nil, err
	}
	if flags&flagCommand == 0 || len(body) < 6 || string(body[:6]) != "\x05READY" {
		return nil, fmt.Errorf("the server refuses the connection: %.100q", body)
	}
	return z, nil
}

func appendFrame(dst []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		dst = binary.BigEndian.AppendUint64(append(dst, flags|flagLong), uint64(len(body)))
	} else {
		dst = append(dst, flags, byte(len(body)))
	}
	return append(dst, body...)
}

// frame reads one frame of at most limit bytes.
func (z *conn) frame(limit int) (body []byte, flags byte, err error) {
	if flags, err = z.r.ReadByte(); err != nil {
		return nil, 0, err
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 {
		return nil, 0, fmt.Errorf("a frame has flags %#x that ZMTP does not define", flags)
	}
	var size uint64
	var head [8]byte
	if flags&flagLong != 0 {
		if _, err = io.ReadFull(z.r, head[:]); err != nil {
			return nil, 0, err
		}
		size = binary.BigEndian.Uint64(head[:])
	} else {
		short, err := z.r.ReadByte()
		if err != nil {
			return nil, 0, err
		}
		size = uint64(short)
	}
	if size > uint64(limit) {
		return nil, 0, fmt.Errorf("a frame of %d bytes is over the limit of %d", size, limit)
	}
	return z.body(int(size), flags)
}

// body reads a frame's. Memory grows with what arrives, not with what is announced.
func (z *conn) body(size int, flags byte) ([]byte, byte, error) {
	const step = 256 << 10
	body := make([]byte, 0, min(size, step))
	for len(body) < size {
		n := min(size-len(body), step)
		at := len(body)
		body = append(body, make([]byte, n)...)
		if _, err := io.ReadFull(z.r, body[at:]); err != nil {
			return nil, 0, err
		}
	}
	return body, flags, nil
}

// message reads the next message, without commands that come before it.
func (z *conn) message() ([][]byte, error) {
	var frames [][]byte
	for total := 0; ; {
		body, flags, err := z.frame(maxFrameBytes - total)
		if err != nil {
			return nil, err
		}
		if flags&flagCommand != 0 {
			if len(frames) > 0 {
				return nil, errors.New("a command stands within a message")
			}
			continue
		}
		total += len(body)
		if frames = append(frames, body); flags&flagMore == 0 {
			return frames, nil
		}
		if len(frames) == maxFrames {
			return nil, fmt.Errorf("a message has more than %d frames", maxFrames)
		}
	}
}

// send writes a message.
func (z *conn) send(frames ...[]byte) error {
	var out []byte
	for i, f := range frames {
		flags := byte(flagMore)
		if i == len(frames)-1 {
			flags = 0
		}
		out = appendFrame(out, flags, f)
	}
	_ = z.SetWriteDeadline(time.Now().Add(dialTimeout)) // as in handshake
	_, err := z.Write(out)
	return err
}
