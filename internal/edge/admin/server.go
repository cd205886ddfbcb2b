// Package admin is the API behind the command line: objects and their state, over
// HTTP on a port of its own, for the owner only.
package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"roundhouse.dev/roundhouse/internal/core/apikey"
	"roundhouse.dev/roundhouse/internal/core/network"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/fleet"
	"roundhouse.dev/roundhouse/internal/state/journal"
)

// Config of the admin server. Fleet and Token are required.
type Config struct {
	Fleet *fleet.Fleet
	Token string
	// Host is the name or address it listens on, for the Host check.
	Host string
	// Files reads and keeps model files; nil refuses uploads.
	Files Files
	// Keys are the inference port's API keys; nil leaves their paths out.
	Keys Keys
	// ExplainRequest explains where a request to the inference port would go, as
	// JSON and as text. nil leaves the path out.
	ExplainRequest func(*http.Request) (fmt.Stringer, error)
	// Endpoints returns the endpoints of a pool; nil leaves them out.
	Endpoints func(routing.Ref) []dispatch.Endpoint
	// Requests and Events are what happened last; nil leaves their paths out.
	Requests *journal.Requests
	Events   *journal.Events
	// Metrics serves GET /metrics; nil leaves the path out.
	Metrics http.Handler
	// Version and Gateway, the base URL of inference, are in the answer to GET /api/v1.
	Version string
	Gateway string
}

// maxManifestBytes bounds one apply, all files together.
const maxManifestBytes = 16 << 20

// maxRequestBytes bounds a request to explain.
const maxRequestBytes = 128 << 20

// Validate names what is missing.
func (c Config) Validate() error {
	if c.Fleet == nil || c.Token == "" {
		return errors.New("admin: Fleet and Token are required")
	}
	return nil
}

// Server answers the admin API.
type Server struct {
	cfg Config
}

// New makes a server.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Server{cfg: cfg}, nil
}

// Handler is the API, guarded.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	if s.cfg.Metrics != nil {
		mux.Handle("GET /metrics", s.cfg.Metrics)
	}
	if s.cfg.Keys != nil {
		handleKeys(mux, s.cfg.Keys, s.happened)
	}
	if s.cfg.ExplainRequest != nil {
		mux.HandleFunc("POST /api/v1/explain-request", s.explainRequest)
	}
	if s.cfg.Requests != nil {
		mux.HandleFunc("GET /api/v1/requests", s.requests)
	}
	if s.cfg.Events != nil {
		mux.HandleFunc("GET /api/v1/events", s.events)
	}
	mux.HandleFunc("GET /api/v1", s.about)
	mux.HandleFunc("POST /api/v1/apply", s.apply)
	mux.HandleFunc("POST /api/v1/explain", s.explainFiles)
	mux.HandleFunc("GET /api/v1/services", s.services)
	mux.HandleFunc("GET /api/v1/services/{namespace}/{name}", s.service)
	mux.HandleFunc("PATCH /api/v1/services/{namespace}/{name}", s.edit)
	mux.HandleFunc("POST /api/v1/services/{namespace}/{name}/wake", s.wake)
	mux.HandleFunc("POST /api/v1/services/{namespace}/{name}/undo", s.undo)
	mux.HandleFunc("GET /api/v1/services/{namespace}/{name}/explain", s.explain)
	mux.HandleFunc("GET /api/v1/services/{namespace}/{name}/explain-wake", s.explainWake)
	mux.HandleFunc("GET /api/v1/services/{namespace}/{name}/explain-scale", s.explainScale)
	mux.HandleFunc("GET /api/v1/services/{namespace}/{name}/logs", s.logs)
	mux.HandleFunc("DELETE /api/v1/services/{namespace}/{name}", s.remove("service"))
	mux.HandleFunc("DELETE /api/v1/runtimes/{namespace}/{name}", s.remove("runtime"))
	mux.HandleFunc("DELETE /api/v1/models/{namespace}/{name}", s.remove("model"))
	mux.HandleFunc("DELETE /api/v1/weights/{namespace}/{name}", s.remove("weight"))
	mux.HandleFunc("DELETE /api/v1/bases/{namespace}/{name}", s.remove(dialect.BaseID))
	mux.HandleFunc("GET /api/v1/usage", s.usage)
	mux.HandleFunc("GET /api/v1/routing", s.routing)
	mux.HandleFunc("DELETE /api/v1/routing/{kind}/{namespace}/{name}", s.removeRouting)
	mux.HandleFunc("GET /api/v1/runtimes", s.runtimes)
	mux.HandleFunc("GET /api/v1/models", s.models("model"))
	mux.HandleFunc("GET /api/v1/weights", s.models("weight"))
	mux.HandleFunc("GET /api/v1/bases", s.bases)
	mux.HandleFunc("GET /api/v1/uploads/{sha256}/{name...}", uploads{s.cfg.Files}.has)
	mux.HandleFunc("PUT /api/v1/uploads/{sha256}/{name...}", uploads{s.cfg.Files}.put)
	mux.HandleFunc("GET /api/v1/readable", readable)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, "%s not found: the admin API is under /api/v1", r.URL.Path)
	})
	return guard(s.cfg.Host, s.cfg.Token, mux)
}

