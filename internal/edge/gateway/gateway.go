package gateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/core/network"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/edge/gateway/outside"
	"roundhouse.dev/roundhouse/internal/edge/gateway/payloads"
	"roundhouse.dev/roundhouse/internal/edge/gateway/rawgrpc"
	"roundhouse.dev/roundhouse/internal/edge/gateway/surface"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// Gateway serves the inference port.
type Gateway struct {
	transport
	dispatch *dispatch.Dispatcher
	loopback bool          // Listen is on loopback
	pages    network.Guard // there
	cors     network.CORS
	draining atomic.Bool
	leaving  atomic.Bool
	running  atomic.Int64 // requests that have not been settled

	payloads   *payloads.Queue // for services' loggers
	gatherings gatherings      // for services' batchers
	servers    servers         // of steps of graphs
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
	g := &Gateway{transport: transport{cfg: cfg, log: log, warnings: observe.NewWarnings(log), metrics: observe.NewMetrics(d, cfg.Ended.AccessLog), upstream: up},
		dispatch: d, loopback: onLoopback(cfg.Listen),
		pages: network.Guard{Hosts: cfg.AllowedHosts, Origins: cfg.CORSOrigins, KnowsHost: d.KnowsHost},
		cors:  corsOf(cfg.CORSOrigins)}
	g.buffered.Limit = cfg.MaxBufferedBytes
	g.servers = outside.New(outside.Config{Reach: cfg.Reach, Dial: cfg.DialTimeout, Answer: cfg.AnswerTimeout, Idle: http.DefaultMaxIdleConnsPerHost})
	copies := payloads.DefaultConfig()
	copies.Reach = cfg.Reach
	copies.Failed = func(url string, err error) {
		g.warnings.Warn(time.Now(), "a logger did not take a payload", url, "error", err)
	}
	if g.payloads, err = payloads.New(copies); err != nil {
		return nil, err
	}
	for _, c := range []prometheus.Collector{g.metrics, g.payloads} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("gateway: register metrics: %w", err)
		}
	}
	return g, nil
}

// Handler serves the surfaces.
func (g *Gateway) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.cfg.GRPC == nil || !rawgrpc.IsCall(r) {
			g.serve(w, r)
		} else if err := g.checkPage(r); err != nil {
			rawgrpc.Refuse(w, err.Error())
		} else {
			g.cfg.GRPC.ServeHTTP(w, r)
		}
	})
}

// Serve answers on l until ctx ends, then lets requests in flight finish for
// at most DrainTimeout. It closes l. The error is nil after a stop by ctx,
// even if requests had to be cut.
func (g *Gateway) Serve(ctx context.Context, l net.Listener) error {
	return g.run(ctx, l, g.server(g.Handler()))
}

// ServeTLS is Serve over TLS, whatever Config.TLS is.
func (g *Gateway) ServeTLS(ctx context.Context, l net.Listener, c *tls.Config) error {
	srv := g.server(g.Handler())
	srv.TLSConfig = c.Clone() // net/http changes it
	return g.run(ctx, l, srv)
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
	g.payloads.Close(limit)
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// ServeTo answers on l as Serve does, with one pool: it forwards every request,
// inference or not, as it stands to one of the pool's replicas. Clients need no API
// key; pages of other sites are refused as by Serve.
func (g *Gateway) ServeTo(ctx context.Context, l net.Listener, to routing.Ref) error {
	return g.run(ctx, l, g.server(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := newExchange(g, w, r)
		defer x.end()
		x.req.to, x.req.routed = to, true
		path := r.URL.EscapedPath()
		call := surface.Find(path, r.URL.Path, r.Header.Get("Anthropic-Version") != "")
		x.begin(surface.Call{Kind: surface.AsIs, Surface: call.Surface, Path: path, Before: call.Before, Model: call.Model, After: call.After}, path)
		err := cmp.Or(g.checkPage(r), checkTarget(r))
		if err == nil {
			err = x.serveAsIs()
		}
		if err != nil {
			x.refuse(err)
		}
	})))
}

// Leave prepares the end of Serve: requests are served as before, and HTTP/1.1
// connections are closed with their next answer, so that clients connect to
// another gateway.
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

// Explain tells what would happen to a request now: its route, whether it is
// forwarded, waits or is refused, and which replica would answer it and why. The
// request is read as any other, but nothing is sent, woken or counted, and it needs
// no key. The error is what its client would get.
func (g *Gateway) Explain(r *http.Request) (dispatch.Explanation, error) {
	own := errors.New(r.Method + " " + r.URL.Path + " is answered by the gateway itself")
	cfg := g.cfg
	cfg.Keys, cfg.Ended, cfg.Tracer, cfg.CORSOrigins = nil, observe.Sinks{}, nil, nil
	apart := &Gateway{transport: transport{cfg: cfg, log: g.log, warnings: g.warnings, metrics: observe.NewMetrics(g.dispatch, nil)}, dispatch: g.dispatch}
	apart.buffered.Limit = cfg.MaxBodyBytes
	w := &explained{header: http.Header{}}
	apart.serve(w, r)
	switch {
	case w.found:
		return w.explanation, nil
	case w.err != nil:
		return dispatch.Explanation{}, w.err
	case w.code < http.StatusBadRequest:
		return dispatch.Explanation{}, own
	}
	var said struct {
		Error string `json:"error"`
	}
	if err := json.Unmarshal(w.body.Bytes(), &said); err != nil || said.Error == "" {
		return dispatch.Explanation{}, errors.New(w.body.String())
	}
	return dispatch.Explanation{}, errors.New(said.Error)
}

// explained is where the answer to a request goes that is only explained. Its
// surface is the Open Inference Protocol's, whose errors are one string.
type explained struct {
	header http.Header
	code   int
	body   bytes.Buffer

	found       bool
	explanation dispatch.Explanation
	err         error
}

func (e *explained) Header() http.Header         { return e.header }
func (e *explained) WriteHeader(code int)        { e.code = code }
func (e *explained) Write(b []byte) (int, error) { return e.body.Write(b) }
