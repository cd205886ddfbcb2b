package modelserver

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// buffer is pooled memory for bodies.
type buffer struct{ data []byte }

// The size of a new buffer, the size that a Content-Length may reserve before the bytes
// arrive, and the largest that is kept for reuse, in bytes.
const (
	firstBuffer    = 4 << 10
	believedLength = 1 << 20
	keptBuffer     = 1 << 20
)

var buffers = sync.Pool{New: func() any { return &buffer{data: make([]byte, 0, firstBuffer)} }}

func newBuffer() *buffer { return buffers.Get().(*buffer) }

// free gives b back; its data must not be used any more.
func (b *buffer) free() {
	if cap(b.data) <= keptBuffer {
		b.data = b.data[:0]
		buffers.Put(b)
	}
}

// wire reads requests' bodies and writes answers, within their bounds.
type wire struct {
	maxBody      int64 // bytes of a body, decompressed
	writeTimeout time.Duration
	gzip         bool // compresses answers for clients that ask for it
}

// readBody reads a request's body within the limit; the caller frees it.
func (c wire) readBody(w http.ResponseWriter, r *http.Request) (*buffer, error) {
	body, length, err := c.openBody(w, r)
	if err != nil {
		return nil, err
	}
	b, err := readPart(body, length)
	return b, c.bodyError(w, body, err)
}

// readBinary reads a body of the binary tensor extension, whose JSON has the
// length in the header. The caller frees the JSON; the binary data
// behind it is in memory of its own, aligned for all numbers.
func (c wire) readBinary(w http.ResponseWriter, r *http.Request, header string) (*buffer, []byte, error) {
	body, length, err := c.openBody(w, r)
	if err != nil {
		return nil, nil, err
	}
	limit := length
	if limit < 0 {
		limit = c.maxBody
	}
	n, err := tensor.SplitBinary(header, limit)
	if err != nil {
		return nil, nil, err
	}
	head, err := readPart(io.LimitReader(body, n), n)
	if err == nil && int64(len(head.data)) < n {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return head, nil, c.bodyError(w, body, err)
	}
	tail, err := readTail(body, length-n)
	return head, tail, c.bodyError(w, body, err)
}

// readPart reads the rest of a body, of the given length unless it is below 0.
func readPart(body io.Reader, length int64) (*buffer, error) {
	b := newBuffer()
	reader := bytes.NewBuffer(b.data)
	if length > 0 {
		// One byte more than there is lets ReadFrom see the end without
		// growing.
		reader.Grow(int(min(length, believedLength)) + bytes.MinRead)
	}
	_, err := reader.ReadFrom(body)
	b.data = reader.Bytes()
	return b, err
}

// readTail is readPart into memory that the caller keeps: all of it at once
// when the length is known and what has come makes it likely.
func readTail(body io.Reader, length int64) ([]byte, error) {
	if length < 0 {
		return io.ReadAll(body)
	}
	data := make([]byte, min(length, believedLength))
	if _, err := io.ReadFull(body, data); err != nil {
		return nil, err
	}
	if int64(len(data)) < length {
		first := data
		data = make([]byte, length)
		if _, err := io.ReadFull(body, data[copy(data, first):]); err != nil {
			return nil, err
		}
	}
	var one [1]byte
	if n, err := body.Read(one[:]); n > 0 || err != io.EOF && err != nil {
		return nil, errors.Join(err, errLongBody)
	}
	return data, nil
}

var errLongBody = errors.New("the body is longer than its Content-Length")

// body is a request's body, decompressed.
type body struct {
	io.Reader
	left   int64 // bytes until the limit is exceeded
	over   bool  // it was
	inflow io.Closer
}

func (b *body) Read(p []byte) (int, error) {
	if b.left < 0 {
		b.over = true
		return 0, errors.New("too large")
	}
	n, err := b.Reader.Read(p[:min(int64(len(p)), b.left+1)])
	b.left -= int64(n)
	if b.left < 0 {
		b.over = true
		return 0, errors.New("too large")
	}
	return n, err
}

// openBody gives the body, decompressed, with the limit on it; length is -1
// if it is not known. bodyError ends its use.
func (c wire) openBody(w http.ResponseWriter, r *http.Request) (*body, int64, error) {
	limit := c.maxBody
	if r.ContentLength > limit {
		return nil, 0, tooLarge(limit)
	}
	encoding := strings.ToLower(r.Header.Get("Content-Encoding"))
	if encoding == "" || encoding == "identity" {
		// The reader ends the connection of a client that sends on.
		return &body{Reader: http.MaxBytesReader(w, r.Body, limit+1), left: limit}, r.ContentLength, nil
	}
	raw := http.MaxBytesReader(w, r.Body, limit)
	var inflated io.ReadCloser
	var err error
	switch encoding {
	case "gzip", "x-gzip":
		inflated, err = gzip.NewReader(raw)
	case "deflate":
		inflated, err = zlib.NewReader(raw)
	default:
		return nil, 0, &httpError{http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Encoding %q is not read; send gzip, deflate or the body plain", excerpt.Of(encoding, maxErrorBytes))}
	}
	if err != nil {
		return nil, 0, &httpError{http.StatusBadRequest, "the body is not " + encoding + ": " + err.Error()}
	}
	return &body{Reader: inflated, left: limit, inflow: inflated}, -1, nil
}

// bodyError returns the client's error for a body that cannot be read. It is nil for
// one that was read, whose request then has no read deadline any more.
func (c wire) bodyError(w http.ResponseWriter, b *body, err error) error {
	if b.inflow != nil {
		_ = b.inflow.Close() // what matters was read
	}
	var over *http.MaxBytesError
	switch {
	case err == nil:
		liftReadDeadline(w)
		return nil
	case b.over, errors.As(err, &over):
		return tooLarge(c.maxBody)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return &httpError{http.StatusBadRequest, "the body ended too early"}
	case b.inflow != nil, errors.Is(err, errLongBody):
		return &httpError{http.StatusBadRequest, "the body cannot be read: " + err.Error()}
	}
	return &httpError{http.StatusRequestTimeout, "the body could not be read: " + err.Error()}
}

// liftReadDeadline lifts the bound on reading a request that was read: it would end
// the request's context however long the model may take.
func liftReadDeadline(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // a writer in a test has none
}

func tooLarge(limit int64) error {
	return tensor.Errorf(tensor.KindTooLarge, "the body is larger than %d bytes, the limit", limit)
}
