package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
	"roundhouse.dev/roundhouse/internal/edge/gateway"
	"roundhouse.dev/roundhouse/internal/edge/gateway/rawgrpc"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// gatewayOptions are what `roundhouse gateway` is told.
type gatewayOptions struct {
	files                 []string
	watch                 bool
	listen, grpc, metrics string
	verbose               bool
	front                 frontOptions
}

func newGatewayCommand() *cobra.Command {
	var o gatewayOptions
	cmd := &cobra.Command{
		Use:   "gateway -f FILE|FOLDER…",
		Short: "Run the gateway alone, over servers that run already",
		Long: `Run the gateway alone: routes and pools over servers that run already, as the
addresses of a Pool name them. It starts nothing and keeps nothing; a manifest
that asks for a service is an error. Metrics and /healthz have a port of their
own.`,
		Example: `  roundhouse gateway -f pools.yaml
  roundhouse gateway -f gateway/ --watch --listen 0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem --api-keys keys.yaml`,
		Args: flagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runGateway(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&o.files, "filename", "f", nil, "manifest file or folder; may be repeated")
	f.BoolVar(&o.watch, "watch", false, "read the manifests again when they change")
	f.StringVar(&o.listen, "listen", defaultListen, "address for inference over HTTP")
	f.StringVar(&o.grpc, "grpc-listen", defaultGRPCListen, "address for inference over gRPC; empty for none")
	f.StringVar(&o.metrics, "metrics-listen", defaultAdmin, "address of /metrics and /healthz; empty for none")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log more")
	o.front.flags(f)
	return cmd
}

// alone is a gateway without a fleet of its own.
type alone struct {
	borrowed
	front   *front
	gateway *gateway.Gateway
	grpc    *rawgrpc.Server // nil without a listener

	inference, grpcListener, metricsListener net.Listener
}

func runGateway(ctx context.Context, o gatewayOptions, out, logs io.Writer) (err error) {
	makeHeadroom()
	if len(o.files) == 0 {
		return usagef("give the manifests of routes and pools with -f")
	}
	if err := exist(o.files); err != nil {
		return err
	}
	a := &alone{borrowed: borrowed{log: newLog(logs, o.verbose)}}
	defer a.closeListeners()
	if err := a.listen(o); err != nil {
		return err
	}
	if a.front, err = o.front.open(ctx, datadir.KeyFile{}, logs, a.log); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.front.close()) }()
	a.front.warn(a.log, a.inference, a.grpcListener)
	if err := a.build(); err != nil {
		return err
	}
	defer a.borrowed.close()
	src := &sources{fleet: a.fleet, log: a.log, roots: o.files, watched: o.watch, refuse: refuseServices}
	if err := src.first(ctx); err != nil {
		return err
	}
	return a.run(ctx, func(ctx context.Context) {
		a.greet(out)
		if o.watch {
			src.watch(ctx)
		}
	})
}

// refuseServices says which objects ask for something to be started.
func refuseServices(objects []fleet.Object) error {
	var errs []error
	for _, o := range objects {
		if o.Kind == dialect.KindService {
			errs = append(errs, fmt.Errorf("%s:%d: %s: services are not started here: serve it with `roundhouse up`, and name its address in a Pool",
				o.Origin.File, o.Origin.Line, o.ID()))
		}
	}
	return errors.Join(errs...)
}

func (a *alone) listen(o gatewayOptions) (err error) {
	if a.inference, err = listen(o.listen, "--listen"); err != nil {
		return err
	}
	if a.grpcListener, err = listenGRPC(o.grpc); err != nil || o.metrics == "" {
		return err
	}
	a.metricsListener, err = listen(o.metrics, "--metrics-listen")
	return err
}

func (a *alone) closeListeners() {
	for _, l := range []net.Listener{a.inference, a.grpcListener, a.metricsListener} {
		if l != nil {
			_ = l.Close() // its server has closed it, or there was none
		}
	}
}

