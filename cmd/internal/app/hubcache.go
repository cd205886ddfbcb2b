package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
	"roundhouse.dev/roundhouse/internal/edge/hubcache"
)

// HubCache is the cache of the Hugging Face Hub.
type HubCache struct {
	Listen  string
	MaxSize string
	Ring    HubRing
	Config  hubcache.Config
	Log     command.LogOptions
}

// HubRing are the flags that make a cache a node of a ring.
type HubRing struct {
	Peers      []string
	DNS        string
	Self       string
	SecretFile string
	MinSize    string
}

// Run serves until ctx ends.
func (o *HubCache) Run(ctx context.Context, out, logs io.Writer) (err error) {
	if o.Config.MaxBytes, err = command.ParseSize("--max-size", o.MaxSize); err != nil {
		return err
	}
	if o.Config.OfflinePrivate && !o.Config.Offline {
		return command.Usagef("--offline-private goes with --offline")
	}
	if err := o.Ring.config(&o.Config); err != nil {
		return err
	}
	if err := o.Config.Validate(); err != nil {
		return command.Usagef("%w", err)
	}
	if err := datadir.Trusted(o.Config.Dir, true); err != nil {
		return fmt.Errorf("the folder of the cache: %w: models served from it could be replaced; correct that, or choose another folder with --dir", err)
	}
	if o.Config.Log, err = o.Log.New(logs); err != nil {
		return err
	}
	l, err := front.Listen(o.Listen, "--listen")
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // the server has closed it
	reg := prometheus.NewRegistry()
	cache, err := hubcache.New(o.Config, reg)
	if err != nil {
		return err
	}
	defer cache.Close()
	_, _ = fmt.Fprintf(out, "Roundhouse caches  %s\nClients set        HF_ENDPOINT=http://%s\nKept in            %s\n",
		o.Config.Upstream, front.Reachable(l.Addr().(*net.TCPAddr)), o.Config.Dir)
	if o.Config.Ring.Enabled() {
		_, _ = fmt.Fprintf(out, "In a ring as       %s\n", o.Config.Ring.Self)
	}
	return serveHubCache(ctx, l, cache, reg)
}

// serveHubCache answers until ctx ends; then requests in flight have front.DrainGrace.
func serveHubCache(ctx context.Context, l net.Listener, cache http.Handler, reg *prometheus.Registry) error {
	metrics := promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
	srv := &http.Server{
		// No mux: it would clean paths, and the cache reads them as they came.
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/healthz":
				_, _ = fmt.Fprintln(w, "ok")
			case "/metrics":
				metrics.ServeHTTP(w, r)
			default:
				cache.ServeHTTP(w, r)
			}
		}),
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
	}
	drained := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(drained)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), front.DrainGrace)
		defer cancel()
		if srv.Shutdown(grace) != nil {
			_ = srv.Close()
		}
	})
	err := srv.Serve(l)
	if !stop() {
		<-drained
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// maxSecretFile bounds the file of secrets.
const maxSecretFile = 64 << 10

// config sets the ring in the configuration of a cache.
func (r *HubRing) config(cfg *hubcache.Config) (err error) {
	if len(r.Peers) == 0 && r.DNS == "" {
		if r.Self != "" || r.SecretFile != "" {
			return command.Usagef("--self and --peers-secret-file go with --peers or --peers-dns")
		}
		return nil
	}
	if r.Self == "" {
		return command.Usagef("--self is missing: name the origin by which the other nodes know this one, as in --self http://10.0.0.7:8083")
	}
	if r.SecretFile == "" {
		return command.Usagef("--peers-secret-file is missing: make one with `openssl rand -hex 32 > FILE`, the same for every node")
	}
	if r.MinSize != "0" {
		if cfg.RingMinBytes, err = command.ParseSize("--ring-min-size", r.MinSize); err != nil {
			return err
		}
	} else {
		cfg.RingMinBytes = 0
	}
	cfg.Ring.Peers, cfg.Ring.DNS, cfg.Ring.Self = r.Peers, r.DNS, r.Self
	cfg.Ring.Secrets, err = readSecrets(r.SecretFile)
	return err
}

// readSecrets reads a file of secrets, one a line.
func readSecrets(path string) (out []string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--peers-secret-file: %w", err)
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if err != nil {
		return nil, fmt.Errorf("--peers-secret-file: %w", err)
	}
	if len(raw) > maxSecretFile {
		return nil, command.Usagef("--peers-secret-file: %s is longer than %d bytes", path, maxSecretFile)
	}
	for _, l := range strings.Split(string(raw), "\n") {
		if l = strings.TrimSpace(l); l != "" {
			out = append(out, l)
		}
	}
	return out, nil
}
