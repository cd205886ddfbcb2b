package printer

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// sparkWidth is how many columns a sparkline has at most.
const sparkWidth = 60

// sparks are the heights of a sparkline, zero first.
var sparks = []rune("▁▂▃▄▅▆▇█")

// ScaleHistories prints the last scaling decisions of each component, with a
// sparkline where the reader is at a terminal.
func ScaleHistories(w io.Writer, list []fleet.ScaleHistory, output string, terminal bool) error {
	if output == "json" {
		return JSON(w, list)
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "No decision has been made yet. `roundhouse describe SERVICE` shows what the service waits for.")
		return err
	}
	for i, h := range list {
		if i > 0 {
			_, _ = fmt.Fprintln(w)
		}
		if err := decisions(w, h, terminal); err != nil {
			return err
		}
	}
	return nil
}

func decisions(w io.Writer, h fleet.ScaleHistory, terminal bool) error {
	name := string(h.Component)
	if h.Canary {
		name += " of the canary"
	}
	if h.Now != nil {
		return changes(w, name, h)
	}
	_, _ = fmt.Fprintf(w, "%s: last decisions\n", name)
	if terminal {
		line, most := sparkline(h.Decisions, sparkWidth)
		_, _ = fmt.Fprintf(w, "desired replicas %s at most %d\n", line, most)
	}
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, "TIME\tREADY\tSTARTING\tDESIRED\tARRIVALS/S\tSERVICE TIME\tLOAD\tBACKLOG\tWHY")
	last := ""
	for _, d := range h.Decisions {
		took := "-"
		if s := d.Inputs.Service; s > 0 {
			took = time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
		}
		line := fmt.Sprintf("%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s", d.Ready, d.Starting, d.Desired,
			decimal(d.Inputs.Rate), took, decimal(d.Inputs.Load), decimal(d.Inputs.Backlog), d.Why)
		if line != last { // nothing but the time differs
			_, _ = fmt.Fprintf(tw, "%s\t%s\n", d.Time.Local().Format(time.DateTime), line)
		}
		last = line
	}
	return tw.Flush()
}

// changes prints what a cluster's events have of a component.
func changes(w io.Writer, name string, h fleet.ScaleHistory) error {
	_, _ = fmt.Fprintf(w, "%s: %d wanted, %d ready, %d starting now\n", name, h.Now.Desired, h.Now.Ready, h.Now.Starting)
	if len(h.Decisions) == 0 {
		_, err := fmt.Fprintln(w, "The cluster has no event of a change of the count: it keeps events for an hour unless its API server is set otherwise (--event-ttl).")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, "TIME\tDESIRED\tWHY")
	for _, d := range h.Decisions {
		_, _ = fmt.Fprintf(tw, "%s\t%d\t%s\n", d.Time.Local().Format(time.DateTime), d.Desired, d.Why)
	}
	return tw.Flush()
}

func decimal(x float64) string { return strconv.FormatFloat(x, 'f', 2, 64) }

// sparkline draws the desired counts over time, the greatest of each column, and
// returns the greatest of all. A count holds until the next decision.
func sparkline(all []fleet.ScaleDecision, width int) (line string, most int) {
	for _, d := range all {
		most = max(most, d.Desired)
	}
	first := all[0].Time
	span := max(all[len(all)-1].Time.Sub(first), 0)
	width = min(width, int(span/time.Second)+1)
	var b strings.Builder
	next, count := 0, 0
	for column := range width {
		end := first.Add(span * time.Duration(column+1) / time.Duration(width))
		high := count
		for ; next < len(all) && (!all[next].Time.After(end) || column == width-1); next++ {
			count = all[next].Desired
			high = max(high, count)
		}
		height := 0
		if high > 0 {
			height = max(1, high*(len(sparks)-1)/most)
		}
		b.WriteRune(sparks[height])
	}
	return b.String(), most
}
