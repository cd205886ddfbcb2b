// Package admin is the API behind the CLI and the console: what is desired
// and what there is, over HTTP on a port of its own, for the owner alone.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/fleet"
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
	// ExplainRequest is what would become of a request to the inference
	// port: JSON, and text for people. nil leaves the path out.
	ExplainRequest func(*http.Request) (fmt.Stringer, error)
	// Endpoints are those of a pool now; nil leaves them out.
	Endpoints func(routing.Ref) []dispatch.Endpoint
	// Metrics serves GET /metrics; nil leaves the path out.
	Metrics http.Handler
	// Version and Gateway, the inference port's base URL, are told at GET /api/v1.
	Version string
	Gateway string
	// MaxManifestBytes bounds one apply, all files together.
	MaxManifestBytes int64
	// MaxRequestBytes bounds a request that is to be explained.
	MaxRequestBytes int64
	Log             *slog.Logger
}

// DefaultMaxManifestBytes bounds one apply unless told otherwise.
const DefaultMaxManifestBytes = 16 << 20

// DefaultMaxRequestBytes bounds a request to be explained unless told otherwise.
const DefaultMaxRequestBytes = 128 << 20

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
	if cfg.MaxManifestBytes == 0 {
		cfg.MaxManifestBytes = DefaultMaxManifestBytes
	}
	if cfg.MaxRequestBytes == 0 {
		cfg.MaxRequestBytes = DefaultMaxRequestBytes
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
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
		s.keys(mux)
	}
	if s.cfg.ExplainRequest != nil {
		mux.HandleFunc("POST /api/v1/explain-request", s.explainRequest)
	}
	mux.HandleFunc("GET /api/v1", s.about)
	mux.HandleFunc("POST /api/v1/apply", s.apply)
	mux.HandleFunc("POST /api/v1/explain", s.explainFiles)
	mux.HandleFunc("GET /api/v1/services", s.services)
	mux.HandleFunc("GET /api/v1/services/{namespace}/{name}", s.service)
	mux.HandleFunc("GET /api/v1/services/{namespace}/{name}/explain", s.explain)
	mux.HandleFunc("GET /api/v1/services/{namespace}/{name}/logs", s.logs)
	mux.HandleFunc("DELETE /api/v1/services/{namespace}/{name}", s.remove("service"))
	mux.HandleFunc("DELETE /api/v1/runtimes/{namespace}/{name}", s.remove("runtime"))
	mux.HandleFunc("DELETE /api/v1/models/{namespace}/{name}", s.remove("model"))
	mux.HandleFunc("DELETE /api/v1/weights/{namespace}/{name}", s.remove("weight"))
	mux.HandleFunc("GET /api/v1/routing", s.routing)
	mux.HandleFunc("DELETE /api/v1/routing/{kind}/{namespace}/{name}", s.removeRouting)
	mux.HandleFunc("GET /api/v1/runtimes", s.runtimes)
	mux.HandleFunc("GET /api/v1/models", s.models("model"))
	mux.HandleFunc("GET /api/v1/weights", s.models("weight"))
	mux.HandleFunc("GET /api/v1/uploads/{sha256}/{name...}", s.hasUpload)
	mux.HandleFunc("PUT /api/v1/uploads/{sha256}/{name...}", s.upload)
	mux.HandleFunc("GET /api/v1/readable", s.readable)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, "no such path %s: the admin API is under /api/v1", r.URL.Path)
	})
	return s.guard(mux)
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

// About is what GET /api/v1 tells of the server.
type About struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	// Gateway is the base URL of the inference port; "" where there is none.
	Gateway string `json:"gateway,omitempty"`
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	// A client that has gone is nobody to tell.
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

// failError maps what the fleet says to a status.
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
