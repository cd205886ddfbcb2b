package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/extproc"
	"roundhouse.dev/roundhouse/internal/edge/gateway"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// endpointPickerOptions are what `roundhouse endpoint-picker` is told.
type endpointPickerOptions struct {
	files                   []string
	watch                   bool
	listen, health, metrics string
	pool                    string
	fallbacks               int
	tlsCert, tlsKey         string
	sessionHeader           string
	verbose                 bool
}

func newEndpointPickerCommand() *cobra.Command {
	var o endpointPickerOptions
	cmd := &cobra.Command{
		Use:   "endpoint-picker -f FILE|FOLDER…",
		Short: "Pick endpoints for Envoy and other gateways that speak its external processing protocol",
		Long: `Pick endpoints for Envoy, and for every gateway of the Gateway API Inference
Extension: for each request that a gateway asks about, the endpoint picker says
which server of a pool answers it first. It forwards nothing itself.

One process serves many pools. A stream names its pool in the gRPC metadata
x-gateway-inference-pool (NAMESPACE/NAME), or by an :authority of the form
POOL-epp.NAMESPACE…; else --pool names it, else the request's host, path and
model decide as they do in the gateway.`,
		Example: `  roundhouse endpoint-picker -f pools.yaml
  roundhouse endpoint-picker -f pools/ --watch --listen 0.0.0.0:9002 --pool prod/llama`,
		Args: flagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runEndpointPicker(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cfg := extproc.DefaultConfig()
	f := cmd.Flags()
	f.StringArrayVarP(&o.files, "filename", "f", nil, "manifest file or folder; may be repeated")
	f.BoolVar(&o.watch, "watch", false, "read the manifests again when they change")
	f.StringVar(&o.listen, "listen", cfg.Listen, "address for Envoy, over gRPC")
	f.StringVar(&o.health, "health-listen", cfg.HealthListen, "address of gRPC's health service: liveness, readiness")
	f.StringVar(&o.metrics, "metrics-listen", "127.0.0.1:9090", "address of /metrics and /healthz; empty for none")
	f.StringVar(&o.pool, "pool", "", "NAMESPACE/NAME of the pool for streams that name none")
	f.IntVar(&o.fallbacks, "fallbacks", 0, "further endpoints to name, for a gateway that tries them when the first fails")
	f.StringVar(&o.tlsCert, "tls-cert", "", "PEM file of the certificate to serve Envoy over TLS with; read again when it changes")
	f.StringVar(&o.tlsKey, "tls-key", "", "PEM file of its key")
	f.StringVar(&o.sessionHeader, "session-header", "", "header whose value keeps a client's requests on one endpoint")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log more")
	return cmd
}

// garbage is how much the heap may grow between two collections, in percent,
// unless GOGC says: bodies are nearly all of it and are soon gone, so that
// collecting at 100 is a sixth of the work.
const garbage = 400

// maxFallbacks is how many further endpoints an answer may name.
const maxFallbacks = 10

// config is what the flags say.
func (o *endpointPickerOptions) config(log *slog.Logger) (cfg extproc.Config, err error) {
	cfg = extproc.DefaultConfig()
	cfg.Listen, cfg.HealthListen, cfg.SessionHeader, cfg.DrainTimeout = o.listen, o.health, o.sessionHeader, front.DrainGrace
	switch {
	case len(o.files) == 0:
		return cfg, usagef("give the manifests of pools with -f")
	case o.fallbacks < 0 || o.fallbacks > maxFallbacks:
		return cfg, usagef("--fallbacks is %d: must be 0 to %d", o.fallbacks, maxFallbacks)
	case (o.tlsCert == "") != (o.tlsKey == ""):
		return cfg, usagef("--tls-cert and --tls-key go together")
	}
	if o.pool != "" {
		if cfg.Pool = service.ParseKey(o.pool); cfg.Pool.Name == "" || cfg.Pool.Namespace == "" {
			return cfg, usagef("--pool is %q: want NAMESPACE/NAME", o.pool)
		}
	}
	if err := errors.Join(exist(o.files), front.HeaderName("--session-header", o.sessionHeader)); err != nil {
		return cfg, err
	}
	if o.tlsCert != "" {
		cfg.TLS, err = gateway.TLS(o.tlsCert, o.tlsKey, log)
	}
	return cfg, err
}

// endpointPicker is the process, put together.
type endpointPicker struct {
	borrowed
	server *extproc.Server
}

func runEndpointPicker(ctx context.Context, o endpointPickerOptions, out, logs io.Writer) (err error) {
	log := newLog(logs, o.verbose)
	cfg, err := o.config(log)
	if err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
	p := &endpointPicker{borrowed: borrowed{log: log}}
	cfg.Log = log
	if err := p.build(cfg, o.fallbacks); err != nil {
		return err
	}
	defer p.traffic.Close()
	src := &sources{fleet: p.fleet, log: p.log, roots: o.files, watched: o.watch, refuse: refuseServices}
	if err := src.first(ctx); err != nil {
		return err
	}
	var metrics net.Listener
	if o.metrics != "" {
		if metrics, err = front.Listen(o.metrics, "--metrics-listen"); err != nil {
			return err
		}
		defer func() { _ = metrics.Close() }() // its server has closed it
	}
	at, health, err := p.server.Listen()
	if err != nil {
		return err
	}
	return p.run(ctx, metrics, func(ctx context.Context) {
		_, _ = fmt.Fprintf(out, "Roundhouse picks endpoints at  %s\nHealth                         %s\n", at, health)
		if metrics != nil {
			_, _ = fmt.Fprintf(out, "Metrics                        http://%s/metrics\n", metrics.Addr())
		}
		if o.watch {
			src.watch(ctx)
		}
	})
}

// build puts the parts together.
func (p *endpointPicker) build(cfg extproc.Config, fallbacks int) (err error) {
	if p.borrowed, err = newBorrowed(p.log); err != nil {
		return err
	}
	if err := p.traffic.Register(p.metrics); err != nil {
		return err
	}
	cfg.Heard = p.traffic.Heard
	cfg.Ready = func() bool {
		return slices.ContainsFunc(p.traffic.Dispatcher.AllEndpoints(), func(e dispatch.Endpoint) bool { return e.Open })
	}
	p.server, err = extproc.New(cfg, picking{p.traffic.Dispatcher, fallbacks}, p.metrics)
	return err
}

// run answers until ctx ends or a server fails; what keeps the pools, and the
// metrics, go on until the last request has its answer.
func (p *endpointPicker) run(ctx context.Context, metrics net.Listener, started func(context.Context)) error {
	serving, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	behind, stopBehind := context.WithCancel(context.WithoutCancel(ctx))
	var servers, keepers sync.WaitGroup
	keepers.Go(func() { p.fleet.Run(behind, 1) })
	keepers.Go(func() { p.traffic.Run(behind) })
	if metrics != nil {
		keepers.Go(func() {
			if err := front.ServeMetrics(behind, metrics, p.metrics); err != nil {
				stop(fmt.Errorf("metrics: %w", err))
			}
		})
	}
	servers.Go(func() {
		if err := p.server.Run(serving); err != nil {
			stop(err)
		}
	})
	servers.Go(func() { started(serving) })
	servers.Wait()
	stopBehind()
	keepers.Wait()
	if ctx.Err() != nil {
		return nil // asked to stop
	}
	return context.Cause(serving)
}

// picking is the dispatcher as package extproc asks for it.
type picking struct {
	*dispatch.Dispatcher
	fallbacks int
}

// Admit implements extproc.Admitter.
func (p picking) Admit(ctx context.Context, pool service.Key, r dispatch.Request) (extproc.Grant, error) {
	if pool.Name != "" {
		r.To = routing.PoolRef(pool)
	}
	g, err := p.Dispatcher.Admit(ctx, r)
	if err != nil {
		return nil, err
	}
	out := picked{Grant: g}
	if p.fallbacks > 0 {
		out.alternatives = p.others(g, r.Subset)
	}
	return &out, nil
}

// others are the endpoints of the grant's pool to try when its own fails:
// those with the fewest requests first.
func (p picking) others(g *dispatch.Grant, subset []string) (out []string) {
	_, name, _ := strings.Cut(g.Service(), "pool ")
	all := p.Endpoints(routing.PoolRef(service.ParseKey(name)))
	slices.SortStableFunc(all, func(a, b dispatch.Endpoint) int { return a.InFlight - b.InFlight })
	for _, e := range all {
		if len(out) == p.fallbacks {
			break
		}
		if e.Open && e.Address != g.Address() && (subset == nil || slices.Contains(subset, e.Address)) {
			out = append(out, e.Address)
		}
	}
	return out
}

// picked is a grant with where else its request may go.
type picked struct {
	*dispatch.Grant
	alternatives []string
	served       string
}

func (g *picked) Alternatives() []string { return g.alternatives }

// Served notes who answered.
func (g *picked) Served(address string) { g.served = address }

// errElsewhere is the failure of the endpoint that did not answer.
var errElsewhere = errors.New("the gateway had the answer of another endpoint")

// FirstByte counts for the endpoint that was picked, if it is the one that
// answers.
func (g *picked) FirstByte() {
	if g.served == "" || g.served == g.Address() {
		g.Grant.FirstByte()
	}
}

// Done implements extproc.Grant: that another endpoint answered is the picked
// one's failure.
func (g *picked) Done(o dispatch.Outcome) {
	if g.served != "" && g.served != g.Address() && slices.Contains(g.alternatives, g.served) {
		o.Failed = errElsewhere
	}
	g.Grant.Done(o)
}
