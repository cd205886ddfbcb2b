// Package latency predicts how long the endpoints of a pool take: until the
// first token of an answer (TTFT), and from then on for each token (TPOT).
//
// A Book learns from the answers of a pool as they come. Of each it gets the
// Work that the endpoint had when the request was sent, and what the answer
// took. It fits a sum of terms, each a part of the work times a coefficient that
// is never negative, so that more work is never predicted to take less. Each
// endpoint has coefficients of its own; of one that has answered little, the
// others' count. What is long past counts for less and less.
//
// A quantile is the fitted value times the quantile of how far past answers were
// from what was predicted for them, so the predictions account for what the terms
// do not explain.
//
// A Book costs the same however much it has learned. It has no clock, allocates
// nothing once it knows its endpoints, and takes no locks. Learning costs some
// microseconds, predicting a tenth of one, and far more is predicted than learned:
// so a Model has what a Book found last, and whoever predicts waits for no learning.
package latency

import (
	"math"
	"time"
)

// Work is what an endpoint has to do with a request and beside it, as far as is
// known when the request is sent.
type Work struct {
	// Uncached and Cached are the tokens of the prompt that the endpoint has to
	// compute, and those that it holds. Ahead are those of our other requests that
	// it has not begun to answer.
	Uncached, Cached, Ahead int64
	// Waiting and Running are requests there, in its queue and being computed.
	Waiting, Running float64
	// KV is the part of its KV memory in use, from 0 to 1.
	KV float64
}

// terms are how many parts of the work are told apart, the constant among them.
const terms = 7

// thousand is how many tokens count as one in the terms, so that the terms are
// of one size.
const thousand = 1000

// vector is the work's terms.
func (w *Work) vector() (x [terms]float64) {
	return [terms]float64{1, tokens(w.Uncached), tokens(w.Cached), tokens(w.Ahead), bounded(w.Waiting, 1e4), bounded(w.Running, 1e4) / 10, bounded(w.KV, 1)}
}

func tokens(n int64) float64 { return bounded(float64(n), 1e7) / thousand }

// bounded is v from 0 to most; what is no number is 0.
func bounded(v, most float64) float64 {
	if !(v > 0) {
		return 0
	}
	return min(v, most)
}

// Prediction is what a request would take at an endpoint.
type Prediction struct {
	First Quantiles // until the first token
	Each  Quantiles // for each further token; zero while no answer of several tokens has ended
}

// Quantiles are of one duration, in seconds: a tenth, half and nine tenths of answers
// take at most as long.
type Quantiles struct{ P10, P50, P90 float64 }

// Duration is seconds as a duration of at most a day.
func Duration(seconds float64) time.Duration {
	return time.Duration(bounded(seconds, 86400) * float64(time.Second))
}

// Target is how long a request may take, in seconds; 0 is no bound.
type Target struct{ First, Each float64 }

// Outcome is what was predicted of an answer when its request was sent to a replica, and
// what it took from then on.
type Outcome struct {
	Predicted Prediction // zero where too little was known
	First     float64    // seconds to the first token; 0 where the answer was no stream
	Each      float64    // seconds for each further token; 0 where that is not known
	// Target is how long the answer was to take, from the request's arrival on, and
	// Waited how much of it was over when the request was sent; in seconds.
	Target Target
	Waited float64
}

// Meets reports whether a target is more likely met than missed, and May whether at
// least one of ten such requests meets it.
func (p *Prediction) Meets(t Target) bool {
	return (t.First <= 0 || p.First.P50 <= t.First) && (t.Each <= 0 || p.Each.P50 <= t.Each)
}

// May is said at Meets.
func (p *Prediction) May(t Target) bool {
	return (t.First <= 0 || p.First.P10 <= t.First) && (t.Each <= 0 || p.Each.P10 <= t.Each)
}

