// Package picking puts the endpoint picker together, which the command line of
// one machine and that of a cluster have in common: the server that gateways
// ask, over the request path's dispatcher.
package picking

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

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/cmd/internal/manifestfile"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/edge/extproc"
	"roundhouse.dev/roundhouse/internal/edge/gateway"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// Options are the flags of both commands.
type Options struct {
	Listen, Health, Metrics string
	Pool                    string
	Fallbacks               int
	TLSCert, TLSKey         string
	SessionHeader           string
	AllowPaths              []string
	ConfigFile              string
	Log                     command.LogOptions
}

// Flags adds the flags; addresses are the defaults of where to listen.
func (o *Options) Flags(f *pflag.FlagSet, listen, health, metrics string) {
	f.StringVar(&o.Listen, "listen", listen, "address for Envoy, over gRPC")
	f.StringVar(&o.Health, "health-listen", health, "address of gRPC's health service: liveness, readiness")
	f.StringVar(&o.Metrics, "metrics-listen", metrics, "address of /metrics and /healthz; empty for none")
	f.IntVar(&o.Fallbacks, "fallbacks", 0, "further endpoints to name, for a gateway that tries them when the first fails")
	f.StringVar(&o.TLSCert, "tls-cert", "", "PEM file of the certificate to serve Envoy over TLS with; read again when it changes")
	f.StringVar(&o.TLSKey, "tls-key", "", "PEM file of its key")
	f.StringVar(&o.SessionHeader, "session-header", "", "header whose value keeps a client's requests on one endpoint")
	f.StringArrayVar(&o.AllowPaths, "allow-path", nil, "further path to hand on to endpoints, of a server that has calls of its own; * at its end for all that begin so; repeatable")
	f.StringVar(&o.ConfigFile, "config-file", "", "EndpointPickerConfig of llm-d or the Inference Extension, for pools that state no picker or queue of their own")
	o.Log.Flags(f)
}

// Scheduling reads the file of --config-file, and logs the warnings of it.
func (o *Options) Scheduling(log *slog.Logger) (out service.Scheduling, err error) {
	if o.ConfigFile == "" {
		return out, nil
	}
	files, err := manifestfile.Read([]string{o.ConfigFile}, os.Stdin)
	if err != nil {
		return out, fmt.Errorf("--config-file: %w", err)
	}
	found := 0
	var problems []string
	for _, f := range files {
		read := dialect.Read(f.Name, []byte(f.Data))
		for _, p := range read.Problems {
			if p.Warning {
				log.Warn("--config-file", "problem", p.String())
			} else {
				problems = append(problems, p.String())
			}
		}
		found += len(read.Schedulings)
		for _, s := range read.Schedulings {
			out = *s.Scheduling
		}
	}
	switch {
	case len(problems) > 0:
		return out, fmt.Errorf("--config-file: %s", strings.Join(problems, "\n"))
	case found != 1:
		return out, fmt.Errorf("--config-file: %s has %d documents of kind %s: want one", o.ConfigFile, found, dialect.KindScheduling)
	}
	return out, nil
}

// garbage is how much the heap may grow between two collections, in percent,
// unless GOGC is set: bodies are nearly all of it and are soon gone, so that
// collecting at 100 is a sixth of the work.
const garbage = 400

// maxFallbacks is how many further endpoints an answer may name.
const maxFallbacks = 10

// Server returns the server's configuration from the flags. Errors are of wrong
// usage.
func (o *Options) Server(log *slog.Logger) (cfg extproc.Config, err error) {
	cfg = extproc.DefaultConfig()
	cfg.Listen, cfg.HealthListen, cfg.SessionHeader, cfg.DrainTimeout, cfg.Log = o.Listen, o.Health, o.SessionHeader, front.DrainGrace, log
	cfg.AllowPaths = o.AllowPaths
	for _, path := range o.AllowPaths {
		if !strings.HasPrefix(path, "/") || strings.Contains(strings.TrimSuffix(path, "*"), "*") {
			return cfg, command.Usagef("--allow-path is %q: want a path that begins with /, with * at its end for all that begin so", path)
		}
	}
	switch {
	case o.Fallbacks < 0 || o.Fallbacks > maxFallbacks:
		return cfg, command.Usagef("--fallbacks is %d: must be 0 to %d", o.Fallbacks, maxFallbacks)
	case (o.TLSCert == "") != (o.TLSKey == ""):
		return cfg, command.Usagef("--tls-cert and --tls-key go together")
	}
	if o.Pool != "" {
		if cfg.Pool = service.ParseKey(o.Pool); cfg.Pool.Name == "" || cfg.Pool.Namespace == "" {
			return cfg, command.Usagef("--pool is %q: want NAMESPACE/NAME", o.Pool)
		}
	}
	if err := front.HeaderName("--session-header", o.SessionHeader); err != nil {
		return cfg, err
	}
	if o.TLSCert != "" {
		cfg.TLS, err = gateway.TLS(o.TLSCert, o.TLSKey, log)
	}
	return cfg, err
}

// Config is what a Picker is put together of. All but Pool are required.
type Config struct {
	Server    extproc.Config
	Fallbacks int
	Traffic   *front.Traffic
	Metrics   *prometheus.Registry
	// Pool is the pool that is meant by one that a stream names, the zero Key
	// where it names none; and is that where the request is to decide.
	Pool func(named service.Key) service.Key
	// Keep are what keeps the pools, which go on until the last request has its
	// answer.
	Keep []func(context.Context)
}

