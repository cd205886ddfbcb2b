package worker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// Route is an HTTP route that a model's code serves.
type Route struct {
	Method  string
	Path    string // /items/{id}
	Handler http.Handler
}

// Routes lists the model's custom handlers. Names in braces are read as path
// values of the request.
func (m *Model) Routes() []Route {
	var routes []Route
	for _, h := range m.handlers {
		if h.Method == "" {
			h.Method = http.MethodPost
		}
		routes = append(routes, Route{strings.ToUpper(h.Method), h.Path, m.handler(h)})
	}
	return routes
}

// handler passes requests to the model's code.
func (m *Model) handler(h Handler) http.Handler {
	names := pathNames(h.Path)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, m.engine.config.Limits.MaxFrameBytes))
		if err != nil {
			writeError(w, bodyError(err))
			return
		}
		answer, a, err := m.askFirst(r.Context(), kindCustom, func(id uint64) (*frame, error) {
			f := customFrame(id, m.key, h.Name, r, names)
			f.field("body")
			f.head = append(f.head, '{')
			f.add(body)
			f.head = append(f.head, "}}"...)
			return f, nil
		})
		if err != nil {
			writeError(w, err)
			return
		}
		switch ok := answer.writeHTTP(w); {
		case answer.Kind != kindItem:
		case ok:
			m.passOn(r.Context(), w, a)
		default:
			a.worker.conn.cancel(a.call)
		}
	})
}

// passOn writes an answer that comes in pieces, each as it comes. One that breaks off
// ends the connection: only so the client notices.
func (m *Model) passOn(ctx context.Context, w http.ResponseWriter, a asked) {
	flusher := http.NewResponseController(w)
	for consumed := int64(1); ; consumed++ {
		if flusher.Flush() != nil { // the client is gone
			a.worker.conn.cancel(a.call)
			return
		}
		if consumed == streamCredit/2 { // as with a stream
			a.worker.conn.consumed(a.call, consumed)
			consumed = 0
		}
		piece, err := m.next(ctx, a)
		if err == nil && piece.Kind == kindEnd {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		body, ok := piece.body()
		if !ok {
			a.worker.conn.cancel(a.call)
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write(body) // flushing reports what writing did not
	}
}

// body is that of an answer or of a piece of one; false where it has none.
func (m *message) body() ([]byte, bool) {
	if m.HTTP == nil || m.HTTP.Body == nil {
		return nil, false
	}
	return m.HTTP.Body.in(m.payload)
}

// customFrame is a custom message up to its body, its object left open.
func customFrame(id uint64, key, handler string, r *http.Request, names []string) *frame {
	params := map[string]string{}
	for _, name := range names {
		params[name] = r.PathValue(name)
	}
	headers := [][2]string{{"host", r.Host}}
	for name, values := range r.Header {
		for _, value := range values {
			headers = append(headers, [2]string{strings.ToLower(name), value})
		}
	}
	f := control(kindCustom, "id", id, "model", key, "handler", handler, "method", r.Method, "path", r.URL.Path,
		"path_params", params, "query", r.URL.RawQuery, "headers", headers)
	f.head = f.head[:len(f.head)-1]
	return f
}

// pathNames are the names in braces of a path: {id}, {rest:path}.
func pathNames(path string) []string {
	var names []string
	for {
		_, rest, ok := strings.Cut(path, "{")
		name, after, closed := strings.Cut(rest, "}")
		if !ok || !closed {
			return names
		}
		name, _, _ = strings.Cut(name, ":")
		names = append(names, strings.TrimSuffix(name, "..."))
		path = after
	}
}

func bodyError(err error) error {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return tensor.Errorf(tensor.KindTooLarge, "%v", err)
	}
	return tensor.Errorf(tensor.KindInvalid, "the body cannot be read: %v", err)
}

// connectionHeaders belong to one connection and are not passed on.
var connectionHeaders = []string{"connection", "content-length", "date", "keep-alive", "transfer-encoding", "upgrade"}

// writeHTTP writes the answer of the model's code, or its beginning, and reports
// whether it is one.
func (m *message) writeHTTP(w http.ResponseWriter) bool {
	if m.HTTP == nil || m.HTTP.Status < 200 || m.HTTP.Status > 599 {
		writeError(w, answerError("a custom handler's answer needs a status from 200 to 599"))
		return false
	}
	body, ok := m.body()
	if !ok && m.HTTP.Body != nil {
		writeError(w, answerError("its body is not in the payload"))
		return false
	}
	for _, h := range m.HTTP.Headers {
		if !slices.Contains(connectionHeaders, strings.ToLower(h[0])) {
			w.Header().Add(h[0], h[1])
		}
	}
	w.WriteHeader(m.HTTP.Status)
	_, _ = w.Write(body) // a client that left needs no answer
	return true
}

// writeError answers with err as JSON.
func writeError(w http.ResponseWriter, err error) {
	status := http.StatusServiceUnavailable // the context's
	var own *Error
	var request *tensor.Error
	switch {
	case errors.As(err, &own):
		status = own.Status
	case errors.As(err, &request) && request.Kind == tensor.KindTooLarge:
		status = http.StatusRequestEntityTooLarge
	case errors.As(err, &request):
		status = http.StatusBadRequest
	}
	text, _ := json.Marshal(map[string]string{"error": err.Error()}) // strings have a JSON form
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text) // as above
}