// Serve answers on l until ctx ends, then lets answers under way finish for
// at most grace.
func (s *Server) Serve(ctx context.Context, l net.Listener, grace time.Duration) error {
	srv := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10, BaseContext: func(net.Listener) context.Context { return ctx }}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if err := srv.Shutdown(drain); err != nil {
		return srv.Close()
	}
	return nil
}

func (s *Server) about(w http.ResponseWriter, _ *http.Request) {
	answer(w, About{Name: "roundhouse", Version: s.cfg.Version, Gateway: s.cfg.Gateway})
}

// About is the answer to GET /api/v1.
type About struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	// Gateway is the base URL of the inference port; "" where there is none.
	Gateway string `json:"gateway,omitempty"`
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	// An error means that the client is gone.
	_ = json.NewEncoder(w).Encode(v)
}

func fail(w http.ResponseWriter, status int, format string, args ...any) {
	failWith(w, status, Error{Message: fmt.Sprintf(format, args...)})
}

func failWith(w http.ResponseWriter, status int, e Error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(e)
}

// failError answers with the status of an error of the fleet.
func failError(w http.ResponseWriter, err error) {
	var missing *fleet.NotFoundError
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &missing):
		fail(w, http.StatusNotFound, "%s", err)
	case errors.As(err, &large):
		fail(w, http.StatusRequestEntityTooLarge, "the body is over the limit of %d bytes", large.Limit)
	default:
		fail(w, http.StatusUnprocessableEntity, "%s", err)
	}
}

// guard admits the clients of the owner only. The API starts processes, so it is
// guarded even on loopback: by a token against other users and programs, by the Host
// check against a web page whose name resolves here (DNS rebinding), and by the
// Origin check against a page that posts here.
func guard(host, token string, next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !hostAllowed(host, r.Host) {
			fail(w, http.StatusForbidden, "Host %q is not this server's: use the address it listens on", r.Host)
			return
		}
		if o := r.Header.Get("Origin"); o != "" && !originAllowed(host, o) {
			fail(w, http.StatusForbidden, "Origin %q may not use the admin API", o)
			return
		}
		if open(r) {
			next.ServeHTTP(w, r)
			return
		}
		given := apikey.Bearer(r.Header.Get("Authorization"))
		got := sha256.Sum256([]byte(given))
		if given == "" || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", `Bearer realm="roundhouse admin"`)
			fail(w, http.StatusUnauthorized, "the admin API needs the token of the data directory: name that directory with --data-dir, or the token in its file admin-token with ROUNDHOUSE_TOKEN; programs send it as Authorization: Bearer TOKEN")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// open reports whether a request needs no token: its answer is no secret.
func open(r *http.Request) bool {
	return r.Method == http.MethodGet && (r.URL.Path == "/healthz" || r.URL.Path == "/metrics")
}

func hostAllowed(host, hostport string) bool {
	return network.LocalHost(hostport) || network.WithoutPort(hostport) == host
}

func originAllowed(host, origin string) bool {
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && hostAllowed(host, u.Host)
}
