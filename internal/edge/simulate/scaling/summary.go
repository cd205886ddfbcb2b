package scaling

import (
	"slices"
	"time"
)

// Summary is a replay in figures.
type Summary struct {
	Requests int `json:"requests"`
	Refused  int `json:"refused"` // the queue was full, or nothing was ever started
	// P50 and P99 are of the waits of requests that were not refused.
	P50 float64 `json:"waitP50Seconds"`
	P99 float64 `json:"waitP99Seconds"`
	// Late is the share of all requests that waited longer than the goal or
	// were refused.
	Late           float64 `json:"lateShare"`
	ReplicaSeconds float64 `json:"replicaSeconds"`
	// Utilization is the share of the slots of these replica-seconds that ran
	// requests.
	Utilization float64 `json:"utilization"`
	Starts      int     `json:"starts"`
	Flaps       int     `json:"flaps"`
}

// Summarize counts a replay; goal is the longest wait in time.
func (r *Result) Summarize(goal time.Duration) Summary {
	s := Summary{Requests: len(r.Waits), ReplicaSeconds: r.ReplicaSeconds, Starts: r.Starts, Flaps: r.Flaps}
	waits, late := make([]time.Duration, 0, len(r.Waits)), 0
	for _, w := range r.Waits {
		if w < 0 || w > goal {
			late++
		}
		if w >= 0 {
			waits = append(waits, w)
		}
	}
	slices.Sort(waits)
	s.Refused = len(r.Waits) - len(waits)
	s.P50, s.P99 = quantile(waits, 0.5), quantile(waits, 0.99)
	s.Late = float64(late) / float64(len(r.Waits))
	if r.ReplicaSeconds > 0 {
		s.Utilization = r.BusySeconds / r.ReplicaSeconds
	}
	return s
}

// quantile is of sorted values, the lower of two, in seconds; 0 without any.
func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(q*float64(len(sorted)-1))].Seconds()
}

// Median is, field by field, the median of several summaries; there must be one.
func Median(all []Summary) Summary {
	number := func(of func(*Summary) float64) float64 {
		values := make([]float64, len(all))
		for i := range all {
			values[i] = of(&all[i])
		}
		slices.Sort(values)
		return values[(len(values)-1)/2]
	}
	count := func(of func(*Summary) int) int {
		return int(number(func(s *Summary) float64 { return float64(of(s)) }))
	}
	return Summary{
		Requests:       count(func(s *Summary) int { return s.Requests }),
		Refused:        count(func(s *Summary) int { return s.Refused }),
		P50:            number(func(s *Summary) float64 { return s.P50 }),
		P99:            number(func(s *Summary) float64 { return s.P99 }),
		Late:           number(func(s *Summary) float64 { return s.Late }),
		ReplicaSeconds: number(func(s *Summary) float64 { return s.ReplicaSeconds }),
		Utilization:    number(func(s *Summary) float64 { return s.Utilization }),
		Starts:         count(func(s *Summary) int { return s.Starts }),
		Flaps:          count(func(s *Summary) int { return s.Flaps }),
	}
}
