package printer

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/simulate/scaling"
)

// Scaling is one policy's replays of one kind of traffic.
type Scaling struct {
	Workload string `json:"workload"`
	Startup  string `json:"startup"`
	Policy   string `json:"policy"`
	// Summary is the median over the seeds, field by field.
	Summary scaling.Summary   `json:"summary"`
	Seeds   []scaling.Summary `json:"seeds"`
	// Skipped lines of a file are of no request of the model.
	Skipped int `json:"skippedLines,omitempty"`

	// Of the first seed, for the chart.
	Counts  []scaling.Point `json:"-"`
	Elapsed time.Duration   `json:"-"`
	Slots   int             `json:"-"`
}

// Scalings prints a line for each policy, of one kind of traffic.
func Scalings(out io.Writer, all []Scaling, goal time.Duration) {
	if len(all) == 0 {
		return
	}
	first := all[0]
	_, _ = fmt.Fprintf(out, "%s, %d requests, startup %s", first.Workload, first.Summary.Requests, first.Startup)
	if n := len(first.Seeds); n > 1 {
		_, _ = fmt.Fprintf(out, ", medians of %d seeds", n)
	}
	if first.Skipped > 0 {
		_, _ = fmt.Fprintf(out, ", %d lines left out: other models, or no replica", first.Skipped)
	}
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(tw, "\npolicy\twait p50\tp99\tover %s\treplica-seconds\tbusy\tstarts\tflaps\trefused\t\n", goal)
	for _, s := range all {
		m := s.Summary
		_, _ = fmt.Fprintf(tw, "%s\t%.1f s\t%.1f s\t%.2f %%\t%.0f\t%.0f %%\t%d\t%d\t%d\t\n", s.Policy, m.P50, m.P99, 100*m.Late,
			m.ReplicaSeconds, 100*m.Utilization, m.Starts, m.Flaps, m.Refused)
	}
	_ = tw.Flush()
	_, _ = fmt.Fprintln(out)
}

// ScalingSuggestion is the cheapest setting for one kind of traffic.
type ScalingSuggestion struct {
	Workload string `json:"workload"`
	Startup  string `json:"startup"`
	scaling.Suggestion
}

// SuggestedScaling prints a setting as a service's manifest has it.
func SuggestedScaling(out io.Writer, s ScalingSuggestion, goal time.Duration, share float64) {
	if s.Holds {
		_, _ = fmt.Fprintf(out, "# %s, startup %s: the cheapest of %d settings with at most %g %% over %s\n", s.Workload, s.Startup, s.Tried, 100*share, goal)
	} else {
		_, _ = fmt.Fprintf(out, "# %s, startup %s: none of %d settings has at most %g %% over %s. The nearest:\n", s.Workload, s.Startup, s.Tried, 100*share, goal)
	}
	l, m := s.Limits, s.Summary
	_, _ = fmt.Fprintf(out, "# %.2f %% over %s, wait p50 %.1f s, p99 %.1f s, %.0f replica-seconds, %d starts\n", 100*m.Late, goal, m.P50, m.P99, m.ReplicaSeconds, m.Starts)
	_, _ = fmt.Fprintf(out, "scaling:\n  minReplicas: %d\n  maxReplicas: %d\n  targetConcurrency: %s\n", l.Min, l.Max, strconv.FormatFloat(l.Target, 'g', 6, 64))
	if l.Min == 0 {
		_, _ = fmt.Fprintf(out, "  scaleToZeroAfter: %s\n", l.ScaleToZeroAfter)
	}
	_, _ = fmt.Fprintln(out)
}
