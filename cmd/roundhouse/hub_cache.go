package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"roundhouse.dev/roundhouse/cmd/internal/app"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/edge/hubcache"
	"roundhouse.dev/roundhouse/internal/edge/hubcache/peers"
)

func newHubCacheCommand() *cobra.Command {
	o := app.HubCache{Config: hubcache.DefaultConfig()}
	cmd := &cobra.Command{
		Use:   "hub-cache",
		Short: "Cache the Hugging Face Hub for every client that sets HF_ENDPOINT",
		Long: `Cache the Hugging Face Hub. Clients set HF_ENDPOINT to the address of the cache and
change nothing else. A file is downloaded from the Hub once and verified; later
clients get it from the cache, whatever the name of the repository.

The Hub decides who may read, by the client's own token. The cache reuses a decision
for five minutes. It sends tokens to the Hub only, and neither stores nor logs them.

With --peers or --peers-dns the cache is a node of a ring: each large file is stored
on one node, and clients may ask any of them. If a node fails, its files are
downloaded again; clients get no errors.`,
		Example: `  roundhouse hub-cache
  roundhouse hub-cache --dir /data/hub --max-size 500GiB --listen 0.0.0.0:8083
  HF_ENDPOINT=http://127.0.0.1:8083 hf download Qwen/Qwen3-0.6B
  roundhouse hub-cache --listen 0.0.0.0:8083 --self http://a.lan:8083 --peers http://a.lan:8083,http://b.lan:8083 --peers-secret-file ring.secret
  roundhouse hub-cache --listen 0.0.0.0:8083 --self http://$POD_IP:8083 --peers-dns hub-cache.models.svc:8083 --peers-secret-file /secrets/ring`,
		Args: command.CommandsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.Run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	// Every subcommand works on the same folder.
	cmd.PersistentFlags().StringVar(&o.Config.Dir, "dir", defaultHubDir(), "folder of the cache")
	f := cmd.Flags()
	f.StringVar(&o.Listen, "listen", "127.0.0.1:8083", "address for clients, and for /healthz and /metrics")
	f.StringVar(&o.Config.Upstream, "upstream", o.Config.Upstream, "URL of the Hub or of a mirror, without a path")
	f.StringVar(&o.Config.PublicURL, "public-url", "", "URL at which clients reach the cache, if it differs from the Host they send, as behind TLS")
	f.StringVar(&o.MaxSize, "max-size", "1TiB", "most bytes to hold; the least recently used file is evicted first")
	f.BoolVar(&o.Config.Offline, "offline", false, "never ask the Hub; answer from the cache only")
	f.BoolVar(&o.Config.OfflinePrivate, "offline-private", false, "with --offline: let everyone read cached gated and private repositories")
	ringFlags(f, &o.Ring)
	o.Log.Flags(f)
	cmd.AddCommand(newHubStatsCommand(&o), newHubGCCommand(&o), newHubVerifyCommand(&o), newHubPinCommand(&o), newHubUnpinCommand(&o))
	return cmd
}

// defaultHubDir is below the user's cache folder, "" where there is none: in the
// folder for temporary files, others could create it first.
func defaultHubDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "roundhouse", "hub")
}

func newHubStatsCommand(o *app.HubCache) *cobra.Command {
	return &cobra.Command{
		Use:     "stats",
		Short:   "Show the content of the cache",
		Example: "  roundhouse hub-cache stats --dir /data/hub",
		Args:    command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := hubcache.OpenStore(o.Config.Dir)
			if err != nil {
				return err
			}
			st, err := store.Stats()
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			_, _ = fmt.Fprintf(w, "Files         %d, %s\nDownloads     %d unfinished, %s\n",
				st.Blobs, command.SizeText(st.Bytes), st.Partials, command.SizeText(st.PartialBytes))
			if err := printPins(w, store, st); err != nil {
				return err
			}
			if st.Linked > 0 {
				_, _ = fmt.Fprintf(w, "Models        use %d files, %s: these stay, and do not count against the bound\n", st.Linked, command.SizeText(st.LinkedBytes))
			}
			_, _ = fmt.Fprintf(w, "Repositories  %d, in %d files of metadata\n", st.Repositories, st.Records)
			if st.Unverified > 0 {
				_, _ = fmt.Fprintf(w, "Changed       %d since they were verified; they are hashed again when next read\n", st.Unverified)
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

func newHubGCCommand(o *app.HubCache) *cobra.Command {
	size := ""
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove the least recently used files and interrupted downloads",
		Long: `Remove the least recently used files until the rest takes at most --max-size, and
downloads interrupted a week ago or longer, and metadata older than three months.
Without --max-size no complete file is removed. Files that are pinned or being read stay. The cache may be running meanwhile.`,
		Example: "  roundhouse hub-cache gc --max-size 200GiB",
		Args:    command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			limit := int64(1) << 60
			var err error
			if size != "" {
				if limit, err = command.ParseSize("--max-size", size); err != nil {
					return err
				}
			}
			store, err := hubcache.OpenStore(o.Config.Dir)
			if err != nil {
				return err
			}
			files, freed, err := store.GC(limit, time.Now())
			_, _ = fmt.Fprintf(cmd.OutOrStdout(), "%d files removed, %s\n", files, command.SizeText(freed))
			return err
		},
	}
	cmd.Flags().StringVar(&size, "max-size", "", "most bytes to hold (default: no bound; only unfinished downloads and old metadata are removed)")
	return cmd
}

func newHubVerifyCommand(o *app.HubCache) *cobra.Command {
	return &cobra.Command{
		Use:     "verify",
		Short:   "Verify the hashes of all files, and remove damaged ones",
		Example: "  roundhouse hub-cache verify",
		Args:    command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := hubcache.OpenStore(o.Config.Dir)
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			files, bytes, removed, err := store.Verify(cmd.Context(), func(hash string) {
				_, _ = fmt.Fprintf(w, "%s: wrong content, removed\n", hash)
			})
			_, _ = fmt.Fprintf(w, "%d files hashed, %s; %d removed\n", files, command.SizeText(bytes), removed)
			if err == nil && removed > 0 {
				err = fmt.Errorf("%d files had wrong content; they are downloaded again when requested", removed)
			}
			return err
		},
	}
}

