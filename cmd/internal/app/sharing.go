package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/internal/edge/sharing"
)

// Sharing are the flags by which processes that pick for the same servers, without a
// Kubernetes, tell each other what they sent where.
type Sharing struct {
	Listen     string
	With       []string
	SecretFile string
}

// Flags adds the flags.
func (o *Sharing) Flags(f *pflag.FlagSet) {
	f.StringVar(&o.Listen, "share-listen", "", "address at which other processes tell this one which prompts they sent where; empty for none")
	f.StringSliceVar(&o.With, "share-with", nil, "HOST:PORT of the other processes, which are told likewise; this one's own may be among them; repeatable")
	f.StringVar(&o.SecretFile, "share-secret-file", "", "file with the secret that all of them have, and nobody else: 32 bytes or more")
}

// share is one process of several that share; nil shares with nobody.
type share struct {
	group    *sharing.Group
	listener net.Listener
	log      *slog.Logger
}

// open listens. heard is called once the share runs. The caller closes it.
func (o *Sharing) open(log *slog.Logger, heard func(endpoint string, blocks []uint64)) (*share, error) {
	if o.Listen == "" && len(o.With) == 0 && o.SecretFile == "" {
		return nil, nil
	}
	if o.Listen == "" || len(o.With) == 0 || o.SecretFile == "" {
		return nil, command.Usagef("--share-listen, --share-with and --share-secret-file need each other")
	}
	secret, err := os.ReadFile(o.SecretFile)
	if err != nil {
		return nil, fmt.Errorf("--share-secret-file: %w", err)
	}
	group, err := sharing.NewGroup(sharing.Config{Peers: o.With, Secret: bytes.TrimSpace(secret), Heard: heard, Log: log})
	if err != nil {
		return nil, command.Usagef("--share-with, --share-secret-file: %w", err)
	}
	l, err := front.Listen(o.Listen, "--share-listen")
	if err != nil {
		return nil, err
	}
	return &share{group, l, log}, nil
}

// sent is what is told which blocks of a prompt an endpoint began to answer; nil where
// nothing is.
func (s *share) sent() func(endpoint string, blocks []uint64) {
	if s == nil {
		return nil
	}
	return s.group.Sent
}

// register registers its metrics.
func (s *share) register(metrics *prometheus.Registry) error {
	if s == nil {
		return nil
	}
	return metrics.Register(s.group)
}

// keep are what runs until the process ends.
func (s *share) keep() []func(context.Context) {
	if s == nil {
		return nil
	}
	return []func(context.Context){func(ctx context.Context) {
		if err := s.group.Run(ctx, s.listener); err != nil {
			s.log.Error("other processes are neither heard nor told", "error", err)
		}
	}}
}

// close gives the address back.
func (s *share) close() {
	if s == nil {
		return
	}
	if err := s.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		s.log.Warn("--share-listen", "error", err)
	}
}
