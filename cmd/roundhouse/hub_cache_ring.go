package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/edge/hubcache"
	"roundhouse.dev/roundhouse/internal/edge/hubcache/peers"
)

// ringFlags are those of `roundhouse hub-cache` that make it a node of a ring.
type ringFlags struct {
	peers   []string
	dns     string
	self    string
	secrets string // a file
	minSize string
}

func (r *ringFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&r.peers, "peers", nil, "origins of the ring's nodes, as http://HOST:PORT,…; the same at every node")
	f.StringVar(&r.dns, "peers-dns", "", "HOST:PORT: the addresses of HOST are the ring's nodes, as of a headless Service; looked up every 5 s")
	f.StringVar(&r.self, "self", "", "origin by which the other nodes know this one")
	f.StringVar(&r.secrets, "peers-secret-file", "", "file with the secret that all nodes know; the first line signs, every line is believed")
	f.StringVar(&r.minSize, "ring-min-size", "1MiB", "files below it are kept by every node that is asked for them")
}

// maxSecretFile bounds the file of secrets.
const maxSecretFile = 64 << 10

// config writes the flags into a cache's configuration.
func (r *ringFlags) config(cfg *hubcache.Config) (err error) {
	if len(r.peers) == 0 && r.dns == "" {
		if r.self != "" || r.secrets != "" {
			return command.Usagef("--self and --peers-secret-file go with --peers or --peers-dns")
		}
		return nil
	}
	if r.self == "" {
		return command.Usagef("--self is missing: name the origin by which the other nodes know this one, as in --self http://10.0.0.7:8083")
	}
	if r.secrets == "" {
		return command.Usagef("--peers-secret-file is missing: make one with `openssl rand -hex 32 > FILE`, the same for every node")
	}
	if r.minSize != "0" {
		if cfg.RingMinBytes, err = parseSize("--ring-min-size", r.minSize); err != nil {
			return err
		}
	} else {
		cfg.RingMinBytes = 0
	}
	cfg.Ring.Peers, cfg.Ring.DNS, cfg.Ring.Self = r.peers, r.dns, r.self
	if cfg.Ring.Secrets, err = readSecrets(r.secrets); err != nil {
		return err
	}
	return nil
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

// printRing says what a cache knew of its ring when last something changed.
func printRing(w io.Writer, st peers.State) {
	away := 0
	for _, n := range st.Nodes {
		if !n.Asked {
			away++
		}
	}
	_, _ = fmt.Fprintf(w, "Ring          %d nodes, %d left alone; as of %s\n", len(st.Nodes)+1, away, st.At.UTC().Format(time.DateTime))
	_, _ = fmt.Fprintf(w, "              %s  this node\n", st.Self)
	for _, n := range st.Nodes {
		state := "asked"
		if !n.Asked {
			state = "left alone: " + n.Why
		}
		_, _ = fmt.Fprintf(w, "              %s  %s, since %s\n", n.Name, state, n.Since.UTC().Format(time.DateTime))
	}
}
