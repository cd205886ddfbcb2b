package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/backend"
	"roundhouse.dev/roundhouse/cmd/internal/clusterconsole"
	"roundhouse.dev/roundhouse/cmd/internal/command"
)

// consoleOptions are what the flags of `roundhouse console` say.
type consoleOptions struct {
	remote
	namespaced
	readOnly, all, changes bool
	listen                 string
}

func newConsoleCommand() *cobra.Command {
	var o consoleOptions
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Open the console of a running up, or serve one of a cluster",
		Long: `Print a link that opens the console of a running roundhouse up in a browser: what
is served, requests, events, logs, why things are as they are, and a playground. The
link signs in once, within an hour, for twelve hours, or until nothing has used the
session for an hour. With --read-only who opens it sees everything and changes nothing.

With --context or --kubeconfig, serve a console of that cluster on this machine until
Ctrl-C, and print its link. It asks the API server as the user of the kubeconfig, who
sees and changes no more by it. It shows the namespace of the context, another with -n
or all with -A. Without --allow-changes it changes nothing and asks no model.

Both listen on loopback. From another machine, forward the port first:
ssh -L 8090:127.0.0.1:8090 HOST.`,
		Example: `  roundhouse console
  roundhouse console --read-only
  xdg-open "$(roundhouse console)"
  roundhouse console --context production -A
  roundhouse console --context staging -n team --allow-changes`,
		Args: command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.remote.flags(cmd)
	o.namespaced.flags(cmd)
	o.gatewayFlag(cmd)
	cmd.Flags().BoolVar(&o.readOnly, "read-only", false, "of a running up: who opens the link changes nothing")
	cmd.Flags().BoolVarP(&o.all, "all-namespaces", "A", false, "of a cluster: show all namespaces")
	cmd.Flags().BoolVar(&o.changes, "allow-changes", false, "of a cluster: apply, delete, scale, restart, start, stop and, in the playground, ask models, as far as the kubeconfig's user may")
	cmd.Flags().StringVar(&o.listen, "listen", clusterconsole.DefaultListen, "of a cluster: address of the console, on loopback")
	return cmd
}

func (o *consoleOptions) run(cmd *cobra.Command) error {
	given := cmd.Flags().Changed
	if !o.meansCluster() {
		for _, name := range []string{"allow-changes", "all-namespaces", "gateway", "gateway-service", "listen", "namespace"} {
			if given(name) {
				return command.Usagef("--%s goes with the console of a cluster: name the cluster with --context", name)
			}
		}
		return o.link(cmd.Context(), cmd)
	}
	if o.readOnly && o.changes {
		return command.Usagef("--read-only and --allow-changes exclude each other")
	}
	b, err := o.open(cmd, &o.namespaced)
	if err != nil {
		return err
	}
	namespace := o.namespace
	if o.all {
		namespace = ""
	}
	return clusterconsole.Run(cmd.Context(), clusterconsole.Config{Cluster: b.(*backend.Cluster), Gateway: o.Inference, Namespace: namespace, Listen: o.listen, AllowChanges: o.changes,
		Version: version, Out: cmd.OutOrStdout()})
}

// link prints one to the console of a running up.
func (o *consoleOptions) link(ctx context.Context, cmd *cobra.Command) error {
	up, err := o.Up()
	if err != nil {
		return err
	}
	link, err := up.Client.ConsoleLink(ctx, o.readOnly)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), link)
	return err
}
