package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/core/network"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// Gateway serves the inference port.
type Gateway struct {
	cfg      Config
	dispatch *dispatch.Dispatcher
	log      *slog.Logger
	metrics  *observe.Metrics
	upstream upstream
	buffered budget
	loopback bool          // Listen is on loopback
	pages    network.Guard // there
	draining atomic.Bool
	leaving  atomic.Bool
	running  atomic.Int64 // requests that have not been settled
	// complained is when the log told of a silent endpoint picker last.
	complained atomic.Int64
}

// New makes a gateway in front of d and registers its metrics.
func New(cfg Config, d *dispatch.Dispatcher, log *slog.Logger, reg prometheus.Registerer) (*Gateway, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	up, err := newClient(cfg)
	if err != nil {
		return nil, err
	}
	g := &Gateway{cfg: cfg, dispatch: d, log: log, metrics: observe.NewMetrics(d, cfg.AccessLog), upstream: up, loopback: onLoopback(cfg.Listen),
		pages: network.Guard{Hosts: cfg.AllowedHosts, Origins: cfg.CORS.Origins, KnowsHost: d.KnowsHost}}
	g.buffered.limit = cfg.MaxBufferedBytes
	if err := reg.Register(g.metrics); err != nil {
		return nil, fmt.Errorf("gateway: register metrics: %w", err)
	}
	return g, nil
}

// Handler serves the surfaces.
func (g *Gateway) Handler() http.Handler { return http.HandlerFunc(g.serve) }

// Serve answers on l until ctx ends, then lets requests in flight finish for
// at most DrainTimeout. It closes l. The error is nil after a stop by ctx,
// even if requests had to be cut.
func (g *Gateway) Serve(ctx context.Context, l net.Listener) error {
	return g.run(ctx, l, g.server(g.Handler()))
}

func (g *Gateway) run(ctx context.Context, l net.Listener, srv *http.Server) error {
	defer g.upstream.closeIdle()
	served := make(chan error, 1)
	go func() {
		if srv.TLSConfig != nil {
			served <- srv.ServeTLS(l, "", "")
		} else {
			served <- srv.Serve(l)
		}
	}()
	select {
	case err := <-served:
		return fmt.Errorf("gateway on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	g.draining.Store(true)
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.cfg.DrainTimeout)
	defer cancel()
	if err := srv.Shutdown(limit); err != nil {
		g.log.Warn("requests were cut at the end of the drain", "timeout", g.cfg.DrainTimeout, "error", err)
		_ = srv.Close() // closes what Shutdown left; nothing to do about its error
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Leave says that Serve's context will end soon: requests are taken as before,
// and HTTP/1.1 connections are closed with their next answer, so that clients
// go elsewhere by themselves.
func (g *Gateway) Leave() { g.leaving.Store(true) }

// maxStreams is how many requests one HTTP/2 connection may have in flight.
const maxStreams = 1000

// server speaks HTTP/1.1 and HTTP/2, the latter over TLS and, with prior
// knowledge, in plain text.
func (g *Gateway) server(h http.Handler) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: g.cfg.HeaderTimeout,
		IdleTimeout:       g.cfg.IdleTimeout,
		MaxHeaderBytes:    g.cfg.MaxHeaderBytes,
		Protocols:         &protocols,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams, SendPingTimeout: g.cfg.IdleTimeout / 2, PingTimeout: g.cfg.HeaderTimeout,
			WriteByteTimeout: g.cfg.ClientTimeout},
		ErrorLog: slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
	}
	if g.cfg.TLS != nil {
		srv.TLSConfig = g.cfg.TLS.Clone() // net/http changes it
	}
	return srv
}

// serve finds the surface a path belongs to.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request) {
	// A chunked request may have had a Content-Length too, by which a proxy before
	// the gateway would have found another end (RFC 9112 6.1). net/http has dropped
	// it, so the connection ends after every one of them.
	if r.ProtoMajor == 1 && (g.leaving.Load() || len(r.TransferEncoding) > 0) {
		w.Header().Set("Connection", "close")
	}
	x := newExchange(g, w, r)
	defer x.end()
	path := r.URL.EscapedPath()
	x.classify(path)
	x.seen.StartTrace(g.cfg.Tracer, r, path)
	if !x.admitted(path) {
		return
	}
	switch {
	case x.unsafe():
	case (path == "/" || path == "/v2") && x.broken():
	case path == "/":
		x.banner()
	case path == "/healthz":
		x.only(x.healthz, http.MethodGet, http.MethodHead)
	case path == "/v2" || strings.HasPrefix(path, "/v2/"):
		x.serveOIP(strings.TrimPrefix(strings.TrimPrefix(path, "/v2"), "/"))
	case strings.HasPrefix(path, "/openai/v1/"):
		x.serveV1(strings.TrimPrefix(path, "/openai/v1/"))
	case strings.HasPrefix(path, "/v1/"):
		x.serveV1(strings.TrimPrefix(path, "/v1/"))
	case x.passOn(path), x.broken():
	default:
		x.fail(http.StatusNotFound, fmt.Sprintf("nothing is served at %s; inference is at %s", r.URL.Path, surfacePaths))
	}
}

// admitted reports whether the request may go on; false when it was answered.
func (x *exchange) admitted(path string) bool {
	if open(path) {
		return !x.cors()
	}
	return !x.foreign() && !x.cors() && x.enter()
}

const surfacePaths = "/v1/chat/completions and other OpenAI paths, /v1/models/{name}:predict, /v2/models/{name}/infer; names at /v1/models"

func (x *exchange) banner() {
	x.plain("roundhouse " + x.gw.cfg.Version + ": models are at /v1/models; inference is at " + surfacePaths + "\n")
}

func (x *exchange) healthz() { x.plain("ok\n") }

// only calls f for the methods listed and answers 405 otherwise.
func (x *exchange) only(f func(), methods ...string) {
	for _, m := range methods {
		if x.r.Method == m {
			f()
			return
		}
	}
	x.w.Header().Set("Allow", strings.Join(methods, ", "))
	x.fail(http.StatusMethodNotAllowed, fmt.Sprintf("%s %s: this path takes %s",
		x.r.Method, x.r.URL.Path, strings.Join(methods, " or ")))
}
