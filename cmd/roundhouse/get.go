package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// kinds maps what people type to the API's plural.
var kinds = map[string]string{
	"service": "services", "services": "services", "svc": "services", "modelservice": "services", "modelservices": "services",
	"inferenceservice": "services", "inferenceservices": "services", "isvc": "services",
	"runtime": "runtimes", "runtimes": "runtimes", "servingruntime": "runtimes", "servingruntimes": "runtimes",
	"clusterservingruntime": "runtimes", "clusterservingruntimes": "runtimes",
	"model": "models", "models": "models", "basemodel": "models", "basemodels": "models",
	"clusterbasemodel": "models", "clusterbasemodels": "models",
	"weight": "weights", "weights": "weights", "finetunedweight": "weights", "finetunedweights": "weights",
	"route": "routes", "routes": "routes", "pool": "pools", "pools": "pools",
	"inferencepool": "inferencepools", "inferencepools": "inferencepools", "infpool": "inferencepools",
	"httproute": "httproutes", "httproutes": "httproutes",
	"inferencemodel": "inferencemodels", "inferencemodels": "inferencemodels",
	"inferenceobjective": "inferenceobjectives", "inferenceobjectives": "inferenceobjectives",
	"inferencemodelrewrite": "inferencemodelrewrites", "inferencemodelrewrites": "inferencemodelrewrites",
}

// kindAndNames reads "[KIND] [NAME…]", "KIND/NAME" included: without a kind,
// services.
func kindAndNames(args []string) (kind string, names []string) {
	kind = "services"
	if len(args) == 0 {
		return kind, nil
	}
	if k, name, ok := strings.Cut(args[0], "/"); ok && kinds[strings.ToLower(k)] != "" {
		return kinds[strings.ToLower(k)], append([]string{name}, args[1:]...)
	}
	if k := kinds[strings.ToLower(args[0])]; k != "" {
		return k, args[1:]
	}
	return kind, args
}

func newGetCommand() *cobra.Command {
	var r remote
	var n namespaced
	var all bool
	var output string
	cmd := &cobra.Command{
		Use:   "get [services|runtimes|models|weights|routes|pools] [NAME…]",
		Short: "List services, runtimes, models, routes and pools",
		Example: `  roundhouse get
  roundhouse get iris -o yaml
  roundhouse get -o wide
  roundhouse get runtimes
  roundhouse get -A --context production
  roundhouse get routes
  roundhouse get inferencepools -A`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains([]string{"", "wide", "json", "yaml", "name"}, output) {
				return command.Usagef("-o %s: choose wide, json, yaml or name", output)
			}
			c, err := r.open(cmd, &n)
			if err != nil {
				return err
			}
			kind, names := kindAndNames(args)
			if routingKinds[kind] != nil {
				list, err := listRouting(cmd, c, kind, &n, names, all)
				if err != nil {
					return err
				}
				return printRouting(cmd.OutOrStdout(), list, kind, output, len(names) == 1)
			}
			if kind != "services" {
				return getObjects(cmd, c, kind, names, output)
			}
			list, err := getServices(cmd, c, &n, names, all)
			if err != nil {
				return err
			}
			return printServices(cmd.OutOrStdout(), list, output, len(names) == 1)
		},
	}
	r.flags(cmd)
	n.flags(cmd)
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "those of every namespace")
	cmd.Flags().StringVarP(&output, "output", "o", "", "wide, json, yaml or name")
	return cmd
}

