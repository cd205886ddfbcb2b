package modelserver

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/network"
)

// The path values, named as in MLServer's metrics and documents.
const (
	modelName    = "model_name"
	modelVersion = "model_version"
)

// newHandler is the HTTP interface.
func newHandler(c Config, models *service, lacks func() string, meters *restMeters, log *slog.Logger) http.Handler {
	w := wire{maxBody: c.Limits.MaxBodyBytes, writeTimeout: c.Limits.WriteTimeout, gzip: c.HTTP.Gzip}
	table := routes(&api{models: models, wire: w, lacks: lacks, standby: c.Standby, shared: c.SharedMemory != ""}, &docs{models: models, wire: w})
	if c.Metrics.Path != "" && c.Metrics.Port == NoPort {
		table[c.Metrics.Path] = methods{http.MethodGet: c.Metrics.Registry.ServeHTTP}
	}
	custom := &customHandler{models: models, wire: w}
	handler := newMux(table, func(w http.ResponseWriter, r *http.Request) {
		if !custom.serve(w, r) {
			notFound(w, r)
		}
	})
	if c.HTTP.CORS != nil {
		handler = crossOrigin(c.HTTP.CORS.decision(), handler)
	}
	o := &observer{meters: meters, tracer: c.Tracer, metricsPath: c.Metrics.Path, log: log}
	root := strings.TrimSuffix(c.HTTP.RootPath, "/")
	return guard(c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
		o.observe(w, r, handler)
	}))
}

// newMetricsHandler is the HTTP interface of the metrics' own port.
func newMetricsHandler(c Config) http.Handler {
	return guard(c, newMux(map[string]methods{c.Metrics.Path: {http.MethodGet: c.Metrics.Registry.ServeHTTP}}, notFound))
}

// routes are the paths of the HTTP interface, but for those of metrics and of
// models. Names in braces are path values.
func routes(a *api, d *docs) map[string]methods {
	get := func(h http.HandlerFunc) methods { return methods{http.MethodGet: h} }
	post := func(h http.HandlerFunc) methods { return methods{http.MethodPost: h} }
	table := map[string]methods{
		"/{$}":             get(a.getAlive),
		"/v2":              get(a.getServer),
		"/v2/{$}":          get(a.getServer),
		"/v2/health/live":  get(a.getLive),
		"/v2/health/ready": get(a.getReady),

		"/v2/docs":                       get(d.getDocs),
		"/v2/docs/dataplane.json":        get(d.getDataplane),
		"/v2/docs/model_repository.json": get(d.getModelRepository),
		"/v2/docs/assets/{file}":         get(d.getAsset),

		"/v2/repository/index":                      post(a.postIndex),
		"/v2/repository/models/{model_name}/load":   post(a.postLoad),
		"/v2/repository/models/{model_name}/unload": post(a.postUnload),

		"/v2/models/stats":                      get(a.getAllStatistics),
		"/v2/trace/setting":                     {http.MethodGet: a.getTrace, http.MethodPost: a.refuseSettings},
		"/v2/logging":                           {http.MethodGet: a.getLogging, http.MethodPost: a.refuseSettings},
		"/v2/models/{model_name}/trace/setting": {http.MethodGet: a.getTrace, http.MethodPost: a.refuseSettings},

		"/v1/models":              get(a.listV1),
		"/v1/models/{model_name}": {http.MethodGet: a.statusV1, http.MethodPost: a.predictV1},
	}
	if a.standby != nil {
		table["/v2/repository/sleep"], table["/v2/repository/wake"] = post(a.postSleep), post(a.postWake)
	}
	if a.shared {
		maps.Copy(table, a.sharedRoutes())
	}
	for _, prefix := range []string{"/v2/models/{model_name}", "/v2/models/{model_name}/versions/{model_version}"} {
		table[prefix] = get(a.getModel)
		table[prefix+"/ready"] = get(a.getModelReady)
		table[prefix+"/stats"] = get(a.getStatistics)
		table[prefix+"/config"] = get(a.getConfig)
		table[prefix+"/infer"] = post(a.postInfer)
		table[prefix+"/generate"] = post(a.postInfer)
		table[prefix+"/infer_stream"] = post(a.postStream)
		table[prefix+"/generate_stream"] = post(a.postStream)
		table[prefix+"/docs"] = get(d.getDocs)
		table[prefix+"/docs/dataplane.json"] = get(d.getDataplane)
	}
	return table
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
// site may have sent: such requests are taken for those of a user of this machine.
func guard(c Config, next http.Handler) http.Handler {
	if !network.LocalHost(c.Host) {
		return next
	}
	g := &network.Guard{Hosts: c.AllowedHosts}
	if c.HTTP.CORS != nil {
		g.KnowsOrigin = c.HTTP.CORS.decision().Allows
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

// decision is how valid settings are decided by.
func (c *CORS) decision() *network.CORS {
	d := &network.CORS{Origins: c.AllowOrigins, Methods: c.AllowMethods, Headers: c.AllowHeaders, Exposed: c.ExposeHeaders, Credentials: c.AllowCredentials, MaxAge: c.MaxAge}
	if c.AllowOriginRegex != nil {
		d.OriginPattern = regexp.MustCompile(`^(?:` + *c.AllowOriginRegex + `)$`) // validated before
	}
	return d
}

// crossOrigin answers pages of other origins before next does.
func crossOrigin(c *network.CORS, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := network.CORSRequest{Method: r.Method, Origin: r.Header.Get("Origin"),
			RequestMethod: r.Header.Get("Access-Control-Request-Method"), RequestHeaders: r.Header.Get("Access-Control-Request-Headers")}
		refused := c.Answer(w.Header(), asked)
		switch {
		case asked.Origin == "" || !asked.Preflight():
			next.ServeHTTP(w, r)
		case len(refused) > 0:
			writeErrorStatus(w, http.StatusBadRequest, errors.New("Disallowed CORS "+strings.Join(refused, ", ")))
		default:
			w.WriteHeader(http.StatusOK)
		}
	})
}
