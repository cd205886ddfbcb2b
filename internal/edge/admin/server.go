// Package admin is the API behind the command line: objects and their state, over
// HTTP on a port of its own, for the owner only.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/edge/admin/console"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/fleet"
	"roundhouse.dev/roundhouse/internal/state/journal"
)

// Config of the admin server. Token is required, and either Fleet or Cluster.
type Config struct {
	Fleet *fleet.Fleet
	// Cluster answers for the services of a cluster, in place of Fleet, and without
	// AllowChanges changes nothing.
	Cluster      Cluster
	AllowChanges bool
	Token        string
	// Host is the name or address it listens on, for the Host check.
	Host string
	// Files reads and keeps model files; nil refuses uploads.
	Files Files
	// Models are the files of models that are here; nil leaves their paths out.
	Models Models
	// Schemas are the JSON schemas of our kinds, by kind; nil leaves their path out.
	Schemas func() (map[string][]byte, error)
	// Keys are the inference port's API keys; nil leaves their paths out.
	Keys Keys
	// ExplainRequest explains where a request to the inference port would go, as
	// JSON and as text. nil leaves the path out.
	ExplainRequest func(*http.Request) (fmt.Stringer, error)
	// Endpoints returns the endpoints of a pool; nil leaves them out.
	Endpoints func(routing.Ref) []dispatch.Endpoint
	// Benchmark is what is known of one that was applied; nil leaves their paths out.
	Benchmark func(fleet.Object) Benchmark
	// ModelCache is what is known of one that was applied; nil leaves their paths out.
	ModelCache func(fleet.Object) ModelCache
	// Requests and Events are what happened last; nil leaves their paths out.
	Requests *journal.Requests
	Events   *journal.Events
	// Live is what there is now, for those who watch; nil leaves that out.
	Live *Live
	// Infer answers requests to models, from the console's playground; nil refuses them.
	Infer http.Handler
	// ViewerToken lets programs and people read only; "" is nobody's.
	ViewerToken string
	// Sessions keeps who is signed in on the console over a restart; nil does not.
	Sessions console.SessionStore
	// Port is the one it listens on: two consoles on one host have a cookie each.
	Port int
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
	if (c.Fleet == nil) == (c.Cluster == nil) || c.Token == "" {
		return errors.New("admin: Token is required, and either Fleet or Cluster")
	}
	return nil
}

// Server answers the admin API.
type Server struct {
	cfg      Config
	sessions *console.Sessions
	console  *console.Console
	failed   *failures // nil without events
	pulls    *pulls
}

// New makes a server.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, failed: newFailures(cfg.Events)}
	if cfg.Live != nil && cfg.Live.failed != nil {
		s.failed = cfg.Live.failed // which forgets those of deleted services
	}
	s.pulls = &pulls{puller: cfg.Models, tell: s.happened, post: s.postDownload}
	var err error
	if s.sessions, err = console.NewSessions(console.SessionsConfig{Secret: cfg.Token, Name: strconv.Itoa(cfg.Port), Store: cfg.Sessions, Now: time.Now}); err != nil {
		return nil, err
	}
	s.console, err = console.New(s.sessions, s.role)
	return s, err
}

// Link is the path of the console with what signs in there, once.
func (s *Server) Link(role console.Role) string { return "/#sign-in=" + s.sessions.Link(role) }

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
	if s.cfg.Live != nil && s.cfg.Events != nil && s.cfg.Requests != nil {
		mux.HandleFunc("GET /api/v1/watch", s.watch)
		mux.HandleFunc("GET /api/v1/services/{namespace}/{name}/pace", s.pace)
	}
	if s.cfg.Infer != nil {
		mux.HandleFunc("/api/v1/infer/", s.infer)
	} else if s.cfg.Cluster != nil {
		mux.HandleFunc("/api/v1/infer/", s.changing(http.NotFound))
	}
	if s.cfg.Models != nil {
		s.handleModels(mux)
	}
	if s.cfg.Schemas != nil {
		mux.HandleFunc("GET /api/v1/schemas", s.kinds)
		mux.HandleFunc("GET /api/v1/schemas/{kind}", s.schema)
	}
	s.console.Handle(mux)
	mux.HandleFunc("POST /api/v1/console", s.consoleLink)
	mux.HandleFunc("GET /api/v1", s.about)
	if s.cfg.Cluster != nil {
		s.handleCluster(mux)
	} else {
		s.handleFleet(mux)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, "%s not found: the admin API is under /api/v1", r.URL.Path)
	})
	return s.guard(mux)
}

