package main

import (
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

func newDescribeCommand() *cobra.Command {
	var r remote
	var n namespaced
	cmd := &cobra.Command{
		Use:   "describe [services|routes|pools] NAME…",
		Short: "Show a service, route or pool in detail: runtime, scaling, replicas, problems",
		Example: `  roundhouse describe iris
  roundhouse describe pool llama
  roundhouse describe iris --context production   # in a cluster, events too`,
		Args: command.Wants(1, -1, "the name of a service, route or pool"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := r.open(cmd, &n)
			if err != nil {
				return err
			}
			kind, names := kindAndNames(args)
			if routingKinds[kind] != nil {
				return describeAll(cmd, c, kind, &n, names)
			}
			if kind != "services" {
				return command.Usagef("describe tells of services, routes and pools: `roundhouse get %s -o yaml` prints these", strings.Join(append([]string{kind}, names...), " "))
			}
			if len(names) == 0 {
				return command.Usagef("describe needs the name of a service: `roundhouse get` lists them")
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
	if len(list) == 0 {
		return printNone(cmd.OutOrStdout(), kind)
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
	if seen := s.Status.Generation; seen > 0 && seen < s.Generation {
		line("Observed", "generation %d of %d: the last change has not been looked at yet", seen, s.Generation)
	}
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
		line("Canary", "%s", canaryLine(c))
	}
	address := orDash(s.Status.URL)
	if u, err := url.Parse(address); err == nil && strings.HasSuffix(u.Hostname(), ".localhost") {
		// Not every resolver knows RFC 6761's names; Python's on some systems does not.
		address += fmt.Sprintf(", or %s://127.0.0.1:%s with the header Host: %s", u.Scheme, u.Port(), u.Hostname())
	}
	line("URL", "%s", address)
	if f := s.Status.Model.LastFailure; f != nil {
		line("Last failure", "%s: %s", f.Reason, oneLine(f.Message))
	}
	_ = tw.Flush()
	if len(s.Status.Conditions) > 0 {
		_, _ = fmt.Fprintln(w, "\nConditions:")
	}
	for _, c := range s.Status.Conditions {
		_, _ = fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\t%s\n", c.Type, c.Status, orDash(c.Reason), age(c.Since, now), oneLine(c.Message))
	}
	_ = tw.Flush()
	for _, c := range s.Status.Components {
		describeComponent(w, s, c)
	}
	if len(s.Replicas) > 0 {
		_, _ = fmt.Fprintln(w, "\nReplicas:")
		processes := slices.ContainsFunc(s.Replicas, func(r replica.Replica) bool { return r.PID != 0 })
		header := "  ID\tROLE\tPHASE\tADDRESS\tRESTARTS\tAGE\tMESSAGE"
		if processes {
			header = "  ID\tROLE\tPHASE\tPID\tADDRESS\tRESTARTS\tAGE\tMESSAGE"
		}
		_, _ = fmt.Fprintln(tw, header)
		for _, r := range s.Replicas {
			describeReplica(tw, r, processes, now)
		}
		_ = tw.Flush()
	}
	if len(s.Events) > 0 {
		_, _ = fmt.Fprintln(w, "\nEvents:")
		_, _ = fmt.Fprintln(tw, "  TYPE\tREASON\tAGE\tMESSAGE")
		for _, e := range s.Events {
			_, _ = fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\n", orDash(e.Type), orDash(e.Reason), age(e.Time, now), oneLine(e.Message))
		}
		_ = tw.Flush()
	}
}

// canaryLine says what is known of a canary: a status of other projects has
// words for its share alone.
func canaryLine(c *service.CanaryStatus) string {
	text := fmt.Sprintf("%s: %d %% of the requests", orDash(c.Revision), c.Percent)
	if c.Wanted > 0 {
		text += fmt.Sprintf(", %d %% wanted", c.Wanted)
	}
	if c.Why != "" {
		text += fmt.Sprintf(", %d ready: %s", c.Ready, c.Why)
	}
	return text
}

// describeComponent prints what is known of one role's count. On a cluster no
// controller tells why it is what it is, nor what it has cost.
func describeComponent(w io.Writer, s admin.Service, c service.ComponentStatus) {
	text := fmt.Sprintf("\n%s: %d of %d ready", c.Role, c.Ready, c.Desired)
	if l, known := s.Limits[c.Role]; known {
		text += fmt.Sprintf(", %d to %d replicas, %s each", l.Min, l.Max, target(l))
		if l.Min == 0 && l.ScaleToZeroAfter != "0s" {
			text += ", stops when idle for " + l.ScaleToZeroAfter
		}
	}
	_, _ = fmt.Fprintln(w, text)
	if why := s.Scaling[c.Role]; why != "" {
		_, _ = fmt.Fprintf(w, "  scaling: %s\n", why)
	}
	if c.ReplicaSeconds > 0 || c.StartupSeconds > 0 {
		text := fmt.Sprintf("  cost since roundhouse started: %.0f replica-seconds, %.0f of them idle", c.ReplicaSeconds, c.IdleSeconds)
		if c.StartupSeconds > 0 {
			text += "; the last start took " + time.Duration(c.StartupSeconds*float64(time.Second)).Round(time.Millisecond).String()
		}
		_, _ = fmt.Fprintln(w, text)
	}
}

// target is what a replica is to have of what its number goes by.
func target(l admin.ScaleLimits) string {
	if service.ScaleMetric(l.Metric).Resource() {
		return fmt.Sprintf("%g %% %s", l.Target, l.Metric)
	}
	return fmt.Sprintf("%g %s", l.Target, l.Metric)
}

func describeReplica(w io.Writer, r replica.Replica, process bool, now time.Time) {
	message := r.Message
	if r.Reason != "" && message != "" {
		message = r.Reason + ": " + message
	}
	columns := []string{"  " + r.ID, string(r.Role), string(r.Phase)}
	if process {
		columns = append(columns, itoa(r.PID))
	}
	columns = append(columns, orDash(r.HTTP), itoa(r.Restarts), age(r.Created, now), oneLine(message))
	_, _ = fmt.Fprintln(w, strings.Join(columns, "\t"))
}
