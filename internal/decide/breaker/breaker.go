// Package breaker decides when an endpoint gets no more requests because of
// what became of those it had, and how it gets them back: a circuit breaker for
// each endpoint of a pool.
//
// An endpoint that answers nothing at all (the connection is refused, or ends
// before the answer) is ejected at once, for a moment. One that answers, and
// answers wrong, is ejected after [Config.Failures] such answers in a row,
// unless half of its pool were then ejected: when most of a pool fails alike,
// it is not the endpoint that is to blame. What is wrong depends on the status:
//
//   - 429 and 503 mean that the endpoint is busy. It rests for as long as it
//     asks, and has failed at nothing.
//   - 401, 403 and 404 are usually the client's fault. They count where most
//     other endpoints of the pool refuse nothing.
//   - Every other 5xx is a failure, but for 501 and 505, which are about the
//     request.
//
// One that has requests and has begun to answer none for [Config.Silence], while
// others of its pool answered, hangs. It is ejected unless half of its pool were
// then, and the first answer of it ends that.
//
// Each ejection in a row is twice as long as the one before. When it is over
// one request is sent to see whether the endpoint is well again: its answer
// closes the circuit or ejects the endpoint again. It is over early, after
// [Config.Rest], where another endpoint fails and is spared for its sake.
//
// A failure that something else was to blame for, as one that was found out later, is taken
// back: [Circuit.Acquitted].
package breaker

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Config bounds ejections. Start from DefaultConfig.
type Config struct {
	// Failures is how many answers in a row eject.
	Failures int
	// Rest is how long the first ejection for answers lasts; each in a row
	// doubles it up to MaxRest.
	Rest, MaxRest time.Duration
	// LostRest and MaxLostRest are those of an endpoint that gave no answer.
	LostRest, MaxLostRest time.Duration
	// BusyRest is how long an endpoint rests that is busy and does not say for
	// how long, MaxBusyRest how long at most whatever it says.
	BusyRest, MaxBusyRest time.Duration
	// Forgive is how many answers in a row make ejections begin short again.
	Forgive int
	// Trial is how long the one request that an endpoint gets after its
	// ejection keeps others away while it has no answer.
	Trial time.Duration
	// Silence is how long an endpoint that has requests may answer none while
	// others answer. After an ejection for that it is the Trial.
	Silence time.Duration
}

// DefaultConfig ejects for 1 s after 3 answers, and for 100 ms where there is
// no answer.
func DefaultConfig() Config {
	return Config{
		Failures: 3,
		Rest:     time.Second, MaxRest: 30 * time.Second,
		LostRest: 100 * time.Millisecond, MaxLostRest: 2 * time.Second,
		BusyRest: time.Second, MaxBusyRest: 30 * time.Second,
		Forgive: 16,
		Trial:   time.Second,
		Silence: 30 * time.Second,
	}
}

// Validate reports every field that is out of range.
func (c Config) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		n    int64
	}{
		{"Failures", int64(c.Failures)}, {"Rest", int64(c.Rest)}, {"LostRest", int64(c.LostRest)},
		{"BusyRest", int64(c.BusyRest)}, {"Forgive", int64(c.Forgive)}, {"Trial", int64(c.Trial)},
		{"Silence", int64(c.Silence)},
	} {
		if f.n <= 0 {
			errs = append(errs, fmt.Errorf("breaker: %s must be more than 0, is %d", f.name, f.n))
		}
	}
	for _, f := range []struct {
		name        string
		first, most time.Duration
	}{{"Rest", c.Rest, c.MaxRest}, {"LostRest", c.LostRest, c.MaxLostRest}, {"BusyRest", c.BusyRest, c.MaxBusyRest}} {
		if f.most < f.first {
			errs = append(errs, fmt.Errorf("breaker: Max%s (%v) must not be less than %s (%v)", f.name, f.most, f.name, f.first))
		}
	}
	return errors.Join(errs...)
}

// Result is what became of one request at an endpoint.
type Result uint8

// The results.
const (
	Answered Result = iota // it did the work, or said what is wrong with the request
	Refused                // it let nobody in, or knows no such model
	Busy                   // it had no room
	Failed                 // it answered that it failed
	Lost                   // it gave no answer, or not all of it
	Silent                 // it has requests and answers none
)

// String is the result in a word.
func (r Result) String() string {
	return [...]string{"answered", "refused", "busy", "failed", "lost", "silent"}[r]
}

// OfStatus is the result of an HTTP status code.
func OfStatus(code int) Result {
	switch code {
	case 401, 403, 404:
		return Refused
	case 429, 503:
		return Busy
	case 501, 505:
		return Answered
	}
	if code >= 500 {
		return Failed
	}
	return Answered
}

// maxRetryAfter bounds what a Retry-After is taken for.
const maxRetryAfter = 24 * time.Hour

// RetryAfter reads the value of a Retry-After (RFC 9110 10.2.3): seconds, or a
// date. It is 0 where that is neither, or over.
func RetryAfter(v string, now time.Time) time.Duration {
	v = strings.TrimSpace(v)
	if n, err := strconv.ParseUint(v, 10, 32); err == nil {
		return min(time.Duration(n)*time.Second, maxRetryAfter)
	}
	if at, err := time.Parse("Mon, 02 Jan 2006 15:04:05 GMT", v); err == nil {
		return min(max(0, at.Sub(now)), maxRetryAfter)
	}
	return 0
}

