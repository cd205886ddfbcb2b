package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/cmd/internal/backend"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/printer"
	"roundhouse.dev/roundhouse/cmd/internal/progress"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

func newGetCommand() *cobra.Command {
	var r remote
	var n namespaced
	var all, watch bool
	var output string
	cmd := &cobra.Command{
		Use:   "get [services|runtimes|models|weights|bases|acceleratorclasses|configmaps|routes|pools|reserves|benchmarkjobs|localmodelcaches|secrets] [NAME…]",
		Short: "List services, runtimes, models, bases, routes, pools, reserves, benchmarks, cached models and secrets",
		Long: `List services, runtimes, models, bases, routes, pools, reserves, benchmarks, models that are
fetched ahead of their use, and the names of secrets and of their keys. RESTARTS is how often the processes of a service's replicas were started again, LAST-FAILURE why it
failed last and when it is tried again. With --watch it goes on with each service that
changes.`,
		Example: `  roundhouse get
  roundhouse get iris -o yaml
  roundhouse get -o wide
  roundhouse get --watch
  roundhouse get runtimes
  roundhouse get -A --context production
  roundhouse get routes
  roundhouse get inferencepools -A
  roundhouse get reserves -A --context production
  roundhouse get benchmarkjobs
  roundhouse get localmodelcaches
  roundhouse get secrets`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := r.open(cmd, &n)
			if err != nil {
				return err
			}
			selected := n.selection(args)
			selected.AllNamespaces = all
			out, single := cmd.OutOrStdout(), len(selected.Names) == 1
			if watch {
				return watchServices(cmd, c, selected, output)
			}
			switch {
			case selected.IsRouting():
				list, err := selected.Routing(cmd.Context(), c)
				if err != nil {
					return err
				}
				return printer.Routing(out, list, selected.Kind, output, single)
			case selected.Kind == "reserves":
				list, err := selected.Reserves(cmd.Context(), c)
				if err != nil {
					return err
				}
				return printer.Reserves(out, list, output, single)
			case selected.Kind == "services":
				list, err := selectedServices(cmd.Context(), c, selected, output)
				if err != nil {
					return err
				}
				return printer.Services(out, list, selected.Plural(), output, single)
			}
			list, err := selected.Objects(cmd.Context(), c)
			if err != nil {
				return err
			}
			if len(list) == 0 && (output == "" || output == "wide") {
				return printer.None(out, selected.Plural())
			}
			return printer.Objects(out, list, selected.Kind, output, single)
		},
	}
	r.flags(cmd)
	n.flags(cmd)
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "list the objects of all namespaces")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "go on with each service that changes, until Ctrl-C")
	command.OutputFlag(cmd, &output, "wide, json, yaml or name", "wide", "json", "yaml", "name")
	return cmd
}

func selectedServices(ctx context.Context, b backend.Backend, s backend.Selection, output string) ([]admin.Service, error) {
	if output == "" || output == "wide" {
		return s.Shown(ctx, b)
	}
	return s.Services(ctx, b)
}

// watchServices prints services, and each again that changes.
func watchServices(cmd *cobra.Command, b backend.Backend, s backend.Selection, output string) error {
	switch {
	case s.Kind != "services":
		return command.Usagef("--watch shows services: it does not go with %s", s.Kind)
	case output != "" && output != "wide":
		return command.Usagef("--watch prints a table: it does not go with -o %s", output)
	}
	changes := printer.Watch(cmd.OutOrStdout(), output)
	err := backend.Watch(cmd.Context(), b, nil, func() error {
		list, err := s.Shown(cmd.Context(), b)
		if err != nil {
			return err
		}
		return changes.Print(list)
	})
	if errors.Is(err, context.Canceled) && cmd.Context().Err() != nil {
		return nil // Ctrl-C is how watching ends
	}
	return err
}

func newDescribeCommand() *cobra.Command {
	var r remote
	var n namespaced
	cmd := &cobra.Command{
		Use:   "describe [services|routes|pools|reserves|benchmarkjobs|localmodelcaches] NAME…",
		Short: "Show a service, route, pool, reserve, benchmark or cached model in detail: runtime, scaling, replicas, problems",
		Example: `  roundhouse describe iris
  roundhouse describe pool llama
  roundhouse describe iris --context production   # in a cluster: with events
  roundhouse describe reserve gpus --context production`,
		Args: command.Wants(1, -1, "the name of a service, route, pool, reserve, benchmark or cached model"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := r.open(cmd, &n)
			if err != nil {
				return err
			}
			selected := n.selection(args)
			out := cmd.OutOrStdout()
			switch {
			case selected.IsRouting():
				list, err := selected.Routing(cmd.Context(), c)
				if err != nil {
					return err
				}
				if len(list) == 0 {
					return printer.None(out, selected.Kind)
				}
				return each(out, list, func(o admin.RoutingObject) error {
					printer.DescribeRouting(out, o, time.Now())
					return nil
				})
			case selected.Kind == "reserves":
				list, err := selected.Reserves(cmd.Context(), c)
				if err == nil && len(list) == 0 {
					return printer.None(out, selected.Kind)
				}
				if err != nil {
					return err
				}
				return each(out, list, func(r *api.Reserve) error {
					printer.DescribeReserve(out, r, time.Now())
					return nil
				})
			case selected.Kind == "benchmarkjobs", selected.Kind == "localmodelcaches":
				list, err := selected.Objects(cmd.Context(), c)
				if err != nil {
					return err
				}
				if len(list) == 0 {
					return printer.None(out, selected.Kind)
				}
				return each(out, list, func(o admin.Object) error { return printer.DescribeObject(out, o, time.Now()) })
			case selected.Kind != "services":
				return command.Usagef("describe shows services, routes, pools, reserves, benchmarks and cached models: use `roundhouse get %s -o yaml`", strings.Join(append([]string{selected.Kind}, selected.Names...), " "))
			case len(selected.Names) == 0:
				return command.Usagef("give the name of a service: `roundhouse get` lists them")
			}
			return each(out, selected.Names, func(name string) error {
				s, err := selected.Describe(cmd.Context(), c, name)
				if err == nil {
					printer.Describe(out, s, time.Now())
				}
				return err
			})
		},
	}
	r.flags(cmd)
	n.flags(cmd)
	return cmd
}

