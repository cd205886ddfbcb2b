package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/cmd/internal/manifestfile"
	"roundhouse.dev/roundhouse/cmd/internal/picking"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Gateway is the gateway alone, in front of servers that already run.
type Gateway struct {
	Files                 []string
	Watch                 bool
	Listen, GRPC, Metrics string
	Log                   command.LogOptions
	Front                 front.Options
	Sharing               Sharing
	Version               string
}

// Run serves until ctx ends.
func (o *Gateway) Run(ctx context.Context, out, logs io.Writer) (err error) {
	front.MakeHeadroom()
	if len(o.Files) == 0 {
		return command.Usagef("-f FILE is required: the manifests of routes and pools")
	}
	if err := manifestfile.Exist(o.Files); err != nil {
		return err
	}
	log, err := o.Log.New(logs)
	if err != nil {
		return err
	}
	listeners, err := front.OpenListeners(o.Listen, o.GRPC, o.Metrics, "")
	if err != nil {
		return err
	}
	defer listeners.Close()
	access, err := o.Front.Open(ctx, datadir.KeyFile{}, o.Version, logs, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, access.Close()) }()
	access.Warn(log, listeners.Inference, listeners.GRPC)
	p, err := newPools(front.TrafficConfig{Queue: access.Queue, Log: log}, &o.Sharing)
	if err != nil {
		return err
	}
	defer p.close()
	server, err := front.NewServer(front.ServerConfig{Traffic: p.traffic, Access: access, Listeners: listeners, Metrics: p.metrics, Version: o.Version, Log: log})
	if err != nil {
		return err
	}
	src := &manifestfile.Source{Objects: p.routes, Log: log, Roots: o.Files, Watched: o.Watch, Refuse: refuseServices}
	if err := src.First(ctx); err != nil {
		return err
	}
	return server.Run(ctx, func(ctx context.Context) {
		server.SetReady()
		server.Greet(out)
		if o.Watch {
			src.Watch(ctx)
		}
	}, p.share.keep()...)
}

// refuseServices returns an error for each object that asks for something to
// be started.
func refuseServices(objects []fleet.Object) error {
	var errs []error
	for _, o := range objects {
		if o.Kind == dialect.KindService {
			errs = append(errs, fmt.Errorf("%s:%d: %s: this process starts no services: run it with `roundhouse up`, and add its address to a Pool",
				o.Origin.File, o.Origin.Line, o.ID()))
		}
	}
	return errors.Join(errs...)
}

// pools are what Gateway and EndpointPicker have in common: routes and pools over
// servers that already run.
type pools struct {
	routes  *fleet.Routes
	traffic *front.Traffic
	metrics *prometheus.Registry
	share   *share
}

// newPools puts the parts together. The caller closes them.
func newPools(cfg front.TrafficConfig, with *Sharing) (p pools, err error) {
	p.metrics = prometheus.NewRegistry()
	p.share, err = with.open(cfg.Log, func(endpoint string, blocks []uint64) { p.traffic.Dispatcher.Heard(endpoint, blocks) })
	if err != nil {
		return p, err
	}
	cfg.Sent = p.share.sent()
	if p.traffic, err = front.NewTraffic(cfg); err == nil {
		err = p.share.register(p.metrics)
	}
	if err != nil {
		p.share.close()
		return p, err
	}
	p.routes = fleet.NewRoutes(p.traffic, time.Now)
	p.traffic.Attach(p.routes)
	return p, nil
}

// close ends the traffic, and gives addresses back.
func (p *pools) close() {
	p.share.close()
	p.traffic.Close()
}

// EndpointPicker picks endpoints among servers that already run, for Envoy.
type EndpointPicker struct {
	picking.Options
	Files   []string
	Watch   bool
	Sharing Sharing
}

// Run serves until ctx ends.
func (o *EndpointPicker) Run(ctx context.Context, out, logs io.Writer) error {
	log, err := o.Log.New(logs)
	if err != nil {
		return err
	}
	if len(o.Files) == 0 {
		return command.Usagef("-f FILE is required: the manifests of pools")
	}
	server, err := o.Server(log)
	if err = errors.Join(err, manifestfile.Exist(o.Files)); err != nil {
		return err
	}
	scheduling, err := o.Scheduling(log)
	if err != nil {
		return err
	}
	pools, err := newPools(front.TrafficConfig{Scheduling: scheduling, Log: log}, &o.Sharing)
	if err != nil {
		return err
	}
	defer pools.close()
	p, err := picking.New(picking.Config{Server: server, Fallbacks: o.Fallbacks, Traffic: pools.traffic, Metrics: pools.metrics, Keep: pools.share.keep()})
	if err != nil {
		return err
	}
	src := &manifestfile.Source{Objects: pools.routes, Log: log, Roots: o.Files, Watched: o.Watch, Refuse: refuseServices}
	if err := src.First(ctx); err != nil {
		return err
	}
	isPool := func(s fleet.RoutingState) bool { return s.Object.Routing.RoutingKind() == routing.KindPool }
	if !o.Watch && !slices.ContainsFunc(pools.routes.Objects(), isPool) {
		return fmt.Errorf("%s: no pool to pick for: write a Pool with the servers' addresses; an EndpointPickerConfig belongs to --config-file", strings.Join(o.Files, ", "))
	}
	return p.Run(ctx, o.Metrics, out, func(ctx context.Context) {
		if o.Watch {
			src.Watch(ctx)
		}
	})
}
