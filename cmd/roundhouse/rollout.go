package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/backend"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/printer"
	"roundhouse.dev/roundhouse/cmd/internal/progress"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

func newRolloutCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "rollout",
		Short:   "Wait for a change of a service, or undo it",
		Example: "  roundhouse rollout status iris\n  roundhouse rollout undo iris",
		Args:    command.CommandsOnly,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newRolloutStatusCommand(), newRolloutUndoCommand())
	return cmd
}

func newRolloutUndoCommand() *cobra.Command {
	l := lifecycle{done: "undone"}
	cmd := &cobra.Command{
		Use:   "undo SERVICE…",
		Short: "Give services the manifests of their revisions before the last back",
		Long: `Give services the manifests of their revisions before the last back, as a running
roundhouse up keeps one of each. It is a change like any: new replicas start and become
ready before the old ones end. A change of the counts alone makes no revision and is not
undone, and what stop, start, restart and scale have set stays. A second undo undoes the
first. A manifest that up has from a file (-f) is that of the file again when up reads
the file the next time. A cluster keeps no earlier manifests.`,
		Example: `  roundhouse rollout undo iris
  roundhouse rollout undo llama --wait --timeout 20m`,
		Args: command.Wants(1, -1, "the name of a service"),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := l.open(cmd, &l.namespaced)
			if err != nil {
				return err
			}
			o := applyOptions{wait: l.wait, timeout: l.timeout, out: command.Visible(cmd.OutOrStdout()), err: cmd.ErrOrStderr(), progress: progress.New(cmd.ErrOrStderr())}
			for _, name := range args {
				change, err := b.Undo(cmd.Context(), l.key(name))
				if err != nil {
					return err
				}
				change.Action = l.done
				if err := o.report(cmd.Context(), b, []admin.Change{change}); err != nil {
					return err
				}
			}
			return nil
		},
	}
	l.flags(cmd, "wait until its replicas are ready")
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
