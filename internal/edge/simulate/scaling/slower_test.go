package scaling

import (
	"testing"
	"time"
)

// slower has starts take ten times as long from a time on, for whatever scaler.
type slower struct {
	Scaler
	from, takes time.Duration
	most        int // replicas that were wanted at a time
}

func (s *slower) Step(v *View) Decision {
	d := s.Scaler.Step(v)
	s.most = max(s.most, d.Count)
	takes := s.takes
	if v.Now >= s.from {
		takes *= 10
	}
	for range d.Count - len(v.Replicas) {
		d.Starts = append(d.Starts, PlannedStart{Takes: takes})
	}
	return d
}

// TestStartupsGetTenTimesSlower: where startups take two minutes all at once in place of
// twelve seconds, what is started meanwhile is no more than the requests call for, and
// soon the waits and the cost are those of a service that was slow all the time.
func TestStartupsGetTenTimesSlower(t *testing.T) {
	const startup, turn, length = 12 * time.Second, 2 * time.Hour, 6 * time.Hour
	for _, workload := range []string{"bursty", "on-off", "like-azure-conversation"} {
		trace := generate(t, workload, Asked{Seed: 1, Length: length})
		after := func(from time.Duration) (late, seconds float64, most int) {
			c, err := FindContestant("roundhouse")
			if err != nil {
				t.Fatal(err)
			}
			inner, err := c.New(Case{Pool: pool(startup), Trace: trace, Limits: limits()})
			if err != nil {
				t.Fatal(err)
			}
			s := &slower{Scaler: inner, from: from, takes: startup}
			r, err := Run(pool(startup), trace, s)
			if err != nil {
				t.Fatal(err)
			}
			n, of := 0, 0
			for i, x := range trace.Requests {
				if x.At < turn+time.Hour { // by then it is learned
					continue
				}
				if of++; r.Waits[i] < 0 || r.Waits[i] > 2*time.Second {
					n++
				}
			}
			return float64(n) / float64(of), r.ReplicaSeconds, s.most
		}
		late, seconds, most := after(turn)
		always, all, mostAlways := after(0)
		never, fast, _ := after(length)
		t.Logf("%s: %.1f %% late an hour after the turn, %.1f %% where it was always slow, %.1f %% never; %.0f, %.0f and %.0f replica-seconds; at most %d and %d replicas",
			workload, 100*late, 100*always, 100*never, seconds, all, fast, most, mostAlways)
		if late > always+0.05 || seconds > 1.1*max(all, fast) || most > 2*mostAlways {
			t.Errorf("%s: it does worse than where starts were slow all the time", workload)
		}
	}
}
