package modelserver

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/network"
)

// The path values, named as in MLServer's metrics and documents.
const (
	modelName    = "model_name"
	modelVersion = "model_version"
)

// routes is the whole of the HTTP interface. Names in braces are path values.
func (s *Server) routes() map[string]methods {
	get := func(h http.HandlerFunc) methods { return methods{http.MethodGet: h} }
	post := func(h http.HandlerFunc) methods { return methods{http.MethodPost: h} }
	table := map[string]methods{
		"/{$}":             get(s.getAlive),
		"/v2":              get(s.getServer),
		"/v2/{$}":          get(s.getServer),
		"/v2/health/live":  get(s.getLive),
		"/v2/health/ready": get(s.getReady),

		"/v2/docs":                       get(s.getDocs),
		"/v2/docs/dataplane.json":        get(s.getDataplane),
		"/v2/docs/model_repository.json": get(s.getModelRepository),
		"/v2/docs/assets/{file}":         get(s.getAsset),

		"/v2/repository/index":                      post(s.postIndex),
		"/v2/repository/models/{model_name}/load":   post(s.postLoad),
		"/v2/repository/models/{model_name}/unload": post(s.postUnload),

		"/v1/models":              get(s.listV1),
		"/v1/models/{model_name}": {http.MethodGet: s.statusV1, http.MethodPost: s.predictV1},
	}
	for _, prefix := range []string{"/v2/models/{model_name}", "/v2/models/{model_name}/versions/{model_version}"} {
		table[prefix] = get(s.getModel)
		table[prefix+"/ready"] = get(s.getModelReady)
		table[prefix+"/infer"] = post(s.postInfer)
		table[prefix+"/generate"] = post(s.postInfer)
		table[prefix+"/infer_stream"] = post(s.postStream)
		table[prefix+"/generate_stream"] = post(s.postStream)
		table[prefix+"/docs"] = get(s.getDocs)
		table[prefix+"/docs/dataplane.json"] = get(s.getDataplane)
	}
	if s.config.Metrics.Path != "" && s.config.Metrics.Port == NoPort {
		table[s.config.Metrics.Path] = get(s.config.Metrics.Registry.ServeHTTP)
	}
	return table
}

// Handler is the HTTP interface.
func (s *Server) Handler() http.Handler {
	handler := newMux(s.routes(), func(w http.ResponseWriter, r *http.Request) {
		if !s.serveCustom(w, r) {
			notFound(w, r)
		}
	})
	if s.config.HTTP.CORS != nil {
		handler = newCrossOrigin(*s.config.HTTP.CORS).wrap(handler)
	}
	root := strings.TrimSuffix(s.config.HTTP.RootPath, "/")
	return s.guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A chunked request may have had a Content-Length too, by which a proxy before
		// the server would have found another end (RFC 9112 6.1). net/http has dropped
		// it, so the connection ends after every one of them.
		if len(r.TransferEncoding) > 0 {
			w.Header().Set("Connection", "close")
		}
		if rest, ok := strings.CutPrefix(r.URL.Path, root+"/"); ok && root != "" {
			r = r.Clone(r.Context())
			r.URL.Path, r.URL.RawPath = "/"+rest, strings.TrimPrefix(r.URL.RawPath, root)
		}
		s.observe(w, r, handler)
	}))
}

// metricsHandler is the HTTP interface of the metrics' own port.
func (s *Server) metricsHandler() http.Handler {
	return s.guard(newMux(map[string]methods{s.config.Metrics.Path: {http.MethodGet: s.config.Metrics.Registry.ServeHTTP}}, notFound))
}

// newMux serves a table of routes, and elsewhere what other answers.
func newMux(table map[string]methods, other http.HandlerFunc) http.Handler {
	mux := http.NewServeMux()
	for path, m := range table {
		mux.Handle(path, m)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if !redirectSlash(mux, w, r) {
			other(w, r)
		}
	})
	return mux
}

// redirectSlash sends a path with a slash too many at its end to the one
// without, if there is one, as MLServer does: probes are written so.
func redirectSlash(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) bool {
	path, slashed := strings.CutSuffix(r.URL.Path, "/")
	if !slashed || path == "" {
		return false
	}
	without := &http.Request{Method: r.Method, Host: r.Host, URL: &url.URL{Path: path}}
	if _, pattern := mux.Handler(without); pattern == "" || strings.HasSuffix(pattern, "/") {
		return false
	}
	// Relative, so that it holds wherever a proxy shows the server.
	to := url.URL{Path: "../" + path[strings.LastIndexByte(path, '/')+1:], RawQuery: r.URL.RawQuery}
	w.Header().Set("Location", to.String())
	w.WriteHeader(http.StatusTemporaryRedirect)
	return true
}

