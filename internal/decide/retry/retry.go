// Package retry decides when a request of a route is sent to a further replica: after an
// answer that failed, or besides one that is slow to begin its own (a hedge).
package retry

import (
	"math"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
)

// Try is what became of one request at one replica.
type Try struct {
	// Status is the answer's; 0 where its protocol has none that a policy could name.
	Status int
	// Failed: the answer is one of a replica that failed or is busy.
	Failed bool
	// Tried is how many replicas the request was sent to, this one too.
	Tried int
	// Begun: the client has got something of the answer.
	Begun bool
	// Replayable: the request can be sent again, and may be.
	Replayable bool
	// Budget: the route's budget has a retry left.
	Budget bool
}

// Reason is why a request is, or is not, sent to another replica.
type Reason string

// The reasons.
const (
	Retried    Reason = "retried"
	Answered   Reason = "the route does not retry such an answer"
	Begun      Reason = "the answer has begun"
	NotAgain   Reason = "the request cannot be sent again"
	Exhausted  Reason = "the route's attempts are used up"
	OverBudget Reason = "the route's retry budget is used up"
)

const (
	// DefaultAttempts is how many replicas are tried after the first where a policy
	// leaves it open.
	DefaultAttempts = 2
	// MaxBackoff is how long a retry waits at most.
	MaxBackoff = time.Minute
)

// Decide returns whether the request goes to another replica, and after which wait.
// Nothing is sent again once the client has got something, whatever the policy.
func Decide(p *routing.Retry, t Try) (why Reason, after time.Duration) {
	retryable := t.Failed
	if len(p.Codes) > 0 && t.Status != 0 {
		retryable = slices.Contains(p.Codes, t.Status)
	}
	switch {
	case t.Begun:
		return Begun, 0
	case !retryable:
		return Answered, 0
	case !t.Replayable:
		return NotAgain, 0
	case t.Tried > Attempts(p):
		return Exhausted, 0
	case !t.Budget:
		return OverBudget, 0
	}
	after = p.Backoff
	for range t.Tried - 1 {
		after = min(2*after, MaxBackoff)
	}
	return Retried, after
}

// Attempts is how many replicas are tried after the first.
func Attempts(p *routing.Retry) int {
	if p.Attempts < 0 {
		return DefaultAttempts
	}
	return p.Attempts
}

// Times are how long the latest answers took to begin, as a histogram whose bins grow
// by a quarter of an octave. It forgets: every window of answers counts half as much as
// the next. The zero Times are empty.
type Times struct {
	bins [bins]float64
	sum  float64
}

const (
	bins   = 96                     // from least to some 17 million times that
	least  = 100 * time.Microsecond // the end of the first bin
	window = 512                    // answers
	// enough answers tell a percentile.
	enough = 32
)

// Add notes one time.
func (t *Times) Add(d time.Duration) {
	n := 0
	if d > least {
		n = min(int(math.Ceil(4*math.Log2(float64(d)/float64(least)))), bins-1)
	}
	t.bins[n]++
	if t.sum++; t.sum < window {
		return
	}
	for i := range t.bins {
		t.bins[i] /= 2
	}
	t.sum /= 2
}

// Percentile is the time within which so many of a hundred answers began; false while
// too few have.
func (t *Times) Percentile(p int) (time.Duration, bool) {
	if t.sum < enough {
		return 0, false
	}
	rest := t.sum * float64(p) / 100
	for i, n := range t.bins {
		if rest -= n; rest <= 0 {
			return time.Duration(float64(least) * math.Exp2(float64(i)/4)), true
		}
	}
	return 0, false
}

// HedgeAfter is how long the first replica may take before a second one is asked; false
// is never.
func HedgeAfter(p *routing.Hedge, t *Times) (time.Duration, bool) {
	if p.After > 0 {
		return p.After, true
	}
	return t.Percentile(p.Percentile)
}
