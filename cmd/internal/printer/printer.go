// Package printer writes what commands print: tables, descriptions, and objects as
// JSON or YAML.
package printer

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"go.yaml.in/yaml/v3"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/apikey"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
)

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// JSON prints v as people read JSON.
func JSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// documents prints one document, or all of them as a list (JSON) or as a
// stream (YAML) that apply reads again.
func documents(w io.Writer, docs []string, output string, single bool) error {
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
	if single && len(items) == 1 {
		return JSON(w, items[0])
	}
	return JSON(w, map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
}

// age is how long ago t was, as kubectl prints it; "" of the zero time.
func age(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	d := now.Sub(t)
	switch {
	case d < time.Minute:
		return strconv.Itoa(max(0, int(d.Seconds()))) + "s"
	case d < 10*time.Minute && d%time.Minute >= time.Second:
		return strconv.Itoa(int(d.Minutes())) + "m" + strconv.Itoa(int((d % time.Minute).Seconds())) + "s"
	case d < time.Hour:
		return strconv.Itoa(int(d.Minutes())) + "m"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + "h"
	default:
		return strconv.Itoa(int(d.Hours())/24) + "d"
	}
}

// Keys prints API keys.
func Keys(w io.Writer, list []apikey.Key, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(t, "ID\tNAME\tSTATE\tMODELS\tREQUESTS/MIN\tTOKENS/MIN\tCONCURRENT\tAGE")
	limit := func(n int64) string {
		if n == 0 {
			return "-"
		}
		return strconv.FormatInt(n, 10)
	}
	for _, k := range list {
		state, models := "valid", "all"
		switch {
		case !k.Revoked.IsZero():
			state = "revoked"
		case !k.Live(now):
			state = "expired"
		case !k.Expires.IsZero():
			state = "until " + k.Expires.Local().Format("2006-01-02 15:04:05 MST")
		}
		if len(k.Limits.Models) > 0 {
			models = strings.Join(k.Limits.Models, ",")
		}
		if len(k.Limits.Namespaces) > 0 {
			models += " in " + strings.Join(k.Limits.Namespaces, ",")
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", k.ID, k.Name, state, models,
			limit(k.Limits.RequestsPerMinute), limit(k.Limits.TokensPerMinute), limit(k.Limits.Concurrent), age(k.Created, now))
	}
	return t.Flush()
}

// Explanations prints why services run on what they do; all prints every runtime
// and rule.
func Explanations(w io.Writer, list []admin.Explanation, output string, all bool) error {
	if output == "json" {
		if len(list) == 1 {
			return JSON(w, list[0].Facts)
		}
		facts := make([]json.RawMessage, len(list))
		for i := range list {
			facts[i] = list[i].Facts
		}
		return JSON(w, facts)
	}
	for i, e := range list {
		if i > 0 {
			_, _ = fmt.Fprintln(w)
		}
		text := e.Brief
		if all || text == "" {
			text = e.Text
		}
		_, _ = fmt.Fprint(w, text)
	}
	return nil
}

// ofCluster are the kinds without a namespace of which one more thing is printed.
var ofCluster = map[string]struct {
	title string
	of    func(admin.Object) string
}{
	"acceleratorclasses":       {"ACCELERATOR", func(o admin.Object) string { return o.Accelerator }},
	"clusterstoragecontainers": {"URIS", func(o admin.Object) string { return o.Formats }},
	"localmodelnodegroups":     {"LIMIT", func(o admin.Object) string { return command.SizeText(o.Limit) }},
}

// Objects prints runtimes, models, weights, bases, accelerator classes or benchmarks,
// which kind names.
func Objects(w io.Writer, list []admin.Object, kind, output string, single bool) error {
	switch output {
	case "json", "yaml":
		var docs []string
		for _, o := range list {
			docs = append(docs, o.Rendered)
		}
		return documents(w, docs, output, single)
	case "name":
		for _, o := range list {
			_, _ = fmt.Fprintln(w, o.Name)
		}
		return nil
	}
	if len(list) == 0 {
		return None(w, kind)
	}
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	if kind == "benchmarkjobs" {
		return benchmarks(w, list)
	}
	if kind == "localmodelcaches" {
		return modelCaches(w, list)
	}
	if kind == "bases" || kind == "configmaps" {
		_, _ = fmt.Fprintln(tw, "NAMESPACE\tNAME")
		for _, o := range list {
			_, _ = fmt.Fprintf(tw, "%s\t%s\n", o.Namespace, o.Name)
		}
		return tw.Flush()
	}
	if c, ok := ofCluster[kind]; ok {
		_, _ = fmt.Fprintf(tw, "NAME\t%s\n", c.title)
		for _, o := range list {
			_, _ = fmt.Fprintf(tw, "%s\t%s\n", o.Name, orDash(c.of(o)))
		}
		return tw.Flush()
	}
	if column := map[string]string{"secrets": "KEYS", "serviceaccounts": "SECRETS"}[kind]; column != "" {
		_, _ = fmt.Fprintf(tw, "NAMESPACE\tNAME\t%s\n", column)
		for _, o := range list {
			_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\n", o.Namespace, o.Name, orDash(o.Formats))
		}
		return tw.Flush()
	}
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

// Copies prints the models that a data directory has.
func Copies(w io.Writer, list []artifact.Copy, output string, now time.Time) error {
	if output == "json" {
		return JSON(w, list)
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "No downloaded models. `roundhouse pull URI` downloads one.")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, "URI\tSIZE\tPINNED\tUSED\tFOLDER")
	for _, c := range list {
		pinned := "-"
		if c.Pinned {
			pinned = "yes"
		}
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\t%s ago\t%s\n", orDash(c.Source), command.SizeText(c.Bytes), pinned, age(c.Used, now), c.Path)
	}
	return tw.Flush()
}

// None prints that there are no objects of a kind.
func None(w io.Writer, kind string) error {
	also := ""
	if kind == "models" {
		also = " `roundhouse model list` lists downloaded models."
	}
	_, err := fmt.Fprintf(w, "No %s found. `roundhouse apply -f FILE` creates one.%s\n", kind, also)
	return err
}
