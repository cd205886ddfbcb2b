package dispatch

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/latency"
	"roundhouse.dev/roundhouse/internal/decide/picker"
)

const (
	// deferEvery is the time between two looks at requests that are deferred, since
	// what they wait for comes with time.
	deferEvery = 50 * time.Millisecond
	// maxDeferred is how long a request is deferred at most, and one that has a target
	// for further tokens alone.
	maxDeferred = 10 * time.Second
	// maxLate is how many requests in a row are found to be late before the queue
	// looks at no more of those with targets: they wait for the next look.
	maxLate = 16
)

// pace is what one request's latency is judged by.
type pace struct {
	arrived time.Time
	target  routing.LatencyTarget
	sent    time.Time // to its replica
	began   time.Time // its answer, with the first token; zero before
	each    float64   // seconds that each further token took; 0 while that is not known
	at      latency.Place
	picker.Forecast
}

// targetOf is how long a request may take, as it says itself, or else its objects do.
func targetOf(r *Request, said routing.LatencyTarget) routing.LatencyTarget {
	t := r.Latency
	if t == (routing.LatencyTarget{}) && r.Header != nil {
		t.First = routing.Milliseconds(routing.FirstOf(r.Header, routing.HeaderFirst))
		t.Each = routing.Milliseconds(routing.FirstOf(r.Header, routing.HeaderEach))
	}
	return t.Or(said)
}

// explainTarget is how long the answer may take and who says so, and which header says it
// in vain.
func explainTarget(r *Request, said routing.LatencyTarget) (lines []string) {
	target, own := targetOf(r, said), targetOf(r, routing.LatencyTarget{})
	var parts []string
	add := func(what string, d, own time.Duration) {
		by := "its route or objective"
		if own > 0 {
			by = "the request"
		}
		if d > 0 {
			parts = append(parts, fmt.Sprintf("%s within %v, as %s says", what, d, by))
		}
	}
	add("first token", target.First, own.First)
	add("each further token", target.Each, own.Each)
	if len(parts) > 0 {
		lines = append(lines, "latency target: "+strings.Join(parts, "; "))
	}
	if r.Header == nil {
		return lines
	}
	for _, names := range [][]string{routing.HeaderFirst, routing.HeaderEach} {
		if v := routing.FirstOf(r.Header, names); v != "" && routing.Milliseconds(v) == 0 {
			lines = append(lines, fmt.Sprintf("latency target: the header %s has no effect: %q is not a number of milliseconds above 0 and up to 24 hours", strings.ToLower(nameOf(r.Header, names)), excerpt.Of(v, 40)))
		}
	}
	return lines
}

// nameOf is the first of the names that a request has.
func nameOf(get func(string) string, names []string) string {
	for _, name := range names {
		if get(name) != "" {
			return name
		}
	}
	return ""
}

// left is what is left of the target; zero once it has been missed, when the request
// goes as if it had none.
func (t *pace) left(now time.Time) latency.Target {
	if t.target == (routing.LatencyTarget{}) {
		return latency.Target{}
	}
	waited, bound := now.Sub(t.arrived), t.target.First
	if bound == 0 || bound > maxDeferred {
		bound = maxDeferred
	}
	if waited >= bound {
		return latency.Target{}
	}
	out := latency.Target{Each: t.target.Each.Seconds()}
	if t.target.First > 0 {
		out.First = (t.target.First - waited).Seconds()
	}
	return out
}

// learner learns how long a set's endpoints take. It has a lock of its own, so that
// requests are admitted meanwhile: the set's memory takes over what it found.
type learner struct {
	mu   sync.Mutex
	book latency.Book
}

func (l *learner) first(t *pace, took time.Duration) latency.Lesson {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.book.First(t.at, &t.Work, t.First, took.Seconds())
}

func (l *learner) each(t *pace, took time.Duration, tokens int64) latency.Lesson {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.book.Each(t.at, &t.Work, t.Each, took.Seconds()/float64(tokens))
}

func (l *learner) accuracy() (out Latency) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out.First, out.Each = l.book.Accuracy()
	return out
}

// FirstToken reports that the first token of a streamed answer has come, after
// FirstByte.
func (g *Grant) FirstToken() {
	t, p := &g.pace, g.pool
	if r := &g.reservation; r.slot == nil || !t.began.IsZero() || r.judged {
		return
	}
	now := p.d.clock.Now()
	t.began = now
	l := p.entry.learner.first(t, now.Sub(t.sent))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.entry.memory.latency.Take(&l)
	if p.queue.deferring {
		p.serveQueue(now)
	}
}

// lastToken learns how long the tokens of the answer took.
func (g *Grant) lastToken(o *Outcome, now time.Time) latency.Lesson {
	tokens := o.Usage.Completion
	if tokens == 0 {
		tokens = o.Tokens
	}
	t := &g.pace
	if g.reservation.slot == nil || t.began.IsZero() || tokens < 2 || o.Failed != nil {
		return latency.Lesson{}
	}
	t.each = now.Sub(t.began).Seconds() / float64(tokens-1)
	return g.pool.entry.learner.each(t, now.Sub(t.began), tokens-1)
}

// Latency is what was predicted of the answer and what it took, for a request that is
// done; nil where nothing was predicted and nothing asked for.
func (g *Grant) Latency() *latency.Outcome {
	t := &g.pace
	if t.sent.IsZero() || !t.Known && t.target == (routing.LatencyTarget{}) {
		return nil
	}
	o := &latency.Outcome{Each: t.each, Target: latency.Target{First: t.target.First.Seconds(), Each: t.target.Each.Seconds()},
		Waited: t.sent.Sub(t.arrived).Seconds()}
	if t.Known {
		o.Predicted = t.Prediction
	}
	if !t.began.IsZero() {
		o.First = t.began.Sub(t.sent).Seconds()
	}
	return o
}

// Latency is how well a pool's predictions of latency have held lately.
type Latency struct {
	First latency.Accuracy `json:"ttft"`
	Each  latency.Accuracy `json:"tpot"`
}

// lateReason is why a request is shed that no replica is predicted to answer in time.
func (s *endpointSet) lateReason(priority int32) string {
	why := "no replica is predicted to answer within the request's latency target"
	if f := &s.choice.Forecast; f.Known {
		why += fmt.Sprintf(" (%s would take %v to the first token)", s.slots[s.choice.Slot].endpoint.id, latency.Duration(f.First.P50).Round(time.Millisecond))
	}
	return why + fmt.Sprintf(", so requests of priority %d are refused", priority)
}
