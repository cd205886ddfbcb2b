package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/backend"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/printer"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

func newRolloutCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "rollout",
		Short:   "Show how far a change of a service has come",
		Example: "  roundhouse rollout status iris",
		Args:    command.CommandsOnly,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newRolloutStatusCommand())
	return cmd
}

func newRolloutStatusCommand() *cobra.Command {
	var r remote
	var n namespaced
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "status SERVICE",
		Short: "Wait until a service is as its manifest says, and tell each step",
		Long: `Wait until a service is as its manifest says: its newest revision answers, and the
replicas of earlier ones have finished their requests and ended. Each step is one line.
The exit code is 1 when the revision cannot be run or does not become ready, with the
cause, and when --timeout is over; earlier revisions then go on answering. A service
that scales to zero is done when it is asleep.`,
		Example: `  roundhouse apply -f iris.yaml && roundhouse rollout status iris
  roundhouse rollout status llama --timeout 30m
  roundhouse rollout status llama --context production`,
		Args: command.Wants(1, 1, "the name of a service"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit <= 0 {
				return command.Usagef("--timeout is %s: must be more than 0", limit)
			}
			b, err := r.open(cmd, &n)
			if err != nil {
				return err
			}
			k, said, out := n.key(args[0]), "", command.Visible(cmd.OutOrStdout())
			s, err := backend.Follow(cmd.Context(), b, k, backend.RolledOut, limit, func(s admin.Service) {
				if line := printer.RolloutLine(s); line != said {
					_, _ = fmt.Fprintf(out, "%s: %s\n", k, line)
					said = line
				}
			})
			switch {
			case err != nil:
				return err
			case !backend.RolledOut(s):
				return fmt.Errorf("%s: not rolled out within %s: %s", k, limit, printer.RolloutLine(s))
			case !backend.UpToDate(s):
				return fmt.Errorf("%s: the rollout failed: %s", k, rolloutCause(s))
			}
			return nil
		},
	}
	r.flags(cmd)
	n.flags(cmd)
	cmd.Flags().DurationVar(&limit, "timeout", 10*time.Minute, "how long to wait")
	return cmd
}

// rolloutCause is why a service cannot become what its manifest says.
func rolloutCause(s admin.Service) string {
	if f := s.Status.Model.LastFailure; f != nil && f.Message != "" {
		return f.Message
	}
	return cmp.Or(s.Ready().Message, s.Ready().Reason)
}
