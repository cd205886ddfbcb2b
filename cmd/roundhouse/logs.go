package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

func newLogsCommand() *cobra.Command {
	var r remote
	var n namespaced
	var q admin.LogQuery
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Print the logs of a service's replica",
		Example: `  roundhouse logs iris
  roundhouse logs -f --tail 20 chat
  roundhouse logs --previous iris
  roundhouse logs -f iris --context production`,
		Args: command.Wants(1, 1, "the name of a service"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if q.Tail < 0 {
				return command.Usagef("--tail is %d: want a number of lines, or 0 for all that is kept", q.Tail)
			}
			c, err := r.open(cmd, &n)
			if err != nil {
				return err
			}
			if err := fetchingFirst(cmd, c, n.key(args[0]), q); err != nil {
				return err
			}
			out, err := c.Logs(cmd.Context(), n.key(args[0]), q)
			if err != nil {
				return err
			}
			defer func() { _ = out.Close() }()
			_, err = io.Copy(cmd.OutOrStdout(), out)
			if q.Follow && errors.Is(err, context.Canceled) {
				return nil // Ctrl-C is how following ends
			}
			return err
		},
	}
	r.flags(cmd)
	n.flags(cmd)
	cmd.Flags().BoolVarP(&q.Follow, "follow", "f", false, "go on as more is written")
	cmd.Flags().IntVar(&q.Tail, "tail", 0, "only the last lines, so many; 0 for all that is kept")
	cmd.Flags().StringVar(&q.Replica, "replica", "", "one replica by its id, as describe shows it; the newest otherwise")
	cmd.Flags().BoolVarP(&q.Previous, "previous", "p", false, "of the process before the present one")
	return cmd
}

// fetchingEvery is how often `logs -f` looks how far a fetch is.
const fetchingEvery = 500 * time.Millisecond

// fetchingFirst says how far the model of a replica is that is still being
// fetched, and with -f until it is here: there is no output before.
func fetchingFirst(cmd *cobra.Command, c backend, k service.Key, q admin.LogQuery) error {
	bar, said := newProgress(stderrFile(cmd)), ""
	defer bar.done()
	for !q.Previous {
		s, err := c.Service(cmd.Context(), k)
		if err != nil {
			return err
		}
		line := ""
		for _, r := range s.Replicas { // the last is the newest
			if q.Replica != "" && r.ID != q.Replica {
				continue
			}
			line = ""
			if r.Phase == replica.Fetching {
				line = "fetching the model"
				if p := r.Progress; p != nil && p.Total > 0 {
					line += fmt.Sprintf(": %s of %s", sizeText(p.Done), sizeText(p.Total))
				}
			}
		}
		if line == "" {
			return nil
		}
		if bar.service(s); !bar.on && line != said {
			_, _ = fmt.Fprintln(cmd.ErrOrStderr(), line)
			said = line
		}
		if !q.Follow {
			return nil
		}
		select {
		case <-time.After(fetchingEvery):
		case <-cmd.Context().Done():
			return nil // Ctrl-C is how following ends
		}
	}
	return nil
}
