package modelserver

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
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

// serve answers with the route of a loaded model, and reports whether
// there is one. Where several models have it, the first by name answers.
func (c *customHandler) serve(w http.ResponseWriter, r *http.Request) bool {
	for _, i := range c.models.registry.routers() {
		if _, pattern := i.routes.mux.Handler(r); pattern == "" || !i.acquire() {
			continue
		}
		defer i.release()
		c.serveRoute(w, r, i.routes.mux)
		return true
	}
	return false
}

// serveRoute answers with a model's route: it is given bodies decompressed, and its
// answers are compressed as the server's own are.
func (c *customHandler) serveRoute(w http.ResponseWriter, r *http.Request, route http.Handler) {
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" {
		body, err := c.wire.readBody(w, r)
		if err != nil {
			writeError(w, err)
			return
		}
		defer body.free()
		r = r.Clone(r.Context())
		r.Header.Del("Content-Encoding")
		r.Header.Del("Content-Length")
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body.data)), int64(len(body.data))
	}
	answer := routeAnswer{header: http.Header{}, status: http.StatusOK}
	route.ServeHTTP(&answer, r)
	for name, values := range answer.header {
		for _, value := range values {
			if value, ok := HeaderValue(value); ok {
				w.Header().Add(name, value)
			}
		}
	}
	if answer.status == http.StatusNoContent || answer.status == http.StatusNotModified {
		w.WriteHeader(answer.status)
		return
	}
	c.wire.sendStatus(w, r, answer.status, answer.body...)
}

// routeAnswer is a route's answer, which it gives as a whole.
type routeAnswer struct {
	header http.Header
	status int
	body   [][]byte
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
