package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
	"roundhouse.dev/roundhouse/internal/edge/hubcache"
)

// hubCacheOptions are what `roundhouse hub-cache` is told.
type hubCacheOptions struct {
	listen  string
	size    string
	verbose bool
	ring    ringFlags
	cfg     hubcache.Config
}

func newHubCacheCommand() *cobra.Command {
	o := hubCacheOptions{cfg: hubcache.DefaultConfig()}
	cmd := &cobra.Command{
		Use:   "hub-cache",
		Short: "Cache the Hugging Face Hub for every client that sets HF_ENDPOINT",
		Long: `Cache the Hugging Face Hub. Clients set HF_ENDPOINT to the address it listens
at, and nothing else changes for them: what one has downloaded, the others get
from here, whatever the repository's name, once and verified.

Who may read is asked of the Hub, with the caller's own token, and believed for
five minutes. Tokens are not kept, not logged, and sent to the Hub alone.

With --peers or --peers-dns it is a node of a ring: each large file is kept by one
of the nodes, and clients may ask any. A node that goes costs its share, and no
client an error.`,
		Example: `  roundhouse hub-cache
  roundhouse hub-cache --dir /data/hub --max-size 500GiB --listen 0.0.0.0:8083
  HF_ENDPOINT=http://127.0.0.1:8083 hf download Qwen/Qwen3-0.6B
  roundhouse hub-cache --listen 0.0.0.0:8083 --self http://a.lan:8083 --peers http://a.lan:8083,http://b.lan:8083 --peers-secret-file ring.secret
  roundhouse hub-cache --listen 0.0.0.0:8083 --self http://$POD_IP:8083 --peers-dns hub-cache.models.svc:8083 --peers-secret-file /secrets/ring`,
		Args: command.CommandsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runHubCache(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	// Every subcommand works on the same folder.
	cmd.PersistentFlags().StringVar(&o.cfg.Dir, "dir", defaultHubDir(), "the cache's folder")
	f := cmd.Flags()
	f.StringVar(&o.listen, "listen", "127.0.0.1:8083", "address for clients; /healthz and /metrics are there too")
	f.StringVar(&o.cfg.Upstream, "upstream", o.cfg.Upstream, "origin of the Hub, or of another mirror of it")
	f.StringVar(&o.cfg.PublicURL, "public-url", "", "origin that clients reach the cache at, where it is not what they ask for: behind TLS, say")
	f.StringVar(&o.size, "max-size", "1TiB", "how much to keep; the least recently used goes first")
	f.BoolVar(&o.cfg.Offline, "offline", false, "ask the Hub nothing: answer what is here")
	f.BoolVar(&o.cfg.OfflinePrivate, "offline-private", false, "with --offline: let everybody read gated and private repositories that are here")
	o.ring.add(cmd)
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log more")
	cmd.AddCommand(newHubStatsCommand(&o), newHubGCCommand(&o), newHubVerifyCommand(&o), newHubPinCommand(&o), newHubUnpinCommand(&o))
	return cmd
}

// defaultHubDir is below the user's cache folder; "" where there is none: a
// name in the folder for temporary files is one that others could take first.
func defaultHubDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "roundhouse", "hub")
}

// parseSize reads "500GiB", "20GB" or a number of bytes.
func parseSize(flag, s string) (int64, error) {
	number, unit := s, ""
	if i := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' }); i >= 0 {
		number, unit = s[:i], strings.TrimSpace(s[i:])
	}
	factors := map[string]float64{"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
	v, err := strconv.ParseFloat(number, 64)
	factor, known := factors[strings.ToLower(unit)]
	if err != nil || !known || v*factor < 1 || v*factor > 1<<60 {
		return 0, command.Usagef("%s is %q: want a size such as 500GiB", flag, s)
	}
	return int64(v * factor), nil
}

