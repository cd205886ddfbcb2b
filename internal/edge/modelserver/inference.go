package modelserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// protocol is the JSON of an inference protocol, and its status for a model
// that does not serve.
type protocol struct {
	decode   func(body []byte) (*tensor.Request, error)
	encode   func(dst []byte, r *tensor.Response) ([]byte, error)
	notReady int
}

// serveInference answers one inference request of either protocol.
func (s *Server) serveInference(w http.ResponseWriter, r *http.Request, name, version string, p *protocol) {
	release, err := s.admit()
	if err != nil {
		s.writeError(w, err)
		return
	}
	defer release()
	out, err := s.answer(w, r, name, version, p)
	if err != nil {
		status := statusOf(err)
		if NotReady(err) {
			status = p.notReady
		}
		writeErrorStatus(w, status, err)
		return
	}
	defer out.free()
	s.send(w, out.data)
}

// alwaysBuffered is the largest answer, in bytes, that a connection takes at
// once even if its client does not read: less than any system's socket buffer.
const alwaysBuffered = 4 << 10

// send writes an answer within the time for it. Few are long enough to wait,
// so few pay for a deadline.
func (s *Server) send(w http.ResponseWriter, text []byte) {
	w.Header()["Content-Length"] = []string{strconv.Itoa(len(text))}
	if len(text) <= alwaysBuffered {
		writeBytes(w, http.StatusOK, text)
		return
	}
	control := http.NewResponseController(w)
	// A writer without deadlines, as in tests, is not a connection.
	bounded := control.SetWriteDeadline(time.Now().Add(s.config.Limits.WriteTimeout)) == nil
	writeBytes(w, http.StatusOK, text)
	if bounded && control.Flush() == nil {
		_ = control.SetWriteDeadline(time.Time{}) // the next answer sets its own
	}
}

// answer reads, infers and encodes; the caller frees the result.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, name, version string, p *protocol) (*buffer, error) {
	body, err := s.readBody(w, r)
	if err != nil {
		return nil, err
	}
	request, err := p.decode(body.data)
	body.free()
	if err != nil {
		return nil, err
	}
	response, err := s.infer(r.Context(), name, version, request)
	if err != nil {
		return nil, err
	}
	out := newBuffer()
	if out.data, err = p.encode(out.data, response); err != nil {
		out.free()
		return nil, err
	}
	return out, nil
}

// buffer is pooled memory for bodies.
type buffer struct{ data []byte }

// The sizes a buffer has at first, grows to before a body has been seen to be
// as long as it says, and may have to be kept, in bytes.
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

// readBody reads a request's body within the limit; the caller frees it.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) (*buffer, error) {
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return nil, &httpError{http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Encoding %q is not read; send the body plain", e)}
	}
	limit := s.config.Limits.MaxBodyBytes
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	b := newBuffer()
	reader := bytes.NewBuffer(b.data)
	if r.ContentLength > 0 {
		// One byte more than there is lets ReadFrom see the end without
		// growing.
		reader.Grow(int(min(r.ContentLength, believedLength)) + bytes.MinRead)
	}
	_, err := reader.ReadFrom(http.MaxBytesReader(w, r.Body, limit))
	b.data = reader.Bytes()
	if err == nil {
		return b, nil
	}
	b.free()
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return nil, tooLarge(limit)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, &httpError{http.StatusBadRequest, "the body ended before its Content-Length"}
	}
	return nil, &httpError{http.StatusRequestTimeout, "the body could not be read: " + err.Error()}
}

func tooLarge(limit int64) error {
	return tensor.Errorf(tensor.KindTooLarge, "the body is larger than %d bytes, the limit", limit)
}
