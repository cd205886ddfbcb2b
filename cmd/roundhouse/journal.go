package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/backend"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/printer"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// telling is a command that tells what happened last, and with --follow goes on.
type telling struct {
	remote
	namespaced
	output string
	follow bool
}

func (t *telling) flags(cmd *cobra.Command) {
	t.remote.flags(cmd)
	t.namespaced.flags(cmd)
	cmd.Flags().BoolVarP(&t.follow, "follow", "f", false, "go on with what happens, until Ctrl-C")
	t.output = "table"
	command.OutputFlag(cmd, &t.output, "table or json; json is a line for each", "table", "json")
}

// tell prints what list returns, or each thing that follow brings.
func tell[T any](cmd *cobra.Command, t *telling, lines *printer.Lines[T], list func(context.Context, backend.Backend) ([]T, error), follow func(context.Context, backend.Backend, func(T) error) error) error {
	c, err := t.open(cmd, &t.namespaced)
	if err != nil {
		return err
	}
	if t.follow {
		err := follow(cmd.Context(), c, lines.Print)
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	}
	all, err := list(cmd.Context(), c)
	if err != nil {
		return err
	}
	for _, x := range all {
		if err := lines.Print(x); err != nil {
			return err
		}
	}
	return lines.End()
}

func newEventsCommand() *cobra.Command {
	var t telling
	cmd := &cobra.Command{
		Use:   "events [SERVICE]",
		Short: "Show what happened: choices, counts, starts, failures, and why",
		Long: `Show the last events, the oldest first: manifests that changed, runtimes that were
chosen, counts that were decided and why, replicas that started, became ready, failed
or stopped, services that ceased to answer, API keys that were made or revoked. A
running roundhouse up keeps about the last 4,000, over restarts too. In a cluster they
are the last ones that Kubernetes has of each service; with --follow all that it has,
and then those that happen.`,
		Example: `  roundhouse events
  roundhouse events llama -f
  roundhouse events llama -f --context production
  roundhouse events -o json`,
		Args: command.Wants(0, 1, "the name of a service, or none for all"),
		RunE: func(cmd *cobra.Command, args []string) error {
			of := func() *service.Key { // once the namespace of a cluster's context is known
				if len(args) == 0 {
					return nil
				}
				k := t.key(args[0])
				return &k
			}
			return tell(cmd, &t, printer.Events(cmd.OutOrStdout(), t.output, time.Now),
				func(ctx context.Context, b backend.Backend) ([]admin.NumberedEvent, error) {
					return b.Events(ctx, of())
				},
				func(ctx context.Context, b backend.Backend, each func(admin.NumberedEvent) error) error {
					return b.FollowEvents(ctx, of(), each)
				})
		},
	}
	t.flags(cmd)
	return cmd
}

func newRequestsCommand() *cobra.Command {
	var t telling
	var q admin.RequestQuery
	cmd := &cobra.Command{
		Use:   "requests [SERVICE|MODEL]",
		Short: "Show the last requests: how long they waited, took, and how they ended",
		Long: `Show the last requests that a running roundhouse up has answered, the oldest first;
it keeps 2,000. QUEUE is how long the request waited for a replica, FIRST the time to
the first byte of its answer, TOOK all of it; TOKENS are the prompt's and the answer's,
as the engine reports them, RATE the answer's tokens a second. NOTE names the
API key, and has why the gateway refused the request, why the replica broke off the
answer, and why an earlier try failed. No key itself is kept, and no body, unless the service's annotation roundhouse.dev/keep-bodies
asks for it: --bodies shows what is kept.`,
		Example: `  roundhouse requests
  roundhouse requests llama -f
  roundhouse requests --failed
  roundhouse requests llama --bodies
  roundhouse requests --slow 2s -o json`,
		Args: command.Wants(0, 1, "the name of a service, or of a model as requests name it"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if q.Slow < 0 {
				return command.Usagef("--slow must not be negative, is %s", q.Slow)
			}
			if len(args) == 1 {
				q.Of = args[0]
			}
			return tell(cmd, &t, printer.Requests(cmd.OutOrStdout(), t.output),
				func(ctx context.Context, b backend.Backend) ([]admin.Request, error) { return b.Requests(ctx, q) },
				func(ctx context.Context, b backend.Backend, each func(admin.Request) error) error {
					return b.FollowRequests(ctx, q, each)
				})
		},
	}
	t.flags(cmd)
	cmd.Flags().BoolVar(&q.Failed, "failed", false, "only those that the service failed to answer: a status of 500 or more, 429 for lack of room, or an answer that was broken off")
	cmd.Flags().BoolVar(&q.ClientErrors, "client-errors", false, "only those refused for what their client did: any other status of 400 or more; with --failed both")
	cmd.Flags().BoolVar(&q.Bodies, "bodies", false, "with the bodies of requests and answers, of services that keep them")
	cmd.Flags().DurationVar(&q.Slow, "slow", 0, "only those whose first byte took at least as long, or whose end did where none came")
	return cmd
}