func getServices(cmd *cobra.Command, c backend, n *namespaced, names []string, all bool) ([]admin.Service, error) {
	if len(names) == 0 {
		namespace := n.namespace
		if all {
			namespace = ""
		}
		return c.Services(cmd.Context(), namespace, true)
	}
	var out []admin.Service
	for _, name := range names {
		s, err := c.Service(cmd.Context(), n.key(name))
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

func printServices(w io.Writer, list []admin.Service, output string, single bool) error {
	switch output {
	case "json", "yaml":
		var docs []string
		for _, s := range list {
			docs = append(docs, s.Rendered)
		}
		return printDocuments(w, docs, output, single)
	case "name":
		for _, s := range list {
			_, _ = fmt.Fprintf(w, "%s/%s\n", s.Namespace, s.Name)
		}
		return nil
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "Nothing is served here. `roundhouse apply -f FILE` serves a model.")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	header := "NAMESPACE\tNAME\tREADY\tREPLICAS\tRUNTIME\tAGE\tSTATUS"
	if output == "wide" {
		header = "NAMESPACE\tNAME\tREADY\tREPLICAS\tRUNTIME\tPROTOCOL\tADAPTERS\tREPLICA-S\tIDLE-S\tSTARTUP-S\tURL\tAGE\tSTATUS"
	}
	_, _ = fmt.Fprintln(tw, header)
	for _, s := range list {
		ready := s.Ready()
		row := []string{s.Namespace, s.Name, orDash(ready.Status), replicas(s), orDash(s.Status.Runtime.Name)}
		if output == "wide" {
			row = append(row, orDash(string(s.Status.Protocol)), orDash(adapterNames(s)))
			row = append(row, costs(s)...)
			row = append(row, orDash(s.Status.URL))
		}
		row = append(row, age(s.Created, time.Now()), shortStatus(s))
		_, _ = fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

// adapterNames are the first of a service's adapters.
func adapterNames(s admin.Service) string {
	var out []string
	for _, a := range s.Adapters {
		if len(out) == 3 {
			out = append(out, fmt.Sprintf("%d more", len(s.Adapters)-3))
			break
		}
		out = append(out, a.Name)
	}
	return strings.Join(out, ",")
}

// shortStatus is the condition in a word, and what to do where there is
// something to do.
func shortStatus(s admin.Service) string {
	ready := s.Ready()
	switch {
	case ready.Status == "True" && ready.Message == service.WakesAtRequest:
		return ready.Reason
	case ready.Message != "":
		return ready.Reason + ": " + oneLine(ready.Message)
	default:
		return orDash(ready.Reason)
	}
}

// replicas is ready/wanted of the component traffic enters by, and of each
// other one behind it.
func replicas(s admin.Service) string {
	var out []string
	for _, c := range s.Status.Components {
		text := fmt.Sprintf("%d/%d", c.Ready, c.Desired)
		if len(s.Status.Components) > 1 {
			text = string(c.Role) + " " + text
		}
		out = append(out, text)
	}
	return orDash(strings.Join(out, ", "))
}

func costs(s admin.Service) []string {
	var total, idle, startup float64
	for _, c := range s.Status.Components {
		total, idle, startup = total+c.ReplicaSeconds, idle+c.IdleSeconds, max(startup, c.StartupSeconds)
	}
	if total == 0 && startup == 0 {
		return []string{"-", "-", "-"} // it has cost nothing yet, or nobody tells
	}
	seconds := func(f float64, digits int) string { return strconv.FormatFloat(f, 'f', digits, 64) }
	return []string{seconds(total, 0), seconds(idle, 0), seconds(startup, 2)}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func getObjects(cmd *cobra.Command, c backend, kind string, names []string, output string) error {
	list, err := c.Objects(cmd.Context(), kind)
	if err != nil {
		return err
	}
	if len(names) > 0 {
		list = slices.DeleteFunc(list, func(o admin.Object) bool {
			return !slices.ContainsFunc(names, func(n string) bool { return service.ParseKey(n).Name == o.Name })
		})
		if len(list) == 0 {
			return fmt.Errorf("no %s named %s: `roundhouse get %s` lists them", strings.TrimSuffix(kind, "s"), strings.Join(names, ", "), kind)
		}
	}
	w := cmd.OutOrStdout()
	switch output {
	case "json", "yaml":
		var docs []string
		for _, o := range list {
			docs = append(docs, o.Rendered)
		}
		return printDocuments(w, docs, output, len(names) == 1)
	case "name":
		for _, o := range list {
			_, _ = fmt.Fprintln(w, o.Name)
		}
		return nil
	}
	if len(list) == 0 {
		_, err := fmt.Fprintf(w, "There are no %s here. `roundhouse apply -f FILE` makes one.\n", kind)
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	if kind == "weights" {
		_, _ = fmt.Fprintln(tw, "NAME\tTYPE\tBASE MODEL")
		for _, o := range list {
			_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\n", o.Name, orDash(o.Formats), orDash(o.Base))
		}
		return tw.Flush()
	}
	_, _ = fmt.Fprintln(tw, "NAMESPACE\tNAME\tSCOPE\tPROTOCOLS\tFORMATS")
	for _, o := range list {
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", orDash(o.Namespace), o.Name, orDash(string(o.Scope)), orDash(o.Protocols), orDash(o.Formats))
	}
	return tw.Flush()
}

// printDocuments prints one document, or all of them as a list (JSON) or as a
// stream (YAML) that apply reads again.
func printDocuments(w io.Writer, docs []string, output string, single bool) error {
	docs = slices.DeleteFunc(docs, func(d string) bool { return d == "" })
	if output == "yaml" {
		_, err := io.WriteString(w, strings.Join(docs, "---\n"))
		return err
	}
	items := make([]any, len(docs))
	for i, d := range docs {
		if err := yaml.Unmarshal([]byte(d), &items[i]); err != nil {
			return err
		}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if single && len(items) == 1 {
		return enc.Encode(items[0])
	}
	return enc.Encode(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
}

func itoa(n int) string { return strconv.Itoa(n) }
