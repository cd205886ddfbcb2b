package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/apikey"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// keyOptions say where the keys are: at a running up, or in a file.
type keyOptions struct {
	remote
	file string
}

// keyring is what the commands ask: the admin API, or a file.
type keyring interface {
	Keys(ctx context.Context) ([]apikey.Key, error)
	CreateKey(ctx context.Context, req admin.KeyRequest) (admin.NewKey, error)
	RevokeKey(ctx context.Context, id string) (apikey.Key, error)
}

func (o *keyOptions) flags(cmd *cobra.Command) {
	o.remote.flags(cmd)
	cmd.Flags().StringVar(&o.file, "file", "", "the file given with --api-keys, instead of a running up; servers read it again by themselves")
}

// open finds the keys; a file that is not there yet can only be created.
func (o *keyOptions) open(creating bool) (keyring, error) {
	if o.file == "" && o.inCluster() {
		return nil, errors.New("the keys of a cluster are a file in a Secret: work on that with --file keys.yaml, then `kubectl create secret generic NAME --from-file keys.yaml --dry-run=client -o yaml | kubectl apply -f -`; the chart's gateway.apiKeys.secret names it")
	}
	if o.file == "" {
		return o.client()
	}
	if _, err := os.Stat(o.file); err != nil && !creating {
		return nil, fmt.Errorf("--file %s: %w", o.file, bare(err))
	}
	ring, err := keys.Open(keys.DefaultConfig(), datadir.KeyFile{Path: o.file})
	if err != nil {
		return nil, err
	}
	return fileKeys{ring}, nil
}

// fileKeys are the keys of a file.
type fileKeys struct{ *keys.Ring }

func (f fileKeys) Keys(context.Context) ([]apikey.Key, error) { return f.List(), nil }

func (f fileKeys) CreateKey(_ context.Context, req admin.KeyRequest) (admin.NewKey, error) {
	k, secret, err := f.Create(req.Name, req.Limits, req.Expires)
	return admin.NewKey{Key: k, Secret: secret}, err
}

func (f fileKeys) RevokeKey(_ context.Context, id string) (apikey.Key, error) { return f.Revoke(id) }

func newKeysCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Create, list and revoke API keys",
		Long: `Make, list and revoke API keys of the inference port. As soon as there is one,
every request needs one, as "Authorization: Bearer KEY" or "x-api-key: KEY"; it
stays so when all are revoked. A key is told once; only its hash is kept.`,
		Example: `  roundhouse keys create alice --models chat,iris --requests-per-minute 60
  roundhouse keys create gateway-only --file keys.yaml
  roundhouse keys list
  roundhouse keys revoke q3k7zmsw`,
		Args: command.CommandsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKeysCreateCommand(), newKeysListCommand(), newKeysRevokeCommand())
	return cmd
}

func newKeysCreateCommand() *cobra.Command {
	var o keyOptions
	var req admin.KeyRequest
	var expires time.Duration
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create an API key and print it; it is not shown again",
		Example: `  roundhouse keys create alice --models chat,iris --requests-per-minute 60
  roundhouse keys create bob --expires 720h --file keys.yaml`,
		Args: command.Wants(1, 1, "whose key it is"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name = args[0]
			if expires != 0 {
				req.Expires = time.Now().Add(expires)
			}
			ring, err := o.open(true)
			if err != nil {
				return err
			}
			k, err := ring.CreateKey(cmd.Context(), req)
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "key %s of %s; keep it now, it is not shown again:\n", k.ID, k.Name)
			_, err = fmt.Fprintln(cmd.OutOrStdout(), k.Secret)
			return err
		},
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.StringSliceVar(&req.Limits.Models, "models", nil, "models it may use, by the names requests give; all unless stated")
	f.StringSliceVar(&req.Limits.Namespaces, "namespaces", nil, "namespaces whose models it may use; it knows of no others; all unless stated")
	f.Int64Var(&req.Limits.RequestsPerMinute, "requests-per-minute", 0, "most requests in a minute; 0 for no limit")
	f.Int64Var(&req.Limits.TokensPerMinute, "tokens-per-minute", 0, "most tokens in a minute, prompt and answer; 0 for no limit")
	f.Int64Var(&req.Limits.Concurrent, "concurrent", 0, "most requests at one time; 0 for no limit")
	f.DurationVar(&expires, "expires", 0, "how long it is good for, as 720h; for ever unless stated")
	return cmd
}

func newKeysListCommand() *cobra.Command {
	var o keyOptions
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List API keys, the newest first",
		Example: `  roundhouse keys list
  roundhouse keys list --file keys.yaml`,
		Args: command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ring, err := o.open(false)
			if err != nil {
				return err
			}
			list, err := ring.Keys(cmd.Context())
			if err != nil {
				return err
			}
			return printKeys(cmd.OutOrStdout(), list, time.Now())
		},
	}
	o.flags(cmd)
	return cmd
}

func printKeys(w io.Writer, list []apikey.Key, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(t, "ID\tNAME\tSTATE\tMODELS\tREQUESTS/MIN\tTOKENS/MIN\tCONCURRENT\tAGE")
	limit := func(n int64) string {
		if n == 0 {
			return "-"
		}
		return strconv.FormatInt(n, 10)
	}
	for _, k := range list {
		state, models := "valid", "all"
		switch {
		case !k.Revoked.IsZero():
			state = "revoked"
		case !k.Live(now):
			state = "expired"
		case !k.Expires.IsZero():
			state = "until " + k.Expires.Format("2006-01-02 15:04")
		}
		if len(k.Limits.Models) > 0 {
			models = strings.Join(k.Limits.Models, ",")
		}
		if len(k.Limits.Namespaces) > 0 {
			models += " in " + strings.Join(k.Limits.Namespaces, ",")
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", k.ID, k.Name, state, models,
			limit(k.Limits.RequestsPerMinute), limit(k.Limits.TokensPerMinute), limit(k.Limits.Concurrent), age(k.Created, now))
	}
	return t.Flush()
}

func newKeysRevokeCommand() *cobra.Command {
	var o keyOptions
	cmd := &cobra.Command{
		Use:   "revoke ID…",
		Short: "Revoke API keys; running requests finish",
		Example: `  roundhouse keys revoke q3k7zmsw
  roundhouse keys revoke q3k7zmsw --file keys.yaml`,
		Args: command.Wants(1, -1, "the ids of keys, as `roundhouse keys list` shows them"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ring, err := o.open(false)
			if err != nil {
				return err
			}
			for _, id := range args {
				k, err := ring.RevokeKey(cmd.Context(), id)
				if err != nil {
					return err
				}
				_, _ = fmt.Fprintf(cmd.OutOrStdout(), "key %s of %s revoked\n", k.ID, k.Name)
			}
			return nil
		},
	}
	o.flags(cmd)
	return cmd
}