// handleFleet adds the paths of objects and their state.
func (s *Server) handleFleet(mux *http.ServeMux) {
	mux.HandleFunc("POST /api/v1/apply", s.apply)
	mux.HandleFunc("POST /api/v1/explain", s.explainFiles)
	mux.HandleFunc("GET /api/v1/services", s.services)
	mux.HandleFunc("GET /api/v1/services/{namespace}/{name}", s.service)
	mux.HandleFunc("PATCH /api/v1/services/{namespace}/{name}", s.edit)
	mux.HandleFunc("POST /api/v1/services/{namespace}/{name}/wake", s.wake)
	mux.HandleFunc("POST /api/v1/services/{namespace}/{name}/undo", s.undo)
	mux.HandleFunc("POST /api/v1/services/{namespace}/{name}/actions", s.act)
	mux.HandleFunc("GET /api/v1/services/{namespace}/{name}/explain", s.explain)
	mux.HandleFunc("GET /api/v1/services/{namespace}/{name}/explain-wake", s.explainWake)
	mux.HandleFunc("GET /api/v1/services/{namespace}/{name}/explain-scale", s.explainScale)
	mux.HandleFunc("GET /api/v1/services/{namespace}/{name}/logs", s.logs)
	mux.HandleFunc("DELETE /api/v1/services/{namespace}/{name}", s.remove("service"))
	mux.HandleFunc("DELETE /api/v1/runtimes/{namespace}/{name}", s.remove("runtime"))
	mux.HandleFunc("DELETE /api/v1/models/{namespace}/{name}", s.remove("model"))
	mux.HandleFunc("DELETE /api/v1/weights/{namespace}/{name}", s.remove("weight"))
	mux.HandleFunc("DELETE /api/v1/bases/{namespace}/{name}", s.remove(dialect.BaseID))
	mux.HandleFunc("DELETE /api/v1/acceleratorclasses/{namespace}/{name}", s.remove(dialect.AcceleratorID))
	mux.HandleFunc("DELETE /api/v1/configmaps/{namespace}/{name}", s.remove(dialect.ConfigMapID))
	mux.HandleFunc("GET /api/v1/usage", s.usage)
	mux.HandleFunc("GET /api/v1/routing", s.routing)
	mux.HandleFunc("DELETE /api/v1/routing/{kind}/{namespace}/{name}", s.removeRouting)
	mux.HandleFunc("GET /api/v1/runtimes", s.runtimes)
	mux.HandleFunc("GET /api/v1/models", s.objects("model", func(o fleet.Object) Object { return ModelOf(*o.Model) }))
	mux.HandleFunc("GET /api/v1/weights", s.objects("weight", func(o fleet.Object) Object { return ModelOf(*o.Model) }))
	mux.HandleFunc("GET /api/v1/bases", s.objects(dialect.BaseID, func(o fleet.Object) Object { return BaseOf(*o.Base) }))
	mux.HandleFunc("GET /api/v1/acceleratorclasses", s.objects(dialect.AcceleratorID, func(o fleet.Object) Object { return AcceleratorOf(*o.Accelerator) }))
	mux.HandleFunc("GET /api/v1/clusterstoragecontainers", s.objects(dialect.StorageContainerID, func(o fleet.Object) Object { return StorageContainerOf(*o.StorageContainer) }))
	mux.HandleFunc("DELETE /api/v1/clusterstoragecontainers/{namespace}/{name}", s.remove(dialect.StorageContainerID))
	mux.HandleFunc("GET /api/v1/configmaps", s.objects(dialect.ConfigMapID, ConfigMapOf))
	mux.HandleFunc("GET /api/v1/secrets", s.secrets)
	mux.HandleFunc("DELETE /api/v1/secrets/{namespace}/{name}", s.remove(fleet.SecretKind))
	mux.HandleFunc("GET /api/v1/serviceaccounts", s.accounts)
	mux.HandleFunc("DELETE /api/v1/serviceaccounts/{namespace}/{name}", s.remove(fleet.AccountKind))
	if s.cfg.Benchmark != nil {
		mux.HandleFunc("GET /api/v1/benchmarkjobs", s.benchmarks)
		mux.HandleFunc("DELETE /api/v1/benchmarkjobs/{namespace}/{name}", s.remove(fleet.BenchmarkKind))
	}
	if s.cfg.ModelCache != nil {
		mux.HandleFunc("GET /api/v1/localmodelcaches", s.modelCaches)
		mux.HandleFunc("DELETE /api/v1/localmodelcaches/{namespace}/{name}", s.remove(fleet.CacheKind))
		mux.HandleFunc("GET /api/v1/localmodelnodegroups", s.objects(fleet.NodeGroupKind, func(o fleet.Object) Object { return NodeGroupOf(*o.NodeGroup) }))
		mux.HandleFunc("DELETE /api/v1/localmodelnodegroups/{namespace}/{name}", s.remove(fleet.NodeGroupKind))
	}
	mux.HandleFunc("GET /api/v1/uploads/{sha256}/{name...}", uploads{s.cfg.Files}.has)
	mux.HandleFunc("PUT /api/v1/uploads/{sha256}/{name...}", uploads{s.cfg.Files}.put)
	mux.HandleFunc("GET /api/v1/readable", readable)
}

