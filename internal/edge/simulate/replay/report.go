package replay

import (
	"cmp"
	"slices"
	"time"
)

// Summary is a replay in figures.
type Summary struct {
	Requests int `json:"requests"`
	Answered int `json:"answered"`
	Shed     int `json:"shed"` // by the gateway, or by an engine whose queue was full
	// First are the quantiles of the time to the first token, of answered
	// requests.
	First Quantiles `json:"ttftSeconds"`
	// PerToken is the mean time between two tokens of an answer, over answers.
	PerToken float64 `json:"timePerOutputTokenSeconds"`
	// HitRate is the part of prompt tokens found in an engine's prefix cache.
	HitRate float64 `json:"hitRate"`
	// Good are the requests a second whose first token came within the goal,
	// by criticality.
	Good map[string]float64 `json:"goodput"`
	// Most is the largest part of the answered requests that one engine had.
	Most         float64 `json:"mostOfOneEngine"`
	TokensASec   float64 `json:"outputTokensPerSecond"`
	AdapterLoads uint64  `json:"adapterLoads"`
	Preemptions  uint64  `json:"preemptions"`
}

// Quantiles are in seconds.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

// Criticalities are the keys of Summary.Good.
var Criticalities = []string{"critical", "standard", "sheddable"}

func criticality(priority int32) string { return Criticalities[1-cmp.Compare(priority, 0)] }

// Summarize counts a replay; goal is the time to the first token that makes an
// answer a good one.
func (r *Result) Summarize(goal time.Duration) Summary {
	s := Summary{Requests: len(r.Answers), Good: map[string]float64{}, AdapterLoads: r.AdapterLoads, Preemptions: r.Preemptions}
	for _, c := range Criticalities {
		s.Good[c] = 0
	}
	var first []float64
	perEngine := map[int]int{}
	tokens, perToken, several := 0, 0.0, 0
	for _, a := range r.Answers {
		if a.Total == 0 {
			s.Shed++
			continue
		}
		s.Answered++
		perEngine[a.Engine]++
		tokens += a.Tokens
		first = append(first, a.First.Seconds())
		if a.Tokens > 1 {
			perToken += (a.Total - a.First).Seconds() / float64(a.Tokens-1)
			several++
		}
		if a.First <= goal {
			s.Good[criticality(a.Priority)]++
		}
	}
	slices.Sort(first)
	s.First = Quantiles{P50: quantile(first, 0.5), P90: quantile(first, 0.9), P99: quantile(first, 0.99)}
	if seconds := r.Elapsed.Seconds(); seconds > 0 {
		for c := range s.Good {
			s.Good[c] /= seconds
		}
		s.TokensASec = float64(tokens) / seconds
	}
	if several > 0 {
		s.PerToken = perToken / float64(several)
	}
	if r.Queries > 0 {
		s.HitRate = float64(r.Hits) / float64(r.Queries)
	}
	for _, n := range perEngine {
		s.Most = max(s.Most, float64(n)/float64(s.Answered))
	}
	return s
}

// quantile is of sorted values, the lower one of two; 0 without any.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(q*float64(len(sorted)-1))]
}