// State is whether an endpoint gets requests.
type State uint8

// The states of a Circuit.
const (
	Closed State = iota // it gets requests
	Open                // it gets none
	Trial               // it gets one, whose answer decides
)

// String is the state in a word.
func (s State) String() string { return [...]string{"closed", "open", "trial"}[s] }

// Circuit is what is remembered of an endpoint. The zero Circuit is closed.
type Circuit struct {
	State     State
	Failures  int // in a row
	Ejections int // since it last answered Forgive requests in a row
	Answers   int // in a row, up to Forgive
	// Refusing is which part of its latest answers were refusals, the latest
	// counting most; Heard reports whether there was any answer.
	Refusing float64
	Heard    bool
	// Last is the result of the last ejection.
	Last Result
}

// Peers are the endpoints of a pool that serve, for one of them.
type Peers struct {
	Serving int // with itself
	Ejected int // of the others: open, or on trial
	// Refusing and Answering are how many of the others refused most of their
	// latest answers, and did not.
	Refusing, Answering int
}

// weight is that of the latest answer in Circuit.Refusing.
const weight = 1. / 8

// Refuses reports whether most of the latest answers were refusals.
func (c Circuit) Refuses() bool { return c.Refusing >= .5 }

// Well reports whether an answer would change nothing.
func (c Circuit) Well() bool {
	return c.Heard && c.State == Closed && c.Failures == 0 && c.Ejections == 0 && c.Refusing == 0
}

// After is the circuit after a result. rest is how long the endpoint gets no
// requests from now on, after which it is Rested; 0 where this changes nothing.
// asked is how long a busy endpoint asks to be left alone, 0 where it does not
// say.
func (c Circuit) After(r Result, asked time.Duration, p Peers, cfg Config) (next Circuit, rest time.Duration) {
	c.note(r)
	if r == Refused && p.Answering <= p.Refusing {
		r = Answered // as the others answer: the client is to blame
	}
	switch r {
	case Answered:
		return c.answered(cfg), 0
	case Busy:
		if c.State == Open || !p.mayEject() {
			return c, 0
		}
		c.State, c.Last = Open, r
		return c, min(max(asked, cfg.BusyRest), cfg.MaxBusyRest)
	case Silent:
		if c.State == Open || !p.mayEject() {
			return c, 0
		}
		return c.eject(r, cfg.Rest, cfg.MaxRest)
	case Refused, Failed, Lost:
	}
	c.Failures, c.Answers = c.Failures+1, 0
	switch {
	case c.State == Open: // a request of before
		return c, 0
	case r == Lost:
		return c.eject(r, cfg.LostRest, cfg.MaxLostRest)
	case c.State == Closed && c.Failures < cfg.Failures:
		return c, 0
	case !p.mayEject():
		c.State = Closed
		return c, 0
	}
	return c.eject(r, cfg.Rest, cfg.MaxRest)
}

// Spared reports whether only the bound on ejections keeps c closed: it fails,
// and half of its pool rests. An endpoint that rests and is well by now then leaves
// all requests to one that fails, so those that rest should be tried at once.
func (c Circuit) Spared(p Peers, cfg Config) bool {
	return c.State == Closed && c.Failures >= cfg.Failures && p.Ejected > 0
}

// Acquitted is the circuit without one of its failures, for which something else has shown
// to be to blame since: that failure led from the state before to the state after.
func (c Circuit) Acquitted(before, after State, cfg Config) Circuit {
	if c.Failures == 0 { // it has answered since
		return c
	}
	c.Failures--
	if before != Open && after == Open && c.Ejections > 0 {
		c.Ejections--
	}
	if c.Last != Failed && c.Last != Lost {
		return c
	}
	switch {
	case c.Failures == 0 || c.Last == Failed && c.Failures < cfg.Failures:
		c.State = Closed
	case before == Trial && c.State == Open: // it gets another
		c.State = Trial
	}
	return c
}

// Rested is the circuit when its time is over.
func (c Circuit) Rested() Circuit {
	if c.State == Open {
		c.State = Trial
	}
	return c
}

// mayEject reports whether no more than half of the pool were ejected with one
// more.
func (p Peers) mayEject() bool { return 2*(p.Ejected+1) <= p.Serving }

// note remembers whether it refuses.
func (c *Circuit) note(r Result) {
	switch {
	case r != Refused && r != Answered:
		return
	case r == Refused && !c.Heard:
		c.Refusing = 1
	case r == Refused:
		c.Refusing += (1 - c.Refusing) * weight
	default:
		if c.Refusing -= c.Refusing * weight; c.Refusing < weight/2 {
			c.Refusing = 0
		}
	}
	c.Heard = true
}

func (c Circuit) answered(cfg Config) Circuit {
	c.Failures = 0
	if c.State == Trial || c.State == Open && c.Last == Silent {
		c.State = Closed
	}
	if c.Ejections == 0 {
		return c
	}
	if c.Answers++; c.Answers >= cfg.Forgive {
		c.Ejections, c.Answers = 0, 0
	}
	return c
}

func (c Circuit) eject(r Result, rest, most time.Duration) (Circuit, time.Duration) {
	for n := 0; n < c.Ejections && rest < most; n++ {
		rest *= 2
	}
	c.State, c.Last = Open, r
	c.Ejections++
	return c, min(rest, most)
}
