package onnx

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"unsafe"
)

// The bounds of the protocol.
const (
	maxHandshakeBytes = 64 << 10
	maxHeaderBytes    = 16 << 20
	maxTensors        = 4096
	maxRank           = 32
	prefixBytes       = 8
	readStep          = 4 << 20 // set aside at first for bytes that are only announced
)

// ProtocolError is a violation of the protocol by the server.
type ProtocolError struct{ what string }

// Error is what was wrong.
func (e *ProtocolError) Error() string { return "the server broke the protocol: " + e.what }

func violation(format string, args ...any) error {
	return &ProtocolError{fmt.Sprintf(format, args...)}
}

// wire reads and writes frames. One goroutine reads; any may write.
type wire struct {
	conn  net.Conn
	in    *bufio.Reader
	limit int64 // bytes of a frame, either way

	writing sync.Mutex
}

func newWire(conn net.Conn) *wire {
	return &wire{conn: conn, in: bufio.NewReaderSize(conn, 64<<10), limit: maxHandshakeBytes}
}

// read reads a frame. The payload belongs to the caller and begins at a
// multiple of 8. io.EOF is the end between two frames.
func (w *wire) read() (*message, []byte, error) {
	var prefix [prefixBytes]byte
	if _, err := io.ReadFull(w.in, prefix[:]); err != nil {
		return nil, nil, err
	}
	size := int64(binary.LittleEndian.Uint32(prefix[:]))
	head := int64(binary.LittleEndian.Uint32(prefix[4:]))
	if size+4 > w.limit || head > maxHeaderBytes || head+4 > size || head%8 != 0 {
		return nil, nil, violation("a frame of %d bytes with a header of %d", size+4, head)
	}
	header, err := readBytes(w.in, head)
	if err != nil {
		return nil, nil, err
	}
	payload, err := readBytes(w.in, size-4-head)
	if err != nil {
		return nil, nil, err
	}
	m := &message{}
	// encoding/json bounds the nesting itself.
	if err := json.Unmarshal(header, m); err != nil {
		return nil, nil, violation("a header that cannot be read: %v", err)
	}
	return m, payload, nil
}

// readBytes reads n bytes into memory that begins at a multiple of 8. Memory
// is allocated as bytes arrive: a size that is only announced costs little.
func readBytes(r io.Reader, n int64) ([]byte, error) {
	var buffer []byte
	for at := int64(0); at < n; at = int64(len(buffer)) {
		grown := aligned(min(n, max(2*at, readStep)))
		copy(grown, buffer)
		if _, err := io.ReadFull(r, grown[at:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		buffer = grown
	}
	return buffer, nil
}

// aligned makes n > 0 bytes that begin at a multiple of 8.
func aligned(n int64) []byte {
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), len(words)*8)[:n]
}

// payload collects the raw bytes of a frame without copying them.
type payload struct {
	parts net.Buffers
	size  int64 // a multiple of 8
}

var zeros [8]byte

// add appends raw and returns its offset and length.
func (p *payload) add(raw []byte) (offset, length uint64) {
	offset, length = uint64(p.size), uint64(len(raw))
	if length == 0 {
		return offset, 0
	}
	p.parts = append(p.parts, raw)
	if pad := -len(raw) & 7; pad > 0 {
		p.parts = append(p.parts, zeros[:pad])
	}
	p.size += int64(len(raw)+7) &^ 7
	return offset, length
}

// errTooLarge reports a frame that exceeds the bounds; nothing of it was written.
var errTooLarge = errors.New("the answer does not fit a frame")

// write writes a frame with header as its header. It blocks while the server reads
// slowly, which slows the worker down too.
func (w *wire) write(header any, p payload) error {
	text, err := json.Marshal(header)
	if err != nil {
		return err
	}
	for (len(text))%8 != 0 {
		text = append(text, ' ')
	}
	size := 4 + int64(len(text)) + p.size
	if size+4 > w.limit || len(text) > maxHeaderBytes {
		return fmt.Errorf("%w: it takes %d bytes, %d are allowed", errTooLarge, size+4, w.limit)
	}
	prefix := binary.LittleEndian.AppendUint32(make([]byte, 0, prefixBytes), uint32(size))
	prefix = binary.LittleEndian.AppendUint32(prefix, uint32(len(text)))
	buffers := append(net.Buffers{prefix, text}, p.parts...)
	w.writing.Lock()
	defer w.writing.Unlock()
	_, err = buffers.WriteTo(w.conn)
	return err
}
