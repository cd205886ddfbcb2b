// Package clusterconsole serves the console against a cluster, to the user of one
// kubeconfig on their own machine.
package clusterconsole

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"roundhouse.dev/roundhouse/cmd/internal/backend"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/cmd/internal/inference"
	"roundhouse.dev/roundhouse/cmd/internal/jsonschema"
	"roundhouse.dev/roundhouse/internal/decide/history"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/edge/admin/console"
	"roundhouse.dev/roundhouse/internal/edge/cluster"
	"roundhouse.dev/roundhouse/internal/state/journal"
)

// DefaultListen is the address of the console.
const DefaultListen = "127.0.0.1:8092"

// grace is how long answers under way may take to finish at the end.
const grace = time.Second

// Config of a console. All but Namespace and AllowChanges are required.
type Config struct {
	Cluster *backend.Cluster
	// Gateway finds where the playground's requests go.
	Gateway func(context.Context) (inference.Gateway, error)
	// Namespace is the one that is watched, "" for all.
	Namespace    string
	Listen       string
	AllowChanges bool
	Version      string
	Out          io.Writer // has the link
}

// Run serves the console until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	l, err := listen(cfg.Listen)
	if err != nil {
		return err
	}
	events, err := journal.OpenEvents(journal.Config{})
	live, wrong := admin.NewLive(admin.LiveConfig{Pace: journal.NewPace()})
	if err = errors.Join(err, wrong); err != nil {
		return errors.Join(err, l.Close())
	}
	at := l.Addr().(*net.TCPAddr)
	// The token is nobody's: the link signs in, and the sessions end with this process.
	var infer http.Handler
	if cfg.AllowChanges { // since requests start models
		infer = playground(cfg.Gateway)
	}
	server, err := admin.New(admin.Config{Cluster: cfg.Cluster, Infer: infer, AllowChanges: cfg.AllowChanges, Token: rand.Text(), Host: at.IP.String(), Port: at.Port,
		Version: cfg.Version, Events: events, Requests: journal.NewRequests(), Live: live, Schemas: sync.OnceValues(jsonschema.Kinds)})
	if err != nil {
		return errors.Join(err, l.Close())
	}
	may := "it only reads; --allow-changes lets it change what your kubeconfig lets you change"
	if cfg.AllowChanges {
		may = "it changes what your kubeconfig lets you change"
	}
	_, _ = fmt.Fprintf(cfg.Out, "Console of %s: http://%s%s\n%s\n", cfg.Cluster.Name(), at, server.Link(console.Owner), may)
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return server.Serve(ctx, l, grace) })
	all.Go(func() error {
		live.Run(ctx)
		return nil
	})
	all.Go(func() error { return watch(ctx, cfg, live, events) })
	if err := all.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// listen opens the port: on loopback only, since whoever signs in has the rights of
// the kubeconfig.
func listen(address string) (net.Listener, error) {
	l, err := front.Listen(address, "--listen")
	if err != nil {
		return nil, err
	}
	if !l.Addr().(*net.TCPAddr).IP.IsLoopback() {
		return nil, errors.Join(command.Usagef("--listen %s: the console listens on loopback only: name a loopback address, and use a tunnel such as ssh -L to reach it from another machine", address), l.Close())
	}
	return l, nil
}

// watch has the console follow the cluster.
func watch(ctx context.Context, cfg Config, live *admin.Live, events *journal.Events) error {
	return cfg.Cluster.Watch(ctx, cluster.WatchConfig{
		Namespace: cfg.Namespace,
		Service:   func(s *cluster.Service) { live.Observe(s.ServiceState) },
		Gone:      live.Forget,
		Routes:    live.ObserveRoutes,
		Objects:   func() { live.Changed(admin.Lists) },
		Event:     events.Note,
		Failed: func(err error) {
			if cfg.Cluster.Warn(err) {
				events.Tell(history.Event{Reason: "NotShown", Message: err.Error(), Warning: true})
			}
		},
	})
}
