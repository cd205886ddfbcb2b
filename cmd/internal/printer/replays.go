package printer

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/simulate/replay"
)

// Replay is one replay of a trace under one policy, and its figures.
type Replay struct {
	Workload string         `json:"workload"`
	Rate     float64        `json:"rate,omitempty"`
	Policy   string         `json:"policy"`
	Seed     uint64         `json:"seed"`
	Summary  replay.Summary `json:"summary"`
}

// Replays prints a line for each policy: the medians over the seeds.
func Replays(out io.Writer, all []Replay, goal time.Duration) {
	first := all[0]
	_, _ = fmt.Fprintf(out, "%s, %d requests", first.Workload, first.Summary.Requests)
	if first.Rate > 0 {
		_, _ = fmt.Fprintf(out, ", %g a second", first.Rate)
	}
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(tw, "\npolicy\tTTFT p50\tp90\tp99\thit rate\tkept\tmost of one\tshed\tin time\t%s\t\n", "≤"+goal.String()+": "+strings.Join(replay.Criticalities, "\t"))
	for i := range all {
		policy := all[i].Policy
		if slices.IndexFunc(all, func(r Replay) bool { return r.Policy == policy }) < i {
			continue
		}
		m := func(f func(replay.Summary) float64) float64 {
			var values []float64
			for _, r := range all {
				if r.Policy == policy {
					values = append(values, f(r.Summary))
				}
			}
			slices.Sort(values)
			return values[(len(values)-1)/2]
		}
		_, _ = fmt.Fprintf(tw, "%s\t%.3f s\t%.3f s\t%.3f s\t%.0f %%\t%s\t%.0f %%\t%.1f %%", policy,
			m(func(s replay.Summary) float64 { return s.First.P50 }), m(func(s replay.Summary) float64 { return s.First.P90 }),
			m(func(s replay.Summary) float64 { return s.First.P99 }), 100*m(func(s replay.Summary) float64 { return s.HitRate }),
			keptOf(m(func(s replay.Summary) float64 { return s.Kept })),
			100*m(func(s replay.Summary) float64 { return s.Most }),
			100*m(func(s replay.Summary) float64 { return float64(s.Shed) / float64(s.Requests) }))
		_, _ = fmt.Fprintf(tw, "\t%.1f %%", 100*m(func(s replay.Summary) float64 { return s.InTime }))
		for _, c := range replay.Criticalities {
			_, _ = fmt.Fprintf(tw, "\t%.1f/s", m(func(s replay.Summary) float64 { return s.Good[c] }))
		}
		_, _ = fmt.Fprintln(tw, "\t")
	}
	_ = tw.Flush()
	_, _ = fmt.Fprintln(out)
}

// keptOf is a part of the follow-up requests; "-" where there are none.
func keptOf(part float64) string {
	if part == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*part)
}
