package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/printer"
	"roundhouse.dev/roundhouse/internal/core/apikey"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// keyOptions name the keys: those of a running up, or of a file.
type keyOptions struct {
	remote
	file string
}

// keyring holds the keys: the admin API, or a file.
type keyring interface {
	Keys(ctx context.Context) ([]apikey.Key, error)
	CreateKey(ctx context.Context, req admin.KeyRequest) (admin.NewKey, error)
	RevokeKey(ctx context.Context, id string) (apikey.Key, error)
}

func (o *keyOptions) flags(cmd *cobra.Command) {
	o.remote.flags(cmd)
	cmd.Flags().StringVar(&o.file, "file", "", "file of keys, as given to a server with --api-keys, in place of a running up; servers reload it")
}

// open finds the keys; a file that is not there yet can only be created.
func (o *keyOptions) open(creating bool) (keyring, error) {
	if o.file == "" && o.meansCluster() {
		return nil, errors.New("in a cluster, the keys are a file in a Secret: edit the file with --file keys.yaml, then run `kubectl create secret generic NAME --from-file keys.yaml --dry-run=client -o yaml | kubectl apply -f -`; the chart's gateway.apiKeys.secret names the Secret")
	}
	if o.file == "" {
		return o.Up()
	}
	if _, err := os.Stat(o.file); err != nil && !creating {
		return nil, fmt.Errorf("--file %s: %w", o.file, command.Cause(err))
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
		Long: `Create, list and revoke API keys of the inference port. Once a key exists, every
request needs one, as "Authorization: Bearer KEY" or "x-api-key: KEY", even after all
keys are revoked. A key is printed once; only its hash is stored.`,
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
		Short: "Create an API key and print it, once",
		Example: `  roundhouse keys create alice --models chat,iris --requests-per-minute 60
  roundhouse keys create bob --expires 720h --file keys.yaml`,
		Args: command.Wants(1, 1, "the name of the key's owner"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name = args[0]
			if expires != 0 {
				req.Expires = time.Now().Add(expires)
			}
			ring, err := o.open(true)
			if err != nil {
				return err
			}
			others, err := ring.Keys(cmd.Context())
			if err != nil {
				return err
			}
			k, err := ring.CreateKey(cmd.Context(), req)
			if err != nil {
				return err
			}
			for _, o := range others {
				if o.Name == k.Name && o.Live(time.Now()) {
					_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "note: key %s is also of %s and stays valid: `roundhouse keys revoke %s` ends it\n", o.ID, o.Name, o.ID)
				}
			}
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "key %s of %s, shown only now:\n", k.ID, k.Name)
			_, err = fmt.Fprintln(cmd.OutOrStdout(), k.Secret)
			return err
		},
	}
	o.flags(cmd)
	f := cmd.Flags()
	f.StringSliceVar(&req.Limits.Models, "models", nil, "models the key may use, by the names in requests (default: all)")
	f.StringSliceVar(&req.Limits.Namespaces, "namespaces", nil, "namespaces whose models the key may use and list (default: all)")
	f.Int64Var(&req.Limits.RequestsPerMinute, "requests-per-minute", 0, "most requests a minute; 0 for no limit")
	f.Int64Var(&req.Limits.TokensPerMinute, "tokens-per-minute", 0, "most tokens a minute, of prompts and answers; 0 for no limit")
	f.Int64Var(&req.Limits.Concurrent, "concurrent", 0, "most requests at a time; 0 for no limit")
	f.DurationVar(&expires, "expires", 0, "time until the key expires, as 720h (default: never)")
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
			return printer.Keys(cmd.OutOrStdout(), list, time.Now())
		},
	}
	o.flags(cmd)
	return cmd
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