// Serve answers on l until ctx ends, then lets answers under way finish for
// at most grace.
func (s *Server) Serve(ctx context.Context, l net.Listener, grace time.Duration) error {
	srv := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10, BaseContext: func(net.Listener) context.Context { return ctx }}
	defer s.pulls.close()
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
	out := About{Name: "roundhouse", Version: s.cfg.Version, Gateway: s.cfg.Gateway}
	if s.cfg.Cluster != nil {
		out.ReadOnly, out.Without = !s.cfg.AllowChanges, s.without()
	}
	answer(w, out)
}

// kinds answers the kinds that have a schema.
func (s *Server) kinds(w http.ResponseWriter, _ *http.Request) {
	all, err := s.cfg.Schemas()
	if err != nil {
		failError(w, err)
		return
	}
	answer(w, slices.Sorted(maps.Keys(all)))
}

// schema answers the JSON schema of a kind.
func (s *Server) schema(w http.ResponseWriter, r *http.Request) {
	all, err := s.cfg.Schemas()
	if err != nil {
		failError(w, err)
		return
	}
	text, ok := all[r.PathValue("kind")]
	if !ok {
		fail(w, http.StatusNotFound, "there is no schema of %s", r.PathValue("kind"))
		return
	}
	w.Header().Set("Content-Type", "application/schema+json")
	_, _ = w.Write(text) // an error means that the client is gone
}

// About is the answer to GET /api/v1.
type About struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	// Gateway is the base URL of the inference port; "" where there is none, and of a
	// cluster.
	Gateway string `json:"gateway,omitempty"`
	// ReadOnly reports whether this server changes nothing, for nobody.
	ReadOnly bool `json:"readOnly,omitempty"`
	// Without are the console's pages that have nothing to show here, or traffic for all
	// that shows it, and why.
	Without map[string]string `json:"without,omitempty"`
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
	var denied interface{ Forbidden() bool }
	switch {
	case errors.As(err, &denied) && denied.Forbidden():
		fail(w, http.StatusForbidden, "%s", err)
	case errors.As(err, &missing):
		fail(w, http.StatusNotFound, "%s", err)
	case errors.As(err, &large):
		fail(w, http.StatusRequestEntityTooLarge, "the body is over the limit of %d bytes", large.Limit)
	default:
		fail(w, http.StatusUnprocessableEntity, "%s", err)
	}
}
