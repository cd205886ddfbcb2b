package worker

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"sync/atomic"
	"unsafe"
)

// The bounds of the protocol.
const (
	maxHandshakeBytes = 64 << 10
	maxHeaderBytes    = 16 << 20
	maxNesting        = 128
	maxTensors        = 4096
	maxRank           = 32
	streamCredit      = 16
)

const (
	prefixBytes = 8 // the two sizes before a header
	readBuffer  = 64 << 10
	readStep    = 4 << 20 // what is set aside at first for bytes that are only announced
	keepBuffer  = 1 << 20 // the largest header buffer kept between frames
)

// protocolError is a violation of the protocol, which ends the connection.
type protocolError struct{ what string }

func (e *protocolError) Error() string { return "broke the protocol: " + e.what }

func violation(format string, args ...any) error {
	return &protocolError{fmt.Sprintf(format, args...)}
}

// frameReader reads frames from a stream of bytes.
type frameReader struct {
	r      *bufio.Reader
	limit  atomic.Int64 // bytes of a whole frame
	header []byte
}

func newFrameReader(r io.Reader) *frameReader {
	f := &frameReader{r: bufio.NewReaderSize(r, readBuffer)}
	f.limit.Store(maxHandshakeBytes)
	return f
}

// next reads one frame. The header is valid until the next call. The payload is
// nil if empty, belongs to the caller, and its address is a multiple of 8. A frame
// that violates the protocol is a *protocolError; io.EOF is an end between frames.
func (f *frameReader) next() (header, payload []byte, err error) {
	prefix, err := f.r.Peek(prefixBytes)
	if err != nil {
		if len(prefix) > 0 && err == io.EOF { //nolint:errorlint // Peek returns the reader's own
			err = io.ErrUnexpectedEOF
		}
		return nil, nil, err
	}
	size := int64(binary.LittleEndian.Uint32(prefix))
	head := int64(binary.LittleEndian.Uint32(prefix[4:]))
	switch limit := f.limit.Load(); {
	case size+4 > limit:
		return nil, nil, violation("a frame of %d bytes, %d are allowed", size+4, limit)
	case head > maxHeaderBytes:
		return nil, nil, violation("a header of %d bytes, %d are allowed", head, maxHeaderBytes)
	case head+4 > size:
		return nil, nil, violation("a header of %d bytes in a frame of %d", head, size+4)
	case head%8 != 0:
		return nil, nil, violation("a header of %d bytes, no multiple of 8", head)
	}
	_, _ = f.r.Discard(prefixBytes) // peeked
	if cap(f.header) > keepBuffer {
		f.header = nil
	}
	if f.header, err = readBounded(f.r, f.header[:0], head); err != nil {
		return nil, nil, err
	}
	if payload, err = readBounded(f.r, nil, size-4-head); err != nil {
		return nil, nil, err
	}
	return f.header, payload, nil
}

// readBounded reads n bytes into dst, which is empty. It allocates as bytes
// arrive, so that an announced size alone costs no memory.
func readBounded(r io.Reader, dst []byte, n int64) ([]byte, error) {
	for at := int64(0); at < n; {
		if int64(cap(dst)) == at || int64(cap(dst)) < min(n, readStep) {
			grown := aligned(min(n, max(2*at, readStep)))
			copy(grown, dst[:at])
			dst = grown[:at]
		}
		end := min(n, int64(cap(dst)))
		dst = dst[:end]
		if _, err := io.ReadFull(r, dst[at:end]); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		at = end
	}
	return dst, nil
}

// aligned makes n bytes, n > 0, whose address is a multiple of 8.
func aligned(n int64) []byte {
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), len(words)*8)[:n]
}

// checkNesting reports a header that is nested deeper than the protocol
// allows, before a decoder recurses into it.
func checkNesting(header []byte) error {
	depth, inString := 0, false
	for i := 0; i < len(header); i++ {
		switch c := header[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > maxNesting {
				return violation("a header nested deeper than %d", maxNesting)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}
