// Package modelserver serves models over HTTP: the Open Inference Protocol
// (KServe v2) with its model repository extension, and KServe's v1 protocol.
// It reads model repositories laid out for MLServer.
//
// Models are loaded through Engines, which the program that makes the server
// passes in. One model that cannot be loaded never stops the others: it stays
// in the repository's index as UNAVAILABLE, with the reason. A model that is
// loaded again serves until its successor does.
package modelserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/modelserver/metrics"
)

// Model is a loaded model.
type Model interface {
	// Metadata describes the model. The caller does not change it.
	Metadata() tensor.ModelMetadata
	// Infer answers a request, concurrently with other calls. A fault of the
	// request is a *tensor.Error.
	Infer(context.Context, *tensor.Request) (*tensor.Response, error)
	// Close frees the model, after the last Infer has returned.
	Close(context.Context) error
}

// Loader loads models of one kind.
type Loader interface {
	Load(context.Context, Settings) (Model, error)
}

// LoaderFunc is a function as a Loader.
type LoaderFunc func(context.Context, Settings) (Model, error)

// Load calls f.
func (f LoaderFunc) Load(ctx context.Context, s Settings) (Model, error) { return f(ctx, s) }

// Engine is a Loader and how to know the models that are for it.
type Engine struct {
	Name            string   // the format's name: xgboost
	Implementations []string // in model-settings.json: mlserver_xgboost.XGBoostModel
	Files           []string // well-known names in a model's folder, best first
	// Match reports whether a file that begins so is one; head is at most
	// SniffBytes. Without it names are all there is to go by: those of Files,
	// or their extensions. The Loader of such an engine is given URIs as they
	// are, folders and remote ones too, and finds the model there.
	Match func(head []byte) bool
	// Others has the engine take the implementations that none names.
	Others bool
	Loader Loader
}

// Server serves the models of a repository.
type Server struct {
	*service
	config   Config
	handler  http.Handler
	started  atomic.Bool   // the models of the start have been tried
	loaded   chan struct{} // closed then
	draining atomic.Bool
	tls      *tls.Config // nil: plain text

	transports []transport // HTTP first
	address    net.Addr    // of HTTP, once it listens
	addresses  []Listening // all, once they listen
}

// New makes a server. Nothing is loaded before Run or LoadAll.
func New(c Config, repository Repository, engines []Engine, log *slog.Logger) (*Server, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	secure, err := c.TLS.load()
	if err != nil {
		return nil, err
	}
	if c.Metrics.Registry == nil {
		c.Metrics.Registry = &metrics.Registry{}
	}
	models, err := newModelMeters(c.Metrics.Registry)
	if err != nil {
		return nil, err
	}
	rest, err := newRESTMeters(c.Metrics.Registry, c.Metrics.RESTPrefix)
	if err != nil {
		return nil, err
	}
	s := &Server{service: newService(c, newRegistry(repository, engines, c, models, log), log), config: c, tls: secure, loaded: make(chan struct{})}
	s.handler = newHandler(c, s.service, s.lacks, rest, log)
	s.transports = append(s.transports, &httpTransport{name: "HTTP", host: c.Host, port: c.HTTP.Port,
		server: newHTTPServer(s.handler, c.Limits, log), tls: secure})
	if c.Metrics.Path != "" && c.Metrics.Port != NoPort {
		s.transports = append(s.transports, &httpTransport{name: "metrics", host: c.Host, port: c.Metrics.Port,
			server: newHTTPServer(newMetricsHandler(c), c.Limits, log)})
	}
	return s, nil
}

// LoadAll loads every model of the repository, unless the configuration
// disables that. The error names those that failed; the others serve.
func (s *Server) LoadAll(ctx context.Context) error {
	var err error
	if s.config.LoadAtStartup {
		err = s.registry.loadAll(ctx)
	}
	if s.started.CompareAndSwap(false, true) {
		close(s.loaded)
	}
	return err
}

// Loaded is closed once the models of the start have been tried.
func (s *Server) Loaded() <-chan struct{} { return s.loaded }

// Ready reports whether the server takes requests: its models have been tried, all
// of those serve that were not unloaded by request, and it is not shutting down. A
// model that is loaded later and fails changes nothing.
func (s *Server) Ready() bool { return s.lacks() == "" }

// Bounds of what a server that is not ready says.
const (
	maxLacking   = 5  // models by name
	maxNameShown = 64 // bytes of a name
)

// lacks is why the server is not ready; "" where it is.
func (s *Server) lacks() string {
	switch {
	case s.draining.Load():
		return "it shuts down"
	case !s.started.Load():
		return "its models are being loaded"
	}
	names := s.registry.lacking()
	if len(names) == 0 {
		return ""
	}
	shown := names[:min(len(names), maxLacking)]
	for i := range shown {
		shown[i] = excerpt.Of(shown[i], maxNameShown)
	}
	text := strings.Join(shown, ", ")
	if more := len(names) - len(shown); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text + " cannot serve: GET /v2/models/NAME says why"
}

// Listen binds all addresses and returns that of HTTP. Run does it if need be;
// callers do it to know the port, or to fail early.
func (s *Server) Listen() (net.Addr, error) {
	if s.address != nil {
		return s.address, nil
	}
	for n, t := range s.transports {
		address, err := t.listen()
		if err != nil {
			for _, bound := range s.transports[:n] {
				_ = bound.shutdown(context.Background()) // nothing is under way
			}
			return nil, err
		}
		if n == 0 {
			s.address = address
		}
		if address != nil {
			s.addresses = append(s.addresses, Listening{t.protocol(), address})
		}
	}
	return s.address, nil
}

// Listening is an address of the server.
type Listening struct {
	Protocol string // HTTP, gRPC, metrics
	Address  net.Addr
}

// Addresses are those that Listen bound, HTTP first.
func (s *Server) Addresses() []Listening { return s.addresses }

// Run serves until ctx ends, then drains: readiness goes false, no connection
// is accepted, and requests under way finish within the configured time. A
// repository that cannot be read, and with Strict a model that cannot be
// loaded, ends it at once with the reason.
func (s *Server) Run(ctx context.Context) error {
	if _, err := s.Listen(); err != nil {
		return err
	}
	failed := make(chan error, len(s.transports)+1)
	for _, t := range s.transports {
		go func() {
			if err := t.serve(); err != nil {
				failed <- err
			}
		}()
	}
	go func() {
		err := s.LoadAll(ctx)
		_, unreadable := errors.AsType[*RepositoryError](err)
		if err != nil && (s.config.Strict || unreadable) && ctx.Err() == nil {
			failed <- err
		}
	}()
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	return errors.Join(err, s.drain())
}

// drain ends Run.
func (s *Server) drain() error {
	s.draining.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), s.config.Limits.DrainTimeout)
	defer cancel()
	var cut atomic.Bool
	var ending sync.WaitGroup
	for _, t := range s.transports {
		ending.Go(func() {
			if t.shutdown(ctx) != nil {
				cut.Store(true)
			}
		})
	}
	ending.Wait()
	var err error
	if cut.Load() {
		err = fmt.Errorf("requests under way did not finish within %v and were cut off", s.config.Limits.DrainTimeout)
	}
	return errors.Join(err, s.registry.close(ctx))
}