// Accuracy is how well predictions have held lately.
type Accuracy struct {
	Answers uint64 // that had been predicted
	// Error is the mean of how far they were off, as a part of what they took.
	Error float64
	// Within50 and Within90 are the parts that took no longer than the P50 and the
	// P90 that were predicted. They should be 0.5 and 0.9.
	Within50, Within90 float64
}

// Miscalibration is how far Within90 is from what it should be.
func (a Accuracy) Miscalibration() float64 {
	if a.Answers == 0 {
		return 0
	}
	return math.Abs(a.Within90 - 0.9)
}

// recent is the weight of one answer in an Accuracy, once there are that many.
const recent = 1.0 / 500

func (a *Accuracy) add(predicted Quantiles, took float64) {
	a.Answers++
	w := max(recent, 1/float64(a.Answers))
	a.Error += w * (min(math.Abs(took-predicted.P50)/took, 10) - a.Error)
	a.Within50 += w * (within(took, predicted.P50) - a.Within50)
	a.Within90 += w * (within(took, predicted.P90) - a.Within90)
}

func within(took, bound float64) float64 {
	if took <= bound {
		return 1
	}
	return 0
}

// known is how many answers of a pool there must be before anything is predicted.
const known = 16

// poolEvery is after how many answers the pool's own coefficients are solved again,
// which only endpoints without answers go by.
const poolEvery = 16

// Book is what is known of a pool's endpoints, which go by their places.
type Book struct {
	first, each        quantity
	accurate, steadily Accuracy
}

// quantity is one that is learned: of the pool as a whole, and of each endpoint.
type quantity struct {
	pool    fit
	slots   []*endpoint // by slot; nil for one that has answered nothing
	learned uint64
}

// endpoint is what one endpoint's answers have taught.
type endpoint struct {
	fit
	tenure uint64
}

// First learns that the first token of an answer came after some seconds. predicted is
// what Predict had said when the request was sent, zero for nothing.
func (b *Book) First(at Place, w *Work, predicted Quantiles, seconds float64) Lesson {
	return learn(&b.first, &b.accurate, at, w, predicted, seconds)
}

// Each learns the mean seconds of an answer's further tokens.
func (b *Book) Each(at Place, w *Work, predicted Quantiles, seconds float64) Lesson {
	l := learn(&b.each, &b.steadily, at, w, predicted, seconds)
	l.each = true
	return l
}

// Accuracy is how well predictions of the first token, and of each further one,
// have held.
func (b *Book) Accuracy() (first, each Accuracy) { return b.accurate, b.steadily }

// longest is the longest time that is learned from, in seconds: what takes longer
// was held up by something else.
const longest = 3600

func learn(q *quantity, a *Accuracy, at Place, w *Work, predicted Quantiles, seconds float64) Lesson {
	if !(seconds > 0) || seconds > longest || at.Slot < 0 {
		return Lesson{}
	}
	for len(q.slots) <= at.Slot {
		q.slots = append(q.slots, nil)
	}
	f := q.slots[at.Slot]
	switch {
	case f == nil || f.tenure < at.Tenure:
		f = &endpoint{tenure: at.Tenure, fit: fit{solution: q.pool.solution}}
		q.slots[at.Slot] = f
	case f.tenure > at.Tenure: // the answer of an endpoint that another has followed
		return Lesson{}
	}
	if predicted.P50 > 0 {
		a.add(predicted, seconds)
	}
	x := w.vector()
	ratio := 0.0
	if q.pool.answers >= known {
		ratio = seconds / f.value(&x)
	}
	q.pool.learn(&x, seconds, ratio, poolKeep)
	if q.learned++; q.learned <= 4*known || q.learned%poolEvery == 0 {
		q.pool.solve(nil)
	}
	f.learn(&x, seconds, ratio, slotKeep)
	f.solve(&q.pool)
	return Lesson{at: at, number: q.learned, known: q.pool.answers >= known, pool: q.pool.solution, own: f.solution}
}