func newHubPinCommand(o *app.HubCache) *cobra.Command {
	return &cobra.Command{
		Use:   "pin [datasets/|spaces/]OWNER/NAME[@REVISION]…",
		Short: "Pin a repository, so that its files are never removed",
		Long: `Pin a repository, so that its files are never removed: those that are cached, and
those that will be. Pinning downloads nothing. An old repository without an owner
can be pinned once it is cached.`,
		Example: "  roundhouse hub-cache pin Qwen/Qwen3-0.6B datasets/allenai/c4",
		Args:    command.Wants(1, -1, "repositories"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return setPins(o.Config.Dir, args, true, func(s *hubcache.Store, p hubcache.Pin, changed bool) error {
				cached, err := cachedText(s, p)
				text := "pinned " + p.String()
				if !changed {
					text = p.String() + " was pinned already"
				}
				_, _ = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", text, cached)
				return err
			})
		},
	}
}

func newHubUnpinCommand(o *app.HubCache) *cobra.Command {
	return &cobra.Command{
		Use:     "unpin [datasets/|spaces/]OWNER/NAME[@REVISION]…",
		Short:   "Unpin a repository",
		Example: "  roundhouse hub-cache unpin Qwen/Qwen3-0.6B",
		Args:    command.Wants(1, -1, "repositories"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return setPins(o.Config.Dir, args, false, func(_ *hubcache.Store, p hubcache.Pin, changed bool) error {
				if !changed {
					return fmt.Errorf("%s is not pinned: `roundhouse hub-cache stats` lists the pins", p)
				}
				_, _ = fmt.Fprintf(cmd.OutOrStdout(), "unpinned %s\n", p)
				return nil
			})
		},
	}
}

// setPins pins or unpins what args name, and calls done after each.
func setPins(dir string, args []string, on bool, done func(s *hubcache.Store, p hubcache.Pin, changed bool) error) error {
	store, err := hubcache.OpenStore(dir)
	if err != nil {
		return err
	}
	for _, a := range args {
		p := hubcache.Pin{Kind: "models"}
		var at bool
		if p.Repo, p.Revision, at = strings.Cut(a, "@"); at && p.Revision == "" {
			return fmt.Errorf("%s: a revision is missing after the @", a)
		}
		if kind, name, ok := strings.Cut(p.Repo, "/"); ok && (kind == "datasets" || kind == "spaces") {
			p.Kind, p.Repo = kind, name
		}
		changed, err := store.SetPin(p, on)
		if err != nil {
			return err
		}
		if err := done(store, p, changed); err != nil {
			return err
		}
	}
	return nil
}

// cachedText tells how much of a pin is cached.
func cachedText(s *hubcache.Store, p hubcache.Pin) (string, error) {
	files, bytes, err := s.Cached(p)
	if files == 0 {
		return "nothing of it is cached yet", err
	}
	return fmt.Sprintf("%d files, %s are cached", files, command.SizeText(bytes)), err
}

// printPins prints the pins, also those of which nothing is cached.
func printPins(w io.Writer, s *hubcache.Store, st hubcache.Stats) error {
	pins, err := s.Pins()
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(w, "Pinned        %d repositories or revisions: %d files, %s\n", len(pins), st.Pinned, command.SizeText(st.PinnedBytes))
	for _, p := range pins {
		text, err := cachedText(s, p)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(w, "              %s: %s\n", p, text)
	}
	return nil
}

// ringFlags adds the flags that make a cache a node of a ring.
func ringFlags(f *pflag.FlagSet, r *app.HubRing) {
	f.StringSliceVar(&r.Peers, "peers", nil, "URLs of the nodes, as http://HOST:PORT,…; the same list at every node")
	f.StringVar(&r.DNS, "peers-dns", "", "HOST:PORT: every address of HOST is a node, as with a headless Service; looked up every 5 s")
	f.StringVar(&r.Self, "self", "", "URL by which the other nodes reach this one")
	f.StringVar(&r.SecretFile, "peers-secret-file", "", "file with the secret shared by the nodes; the first line signs, every line is accepted")
	f.StringVar(&r.MinSize, "ring-min-size", "1MiB", "files below this size are stored by every node that is asked for them")
}

// printRing prints the ring as it was at its last change.
func printRing(w io.Writer, st peers.State) {
	down := 0
	for _, n := range st.Nodes {
		if !n.Asked {
			down++
		}
	}
	_, _ = fmt.Fprintf(w, "Ring          %d nodes, %d unreachable; as of %s\n", len(st.Nodes)+1, down, st.At.UTC().Format(time.DateTime))
	_, _ = fmt.Fprintf(w, "              %s  this node\n", st.Self)
	for _, n := range st.Nodes {
		state := "up"
		if !n.Asked {
			state = "down: " + n.Why
		}
		_, _ = fmt.Fprintf(w, "              %s  %s, since %s\n", n.Name, state, n.Since.UTC().Format(time.DateTime))
	}
}
