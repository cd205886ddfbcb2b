package picker

import (
	"fmt"
	"strings"

	"roundhouse.dev/roundhouse/internal/decide/latency"
)

// Forecast is what a policy expects of the endpoint that it chose.
type Forecast struct {
	// Work is what the endpoint has to do, for whoever learns what it took.
	Work latency.Work
	latency.Prediction
	// Known is false where too little is known for a prediction.
	Known bool
	// Late: of the endpoints that the filters left, none is predicted to answer one in
	// ten such requests within the target.
	Late bool
}

// work is what an endpoint has to do with the request and beside it.
func (p *pick) work(slot int32) latency.Work {
	e := &p.in.Endpoints[slot]
	w := latency.Work{Uncached: p.uncached(slot), Ahead: max(0, e.Tokens), Running: float64(max(0, e.InFlight))}
	w.Cached = max(0, p.in.Tokens) - w.Uncached
	l := e.Load
	if l == nil || p.freshness(p.in.Now.Sub(l.At)) == 0 {
		return w
	}
	ours, then := float64(max(0, e.InFlight)), float64(max(0, e.AtLoad))
	if w.Waiting = float64(max(0, l.Waiting)); w.Waiting > 0 { // as in estimate
		w.Waiting = max(0, w.Waiting+ours-then)
	}
	others := max(0, float64(max(0, l.Waiting)+max(0, l.Running))-then)
	w.Running = max(0, ours+others-w.Waiting)
	w.KV = part(l.KV)
	return w
}

// uncached is how many tokens of the prompt are new to an endpoint.
func (p *pick) uncached(slot int32) int64 {
	tokens := max(0, p.in.Tokens)
	if matched := p.out.matches.At(int(slot)); matched > 0 {
		tokens = max(0, tokens-int64(matched*p.index.config.BlockBytes/bytesPerToken))
	}
	return tokens
}

// inTime leaves out the endpoints that are predicted to miss the request's target,
// where one meets it that has no more of the prompt to compute; none where nothing is
// known.
func (p *pick) inTime(set []int32) []int32 {
	if p.in.Latency == nil || p.in.Target == (latency.Target{}) {
		return set
	}
	known, may := true, false
	kept := p.able(set, func(slot int32) bool {
		w := p.work(slot)
		f, ok := p.in.Latency.Predict(int(slot), &w)
		known = known && ok
		may = may || f.May(p.in.Target)
		return known && f.Meets(p.in.Target)
	})
	switch {
	case !known:
		return set
	case kept == 0:
		p.out.Late = !may
		return set
	}
	p.out.outOfTime(set[kept:])
	return set[:kept]
}

// answerTokens is how many tokens of an answer the scorer of latency counts: what a
// client sees of a slow endpoint, without long answers deciding alone.
const answerTokens = 16

// predicted is how long a request would take: until its first token, and some more.
func predicted(p *pick, _ *scoring, set []int32) []float64 {
	if p.in.Latency == nil {
		return nil
	}
	values := p.out.values[:len(set)]
	for i, slot := range set {
		w := p.work(slot)
		f, ok := p.in.Latency.Predict(int(slot), &w)
		if !ok {
			return nil
		}
		values[i] = f.First.P50 + answerTokens*f.Each.P50
	}
	return values
}

// forecast notes what is expected of the chosen endpoint.
func (p *pick) forecast(slot int32) {
	if p.in.Latency == nil {
		return
	}
	f := &p.out.Forecast
	f.Work = p.work(slot)
	f.Prediction, f.Known = p.in.Latency.Predict(int(slot), &f.Work)
}

// outOfTime notes which endpoints are left out for the request's target.
func (c *Choice) outOfTime(set []int32) {
	if c.table == nil {
		return
	}
	for _, slot := range set {
		c.table.rows[slot].out = "is predicted to miss the request's target, which another meets that computes no more"
	}
}

// foresee notes for an explanation what is predicted of every endpoint.
func (p *pick) foresee(set []int32) {
	if p.out.table == nil || p.in.Latency == nil {
		return
	}
	for _, slot := range set {
		w := p.work(slot)
		if f, ok := p.in.Latency.Predict(int(slot), &w); ok {
			p.out.table.rows[slot].predicted = describePrediction(&f)
		}
	}
}

func describePrediction(f *latency.Prediction) string {
	var b strings.Builder
	fmt.Fprintf(&b, "first token %.3f s, p90 %.3f s", f.First.P50, f.First.P90)
	if f.Each.P50 > 0 {
		fmt.Fprintf(&b, "; each %.4f s, p90 %.4f s", f.Each.P50, f.Each.P90)
	}
	return b.String()
}
