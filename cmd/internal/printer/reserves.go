package printer

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/cmd/internal/command"
)

// Reserves prints a table of Reserves, or their manifests.
func Reserves(w io.Writer, list []*api.Reserve, output string, single bool) error {
	switch output {
	case "json", "yaml":
		var docs []string
		for _, r := range list {
			shown := *r
			shown.Metadata.ManagedFields = nil
			doc, err := yaml.Marshal(shown)
			if err != nil {
				return err
			}
			docs = append(docs, string(doc))
		}
		return documents(w, docs, output, single)
	case "name":
		for _, r := range list {
			_, _ = fmt.Fprintf(w, "reserve/%s/%s\n", r.Metadata.Namespace, r.Metadata.Name)
		}
		return nil
	}
	if len(list) == 0 {
		return None(w, "reserves")
	}
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, "NAMESPACE\tNAME\tREADY\tNODES\tPLACEHOLDERS\tIMAGES\tAGE\tSTATUS")
	for _, r := range list {
		ready := readyOf(r)
		reason := ready.Reason
		if ready.Status != metav1.ConditionTrue && ready.Message != "" {
			reason += ": " + command.OneLine(ready.Message)
		}
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", r.Metadata.Namespace, r.Metadata.Name, orDash(string(ready.Status)), r.Status.Nodes,
			orDash(placeholders(r)), orDash(images(r)), age(r.Metadata.CreationTimestamp.Time, time.Now()), orDash(reason))
	}
	return tw.Flush()
}

func readyOf(r *api.Reserve) metav1.Condition {
	for _, c := range r.Status.Conditions {
		if c.Type == "Ready" {
			return c
		}
	}
	return metav1.Condition{Reason: "NotSeen"}
}

// placeholders are how many of those wanted hold their room.
func placeholders(r *api.Reserve) string {
	if p := r.Status.Placeholders; p != nil {
		return fmt.Sprintf("%d of %d", p.Running, p.Wanted)
	}
	return ""
}

// images are how many of those wanted are on their nodes.
func images(r *api.Reserve) string {
	if i := r.Status.Images; i != nil {
		return fmt.Sprintf("%d of %d", i.Present, i.Wanted)
	}
	return ""
}

// DescribeReserve prints a Reserve in detail.
func DescribeReserve(w io.Writer, r *api.Reserve, now time.Time) {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(tw, "%s:\t%s\n", name, fmt.Sprintf(format, args...))
	}
	line("Name", "%s/%s", r.Metadata.Namespace, r.Metadata.Name)
	line("Kind", "%s %s", r.APIVersion, r.Kind)
	line("Age", "%s", age(r.Metadata.CreationTimestamp.Time, now))
	line("Nodes", "%d, %s", r.Status.Nodes, selector(r.Spec.NodeSelector))
	if p := r.Status.Placeholders; p != nil {
		line("Placeholders", "%d wanted (%s), %d running, %d pending", p.Wanted, cmp.Or(p.Why, "-"), p.Running, p.Pending)
	}
	if i := r.Status.Images; i != nil {
		line("Images", "%d wanted, %d present, %d being pulled, %d failed", i.Wanted, i.Present, i.Pulling, i.Failed)
	}
	_ = tw.Flush()
	if i := r.Status.Images; i != nil && len(i.Names) > 0 {
		_, _ = fmt.Fprintln(w, "\nOn each node:")
		for _, name := range i.Names {
			_, _ = fmt.Fprintf(w, "  %s\n", command.OneLine(name))
		}
	}
	if i := r.Status.Images; i != nil && i.LastFailure != nil {
		_, _ = fmt.Fprintf(w, "\nLast failure: %s on %s: %s\n", i.LastFailure.Image, i.LastFailure.Node, command.OneLine(i.LastFailure.Message))
	}
	_, _ = fmt.Fprintln(w, "\nConditions:")
	for _, c := range r.Status.Conditions {
		_, _ = fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\t%s\n", c.Type, c.Status, orDash(c.Reason), age(c.LastTransitionTime.Time, now), command.OneLine(c.Message))
	}
	if len(r.Status.Conditions) == 0 {
		_, _ = fmt.Fprintln(tw, "  none: no controller has looked at it yet")
	}
	_ = tw.Flush()
}

// selector is which nodes are selected.
func selector(labels map[string]string) string {
	if len(labels) == 0 {
		return "every Linux node"
	}
	var out []string
	for k, v := range labels {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}
