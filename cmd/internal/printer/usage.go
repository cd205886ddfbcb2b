package printer

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/usage"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// Usage prints what services used: as a table, CSV or JSON. The table has the sum
// of each component, or with byDay its days.
func Usage(w io.Writer, r admin.UsageReport, output string, byDay bool) error {
	switch output {
	case "json":
		return JSON(w, r)
	case "csv":
		return usageCSV(w, r.Days)
	}
	if len(r.Days) == 0 {
		_, err := fmt.Fprintf(w, "No replica has run since %s.\n", r.Since)
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	rows, day := r.Components, ""
	if byDay {
		rows, day = r.Days, "DAY\t"
	}
	_, _ = fmt.Fprintln(tw, day+"NAMESPACE\tSERVICE\tCOMPONENT\tREPLICAS\tSTARTING\tIDLE\tASLEEP\tGPUS\tGPUS IDLE")
	line := func(first string, u usage.Use) {
		g := u.GPUs
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", first, span(u.Replicas.Running()), span(u.Replicas.Starting), span(u.Replicas.Idle), span(u.Replicas.Asleep),
			span(g.Running()+g.Asleep), span(g.Idle))
	}
	for _, row := range rows {
		first := fmt.Sprintf("%s\t%s\t%s", orDash(row.Namespace), row.Service, orDash(string(row.Component)))
		if byDay {
			first = string(row.Day) + "\t" + first
		}
		line(first, row.Use)
	}
	first := "TOTAL\t\t"
	if byDay {
		first += "\t"
	}
	line(first, r.Total)
	return tw.Flush()
}

// span is a time of so many seconds, to the second.
func span(seconds float64) string {
	switch d := time.Duration(seconds * float64(time.Second)).Round(time.Second); {
	case d == 0 && seconds > 0:
		return "<1s"
	case d == 0:
		return "-"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	default:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
}

// usageCSV prints a line for each day and component, in seconds.
func usageCSV(w io.Writer, rows []usage.Row) error {
	out := csv.NewWriter(w)
	_ = out.Write([]string{"day", "namespace", "service", "component", "replica_seconds", "starting_seconds", "idle_seconds", "busy_seconds", "asleep_seconds",
		"gpu_seconds", "gpu_starting_seconds", "gpu_idle_seconds", "gpu_busy_seconds", "gpu_asleep_seconds"}) // Error has what went wrong
	number := func(f float64) string { return strconv.FormatFloat(f, 'f', 3, 64) }
	for _, r := range rows {
		line := []string{string(r.Day), r.Namespace, r.Service, string(r.Component), number(r.Replicas.Running())}
		for i, s := range []usage.ByState{r.Replicas, r.GPUs} {
			if i == 1 {
				line = append(line, number(s.Running()+s.Asleep))
			}
			line = append(line, number(s.Starting), number(s.Idle), number(s.Busy), number(s.Asleep))
		}
		_ = out.Write(line)
	}
	out.Flush()
	return out.Error()
}