// build puts the parts together.
func (a *alone) build() (err error) {
	if a.borrowed, err = newBorrowed(a.log); err != nil {
		return err
	}
	gw := gateway.DefaultConfig()
	gw.Listen, gw.Version, gw.DrainTimeout = a.inference.Addr().String(), version, drainGrace
	gw.Heard = a.traffic.scraping.Heard
	a.front.configure(&gw)
	if a.gateway, err = gateway.New(gw, a.dispatcher, a.log, a.metrics); err != nil || a.grpcListener == nil {
		return err
	}
	raw := rawgrpc.DefaultConfig()
	raw.Version, raw.DrainTimeout = version, drainGrace
	a.front.configureGRPC(&raw)
	a.grpc, err = rawgrpc.New(raw, a.dispatcher, a.log, a.metrics)
	return err
}

func (a *alone) greet(w io.Writer) {
	_, _ = fmt.Fprintf(w, "Roundhouse answers at  %s://%s\n", a.front.scheme(), reachable(a.inference.Addr().(*net.TCPAddr)))
	if a.grpcListener != nil {
		_, _ = fmt.Fprintf(w, "gRPC                   %s\n", reachable(a.grpcListener.Addr().(*net.TCPAddr)))
	}
	if a.metricsListener != nil {
		_, _ = fmt.Fprintf(w, "Metrics                http://%s/metrics\n", reachable(a.metricsListener.Addr().(*net.TCPAddr)))
	}
}

// run serves until ctx ends or a server fails; what keeps the pools goes on
// until the last request has its answer.
func (a *alone) run(ctx context.Context, started func(context.Context)) error {
	serving, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	behind, stopBehind := context.WithCancel(context.WithoutCancel(ctx))
	var servers, keepers sync.WaitGroup
	keepers.Go(func() { a.fleet.Run(behind, 1) })
	keepers.Go(func() { a.traffic.lookups.Run(behind) })
	if a.front.keys != nil {
		keepers.Go(func() { a.front.keys.Follow(behind, a.log) })
	}
	serve := func(name string, f func() error) {
		servers.Go(func() {
			if err := f(); err != nil {
				stop(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	serve("gateway", func() error { return a.gateway.Serve(serving, a.inference) })
	if a.grpc != nil {
		serve("gRPC", func() error { return a.grpc.Serve(serving, a.grpcListener) })
	}
	if a.metricsListener != nil {
		serve("metrics", func() error { return serveMetrics(serving, a.metricsListener, a.metrics) })
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

// serveMetrics answers /metrics and /healthz until ctx ends.
func serveMetrics(ctx context.Context, l net.Listener, reg *prometheus.Registry) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// nothing is the platform, store and models of a gateway alone: it has no
// services, and routing objects are read anew at every start.
type nothing struct{}

var errAlone = errors.New("a gateway alone starts nothing")

func (nothing) Host(context.Context) (selection.Host, error)             { return selection.Host{}, nil }
func (nothing) Apply(context.Context, workload.Revision) error           { return errAlone }
func (nothing) Scale(context.Context, workload.Ref, int, []string) error { return errAlone }
func (nothing) Remove(context.Context, service.Key) error                { return nil }
func (nothing) Services(context.Context) ([]service.Key, error)          { return nil, nil }
func (nothing) Changed() <-chan service.Key                              { return nil }
func (nothing) Observe(context.Context, service.Key) ([]replica.Replica, error) {
	return nil, nil
}

func (nothing) Logs(context.Context, string, fleet.LogOptions) (io.ReadCloser, error) {
	return nil, errAlone
}

func (nothing) PutObject(fleet.Object) error                  { return nil }
func (nothing) DeleteObject(fleet.ID) error                   { return nil }
func (nothing) PutRecord(fleet.Record) error                  { return nil }
func (nothing) DeleteRecord(service.Key) error                { return nil }
func (nothing) Load() ([]fleet.Object, []fleet.Record, error) { return nil, nil, nil }
func (nothing) Wake(context.Context, string, int) error       { return errAlone }
func (nothing) Sleep(context.Context, string) error           { return errAlone }
func (nothing) Report(string, autoscale.Demand)               {}
func (nothing) Inspect(context.Context, string) (service.Attributes, error) {
	return service.Attributes{}, errAlone
}