func runHubCache(ctx context.Context, o hubCacheOptions, out, logs io.Writer) (err error) {
	if o.cfg.MaxBytes, err = parseSize("--max-size", o.size); err != nil {
		return err
	}
	if o.cfg.OfflinePrivate && !o.cfg.Offline {
		return command.Usagef("--offline-private goes with --offline")
	}
	if err := o.ring.config(&o.cfg); err != nil {
		return err
	}
	if err := o.cfg.Validate(); err != nil {
		return command.Usagef("%w", err)
	}
	if err := datadir.Trusted(o.cfg.Dir, true); err != nil {
		return fmt.Errorf("the cache's folder: %w, from which models are served: mend that, or choose another with --dir", err)
	}
	level := slog.LevelInfo
	if o.verbose {
		level = slog.LevelDebug
	}
	o.cfg.Log = slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: level}))
	l, err := front.Listen(o.listen, "--listen")
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // the server has closed it
	reg := prometheus.NewRegistry()
	cache, err := hubcache.New(o.cfg, reg)
	if err != nil {
		return err
	}
	defer cache.Close()
	_, _ = fmt.Fprintf(out, "Roundhouse caches  %s\nClients set        HF_ENDPOINT=http://%s\nKept in            %s\n",
		o.cfg.Upstream, front.Reachable(l.Addr().(*net.TCPAddr)), o.cfg.Dir)
	if o.cfg.Ring.Enabled() {
		_, _ = fmt.Fprintf(out, "In a ring as       %s\n", o.cfg.Ring.Self)
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

func newHubStatsCommand(o *hubCacheOptions) *cobra.Command {
	return &cobra.Command{
		Use:     "stats",
		Short:   "Show what the cache holds",
		Example: "  roundhouse hub-cache stats --dir /data/hub",
		Args:    command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := hubcache.OpenStore(o.cfg.Dir)
			if err != nil {
				return err
			}
			st, err := store.Stats()
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			_, _ = fmt.Fprintf(w, "Files         %d, %s\nDownloads     %d under way or left off, %s\nPinned        %d, %s\n",
				st.Blobs, sizeText(st.Bytes), st.Partials, sizeText(st.PartialBytes), st.Pinned, sizeText(st.PinnedBytes))
			_, _ = fmt.Fprintf(w, "Repositories  %d, in %d files of metadata\n", st.Repositories, st.Records)
			if st.Unverified > 0 {
				_, _ = fmt.Fprintf(w, "Changed       %d since they were verified: they are hashed again when next read\n", st.Unverified)
			}
			if st.Blobs > 0 {
				_, _ = fmt.Fprintf(w, "Last used     %s to %s\n", st.OldestUse.UTC().Format(time.DateTime), st.NewestUse.UTC().Format(time.DateTime))
			}
			if ring, ok := store.Ring(); ok {
				printRing(w, ring)
			}
			return nil
		},
	}
}

func sizeText(n int64) string {
	v, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for len(units) > 1 && v >= 1024 {
		v, units = v/1024, units[1:]
	}
	if units[0] == "B" {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[0])
}

func newHubGCCommand(o *hubCacheOptions) *cobra.Command {
	size := ""
	cmd := &cobra.Command{
		Use:   "gc --max-size SIZE",
		Short: "Remove the least recently used files until the rest fits, and leftovers of interrupted downloads",
		Long: `Remove the least recently used files until the rest takes at most --max-size,
downloads that nobody went on with for a week, and metadata older than three
months. What is being read or is pinned stays. A cache may run meanwhile.`,
		Example: "  roundhouse hub-cache gc --max-size 200GiB",
		Args:    command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			limit := int64(1) << 60
			var err error
			if size != "" {
				if limit, err = parseSize("--max-size", size); err != nil {
					return err
				}
			}
			store, err := hubcache.OpenStore(o.cfg.Dir)
			if err != nil {
				return err
			}
			files, freed, err := store.GC(limit, time.Now())
			_, _ = fmt.Fprintf(cmd.OutOrStdout(), "%d files removed, %s\n", files, sizeText(freed))
			return err
		},
	}
	cmd.Flags().StringVar(&size, "max-size", "", "how much to keep; empty: everything that is whole")
	return cmd
}

func newHubVerifyCommand(o *hubCacheOptions) *cobra.Command {
	return &cobra.Command{
		Use:     "verify",
		Short:   "Verify the hashes of all files, and remove damaged ones",
		Example: "  roundhouse hub-cache verify",
		Args:    command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := hubcache.OpenStore(o.cfg.Dir)
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			files, bytes, removed, err := store.Verify(cmd.Context(), func(hash string) {
				_, _ = fmt.Fprintf(w, "%s does not have its hash: removed\n", hash)
			})
			_, _ = fmt.Fprintf(w, "%d files hashed, %s; %d removed\n", files, sizeText(bytes), removed)
			if err == nil && removed > 0 {
				err = fmt.Errorf("%d files were wrong; they are fetched again when asked for", removed)
			}
			return err
		},
	}
}

func newHubPinCommand(o *hubCacheOptions) *cobra.Command {
	return &cobra.Command{
		Use:     "pin [datasets/|spaces/]REPOSITORY[@REVISION]…",
		Short:   "Pin a repository, so that its files are never removed",
		Example: "  roundhouse hub-cache pin Qwen/Qwen3-0.6B datasets/squad",
		Args:    command.Wants(1, -1, "repositories"),
		RunE:    func(_ *cobra.Command, args []string) error { return setPins(o.cfg.Dir, args, true) },
	}
}

func newHubUnpinCommand(o *hubCacheOptions) *cobra.Command {
	return &cobra.Command{
		Use:     "unpin [datasets/|spaces/]REPOSITORY[@REVISION]…",
		Short:   "Unpin a repository",
		Example: "  roundhouse hub-cache unpin Qwen/Qwen3-0.6B",
		Args:    command.Wants(1, -1, "repositories"),
		RunE:    func(_ *cobra.Command, args []string) error { return setPins(o.cfg.Dir, args, false) },
	}
}

func setPins(dir string, args []string, on bool) error {
	store, err := hubcache.OpenStore(dir)
	if err != nil {
		return err
	}
	for _, a := range args {
		p := hubcache.Pin{Kind: "models"}
		p.Repo, p.Revision, _ = strings.Cut(a, "@")
		if kind, name, ok := strings.Cut(p.Repo, "/"); ok && (kind == "datasets" || kind == "spaces") {
			p.Kind, p.Repo = kind, name
		}
		if err := store.SetPin(p, on); err != nil {
			return err
		}
	}
	return nil
}
