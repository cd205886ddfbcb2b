package retry

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
)

func TestDecide(t *testing.T) {
	some := routing.Retry{Attempts: -1}
	codes := routing.Retry{Attempts: 3, Codes: []int{404, 503}, Backoff: 20 * time.Millisecond}
	none := routing.Retry{Attempts: 0}
	long := routing.Retry{Attempts: 10, Backoff: time.Minute}
	fine := Try{Status: 500, Failed: true, Tried: 1, Replayable: true, Budget: true}
	with := func(edit func(*Try)) Try { c := fine; edit(&c); return c }
	for name, c := range map[string]struct {
		p     routing.Retry
		t     Try
		want  Reason
		after time.Duration
	}{
		"a failure":                      {some, fine, Retried, 0},
		"no failure":                     {some, with(func(t *Try) { t.Status, t.Failed = 400, false }), Answered, 0},
		"a status that is named":         {codes, with(func(t *Try) { t.Status, t.Failed = 404, false }), Retried, 20 * time.Millisecond},
		"a failure that is not named":    {codes, fine, Answered, 0},
		"a failure without a status":     {codes, with(func(t *Try) { t.Status = 0 }), Retried, 20 * time.Millisecond},
		"the second":                     {codes, with(func(t *Try) { t.Status, t.Tried = 503, 2 }), Retried, 40 * time.Millisecond},
		"the third":                      {codes, with(func(t *Try) { t.Status, t.Tried = 503, 3 }), Retried, 80 * time.Millisecond},
		"the fourth":                     {codes, with(func(t *Try) { t.Status, t.Tried = 503, 4 }), Exhausted, 0},
		"the default's last":             {some, with(func(t *Try) { t.Tried = 3 }), Exhausted, 0},
		"no attempts":                    {none, fine, Exhausted, 0},
		"the client has the first bytes": {some, with(func(t *Try) { t.Begun = true }), Begun, 0},
		"cannot be sent again":           {some, with(func(t *Try) { t.Replayable = false }), NotAgain, 0},
		"no budget":                      {some, with(func(t *Try) { t.Budget = false }), OverBudget, 0},
		"a long wait has a bound":        {long, with(func(t *Try) { t.Tried = 9 }), Retried, time.Minute},
	} {
		if got, after := Decide(&c.p, c.t); got != c.want || after != c.after {
			t.Errorf("%s: %s after %v, want %s after %v", name, got, after, c.want, c.after)
		}
	}
}

// TestPercentile compares the histogram with all the times sorted.
func TestPercentile(t *testing.T) {
	var times Times
	if _, ok := times.Percentile(50); ok {
		t.Error("a percentile of nothing")
	}
	r := rand.New(rand.NewPCG(1, 2))
	var all []time.Duration
	for range 500 {
		d := time.Duration(r.ExpFloat64() * float64(200*time.Millisecond))
		all = append(all, d)
		times.Add(d)
	}
	slices.Sort(all)
	for _, p := range []int{50, 90, 95, 99} {
		got, ok := times.Percentile(p)
		want := all[p*len(all)/100]
		if !ok || float64(got) < float64(want)*0.95 || float64(got) > float64(want)*1.3 {
			t.Errorf("percentile %d is %v, want %v to a fifth more", p, got, want)
		}
	}
	for range 4 * window { // it forgets
		times.Add(10 * time.Second)
	}
	if got, _ := times.Percentile(50); got < 9*time.Second {
		t.Errorf("after many of 10 s the median is %v", got)
	}
	times = Times{}
	for _, d := range []time.Duration{-time.Second, 0, time.Nanosecond, 1 << 62} {
		for range enough {
			times.Add(d) // nothing to index out of
		}
	}
	if got, ok := HedgeAfter(&routing.Hedge{Percentile: 99}, &times); !ok || got <= 0 {
		t.Errorf("%v %v", got, ok)
	}
	if got, ok := HedgeAfter(&routing.Hedge{After: time.Second}, &Times{}); !ok || got != time.Second {
		t.Errorf("a time that is stated: %v %v", got, ok)
	}
}
