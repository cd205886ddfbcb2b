package front

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"roundhouse.dev/roundhouse/internal/edge/gateway"
	"roundhouse.dev/roundhouse/internal/edge/gateway/outside"
	"roundhouse.dev/roundhouse/internal/edge/gateway/rawgrpc"
)

// DrainGrace is how long a stopping server lets requests and replicas finish.
const DrainGrace = 30 * time.Second

// ServerConfig is what a Server is put together of. All but HTTPS, Picker, Reach and
// Version are required.
type ServerConfig struct {
	Traffic   *Traffic
	Access    *Access
	Listeners Listeners
	Metrics   *prometheus.Registry
	HTTPS     *tls.Config    // of that listener
	Picker    gateway.Picker // nil: endpoint pickers of pools are not asked
	Reach     outside.Reach  // gateway.Config's
	Version   string
	// Leave is for how long requests are still taken after the server was
	// asked to stop, while /readyz says no: whoever sends requests here needs a
	// moment to hear of that.
	Leave time.Duration
	Log   *slog.Logger
}

// Server answers requests over HTTP, and over gRPC at the same port and, with a listener
// for it, at its own.
type Server struct {
	Gateway *gateway.Gateway
	GRPC    *rawgrpc.Server
	cfg     ServerConfig
	ready   atomic.Bool
}

// NewServer makes the servers and registers their metrics.
func NewServer(cfg ServerConfig) (*Server, error) {
	s := &Server{cfg: cfg}
	if err := cfg.Traffic.Register(cfg.Metrics); err != nil {
		return nil, err
	}
	gw := gateway.DefaultConfig()
	gw.Listen, gw.Version, gw.DrainTimeout = cfg.Listeners.Inference.Addr().String(), cfg.Version, DrainGrace
	gw.Heard, gw.Picker, gw.Reach = cfg.Traffic.Heard, cfg.Picker, cfg.Reach
	cfg.Access.Configure(&gw)
	raw := rawgrpc.DefaultConfig()
	raw.Version, raw.DrainTimeout = cfg.Version, DrainGrace
	cfg.Access.ConfigureGRPC(&raw)
	var err error
	if s.GRPC, err = rawgrpc.New(raw, cfg.Traffic.Dispatcher, cfg.Log, cfg.Metrics); err != nil {
		return s, err
	}
	gw.GRPC = s.GRPC
	s.Gateway, err = gateway.New(gw, cfg.Traffic.Dispatcher, cfg.Log, cfg.Metrics)
	return s, err
}

// Serve has serve run what answers requests, each until ctx ends and its last
// request has its answer.
func (s *Server) Serve(ctx context.Context, serve func(name string, f func() error)) {
	serve("gateway", func() error { return s.Gateway.Serve(ctx, s.cfg.Listeners.Inference) })
	if s.cfg.Listeners.HTTPS != nil {
		serve("gateway over TLS", func() error { return s.Gateway.ServeTLS(ctx, s.cfg.Listeners.HTTPS, s.cfg.HTTPS) })
	}
	serve("gRPC", func() error { return s.GRPC.Serve(ctx, s.cfg.Listeners.GRPC) })
}

// SetReady has /readyz report ready. It reports not ready before, and again
// when the server is asked to stop.
func (s *Server) SetReady() { s.ready.Store(true) }

// leaving is done when the server is to take no more requests: some time after
// ctx. Connections are closed with their next answer meanwhile, so that no
// client sends a request into a connection that is being closed.
func (s *Server) leaving(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	serving, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		s.ready.Store(false)
		s.Gateway.Leave()
		select {
		case <-time.After(s.cfg.Leave):
		case <-serving.Done():
		}
		stop(nil)
	})
	return serving, stop
}

// Run serves until ctx ends or a server fails. What keeps the pools, which
// are the keepers and those of the Config, and the metrics go on until the last
// request has its answer.
func (s *Server) Run(ctx context.Context, started func(context.Context), keep ...func(context.Context)) error {
	serving, stop := s.leaving(ctx)
	defer stop(nil)
	behind, stopBehind := context.WithCancel(context.WithoutCancel(ctx))
	var servers, keepers sync.WaitGroup
	for _, k := range append(keep, s.cfg.Traffic.Run) {
		keepers.Go(func() { k(behind) })
	}
	if s.cfg.Access.Keys != nil {
		keepers.Go(func() { s.cfg.Access.Keys.Follow(behind, s.cfg.Log) })
	}
	serve := func(name string, f func() error) {
		servers.Go(func() {
			if err := f(); err != nil {
				stop(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	s.Serve(serving, serve)
	for name, endpoint := range map[string]struct {
		at      net.Listener
		metrics *prometheus.Registry
	}{"metrics": {s.cfg.Listeners.Metrics, s.cfg.Metrics}, "health": {s.cfg.Listeners.Health, nil}} {
		if endpoint.at != nil {
			keepers.Go(func() {
				if err := serveMetrics(behind, endpoint.at, endpoint.metrics, s.ready.Load); err != nil {
					stop(fmt.Errorf("%s: %w", name, err))
				}
			})
		}
	}
	servers.Go(func() { started(serving) })
	servers.Wait()
	stopBehind()
	keepers.Wait()
	if ctx.Err() != nil {
		return nil // asked to stop
	}
	return context.Cause(serving)
}

// Greet tells where what can be asked.
func (s *Server) Greet(w io.Writer) {
	l := s.cfg.Listeners
	_, _ = fmt.Fprintf(w, "Roundhouse answers at  %s://%s\n", s.cfg.Access.Scheme(), Reachable(l.Inference.Addr().(*net.TCPAddr)))
	if l.GRPC != nil {
		_, _ = fmt.Fprintf(w, "gRPC                   %s\n", Reachable(l.GRPC.Addr().(*net.TCPAddr)))
	}
	if l.Metrics != nil {
		_, _ = fmt.Fprintf(w, "Metrics                http://%s/metrics\n", Reachable(l.Metrics.Addr().(*net.TCPAddr)))
	}
}

// ServeMetrics answers /metrics and /healthz until ctx ends.
func ServeMetrics(ctx context.Context, l net.Listener, reg *prometheus.Registry) error {
	return serveMetrics(ctx, l, reg, nil)
}

// serveMetrics answers /readyz too, where it is told what, and /metrics where
// there are any.
func serveMetrics(ctx context.Context, l net.Listener, reg *prometheus.Registry, ready func() bool) error {
	mux := http.NewServeMux()
	if ready != nil {
		mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
			if !ready() {
				http.Error(w, "not ready", http.StatusServiceUnavailable)
				return
			}
			_, _ = fmt.Fprintln(w, "ok")
		})
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/api/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = fmt.Fprintln(w, `{"error": "there is no admin API here, only /metrics and /healthz: ask a roundhouse up, which may be given the same manifests of routes and pools"}`)
	})
	if reg != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	}
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