// each prints the elements of list, with an empty line between two.
func each[T any](w io.Writer, list []T, describe func(T) error) error {
	for i, one := range list {
		if i > 0 {
			_, _ = fmt.Fprintln(w)
		}
		if err := describe(one); err != nil {
			return err
		}
	}
	return nil
}

func newPsCommand() *cobra.Command {
	var r remote
	var n namespaced
	var all bool
	output := "table"
	cmd := &cobra.Command{
		Use:   "ps [SERVICE…]",
		Short: "List the replicas that run, with their memory, GPUs and requests",
		Long: `List the replicas that run: their state or standby level, the requests in flight, the
most main memory and the most memory of one GPU that each was seen to use, the GPUs it
holds, how often it was restarted, since when its process runs, and how long ago a request of its service
finished. In a cluster what only one machine knows is "-".`,
		Example: `  roundhouse ps
  roundhouse ps llama -o json
  roundhouse ps -A --context production`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := r.open(cmd, &n)
			if err != nil {
				return err
			}
			var list []admin.Service
			if len(args) > 0 {
				selected := n.selection(nil)
				selected.Names = args
				list, err = selected.Services(cmd.Context(), c)
			} else if all || !r.InCluster && !cmd.Flags().Changed("namespace") {
				list, err = c.Detailed(cmd.Context(), "")
			} else {
				list, err = c.Detailed(cmd.Context(), n.namespace)
			}
			if err != nil {
				return err
			}
			return printer.Replicas(cmd.OutOrStdout(), list, output, time.Now())
		},
	}
	r.flags(cmd)
	n.flags(cmd)
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "list the replicas of all namespaces")
	command.OutputFlag(cmd, &output, "table or json", "table", "json")
	return cmd
}

func newLogsCommand() *cobra.Command {
	var r remote
	var n namespaced
	var q admin.LogQuery
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Print the logs of a replica of a service",
		Example: `  roundhouse logs iris
  roundhouse logs -f --tail 20 chat
  roundhouse logs --previous iris
  roundhouse logs -f iris --context production`,
		Args: command.Wants(1, 1, "the name of a service"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if q.Tail < 0 {
				return command.Usagef("--tail is %d: want a number of lines, or 0 for all", q.Tail)
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
			written, err := io.Copy(cmd.OutOrStdout(), out)
			if written == 0 && err == nil && !q.Follow {
				what := "has written nothing yet"
				if q.Previous {
					what = "has no previous process that wrote anything"
				}
				_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s %s\n", n.key(args[0]), what)
			}
			if q.Follow && errors.Is(err, context.Canceled) {
				return nil // Ctrl-C is how following ends
			}
			return err
		},
	}
	r.flags(cmd)
	n.flags(cmd)
	cmd.Flags().BoolVarP(&q.Follow, "follow", "f", false, "stream the logs")
	cmd.Flags().IntVar(&q.Tail, "tail", 0, "number of last lines to print; 0 for all")
	cmd.Flags().StringVar(&q.Replica, "replica", "", "id of the replica, which describe shows (default: the newest)")
	cmd.Flags().BoolVarP(&q.Previous, "previous", "p", false, "print the logs of the previous process, before the last restart")
	return cmd
}

// fetchingEvery is how often `logs -f` prints the progress of a download.
const fetchingEvery = 500 * time.Millisecond

// fetchingFirst shows the download of a replica's model, and with -f waits for its
// end: a replica has no logs before.
func fetchingFirst(cmd *cobra.Command, c backend.Backend, k service.Key, q admin.LogQuery) error {
	bar, said := progress.New(cmd.ErrOrStderr()), ""
	defer bar.Done()
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
					line += fmt.Sprintf(": %s of %s", command.SizeText(p.Done), command.SizeText(p.Total))
				}
			}
		}
		if line == "" {
			return nil
		}
		if bar.Service(s); !bar.On() && line != said {
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
