package modelserver

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

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
func (a *api) serveInference(w http.ResponseWriter, r *http.Request, name, version string, p *protocol) {
	release, err := a.models.admit()
	if err != nil {
		writeError(w, err)
		return
	}
	defer release()
	if err := a.answer(w, r, name, version, p); err != nil {
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
func (a *api) answer(w http.ResponseWriter, r *http.Request, name, version string, p *protocol) error {
	request, err := a.readRequest(w, r, p)
	if err != nil {
		return err
	}
	var shared *SharedOutputs
	if p.binary {
		if shared, err = a.models.TakeShared(r.RemoteAddr, request); err != nil {
			return err
		}
	}
	response, err := a.models.infer(r.Context(), name, version, request)
	if err != nil {
		return err
	}
	if response, err = shared.Place(response); err != nil {
		return err
	}
	headers := TakeHeaders(response)
	out := newBuffer()
	defer out.free()
	if p.binary && anyBinary(request, response) {
		return a.answerBinary(w, r, request, response, headers, out)
	}
	if out.data, err = p.encode(out.data, response); err != nil {
		return err
	}
	a.models.events.setHeaders(w.Header(), response, headers)
	w.Header()["Content-Type"] = jsonType
	a.wire.send(w, r, out.data)
	return nil
}

// readRequest reads a request with its headers.
func (a *api) readRequest(w http.ResponseWriter, r *http.Request, p *protocol) (*tensor.Request, error) {
	var request *tensor.Request
	if lengths := r.Header[jsonLength]; p.binary && len(lengths) > 0 {
		head, tail, err := a.wire.readBinary(w, r, lengths[0])
		if err != nil {
			return nil, err
		}
		request, err = tensor.DecodeBinaryRequest(head.data, tail)
		head.free()
		if err != nil {
			return nil, err
		}
	} else {
		body, err := a.wire.readBody(w, r)
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
func (a *api) answerBinary(w http.ResponseWriter, r *http.Request, q *tensor.Request, response *tensor.Response, headers map[string]string, out *buffer) error {
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
	a.models.events.setHeaders(w.Header(), response, headers)
	w.Header()["Content-Type"] = binaryType
	w.Header()[jsonLength] = []string{strconv.Itoa(len(out.data))}
	a.wire.send(w, r, parts...)
	return nil
}

// postStream answers one request with server-sent events, one for each
// response. They are sent as they come, never compressed: what a compressor
// holds back would be late, and one for each stream would cost a megabyte.
func (a *api) postStream(w http.ResponseWriter, r *http.Request) {
	release, err := a.models.admit()
	if err != nil {
		writeError(w, err)
		return
	}
	defer release()
	request, err := a.readRequest(w, r, &protocolV2)
	if err != nil {
		writeError(w, err)
		return
	}
	shared, err := a.models.TakeShared(r.RemoteAddr, request)
	if err != nil {
		writeError(w, err)
		return
	}
	events := &eventStream{events: &a.models.events, timeout: a.wire.writeTimeout, w: w, control: http.NewResponseController(w)}
	once := func(yield func(*tensor.Request, error) bool) { yield(request, nil) }
	err = a.models.inferStream(r.Context(), r.PathValue(modelName), r.PathValue(modelVersion), once, func(r *tensor.Response) error {
		r, err := shared.Place(r)
		if err != nil {
			return err
		}
		return events.send(r)
	})
	switch {
	case err == nil:
		events.begin() // also when there were no responses
	case !events.begun:
		writeError(w, err)
	case !events.broken:
		events.fail(err)
	}
	if events.bounded {
		_ = events.control.SetWriteDeadline(time.Time{}) // for the next answer on the connection
	}
}

// eventStream writes server-sent events.
type eventStream struct {
	events  *cloudEvents
	timeout time.Duration // of one event
	w       http.ResponseWriter
	control *http.ResponseController
	begun   bool // the header was sent
	bounded bool // the connection has a write deadline
	broken  bool // the client is gone
}

// eventType is the media type of server-sent events.
var eventType = []string{"text/event-stream; charset=utf-8"}

// begin sends the header, once.
func (e *eventStream) begin() {
	if e.begun {
		return
	}
	e.begun = true
	h := e.w.Header()
	h["Content-Type"] = eventType
	h["Cache-Control"] = []string{"no-cache"}
	h["X-Accel-Buffering"] = []string{"no"} // or nginx holds events back
	e.w.WriteHeader(http.StatusOK)
}

// send writes one response as an event. Headers that the first asks for become
// the answer's; later ones come too late.
func (e *eventStream) send(r *tensor.Response) error {
	headers := TakeHeaders(r)
	b := newBuffer()
	defer b.free()
	var err error
	b.data, err = tensor.AppendResponse(append(b.data, "data: "...), r)
	if err != nil {
		return err
	}
	b.data = append(b.data, "\n\n"...)
	if !e.begun {
		e.events.setHeaders(e.w.Header(), r, headers)
		e.begin()
	}
	return e.write(b.data)
}

// fail writes an error as the last event.
func (e *eventStream) fail(failure error) {
	text, err := json.Marshal(errorOf(failure))
	if err != nil {
		text = []byte(noJSON)
	}
	_ = e.write(append(append([]byte("event: error\ndata: "), text...), "\n\n"...)) // a client that left needs no answer
}

// write sends an event at once, within the time for it.
func (e *eventStream) write(event []byte) error {
	e.bounded = e.control.SetWriteDeadline(time.Now().Add(e.timeout)) == nil
	_, err := e.w.Write(event)
	if err == nil {
		err = e.control.Flush()
	}
	e.broken = err != nil
	return err
}
