package modelserver

import (
	"net/http"
	"strconv"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// protocol is the JSON of an inference protocol, and its status for a model
// that does not serve.
type protocol struct {
	decode   func(body []byte) (*tensor.Request, error)
	encode   func(dst []byte, r *tensor.Response) ([]byte, error)
	binary   bool // has the binary tensor extension
	notReady int
}

// jsonLength is the header of the binary tensor extension, canonical: how many
// bytes of a body are JSON.
const jsonLength = "Inference-Header-Content-Length"

// serveInference answers one inference request of either protocol.
func (s *Server) serveInference(w http.ResponseWriter, r *http.Request, name, version string, p *protocol) {
	release, err := s.admit()
	if err != nil {
		s.writeError(w, err)
		return
	}
	defer release()
	if err := s.answer(w, r, name, version, p); err != nil {
		p.writeError(w, err)
	}
}

func (p *protocol) writeError(w http.ResponseWriter, err error) {
	status := statusOf(err)
	if NotReady(err) {
		status = p.notReady
	}
	writeErrorStatus(w, status, err)
}

// answer reads, infers, encodes and sends; on an error nothing was sent.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, name, version string, p *protocol) error {
	request, err := s.readRequest(w, r, p)
	if err != nil {
		return err
	}
	response, err := s.infer(r.Context(), name, version, request)
	if err != nil {
		return err
	}
	headers := TakeHeaders(response)
	out := newBuffer()
	defer out.free()
	if p.binary && anyBinary(request, response) {
		return s.answerBinary(w, r, request, response, headers, out)
	}
	if out.data, err = p.encode(out.data, response); err != nil {
		return err
	}
	s.setHeaders(w.Header(), response, headers)
	w.Header()["Content-Type"] = jsonType
	s.send(w, r, out.data)
	return nil
}

// readRequest reads a request with its headers.
func (s *Server) readRequest(w http.ResponseWriter, r *http.Request, p *protocol) (*tensor.Request, error) {
	var request *tensor.Request
	if lengths := r.Header[jsonLength]; p.binary && len(lengths) > 0 {
		head, tail, err := s.readBinary(w, r, lengths[0])
		if err != nil {
			return nil, err
		}
		request, err = tensor.DecodeBinaryRequest(head.data, tail)
		head.free()
		if err != nil {
			return nil, err
		}
	} else {
		body, err := s.readBody(w, r)
		if err != nil {
			return nil, err
		}
		request, err = p.decode(body.data)
		if err != nil && p.binary {
			err = allFaults(err, body.data)
		}
		body.free()
		if err != nil {
			return nil, err
		}
	}
	SetHeaders(request, requestHeaders(r))
	return request, nil
}

// anyBinary reports whether a request asks for any of the outputs in binary
// form.
func anyBinary(q *tensor.Request, r *tensor.Response) bool {
	for i := range r.Outputs {
		if q.WantsBinary(r.Outputs[i].Name) {
			return true
		}
	}
	return false
}

// binaryType is the media type of JSON with binary data behind it.
var binaryType = []string{"application/octet-stream"}

// answerBinary sends a response with some of its outputs in binary form.
func (s *Server) answerBinary(w http.ResponseWriter, r *http.Request, q *tensor.Request, response *tensor.Response, headers map[string]string, out *buffer) error {
	var err error
	if out.data, err = tensor.AppendBinaryResponse(out.data, response, q.WantsBinary); err != nil {
		return err
	}
	parts := [][]byte{out.data}
	for i := range response.Outputs {
		t := &response.Outputs[i]
		if !q.WantsBinary(t.Name) {
			continue
		}
		raw, ok := t.RawMemory()
		if !ok {
			raw = t.AppendRaw(make([]byte, 0, t.RawSize()))
		}
		parts = append(parts, raw)
	}
	s.setHeaders(w.Header(), response, headers)
	w.Header()["Content-Type"] = binaryType
	w.Header()[jsonLength] = []string{strconv.Itoa(len(out.data))}
	s.send(w, r, parts...)
	return nil
}
