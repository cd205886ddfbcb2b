package modelserver

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/openai"
)

// customRoutes are the HTTP routes of one loaded model.
type customRoutes struct{ mux *http.ServeMux }

// newCustomRoutes prepares a model's routes; nil if it has none.
func newCustomRoutes(m Model) (*customRoutes, error) {
	router, ok := m.(Router)
	if !ok {
		return nil, nil
	}
	table := map[string]methods{}
	for _, route := range router.Routes() {
		if !strings.HasPrefix(route.Path, "/") || route.Method == "" || route.Handler == nil {
			return nil, fmt.Errorf("route %s %q: needs a method, a path that begins with / and a handler", route.Method, route.Path)
		}
		path := pattern(route.Path)
		if table[path] == nil {
			table[path] = methods{}
		}
		table[path][strings.ToUpper(route.Method)] = route.Handler.ServeHTTP
	}
	if len(table) == 0 {
		return nil, nil
	}
	c := &customRoutes{http.NewServeMux()}
	for path, m := range table {
		if err := handle(c.mux, path, m); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// openAIPaths are those by which clients of OpenAI's API ask models.
var openAIPaths = []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings"}

// openAI reports whether clients of OpenAI's API may ask the model.
func (c *customRoutes) openAI() bool {
	return slices.ContainsFunc(openAIPaths, func(path string) bool {
		_, pattern := c.mux.Handler(&http.Request{Method: http.MethodPost, URL: &url.URL{Path: path}})
		return pattern != ""
	})
}

// handle is mux.Handle with its panic over a pattern as an error.
func handle(mux *http.ServeMux, path string, h http.Handler) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("route %q: %v", path, p)
		}
	}()
	mux.Handle(path, h)
	return nil
}

// pattern writes a path as net/http does: {rest:path} as {rest...}, and a
// path that ends in / as that path alone.
func pattern(path string) string {
	path = strings.ReplaceAll(path, ":path}", "...}")
	if strings.HasSuffix(path, "/") {
		path += "{$}"
	}
	return path
}

// customHandler serves the routes of loaded models.
type customHandler struct {
	models *service
	wire   wire
}

// serve answers with the route of a loaded model, and reports whether there is one.
// Where several models have it, the one that the body names answers, and else the first
// by name. Routes are given bodies decompressed.
func (c *customHandler) serve(w http.ResponseWriter, r *http.Request) bool {
	var able []*instance
	for _, i := range c.models.registry.routers() {
		if _, pattern := i.routes.mux.Handler(r); pattern != "" {
			able = append(able, i)
		}
	}
	several := len(able) > 1 && r.Method == http.MethodPost
	if several || len(able) > 0 && r.Header.Get("Content-Encoding") != "" {
		body, err := c.wire.readBody(w, r)
		if err != nil {
			writeError(w, err)
			return true
		}
		defer body.free()
		r = r.Clone(r.Context())
		r.Header.Del("Content-Encoding")
		r.Header.Del("Content-Length")
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body.data)), int64(len(body.data))
		if several {
			c.preferNamed(able, body.data)
		}
	}
	for _, i := range able {
		if i.acquire() {
			defer i.release()
			c.serveRoute(w, r, i)
			return true
		}
	}
	return false
}

// preferNamed moves to the front what a request in OpenAI's form names as its "model".
func (c *customHandler) preferNamed(able []*instance, body []byte) {
	asked, err := openai.Parse(body)
	if err != nil {
		return // it has another form, or the model's code says what is wrong
	}
	name := c.models.registry.named(string(asked.Model))
	if n := slices.IndexFunc(able, func(i *instance) bool { return i.name == name }); n > 0 {
		able[0], able[n] = able[n], able[0]
	}
}

// serveRoute answers with a model's route. Its answers are compressed as the server's
// own are.
func (c *customHandler) serveRoute(w http.ResponseWriter, r *http.Request, i *instance) {
	if r.Method == http.MethodPost { // it may ask for inference, by another protocol
		i.meter.begin()
		defer i.meter.left()
	}
	r.Body = http.MaxBytesReader(w, r.Body, c.wire.maxBody)
	answer := routeAnswer{header: http.Header{}, status: http.StatusOK, to: w, control: http.NewResponseController(w), timeout: c.wire.writeTimeout}
	defer answer.end()
	i.routes.mux.ServeHTTP(&answer, r)
	if answer.begun {
		_ = answer.FlushError() // a client that left needs no answer
		return
	}
	answer.setHeader()
	if answer.status == http.StatusNoContent || answer.status == http.StatusNotModified {
		w.WriteHeader(answer.status)
		return
	}
	c.wire.sendStatus(w, r, answer.status, answer.body...)
}

// routeAnswer is a route's answer: a whole one, or from the first time that the route
// flushes it, one that is sent as it comes and not compressed, as streams are.
type routeAnswer struct {
	header  http.Header
	status  int
	body    [][]byte // not sent yet
	to      http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration // to send a piece
	begun   bool
}

// setHeader copies what may stand in a header.
func (a *routeAnswer) setHeader() {
	for name, values := range a.header {
		for _, value := range values {
			if value, ok := HeaderValue(value); ok {
				a.to.Header().Add(name, value)
			}
		}
	}
}

// FlushError sends what there is. It is for http.ResponseController.
func (a *routeAnswer) FlushError() error {
	if !a.begun {
		a.begun = true
		a.setHeader()
		a.to.WriteHeader(a.status)
	}
	_ = a.control.SetWriteDeadline(time.Now().Add(a.timeout)) // in tests there is no connection
	for _, part := range a.body {
		if _, err := a.to.Write(part); err != nil {
			return err
		}
	}
	a.body = nil
	return a.control.Flush()
}

// end leaves the connection to its next answer.
func (a *routeAnswer) end() {
	if a.begun {
		_ = a.control.SetWriteDeadline(time.Time{})
	}
}

// Header is the answer's.
func (a *routeAnswer) Header() http.Header { return a.header }

// WriteHeader keeps the status.
func (a *routeAnswer) WriteHeader(status int) { a.status = status }

// Write keeps a part of the body, which is the answer's own from then on.
func (a *routeAnswer) Write(part []byte) (int, error) {
	a.body = append(a.body, bytes.Clone(part))
	return len(part), nil
}
