package printer

import (
	"fmt"
	"io"
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
}

// Scalings prints a line for each policy, of one kind of traffic.
func Scalings(out io.Writer, all []Scaling, goal time.Duration) {
	first := all[0]
	_, _ = fmt.Fprintf(out, "%s, %d requests, startup %s", first.Workload, first.Summary.Requests, first.Startup)
	if n := len(first.Seeds); n > 1 {
		_, _ = fmt.Fprintf(out, ", medians of %d seeds", n)
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
