package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// gatewayOptions are what `roundhouse gateway` is told.
type gatewayOptions struct {
	files                 []string
	watch                 bool
	listen, grpc, metrics string
	verbose               bool
	front                 front.Options
}

func newGatewayCommand() *cobra.Command {
	var o gatewayOptions
	cmd := &cobra.Command{
		Use:   "gateway -f FILE|FOLDER…",
		Short: "Run only the gateway, in front of servers that already run",
		Long: `Run the gateway alone: routes and pools over servers that run already, as the
addresses of a Pool name them. It starts nothing and keeps nothing; a manifest
that asks for a service is an error. Metrics and /healthz have a port of their
own.`,
		Example: `  roundhouse gateway -f pools.yaml
  roundhouse gateway -f gateway/ --watch --listen 0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem --api-keys keys.yaml`,
		Args: command.FlagsOnly,
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
	o.front.Flags(f)
	o.front.HostFlags(f)
	return cmd
}

func runGateway(ctx context.Context, o gatewayOptions, out, logs io.Writer) (err error) {
	front.MakeHeadroom()
	if len(o.files) == 0 {
		return command.Usagef("give the manifests of routes and pools with -f")
	}
	if err := exist(o.files); err != nil {
		return err
	}
	log := newLog(logs, o.verbose)
	listeners, err := front.OpenListeners(o.listen, o.grpc, o.metrics, "")
	if err != nil {
		return err
	}
	defer listeners.Close()
	access, err := o.front.Open(ctx, datadir.KeyFile{}, version, logs, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, access.Close()) }()
	access.Warn(log, listeners.Inference, listeners.GRPC)
	p, err := newPools(log)
	if err != nil {
		return err
	}
	defer p.traffic.Close()
	server, err := front.NewServer(front.ServerConfig{Traffic: p.traffic, Access: access, Listeners: listeners, Metrics: p.metrics, Version: version, Log: log})
	if err != nil {
		return err
	}
	src := &sources{objects: p.routes, log: log, roots: o.files, watched: o.watch, refuse: refuseServices}
	if err := src.first(ctx); err != nil {
		return err
	}
	return server.Run(ctx, func(ctx context.Context) {
		server.SetReady()
		server.Greet(out)
		if o.watch {
			src.watch(ctx)
		}
	})
}

// refuseServices returns an error for each object that asks for something to
// be started.
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
