package worker

import (
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
		answer, err := m.ask(r.Context(), kindCustom, func(id uint64) (*frame, error) {
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
		answer.writeHTTP(w)
	})
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

// writeHTTP writes the answer of the model's code.
func (m *message) writeHTTP(w http.ResponseWriter) {
	if m.HTTP == nil || m.HTTP.Status < 200 || m.HTTP.Status > 599 {
		writeError(w, answerError("a custom handler's answer needs a status from 200 to 599"))
		return
	}
	var body []byte
	if m.HTTP.Body != nil {
		var ok bool
		if body, ok = m.HTTP.Body.in(m.payload); !ok {
			writeError(w, answerError("its body is not in the payload"))
			return
		}
	}
	for _, h := range m.HTTP.Headers {
		if !slices.Contains(connectionHeaders, strings.ToLower(h[0])) {
			w.Header().Add(h[0], h[1])
		}
	}
	w.WriteHeader(m.HTTP.Status)
	_, _ = w.Write(body) // a client that left needs no answer
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