// Picker is the process, put together.
type Picker struct {
	cfg    Config
	server *extproc.Server
}

// New puts the parts together and registers their metrics.
func New(cfg Config) (*Picker, error) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
	if err := cfg.Traffic.Register(cfg.Metrics); err != nil {
		return nil, err
	}
	if err := cfg.Metrics.Register(observe.NewPredictions("roundhouse_endpoint_picker_", cfg.Traffic.Dispatcher)); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	cfg.Server.Heard = cfg.Traffic.Heard
	ready := cfg.Server.Ready
	cfg.Server.Ready = func() bool {
		return (ready == nil || ready()) && slices.ContainsFunc(cfg.Traffic.AllEndpoints(), func(e dispatch.Endpoint) bool { return e.Open })
	}
	server, err := extproc.New(cfg.Server, picking{cfg.Traffic.Dispatcher, cfg.Fallbacks, cfg.Pool}, cfg.Metrics)
	return &Picker{cfg, server}, err
}

// Run listens, writes where to out, runs started beside the server, and answers
// until ctx ends or a server fails; what keeps the pools, and the metrics, go
// on until the last request has its answer. metrics is empty for none.
func (p *Picker) Run(ctx context.Context, metrics string, out io.Writer, started func(context.Context)) error {
	var listener net.Listener
	if metrics != "" {
		var err error
		if listener, err = front.Listen(metrics, "--metrics-listen"); err != nil {
			return err
		}
		defer func() { _ = listener.Close() }() // its server has closed it
	}
	at, health, err := p.server.Listen()
	if err != nil {
		return command.ListenError(err, "--listen or --health-listen")
	}
	return p.serve(ctx, listener, func(ctx context.Context) {
		_, _ = fmt.Fprintf(out, "Roundhouse picks endpoints at  %s\nHealth                         %s\n", at, health)
		if listener != nil {
			_, _ = fmt.Fprintf(out, "Metrics                        http://%s/metrics\n", listener.Addr())
		}
		started(ctx)
	})
}

func (p *Picker) serve(ctx context.Context, metrics net.Listener, started func(context.Context)) error {
	serving, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	behind, stopBehind := context.WithCancel(context.WithoutCancel(ctx))
	var servers, keepers sync.WaitGroup
	for _, k := range append(p.cfg.Keep, p.cfg.Traffic.Run) {
		keepers.Go(func() { k(behind) })
	}
	if metrics != nil {
		keepers.Go(func() {
			if err := front.ServeMetrics(behind, metrics, p.cfg.Metrics); err != nil {
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
	meant     func(named service.Key) service.Key // nil: what is named
}

// Admit implements extproc.Admitter.
func (p picking) Admit(ctx context.Context, pool service.Key, r dispatch.Request) (extproc.Grant, error) {
	if p.meant != nil {
		pool = p.meant(pool)
	}
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
// those with the fewest requests first, of the rank that the request's header names.
func (p picking) others(g *dispatch.Grant, subset []string) (out []string) {
	_, name, _ := strings.Cut(g.Service(), "pool ")
	all := p.Endpoints(routing.PoolRef(service.ParseKey(name)))
	slices.SortStableFunc(all, func(a, b dispatch.Endpoint) int { return a.InFlight - b.InFlight })
	for _, e := range all {
		if len(out) == p.fallbacks {
			break
		}
		if e.Open && e.Role != service.RolePrefill && e.Role != service.RoleEncode && e.Address != g.Address() && e.Rank == g.Rank() && (subset == nil || slices.Contains(subset, e.Address)) {
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

// Prefill is the server that computes the prompt, where the endpoint's sidecar has it
// do that; another way to bring them together takes more than a header.
func (g *picked) Prefill() string {
	if d := g.Pool().Disaggregation; d != "" && d != service.DisaggregationHeader {
		return ""
	}
	return g.Grant.Prefill()
}

// Served notes who answered.
func (g *picked) Served(address string) { g.served = address }

// errOtherEndpoint is the failure of the endpoint that did not answer.
var errOtherEndpoint = errors.New("the gateway had the answer of another endpoint")

// Answered counts for the endpoint that was picked, if it is the one that
// answers.
func (g *picked) Answered(a dispatch.Answer) bool {
	return (g.served == "" || g.served == g.Address()) && g.Grant.Answered(a)
}

// FirstByte counts for the endpoint that was picked, if it is the one that
// answers.
func (g *picked) FirstByte() {
	if g.served == "" || g.served == g.Address() {
		g.Grant.FirstByte()
	}
}

// FirstToken counts for the endpoint that was picked, if it is the one that
// answers.
func (g *picked) FirstToken() {
	if g.served == "" || g.served == g.Address() {
		g.Grant.FirstToken()
	}
}

// Done implements extproc.Grant: that another endpoint answered is the picked
// one's failure.
func (g *picked) Done(o dispatch.Outcome) {
	if g.served != "" && g.served != g.Address() && slices.Contains(g.alternatives, g.served) {
		o.Failed = errOtherEndpoint
	}
	g.Grant.Done(o)
}
