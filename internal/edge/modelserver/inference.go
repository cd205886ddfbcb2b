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
	if s.slots != nil {
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		default:
			s.writeError(w, errBusy)
			return
		}
	}
	i, err := s.registry.acquire(name, version)
	if err != nil {
		status := statusOf(err)
		if _, ok := errors.AsType[*notReadyError](err); ok {
			status = p.notReady
		}
		writeErrorStatus(w, status, err)
		return
	}
	defer i.release()
	began := time.Now()
	out, err := s.answer(w, r, i, p)
	i.meter.observe(time.Since(began), err == nil)
	if err != nil {
		s.writeError(w, err)
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
	bounded := control.SetWriteDeadline(time.Now().Add(s.config.WriteTimeout)) == nil
	writeBytes(w, http.StatusOK, text)
	if bounded && control.Flush() == nil {
		_ = control.SetWriteDeadline(time.Time{}) // the next answer sets its own
	}
}

// answer reads, infers and encodes; the caller frees the result.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, i *instance, p *protocol) (*buffer, error) {
	body, err := s.readBody(w, r)
	if err != nil {
		return nil, err
	}
	request, err := p.decode(body.data)
	body.free()
	if err != nil {
		return nil, err
	}
	request.ModelName, request.ModelVersion = i.name, i.version
	if request.ID == "" {
		request.ID = newID()
	}
	response, err := i.model.Infer(r.Context(), request)
	if err != nil {
		return nil, err
	}
	response.ModelName, response.ModelVersion, response.ID = i.name, i.version, request.ID
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
	limit := s.config.MaxBodyBytes
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
