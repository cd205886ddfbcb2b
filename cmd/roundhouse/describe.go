package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

func newDescribeCommand() *cobra.Command {
	var r remote
	var n namespaced
	cmd := &cobra.Command{
		Use:   "describe [services|routes|pools] NAME…",
		Short: "Tell everything known of a service, route or pool: choice, scaling, replicas, trouble",
		Example: `  roundhouse describe iris
  roundhouse describe pool llama
  roundhouse describe iris --context production   # in a cluster, events too`,
		Args: wants(1, -1, "the name of a service, route or pool"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := r.open(cmd, &n)
			if err != nil {
				return err
			}
			kind, names := kindAndNames(args)
			if routingKinds[kind] != nil {
				return describeAll(cmd, c, kind, &n, names)
			}
			for i, name := range names {
				s, err := c.Service(cmd.Context(), n.key(name))
				if err != nil {
					return err
				}
				if i > 0 {
					_, _ = fmt.Fprintln(cmd.OutOrStdout())
				}
				if c, ok := c.(*clustered); ok {
					s.Events = c.events(cmd.Context(), s)
				}
				describe(cmd.OutOrStdout(), s, time.Now())
			}
			return nil
		},
	}
	r.flags(cmd)
	n.flags(cmd)
	return cmd
}

func describeAll(cmd *cobra.Command, c backend, kind string, n *namespaced, names []string) error {
	list, err := listRouting(cmd, c, kind, n, names, false)
	if err != nil {
		return err
	}
	for i, o := range list {
		if i > 0 {
			_, _ = fmt.Fprintln(cmd.OutOrStdout())
		}
		describeRouting(cmd.OutOrStdout(), o, time.Now())
	}
	return nil
}

func describe(w io.Writer, s admin.Service, now time.Time) {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(tw, "%s:\t%s\n", name, fmt.Sprintf(format, args...))
	}
	line("Name", "%s/%s", s.Namespace, s.Name)
	line("Kind", "%s %s", s.APIVersion, s.Kind)
	if s.File != "" {
		line("From", "%s", s.File)
	}
	line("Age", "%s", age(s.Created, now))
	line("Model", "%s", orDash(s.Model))
	for _, a := range s.Adapters {
		line("Adapter", "%s", admin.AdapterText(a))
	}
	if rt := s.Status.Runtime; rt.Name != "" {
		line("Runtime", "%s (%s): %s", rt.Name, rt.Scope, orDash(rt.Why))
	}
	line("Protocol", "%s", orDash(string(s.Status.Protocol)))
	line("Revision", "%s", orDash(s.Status.Revision))
	if c := s.Status.Canary; c != nil {
		line("Canary", "%s: %d %% of the requests, %d %% wanted, %d ready: %s", orDash(c.Revision), c.Percent, c.Wanted, c.Ready, c.Why)
	}
	line("URL", "%s", orDash(s.Status.URL))
	if f := s.Status.Model.LastFailure; f != nil {
		line("Last failure", "%s: %s", f.Reason, f.Message)
	}
	_ = tw.Flush()
	_, _ = fmt.Fprintln(w, "\nConditions:")
	for _, c := range s.Status.Conditions {
		_, _ = fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\t%s\n", c.Type, c.Status, orDash(c.Reason), age(c.Since, now), c.Message)
	}
	_ = tw.Flush()
	for _, c := range s.Status.Components {
		l := s.Limits[c.Role]
		_, _ = fmt.Fprintf(w, "\n%s: %d of %d ready, %d to %d replicas, %g %s each, stops when idle for %s\n", c.Role, c.Ready, c.Desired,
			l.Min, l.Max, l.Target, l.Metric, l.ScaleToZeroAfter)
		_, _ = fmt.Fprintf(w, "  scaling: %s\n", orDash(s.Scaling[c.Role]))
		_, _ = fmt.Fprintf(w, "  cost: %.0f replica-seconds, %.0f of them idle; last start took %.2f s\n", c.ReplicaSeconds, c.IdleSeconds, c.StartupSeconds)
	}
	if len(s.Replicas) > 0 {
		_, _ = fmt.Fprintln(w, "\nReplicas:")
		_, _ = fmt.Fprintln(tw, "  ID\tROLE\tPHASE\tPID\tADDRESS\tRESTARTS\tAGE\tMESSAGE")
		for _, r := range s.Replicas {
			describeReplica(tw, r, now)
		}
		_ = tw.Flush()
	}
	if len(s.Events) > 0 {
		_, _ = fmt.Fprintln(w, "\nEvents:")
		_, _ = fmt.Fprintln(tw, "  TYPE\tREASON\tAGE\tMESSAGE")
		for _, e := range s.Events {
			_, _ = fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\n", orDash(e.Type), orDash(e.Reason), age(e.Time, now), strings.Join(strings.Fields(e.Message), " "))
		}
		_ = tw.Flush()
	}
}

func describeReplica(w io.Writer, r replica.Replica, now time.Time) {
	message := r.Message
	if r.Reason != "" && message != "" {
		message = r.Reason + ": " + message
	}
	_, _ = fmt.Fprintf(w, "  %s\t%s\t%s\t%d\t%s\t%d\t%s\t%s\n", r.ID, r.Role, r.Phase, r.PID, orDash(r.HTTP), r.Restarts, age(r.Created, now), message)
}
