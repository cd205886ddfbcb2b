package main

import (
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/printer"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/usage"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

func newUsageCommand() *cobra.Command {
	var r remote
	var n namespaced
	var since string
	output := "table"
	cmd := &cobra.Command{
		Use:   "usage [SERVICE]",
		Short: "Show how long replicas ran and held GPUs, by service and day",
		Long: `Show for how long the replicas of each component ran, in sum, and which part of it
they were starting, or idle: ready, with no request in flight. ASLEEP is the time in
standby, which is not in REPLICAS. GPUS is for how long they held GPUs: two replicas
with four GPUs each use eight hours of them in an hour, and a GPU that services share
counts for each. With SERVICE there is a line for each day, of UTC. A deleted service
stays in the report. Days are kept for 400 days. CSV and JSON are in seconds; CSV has a
line for each day and component.

In a cluster the controller stores what services used in its own namespace, every 30 s;
to read it you need the right to get ConfigMaps there.`,
		Example: `  roundhouse usage
  roundhouse usage llama --since 30d
  roundhouse usage --since 2026-11-01 -o csv > november.csv
  roundhouse usage -o json
  roundhouse usage --since 30d --context production`,
		Args: command.Wants(0, 1, "the name of a service, or none for all"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := usage.ParseSince(since, time.Now()); err != nil {
				return command.Usagef("--since %w", err)
			}
			c, err := r.open(cmd, &n)
			if err != nil {
				return err
			}
			var of *service.Key
			if len(args) == 1 {
				k := n.key(args[0])
				of = &k
			}
			report, err := c.Usage(cmd.Context(), since, of)
			if err != nil {
				return err
			}
			return printer.Usage(cmd.OutOrStdout(), report, output, of != nil)
		},
	}
	r.flags(cmd)
	n.flags(cmd)
	r.gatewayServiceFlag(cmd)
	cmd.Flags().StringVar(&since, "since", admin.DefaultSince, "first day: the last days as 7d, or a date as 2026-11-30")
	command.OutputFlag(cmd, &output, "table, csv or json", "table", "csv", "json")
	return cmd
}
