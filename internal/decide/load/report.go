package load

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Sample is what one request was like.
type Sample struct {
	// First is the time to the first token of a streamed answer; 0 of any other.
	First time.Duration
	// Total is the time to the end of the answer.
	Total time.Duration
	// Gaps are the times between two parts of a streamed answer.
	Gaps []time.Duration
	// Input and Output are tokens, as the server counts them where it says so.
	Input, Output int
	// Failed is why there is no answer; "" where there is one.
	Failed string
}

// maxFailures bounds the kinds of failures that are told apart.
const maxFailures = 32

// Tally gathers samples of a point. It holds counts of values, not the values: its size
// does not grow with the requests.
type Tally struct {
	requests, failed             int
	failures                     map[string]int
	input, output                int64
	first, perToken, gaps, total counts
}

// Add adds a sample.
func (t *Tally) Add(s *Sample) {
	t.requests++
	if s.Failed != "" {
		t.failed++
		if t.failures == nil {
			t.failures = map[string]int{}
		}
		why := s.Failed
		if _, known := t.failures[why]; !known && len(t.failures) >= maxFailures {
			why = "other"
		}
		t.failures[why]++
		return
	}
	t.input += int64(s.Input)
	t.output += int64(s.Output)
	t.total.add(s.Total)
	if s.First > 0 {
		t.first.add(s.First)
		if s.Output > 1 {
			t.perToken.add((s.Total - s.First) / time.Duration(s.Output-1))
		}
	}
	for _, g := range s.Gaps {
		t.gaps.add(g)
	}
}

// Point is what one load came to.
type Point struct {
	Scenario    string  `json:"scenario"`
	Concurrency int     `json:"concurrency,omitempty"`
	Rate        float64 `json:"rate,omitempty"` // asked for, in requests a second
	// Requests are those that ended, Failed those of them without an answer.
	Requests int            `json:"requests"`
	Failed   int            `json:"failed"`
	Failures map[string]int `json:"failures,omitempty"`
	// Seconds are from the first request to the last answer.
	Seconds float64 `json:"seconds"`
	// Interrupted: the point was not measured to its end.
	Interrupted bool `json:"interrupted,omitempty"`

	InputTokens           int64   `json:"inputTokens"`
	OutputTokens          int64   `json:"outputTokens"`
	RequestsPerSecond     float64 `json:"requestsPerSecond"`
	OutputTokensPerSecond float64 `json:"outputTokensPerSecond"`
	TotalTokensPerSecond  float64 `json:"totalTokensPerSecond"`

	// In milliseconds: the time to the first token, the time of each token after it,
	// the time between two parts of an answer, and to its end.
	TTFT    Quantiles `json:"ttftMs,omitzero"`
	TPOT    Quantiles `json:"tpotMs,omitzero"`
	ITL     Quantiles `json:"itlMs,omitzero"`
	Latency Quantiles `json:"latencyMs,omitzero"`
}

// Quantiles of a measure, in milliseconds. A quantile is the least value that so large a
// share of the values does not exceed.
type Quantiles struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// Point sums up the samples of a load that took so long.
func (t *Tally) Point(l Load, took time.Duration) Point {
	p := Point{Scenario: l.Scenario.Name, Concurrency: l.Concurrency, Rate: l.Rate, Requests: t.requests, Failed: t.failed, Failures: maps.Clone(t.failures),
		Seconds: took.Seconds(), InputTokens: t.input, OutputTokens: t.output,
		TTFT: t.first.quantiles(), TPOT: t.perToken.quantiles(), ITL: t.gaps.quantiles(), Latency: t.total.quantiles()}
	if took > 0 {
		p.RequestsPerSecond = float64(t.requests-t.failed) / p.Seconds
		p.OutputTokensPerSecond = float64(t.output) / p.Seconds
		p.TotalTokensPerSecond = float64(t.input+t.output) / p.Seconds
	}
	return p
}

// Ended is how many samples there are, and how many of them failed.
func (t *Tally) Ended() (requests, failed int) { return t.requests, t.failed }

// Report is a whole benchmark.
type Report struct {
	Target  string    `json:"target"`
	Model   string    `json:"model"`
	API     string    `json:"api"`
	Started time.Time `json:"started"`
	// Ended is zero while the benchmark runs.
	Ended time.Time `json:"ended,omitzero"`
	// Planned is how many points it is to have.
	Planned int     `json:"planned"`
	Points  []Point `json:"points"`
}

// Summary is a line for each point, as many as fit into so many bytes, and then how many
// are left out.
func (r *Report) Summary(most int) string {
	var b strings.Builder
	for i := range r.Points {
		line := r.Points[i].summary() + "\n"
		left := ""
		if n := len(r.Points) - i - 1; n > 0 {
			left = fmt.Sprintf("and %d more\n", n)
		}
		if b.Len()+len(line)+len(left) > most {
			fmt.Fprintf(&b, "and %d more\n", len(r.Points)-i)
			break
		}
		b.WriteString(line)
	}
	return strings.TrimSpace(b.String())
}

func (p *Point) summary() string {
	load := fmt.Sprintf("%d at once", p.Concurrency)
	if p.Rate > 0 {
		load = fmt.Sprintf("%.4g/s", p.Rate)
	}
	out := fmt.Sprintf("%s, %s: %d requests, %d failed, %.4g requests/s", p.Scenario, load, p.Requests, p.Failed, p.RequestsPerSecond)
	if p.OutputTokensPerSecond > 0 {
		out += fmt.Sprintf(", %.4g tokens/s", p.OutputTokensPerSecond)
	}
	for _, q := range []struct {
		name string
		of   Quantiles
	}{{"TTFT", p.TTFT}, {"TPOT", p.TPOT}, {"latency", p.Latency}} {
		if q.of != (Quantiles{}) {
			out += fmt.Sprintf(", %s %.4g ms (p99 %.4g)", q.name, q.of.P50, q.of.P99)
		}
	}
	return out
}

// counts is how often each value occurred. Values have five digits, in microseconds, so
// that there are few different ones, whatever their number.
type counts struct {
	of  map[int64]int64
	n   int64
	sum float64 // of the values as they were, in microseconds
}

func (c *counts) add(d time.Duration) {
	if c.of == nil {
		c.of = map[int64]int64{}
	}
	c.n++
	c.sum += float64(d) / float64(time.Microsecond)
	us, unit := max(int64(d/time.Microsecond), 0), int64(1)
	for us/unit >= 100_000 {
		unit *= 10
	}
	c.of[(us+unit/2)/unit*unit]++
}

func (c *counts) quantiles() Quantiles {
	if c.n == 0 {
		return Quantiles{}
	}
	values := slices.SortedFunc(maps.Keys(c.of), cmp.Compare)
	at := func(share float64) float64 {
		below := int64(0)
		for _, v := range values {
			if below += c.of[v]; float64(below) >= share*float64(c.n) {
				return float64(v) / 1000
			}
		}
		return float64(values[len(values)-1]) / 1000
	}
	return Quantiles{Mean: c.sum / float64(c.n) / 1000, P50: at(.5), P90: at(.9), P95: at(.95), P99: at(.99), Max: at(1)}
}
