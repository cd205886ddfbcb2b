// Package app puts processes together: up, the gateway and the endpoint picker of
// manifests, the cache of the Hugging Face Hub, and what fetches models.
package app

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

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/cmd/internal/manifestfile"
	"roundhouse.dev/roundhouse/internal/decide/history"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
	"roundhouse.dev/roundhouse/internal/edge/process/containers"
	"roundhouse.dev/roundhouse/internal/state/journal"
)

// reconcilers is how many services are reconciled at once. Most of the time they
// wait, for a model's source above all.
const reconcilers = 32

// The addresses that servers listen on unless told otherwise.
const (
	DefaultListen     = "127.0.0.1:8080"
	DefaultGRPCListen = "127.0.0.1:8081"
	DefaultAdmin      = "127.0.0.1:8090"
)

// Up is everything on one machine: gateway, autoscaler, admin API, and replicas as
// processes or containers.
type Up struct {
	Files               []string
	Watch               bool
	Listen, GRPC, Admin string
	DataDir             string
	Hub, HubBytes       string // as --hub-cache and --hub-cache-max-bytes
	ModelBytes          string // as --models-max-bytes
	Containers          string // as --containers; "" is what the environment says
	KeepReplicas        bool
	Log                 command.LogOptions
	Scaler              front.ScalerOptions
	Front               front.Options
	Version             string
}

// check finds what is wrong with the flags alone.
func (o *Up) check() error {
	if o.Watch && len(o.Files) == 0 {
		return command.Usagef("--watch needs -f FILE: the files to watch")
	}
	if _, err := containers.Mode(o.Containers); err != nil {
		return command.Usagef("%w", err)
	}
	return nil
}

// Run serves until ctx ends.
func (o *Up) Run(ctx context.Context, out, logs io.Writer) (err error) {
	front.MakeHeadroom()
	if err := o.check(); err != nil {
		return err
	}
	log, err := o.Log.New(logs)
	if err = errors.Join(err, manifestfile.Exist(o.Files)); err != nil {
		return err
	}
	dir, err := datadir.Open(o.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	listeners, err := front.OpenListeners(o.Listen, o.GRPC, "", "")
	if err != nil {
		return err
	}
	defer listeners.Close()
	adminListener, err := listenAdmin(o.Admin)
	if err != nil {
		return err
	}
	defer func() { _ = adminListener.Close() }()
	access, err := o.Front.Open(ctx, dir.Keys(), o.Version, logs, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, access.Close()) }()
	access.Requests = journal.NewRequests()
	access.Warn(log, listeners.Inference, listeners.GRPC)
	hub, err := openHub(o.Hub, o.HubBytes, dir, log)
	if err != nil {
		return err
	}
	defer hub.close()
	stored := dir.Events()
	defer func() { err = errors.Join(err, stored.Close()) }()
	events, err := journal.OpenEvents(journal.Config{Store: stored, Log: log})
	if err != nil {
		log.Warn("not all events of the past can be read", "error", err)
	}
	models, err := o.modelBound(dir)
	if err != nil {
		return err
	}
	n, err := newNode(nodeConfig{containers: o.Containers, version: o.Version, dir: dir, hub: hub, events: events, models: models, scaler: o.Scaler, listeners: listeners, admin: adminListener.Addr().(*net.TCPAddr), log: log, access: access})
	if err != nil {
		return err
	}
	hurry, release := secondSignal(ctx)
	defer release()
	defer func() { err = errors.Join(err, n.close(hurry, o.KeepReplicas)) }()
	if err := n.fleet.Restore(ctx); err != nil {
		log.Error("cannot restore all of the desired state", "error", err)
	}
	src := &manifestfile.Source{Objects: n.fleet, Log: log, Roots: o.Files, Watched: o.Watch}
	if err := src.First(ctx); err != nil {
		return err
	}
	n.platform.Sweep()
	events.Tell(history.Event{Reason: "UpStarted", Message: "roundhouse " + o.Version + " is up"})
	defer events.Tell(history.Event{Reason: "UpStopped", Message: "asked to stop"})
	return n.run(ctx, hurry, adminListener, func(ctx context.Context) {
		n.greet(ctx, out)
		n.tidy(ctx)
		if o.Watch {
			src.Watch(ctx)
		}
	})
}

// listenAdmin opens the port of the admin API.
func listenAdmin(address string) (net.Listener, error) {
	l, err := front.Listen(address, "--admin-listen")
	if err != nil {
		return nil, err
	}
	if !l.Addr().(*net.TCPAddr).IP.IsLoopback() {
		// It starts processes, and its token would travel in the clear.
		return nil, errors.Join(command.Usagef("--admin-listen %s: the admin API listens on loopback only: name a loopback address, and use a tunnel such as ssh -L to reach it from another machine", address), l.Close())
	}
	return l, nil
}

// modelBound is how many bytes the models may take; 0 is no bound.
func (o *Up) modelBound(dir *datadir.Dir) (int64, error) {
	if o.ModelBytes == "0" {
		return 0, nil
	}
	n, err := command.ParseShare("--models-max-bytes", o.ModelBytes, dir.Models())
	if _, wrong := errors.AsType[*command.UsageError](err); wrong {
		err = command.Usagef("%w, or 0 for no limit", err)
	}
	return n, err
}

// secondSignal is a context that ends at the first signal after ctx has ended.
func secondSignal(ctx context.Context) (context.Context, context.CancelFunc) {
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
// hurry ends the wait for them.
func (n *node) run(ctx, hurry context.Context, adminListener net.Listener, started func(context.Context)) error {
	serving, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	fleetCtx, stopFleet := context.WithCancel(context.WithoutCancel(ctx))
	var servers, fleet sync.WaitGroup
	fleet.Go(func() { n.fleet.Run(fleetCtx, reconcilers) })
	fleet.Go(func() { n.traffic.Run(fleetCtx) })
	fleet.Go(func() { n.live.Run(fleetCtx) })
	fleet.Go(func() { n.bench.run(fleetCtx, n.inner.Serve) })
	fleet.Go(func() { n.caches.fetches.Run(fleetCtx) })
	fleet.Go(func() { n.cfg.access.Keys.Follow(fleetCtx, n.log) })
	serve := func(name string, f func() error) {
		servers.Go(func() {
			if err := f(); err != nil {
				stop(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	n.server.Serve(serving, serve)
	if n.scaler != nil {
		serve("external scaler", func() error { return n.scaler.Serve(serving) })
	}
	serve("admin", func() error { return n.admin.Serve(serving, adminListener, 2*time.Second) })
	servers.Go(func() { started(serving) })
	<-serving.Done()
	n.log.Info(fmt.Sprintf("shutting down: requests in flight have %s; press Ctrl-C again to stop now", front.DrainGrace))
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
