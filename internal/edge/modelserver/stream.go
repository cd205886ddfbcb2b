package modelserver

import (
	"encoding/json"
	"net/http"
	"time"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// postStream answers one request with server-sent events, one for each
// response. They are sent as they come, never compressed: what a compressor
// holds back would be late, and one for each stream would cost a megabyte.
func (s *Server) postStream(w http.ResponseWriter, r *http.Request) {
	release, err := s.admit()
	if err != nil {
		s.writeError(w, err)
		return
	}
	defer release()
	request, err := s.readRequest(w, r, &protocolV2)
	if err != nil {
		s.writeError(w, err)
		return
	}
	events := &eventStream{server: s, w: w, control: http.NewResponseController(w)}
	once := func(yield func(*tensor.Request, error) bool) { yield(request, nil) }
	err = s.inferStream(r.Context(), r.PathValue(modelName), r.PathValue(modelVersion), once, events.send)
	switch {
	case err == nil:
		events.begin() // also when there were no responses
	case !events.begun:
		s.writeError(w, err)
	case !events.broken:
		events.fail(err)
	}
	if events.bounded {
		_ = events.control.SetWriteDeadline(time.Time{}) // for the next answer on the connection
	}
}

// eventStream writes server-sent events.
type eventStream struct {
	server  *Server
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
		e.server.setHeaders(e.w.Header(), r, headers)
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
	e.bounded = e.control.SetWriteDeadline(time.Now().Add(e.server.config.Limits.WriteTimeout)) == nil
	_, err := e.w.Write(event)
	if err == nil {
		err = e.control.Flush()
	}
	e.broken = err != nil
	return err
}
