package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
)

func newConsoleCommand() *cobra.Command {
	var r remote
	var readOnly bool
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Print a link that signs in to the console of a running up, once",
		Long: `Print a link that opens the console of a running roundhouse up in a browser: what
is served, requests, events, logs, why things are as they are, and a playground. The
link signs in once, within an hour, for twelve hours, or until nothing has used the
session for an hour. With --read-only who opens it sees everything and changes nothing.

The console listens on loopback. From another machine, forward its port first:
ssh -L 8090:127.0.0.1:8090 HOST.`,
		Example: `  roundhouse console
  roundhouse console --read-only
  xdg-open "$(roundhouse console)"`,
		Args: command.FlagsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if r.meansCluster() {
				return errors.New("in a cluster there is no console yet: `roundhouse get -o wide` shows its services, and the dashboard of the chart its metrics")
			}
			up, err := r.Up()
			if err != nil {
				return err
			}
			link, err := up.Client.ConsoleLink(cmd.Context(), readOnly)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), link)
			return err
		},
	}
	r.flags(cmd)
	cmd.Flags().BoolVar(&readOnly, "read-only", false, "who opens the link changes nothing")
	return cmd
}
