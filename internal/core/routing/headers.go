package routing

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// The headers by which requests say how they want to be routed, in their canonical
// form: llm-d's names, and the older ones that count where the first is absent.
var (
	// HeaderObjective names an InferenceObjective.
	HeaderObjective = []string{"X-Llm-D-Inference-Objective", "X-Gateway-Inference-Objective"}
	// HeaderFairness is whose turn the request is among those of its priority.
	HeaderFairness = []string{"X-Llm-D-Inference-Fairness-Id", "X-Gateway-Inference-Fairness-Id"}
	// HeaderRewrite is the model's name in place of the body's.
	HeaderRewrite = []string{"X-Llm-D-Model-Name-Rewrite", "X-Gateway-Model-Name-Rewrite"}
	// HeaderFirst and HeaderEach are how long the first token of the answer, and each
	// further one, may take, in milliseconds.
	HeaderFirst = []string{"X-Llm-D-Slo-Ttft-Ms", "X-Slo-Ttft-Ms"}
	HeaderEach  = []string{"X-Llm-D-Slo-Tpot-Ms", "X-Slo-Tpot-Ms"}
)

// HeaderRank names the data-parallel rank of an engine that is to serve a request,
// by its number; vLLM and SGLang read it.
const HeaderRank = "X-Data-Parallel-Rank"

// FirstOf is the value of the first of the names that a request has; "" for none.
func FirstOf(get func(canonicalName string) string, names []string) string {
	for _, name := range names {
		if v := get(name); v != "" {
			return v
		}
	}
	return ""
}

// LatencyTarget is how long an answer may take: until its first token, and for each
// further one; 0 is no bound.
type LatencyTarget struct {
	First time.Duration `json:"ttft,omitempty"`
	Each  time.Duration `json:"tpot,omitempty"`
}

// Or is t with what it leaves open taken from other.
func (t LatencyTarget) Or(other LatencyTarget) LatencyTarget {
	if t.First == 0 {
		t.First = other.First
	}
	if t.Each == 0 {
		t.Each = other.Each
	}
	return t
}

// maxTarget is the longest target; what is beyond is none.
const maxTarget = 24 * time.Hour

// Milliseconds reads the value of a header that states a time; 0 for one that states
// none that counts.
func Milliseconds(value string) time.Duration {
	ms, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	if err != nil || !(ms > 0) || ms > float64(maxTarget/time.Millisecond) {
		return 0
	}
	return time.Duration(math.Ceil(ms * float64(time.Millisecond)))
}
