package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/picking"
	"roundhouse.dev/roundhouse/internal/edge/extproc"
)

// endpointPickerOptions are what `roundhouse endpoint-picker` is told.
type endpointPickerOptions struct {
	picking.Options
	files []string
	watch bool
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
		Args: command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runEndpointPicker(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cfg := extproc.DefaultConfig()
	f := cmd.Flags()
	f.StringArrayVarP(&o.files, "filename", "f", nil, "manifest file or folder; may be repeated")
	f.BoolVar(&o.watch, "watch", false, "read the manifests again when they change")
	f.StringVar(&o.Pool, "pool", "", "NAMESPACE/NAME of the pool for streams that name none")
	o.Flags(f, cfg.Listen, cfg.HealthListen, "127.0.0.1:9090")
	return cmd
}

func runEndpointPicker(ctx context.Context, o endpointPickerOptions, out, logs io.Writer) error {
	log := newLog(logs, o.Verbose)
	if len(o.files) == 0 {
		return command.Usagef("give the manifests of pools with -f")
	}
	server, err := o.Server(log)
	if err = errors.Join(err, exist(o.files)); err != nil {
		return err
	}
	pools, err := newPools(log)
	if err != nil {
		return err
	}
	defer pools.traffic.Close()
	p, err := picking.New(picking.Config{Server: server, Fallbacks: o.Fallbacks, Traffic: pools.traffic, Metrics: pools.metrics})
	if err != nil {
		return err
	}
	src := &sources{objects: pools.routes, log: log, roots: o.files, watched: o.watch, refuse: refuseServices}
	if err := src.first(ctx); err != nil {
		return err
	}
	return p.Run(ctx, o.Metrics, out, func(ctx context.Context) {
		if o.watch {
			src.watch(ctx)
		}
	})
}
