package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
)

// upOptions are what `roundhouse up` is told.
type upOptions struct {
	files         []string
	watch         bool
	listen, admin string
	grpc          string
	dataDir       string
	hub, hubBytes string
	modelBytes    string
	keep          bool
	verbose       bool
	front         front.Options
}

func newUpCommand() *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up [-f FILE|FOLDER]…",
		Short: "Run everything on this machine: gateway, autoscaler, admin API, and replicas as processes",
		Long: `Start everything on this machine: the gateway that answers requests, the
autoscaler, the admin API behind the other commands, and replicas as processes.

Manifests given with -f are the desired state of those files: what a file no
longer holds is deleted. With --watch they are read again when they change; a
file with a problem keeps what it said before.`,
		Example: `  roundhouse up -f examples/quickstart
  roundhouse up -f models/ --watch
  roundhouse up --listen 127.0.0.1:9000 --grpc-listen 127.0.0.1:9001 --admin-listen 127.0.0.1:9090`,
		Args: command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return up(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&o.files, "filename", "f", nil, "manifest file or folder; may be repeated")
	f.BoolVar(&o.watch, "watch", false, "read the manifests again when they change")
	f.StringVar(&o.listen, "listen", defaultListen, "address for inference over HTTP")
	f.StringVar(&o.grpc, "grpc-listen", defaultGRPCListen, "address for inference over gRPC; empty for none")
	f.StringVar(&o.admin, "admin-listen", defaultAdmin, "address of the admin API and metrics")
	f.StringVar(&o.dataDir, "data-dir", datadir.Default(), "where the desired state, models and logs are kept")
	f.StringVar(&o.hub, "hub-cache", "auto", "a cache of the Hugging Face Hub for replicas: on, off, HOST:PORT to listen at, or the URL of another cache; auto is on unless HF_ENDPOINT is set")
	f.StringVar(&o.hubBytes, "hub-cache-max-bytes", defaultHubShare, "how much the cache may keep, as a size or a share of the disk; the least recently used goes first")
	f.StringVar(&o.modelBytes, "models-max-bytes", defaultModelShare, "how much the models in the data directory may take, as a size or a share of the disk, 0 for no bound; the least recently used that nothing needs goes first")
	o.front.Flags(f)
	o.front.HostFlags(f)
	f.BoolVar(&o.keep, "keep-replicas", false, "leave replicas running when stopped; the next up takes them over")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log more")
	return cmd
}

// reconcilers is how many services are looked at at once. Most of a look is
// waiting, for a model's source above all.
const reconcilers = 32

func up(ctx context.Context, o upOptions, out, logs io.Writer) (err error) {
	front.MakeHeadroom()
	if o.watch && len(o.files) == 0 {
		return command.Usagef("--watch needs -f: there is nothing to watch")
	}
	if err := exist(o.files); err != nil {
		return err
	}
	log := newLog(logs, o.verbose)
	dir, err := datadir.Open(o.dataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	inference, err := front.Listen(o.listen, "--listen")
	if err != nil {
		return err
	}
	defer func() { _ = inference.Close() }()
	grpcListener, err := front.ListenGRPC(o.grpc)
	if err != nil {
		return err
	}
	if grpcListener != nil {
		defer func() { _ = grpcListener.Close() }()
	}
	adminListener, err := front.Listen(o.admin, "--admin-listen")
	if err == nil && !adminListener.Addr().(*net.TCPAddr).IP.IsLoopback() {
		// It starts processes, and its token would travel in the clear.
		return errors.Join(command.Usagef("--admin-listen %s: the admin API is served on loopback alone: reach it from elsewhere through a tunnel", o.admin), adminListener.Close())
	}
	if err != nil {
		return err
	}
	defer func() { _ = adminListener.Close() }()
	access, err := o.front.Open(ctx, dir.Keys(), version, logs, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, access.Close()) }()
	access.Warn(log, inference, grpcListener)
	hub, err := openHub(o.hub, o.hubBytes, dir, log)
	if err != nil {
		return err
	}
	defer hub.close()
	models, err := o.modelBound(dir)
	if err != nil {
		return err
	}
	n, err := newNode(nodeConfig{dir: dir, hub: hub, models: models, listeners: front.Listeners{Inference: inference, GRPC: grpcListener}, admin: adminListener.Addr().(*net.TCPAddr), log: log, access: access})
	if err != nil {
		return err
	}
	hurry, calm := again(ctx)
	defer calm()
	defer func() { err = errors.Join(err, n.close(hurry, o.keep)) }()
	if err := n.fleet.Restore(ctx); err != nil {
		log.Error("not everything could be restored", "error", err)
	}
	src := &sources{objects: n.fleet, log: log, roots: o.files, watched: o.watch}
	if err := src.first(ctx); err != nil {
		return err
	}
	n.platform.Sweep()
	return n.run(ctx, hurry, adminListener, func(ctx context.Context) {
		n.greet(ctx, out)
		n.tidy(ctx)
		if o.watch {
			src.watch(ctx)
		}
	})
}

// modelBound is how many bytes the models may take; 0 is no bound.
func (o *upOptions) modelBound(dir *datadir.Dir) (int64, error) {
	if o.modelBytes == "0" {
		return 0, nil
	}
	return parseShare("--models-max-bytes", o.modelBytes, dir.Models())
}

// exist refuses roots that are not there. Their objects stay: a mistyped name
// deletes nothing.
func exist(files []string) error {
	for _, f := range files {
		if _, err := os.Stat(f); err != nil {
			return fmt.Errorf("%s: %w", f, bare(err))
		}
	}
	return nil
}

// again is a context that ends at the first signal after ctx has ended: asked
// to stop a second time.
func again(ctx context.Context) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() {
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
		defer signal.Stop(signals)
		select {
		case <-signals:
			cancel()
		case <-out.Done():
		}
	})
	return out, cancel
}

// run serves until ctx ends or a server fails. Requests in flight finish
// before the fleet stops, so that one waiting for a replica still gets it;
// hurry ends that.
func (n *node) run(ctx, hurry context.Context, adminListener net.Listener, started func(context.Context)) error {
	serving, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	fleetCtx, stopFleet := context.WithCancel(context.WithoutCancel(ctx))
	var servers, fleet sync.WaitGroup
	fleet.Go(func() { n.fleet.Run(fleetCtx, reconcilers) })
	fleet.Go(func() { n.traffic.Run(fleetCtx) })
	fleet.Go(func() { n.cfg.access.Keys.Follow(fleetCtx, n.log) })
	serve := func(name string, f func() error) {
		servers.Go(func() {
			if err := f(); err != nil {
				stop(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	n.server.Serve(serving, serve)
	serve("admin", func() error { return n.admin.Serve(serving, adminListener, 2*time.Second) })
	servers.Go(func() { started(serving) })
	<-serving.Done()
	n.log.Info("shutting down; press Ctrl-C again to stop now")
	drained := make(chan struct{})
	go func() { servers.Wait(); close(drained) }()
	select {
	case <-drained:
	case <-hurry.Done():
	}
	stopFleet()
	fleet.Wait()
	if ctx.Err() != nil {
		return nil // asked to stop
	}
	return context.Cause(serving)
}