func notFound(w http.ResponseWriter, r *http.Request) {
	writeErrorStatus(w, http.StatusNotFound, fmt.Errorf("no such path: %s", r.URL.Path))
}

// answered notes the status of an answer.
type answered struct {
	http.ResponseWriter
	status int // 0: not yet
}

// WriteHeader notes the first status.
func (a *answered) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write notes the status that net/http implies.
func (a *answered) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return a.ResponseWriter.Write(p)
}

// Unwrap leads http.ResponseController to the connection.
func (a *answered) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// observe lets next answer and counts it. Probes and scrapes are not counted.
func (s *Server) observe(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if strings.HasPrefix(r.URL.Path, "/v2/health/") || r.URL.Path == s.config.Metrics.Path {
		defer s.recovered(w, r)
		next.ServeHTTP(w, r)
		return
	}
	began := time.Now()
	a := &answered{ResponseWriter: w}
	method := knownMethod(r.Method)
	inProgress := s.rest.inProgress.With(appName, method)
	inProgress.Add(1)
	r, end := s.beginRequest(r)
	defer func() {
		inProgress.Add(-1)
		took := time.Since(began)
		end(a.status)
		s.rest.observe(method, r.Pattern, a.status, took)
		s.logRequest(r, a.status, took)
	}()
	defer s.recovered(a, r)
	next.ServeHTTP(a, r)
}

// logRequest logs an answered request with what ties it to others' logs.
func (s *Server) logRequest(r *http.Request, status int, took time.Duration) {
	if !s.log.Enabled(r.Context(), slog.LevelDebug) {
		return
	}
	s.log.Debug("request answered", "method", r.Method, "path", r.URL.Path, "status", status, "took", took,
		"request_id", r.Header.Get("X-Request-Id"), "traceparent", r.Header.Get("Traceparent"))
}

// knownMethod keeps methods that clients make up out of the metrics.
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	}
	return "OTHER"
}

// template is the path of a route's pattern, as metrics name it.
func template(pattern string) string {
	switch pattern {
	case "", "/":
		return "__unknown__"
	case "/{$}":
		return "/"
	}
	return strings.TrimSuffix(pattern, "/{$}")
}

// recovered turns a panic into an answer, and lets net/http's own pass.
func (s *Server) recovered(w http.ResponseWriter, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(p)
	}
	s.log.Error("request panicked", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
	writeErrorStatus(w, http.StatusInternalServerError, fmt.Errorf("internal error: %v", p))
}

// methods holds the handler of each method of a path.
type methods map[string]http.HandlerFunc

// ServeHTTP answers OPTIONS with what is allowed, and 405 with the same to
// other methods.
func (m methods) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if handle, ok := m[r.Method]; ok {
		handle(w, r)
		return
	}
	if handle, ok := m[http.MethodGet]; ok && r.Method == http.MethodHead {
		handle(w, r)
		return
	}
	allowed := strings.Join(slices.Sorted(maps.Keys(m)), ", ")
	w.Header().Set("Allow", allowed)
	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	writeErrorStatus(w, http.StatusMethodNotAllowed, fmt.Errorf("%s is not allowed here, only %s", r.Method, allowed))
}

// guard refuses, where the server listens on loopback, what a web page of another
// site may have sent: whoever asks there is taken for a user of this machine.
func (s *Server) guard(next http.Handler) http.Handler {
	if !network.LocalHost(s.config.Host) {
		return next
	}
	g := &network.Guard{Hosts: s.config.AllowedHosts}
	if s.config.HTTP.CORS != nil {
		g.KnowsOrigin = newCrossOrigin(*s.config.HTTP.CORS).originAllowed
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := r.Header.Get("Origin")
		switch g.Check(r.Host, origin, r.Header.Get("Sec-Fetch-Site")) {
		case network.Admitted:
			next.ServeHTTP(w, r)
		case network.RefusedHost:
			writeErrorStatus(w, http.StatusForbidden, fmt.Errorf("the host %q is not this server's: ask 127.0.0.1 or localhost, or name more with --allowed-hosts", r.Host))
		default:
			writeErrorStatus(w, http.StatusForbidden, fmt.Errorf("web pages of other sites may not ask this server (origin %q): name those that may in cors_settings", origin))
		}
	})
}
