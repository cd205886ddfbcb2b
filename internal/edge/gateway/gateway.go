package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/core/network"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
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
	buffered ingress.Budget
	loopback bool          // Listen is on loopback
	pages    network.Guard // there
	cors     network.CORS
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
		pages: network.Guard{Hosts: cfg.AllowedHosts, Origins: cfg.CORSOrigins, KnowsHost: d.KnowsHost},
		cors:  corsOf(cfg.CORSOrigins)}
	g.buffered.Limit = cfg.MaxBufferedBytes
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
	if err := srv.Shutdown(limit); err != nil && !errors.Is(err, net.ErrClosed) { // its owner may have closed l
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
