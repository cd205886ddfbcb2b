package modelserver

import (
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
)

// routes is the whole of the HTTP interface. Names in braces are path values.
func (s *Server) routes() map[string]methods {
	table := map[string]methods{
		"/{$}":             {http.MethodGet: s.getLive},
		"/v2":              {http.MethodGet: s.getServer},
		"/v2/{$}":          {http.MethodGet: s.getServer},
		"/v2/health/live":  {http.MethodGet: s.getLive},
		"/v2/health/ready": {http.MethodGet: s.getReady},

		"/v2/repository/index":                 {http.MethodPost: s.postIndex},
		"/v2/repository/models/{model}/load":   {http.MethodPost: s.postLoad},
		"/v2/repository/models/{model}/unload": {http.MethodPost: s.postUnload},

		"/v1/models":         {http.MethodGet: s.listV1},
		"/v1/models/{model}": {http.MethodGet: s.statusV1, http.MethodPost: s.predictV1},
	}
	for _, prefix := range []string{"/v2/models/{model}", "/v2/models/{model}/versions/{version}"} {
		table[prefix] = methods{http.MethodGet: s.getModel}
		table[prefix+"/ready"] = methods{http.MethodGet: s.getModelReady}
		table[prefix+"/infer"] = methods{http.MethodPost: s.postInfer}
	}
	if s.config.Metrics.Path != "" && s.config.Metrics.Port == NoPort {
		table[s.config.Metrics.Path] = methods{http.MethodGet: s.getMetrics}
	}
	return table
}

// Handler is the HTTP interface.
func (s *Server) Handler() http.Handler {
	return s.handler(s.routes())
}

// metricsHandler is the HTTP interface of the metrics' own port.
func (s *Server) metricsHandler() http.Handler {
	return s.handler(map[string]methods{s.config.Metrics.Path: {http.MethodGet: s.getMetrics}})
}

// handler serves a table of routes, and errors elsewhere.
func (s *Server) handler(table map[string]methods) http.Handler {
	mux := http.NewServeMux()
	for path, m := range table {
		mux.Handle(path, m)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeErrorStatus(w, http.StatusNotFound, fmt.Errorf("no such path: %s", r.URL.Path))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer s.recovered(w, r)
		mux.ServeHTTP(w, r)
	})
}

// recovered turns a panic into an answer, and lets net/http's own pass.
func (s *Server) recovered(w http.ResponseWriter, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler {
		panic(p)
	}
	s.log.Error("request panicked", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
	writeErrorStatus(w, http.StatusInternalServerError, fmt.Errorf("internal error: %v", p))
}

// methods holds the handler of each method of a path.
type methods map[string]http.HandlerFunc

// ServeHTTP answers 405, with what is allowed, to other methods.
func (m methods) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if handle, ok := m[method]; ok {
		handle(w, r)
		return
	}
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		if m[method] != nil {
			allowed = append(allowed, method)
		}
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	writeErrorStatus(w, http.StatusMethodNotAllowed, fmt.Errorf("%s is not allowed here, only %s", r.Method, strings.Join(allowed, ", ")))
}
