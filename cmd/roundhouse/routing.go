package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// routingKinds are the plurals of what says where requests go, and which
// objects each means: "routes" is all but the pools.
var routingKinds = map[string]func(admin.RoutingObject) bool{
	"routes":                 func(o admin.RoutingObject) bool { return o.Type != "pool" },
	"pools":                  func(o admin.RoutingObject) bool { return o.Type == "pool" },
	"inferencepools":         func(o admin.RoutingObject) bool { return o.Kind == "InferencePool" },
	"httproutes":             func(o admin.RoutingObject) bool { return o.Type == "httproute" },
	"inferencemodels":        func(o admin.RoutingObject) bool { return o.Type == "inferencemodel" },
	"inferenceobjectives":    func(o admin.RoutingObject) bool { return o.Type == "inferenceobjective" },
	"inferencemodelrewrites": func(o admin.RoutingObject) bool { return o.Type == "inferencemodelrewrite" },
}

// listRouting are the objects of a plural, of the names if there are any. A
// name without an object is an error.
func listRouting(cmd *cobra.Command, c backend, kind string, n *namespaced, names []string, all bool) ([]admin.RoutingObject, error) {
	namespace := n.namespace
	if all || len(names) > 0 {
		namespace = ""
	}
	list, err := c.Routing(cmd.Context(), namespace)
	if err != nil {
		return nil, err
	}
	of := routingKinds[kind]
	list = slices.DeleteFunc(list, func(o admin.RoutingObject) bool { return !of(o) })
	if len(names) == 0 {
		return list, nil
	}
	var out []admin.RoutingObject
	for _, name := range names {
		k, found := n.key(name), false
		for _, o := range list {
			if o.Namespace == k.Namespace && o.Name == k.Name {
				out, found = append(out, o), true
			}
		}
		if !found {
			return nil, fmt.Errorf("no %s %s: `roundhouse get %s -A` lists what there is", strings.TrimSuffix(kind, "s"), k, kind)
		}
	}
	return out, nil
}

func printRouting(w io.Writer, list []admin.RoutingObject, kind, output string, single bool) error {
	switch output {
	case "json", "yaml":
		var docs []string
		for _, o := range list {
			docs = append(docs, o.Rendered)
		}
		return printDocuments(w, docs, output, single)
	case "name":
		for _, o := range list {
			_, _ = fmt.Fprintf(w, "%s/%s/%s\n", o.Type, o.Namespace, o.Name)
		}
		return nil
	}
	if len(list) == 0 {
		return printNone(w, kind)
	}
	columns := "TAKES\tTO"
	if strings.HasSuffix(kind, "pools") {
		columns = "SELECTS\tMEMBERS"
	}
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	_, _ = fmt.Fprintf(tw, "NAMESPACE\tNAME\tKIND\tREADY\t%s\tAGE\tSTATUS\n", columns)
	for _, o := range list {
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", o.Namespace, o.Name, o.Kind, orDash(o.Status.Ready().Status),
			orDash(o.From), orDash(o.To), age(o.Created, time.Now()), routingReason(o))
	}
	return tw.Flush()
}

// printNone prints that there is nothing of a kind.
func printNone(w io.Writer, kind string) error {
	_, err := fmt.Fprintf(w, "There are no %s here. `roundhouse apply -f FILE` makes one.\n", kind)
	return err
}

// routingReason is the Ready condition in a word, and what is wrong.
func routingReason(o admin.RoutingObject) string {
	ready := o.Status.Ready()
	if ready.Message == "" || ready.Status == "True" && ready.Reason != routing.ReasonDegraded {
		return orDash(ready.Reason)
	}
	return ready.Reason + ": " + ready.Message
}

func describeRouting(w io.Writer, o admin.RoutingObject, now time.Time) {
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
	if len(o.Endpoints) > 0 {
		_, _ = fmt.Fprintln(w, "\nEndpoints:")
	}
	for _, e := range o.Endpoints {
		_, _ = fmt.Fprintf(tw, "  %s\t%s\t%s\n", cmp.Or(e.Address, e.GRPC, e.ID), endpointState(e), plural(e.InFlight, "request"))
	}
	_ = tw.Flush()
	_, _ = fmt.Fprintln(w, "\nConditions:")
	for _, c := range o.Status.Conditions {
		_, _ = fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\t%s\n", c.Type, c.Status, orDash(c.Reason), age(c.Since, now), oneLine(c.Message))
	}
	_ = tw.Flush()
}

// endpointState is how an endpoint is, and why.
func endpointState(e dispatch.Endpoint) string {
	switch {
	case e.Phase != replica.Ready && e.Message != "":
		return string(e.Phase) + ": " + oneLine(strings.TrimPrefix(e.Message, e.Address+": "))
	case e.Phase != replica.Ready:
		return string(e.Phase)
	case e.Ejected != "":
		return "ejected: " + e.Ejected
	}
	return "ready"
}

// deleteRouting deletes the objects of these names; one name of several kinds
// needs its kind.
func deleteRouting(cmd *cobra.Command, c backend, kind string, n *namespaced, names []string) error {
	for _, name := range names {
		found, err := listRouting(cmd, c, kind, n, []string{name}, false)
		if err != nil {
			return err
		}
		if len(found) > 1 {
			var kinds []string
			for _, o := range found {
				kinds = append(kinds, strings.ToLower(o.Kind))
			}
			return fmt.Errorf("%s is the name of several: write %s/%s", name, strings.Join(kinds, "/"+name+" or "), name)
		}
		if err := deleteRoutingObject(cmd, c, found[0].Type, service.Key{Namespace: found[0].Namespace, Name: found[0].Name}); err != nil {
			return err
		}
	}
	return nil
}

func deleteRoutingObject(cmd *cobra.Command, c backend, kind string, k service.Key) error {
	ch, err := c.DeleteRouting(cmd.Context(), kind, k)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(cmd.OutOrStdout(), "%s deleted\n", objectName(ch))
	return nil
}

// routingLine says in one line how a routing object is.
func routingLine(o admin.RoutingObject) string {
	ready := o.Status.Ready()
	switch {
	case ready.Status == "":
		return "not yet looked at"
	case ready.Status != "True":
		return "not ready: " + cmp.Or(ready.Message, ready.Reason)
	case ready.Message != "":
		return ready.Message
	}
	return "ready"
}
