package printer

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// Routing prints a table of routes or pools, or their manifests.
func Routing(w io.Writer, list []admin.RoutingObject, kind, output string, single bool) error {
	switch output {
	case "json", "yaml":
		var docs []string
		for _, o := range list {
			docs = append(docs, o.Rendered)
		}
		return documents(w, docs, output, single)
	case "name":
		for _, o := range list {
			_, _ = fmt.Fprintf(w, "%s/%s/%s\n", o.Type, o.Namespace, o.Name)
		}
		return nil
	}
	if len(list) == 0 {
		return None(w, kind)
	}
	columns := "TAKES\tTO"
	if strings.HasSuffix(kind, "pools") {
		columns = "SELECTS\tMEMBERS"
	}
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	_, _ = fmt.Fprintf(tw, "NAMESPACE\tNAME\tKIND\tREADY\t%s\tAGE\tSTATUS\n", columns)
	for _, o := range list {
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", o.Namespace, o.Name, o.Kind, known(o.Status.Ready()),
			orDash(o.From), orDash(o.To), age(o.Created, time.Now()), routingReason(o))
	}
	return tw.Flush()
}

// known is the status of a condition, "-" while it is unknown.
func known(c service.Condition) string {
	if c.Status == "Unknown" {
		return "-"
	}
	return orDash(c.Status)
}

// routingReason is the reason of the Ready condition, and the message where
// something is wrong.
func routingReason(o admin.RoutingObject) string {
	ready := o.Status.Ready()
	if ready.Message == "" || ready.Status == "True" && ready.Reason != routing.ReasonDegraded {
		return orDash(ready.Reason)
	}
	return ready.Reason + ": " + ready.Message
}

// DescribeRouting prints a route or pool in detail.
func DescribeRouting(w io.Writer, o admin.RoutingObject, now time.Time) {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(tw, "%s:\t%s\n", name, fmt.Sprintf(format, args...))
	}
	line("Name", "%s/%s", o.Namespace, o.Name)
	line("Kind", "%s %s", o.APIVersion, o.Kind)
	if o.File != "" {
		line("From", "%s", o.File)
	}
	line("Age", "%s", age(o.Created, now))
	if o.Type == "pool" {
		line("Selects", "%s", orDash(o.From))
		line("Members", "%s", orDash(o.To))
	} else {
		line("Takes", "%s", orDash(o.From))
		line("To", "%s", orDash(o.To))
	}
	for _, p := range o.Status.Parents {
		line("Gateway", "%s", p.Name)
	}
	_ = tw.Flush()
	if len(o.Rules) > 0 {
		_, _ = fmt.Fprintln(w, "\nRules:")
	}
	for _, r := range o.Rules {
		_, _ = fmt.Fprintf(w, "  %s to %s\n", r.From, orDash(r.To))
		for _, does := range r.Handling {
			_, _ = fmt.Fprintf(w, "    %s\n", command.OneLine(does))
		}
	}
	describeEndpoints(w, tw, o)
	_ = tw.Flush()
	_, _ = fmt.Fprintln(w, "\nConditions:")
	for _, c := range o.Status.Conditions {
		_, _ = fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\t%s\n", c.Type, c.Status, orDash(c.Reason), age(c.Since, now), command.OneLine(c.Message))
	}
	_ = tw.Flush()
}

// describeEndpoints prints the endpoints of a pool, each with its role where they have
// several.
func describeEndpoints(w io.Writer, tw *tabwriter.Writer, o admin.RoutingObject) {
	if len(o.Endpoints) == 0 {
		return
	}
	roles := slices.ContainsFunc(o.Endpoints, func(e dispatch.Endpoint) bool { return e.Role != o.Endpoints[0].Role })
	column := func(role string) string {
		if !roles {
			return ""
		}
		return "\t" + role
	}
	_, _ = fmt.Fprintln(w, "\nEndpoints:")
	_, _ = fmt.Fprintf(tw, "  ADDRESS%s\tSTATE\tREQUESTS\tWAITING\tKV\tANSWERED\tFAILED\tFIRST-BYTE\n", column("ROLE"))
	for _, e := range o.Endpoints {
		state := endpointState(e)
		if o.Status.Ready().Reason == routing.ReasonChecking && state == endpointReady {
			state = "not checked yet" // it gets requests all the same
		}
		waiting, kv := "-", "-"
		if l := e.Load; l != nil {
			waiting = strconv.Itoa(l.Waiting)
			if l.Blocks > 0 || l.KV > 0 {
				kv = fmt.Sprintf("%.0f %%", l.KV*100)
			}
		}
		_, _ = fmt.Fprintf(tw, "  %s%s\t%s\t%d\t%s\t%s\t%d\t%d\t%s\n", endpointName(e), column(orDash(string(e.Role))), state, e.InFlight, waiting, kv,
			e.Record.Results["answered"], e.Record.Failures(), millis(e.Record.Latency().Seconds()*1000))
	}
}

// endpointName is where an endpoint is, with its rank.
func endpointName(e dispatch.Endpoint) string {
	at := cmp.Or(e.Address, e.GRPC, e.ID)
	if e.Rank != "" {
		at += "@" + e.Rank
	}
	return at
}

// endpointState is the state of an endpoint, and its reason.
func endpointState(e dispatch.Endpoint) string {
	switch {
	case e.Phase != replica.Ready && e.Message != "":
		return string(e.Phase) + ": " + command.OneLine(strings.TrimPrefix(e.Message, e.Address+": "))
	case e.Phase != replica.Ready:
		return string(e.Phase)
	case e.Ejected != "":
		return "ejected: " + e.Ejected
	}
	return endpointReady
}

const endpointReady = "ready"

// RoutingLine is the state of a routing object in one line.
func RoutingLine(o admin.RoutingObject) string {
	ready := o.Status.Ready()
	switch {
	case ready.Status == "":
		return "not yet reconciled"
	case ready.Status == "Unknown":
		return cmp.Or(ready.Message, ready.Reason)
	case ready.Status != "True":
		return "not ready: " + cmp.Or(ready.Message, ready.Reason)
	case ready.Message != "":
		return ready.Message
	}
	return "ready"
}
