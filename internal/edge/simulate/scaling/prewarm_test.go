package scaling

import (
	"math/rand/v2"
	"testing"
	"time"
)

// sparse is a trace of single requests with idle gaps as drawn.
func sparse(seed uint64, n int, gap func(*rand.Rand) time.Duration) *Trace {
	random := rand.New(rand.NewPCG(seed, 7))
	t := &Trace{Name: "sparse"}
	at := time.Minute
	for range n {
		t.Requests = append(t.Requests, Request{At: at, Service: 2 * time.Second})
		at += gap(random)
	}
	t.Length = at
	return t
}

// prewarmed replays a trace without and with prewarming.
func prewarmed(t *testing.T, trace *Trace, startup time.Duration) (off, auto Summary) {
	t.Helper()
	for i, to := range []*Summary{&off, &auto} {
		l := limits()
		l.ScaleToZeroAfter, l.Prewarm = time.Minute, i == 1
		r, err := Run(pool(startup), trace, NewShipped(l, trace.Begin))
		if err != nil {
			t.Fatal(err)
		}
		*to = r.Summarize(2 * time.Second)
	}
	return off, auto
}

// poissonBound is by what part prewarming may cost more than none at random
// arrivals, where nothing can be known ahead.
const poissonBound = 0.02

// TestPrewarmOnPoisson asks for a third of the means and startup times without -full.
func TestPrewarmOnPoisson(t *testing.T) {
	for i, mean := range []time.Duration{70 * time.Second, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 20 * time.Minute, 2 * time.Hour} {
		for k, startup := range []time.Duration{10 * time.Second, time.Minute, 3 * time.Minute} {
			if !*full && i%3 != k {
				continue
			}
			var cost [2]float64
			for seed := range uint64(4) {
				trace := sparse(seed, 200, func(r *rand.Rand) time.Duration { return time.Duration(r.ExpFloat64() * float64(mean)) })
				off, auto := prewarmed(t, trace, startup)
				cost[0] += off.ReplicaSeconds
				cost[1] += auto.ReplicaSeconds
				if auto.ReplicaSeconds > 1.06*off.ReplicaSeconds {
					t.Errorf("mean gap %v, startup %v, seed %d: %.0f replica-seconds, %.0f without", mean, startup, seed, auto.ReplicaSeconds, off.ReplicaSeconds)
				}
			}
			t.Logf("mean gap %v, startup %v: %.3f of the cost without", mean, startup, cost[1]/cost[0])
			if cost[1] > (1+poissonBound)*cost[0] {
				t.Errorf("mean gap %v, startup %v: %.0f replica-seconds, %.0f without", mean, startup, cost[1], cost[0])
			}
		}
	}
}

func TestPrewarmOnHabits(t *testing.T) {
	for _, c := range []struct {
		name string
		gap  func(*rand.Rand) time.Duration
	}{
		{"every 15 minutes", func(*rand.Rand) time.Duration { return 15 * time.Minute }},
		{"every 15 minutes, and half a minute", func(r *rand.Rand) time.Duration { return 15*time.Minute + time.Duration(r.IntN(30))*time.Second }},
		{"every 6 hours, a twelfth a day later", func(r *rand.Rand) time.Duration {
			if r.IntN(12) == 0 {
				return 30 * time.Hour
			}
			return 6 * time.Hour
		}},
	} {
		for _, startup := range []time.Duration{30 * time.Second, 2 * time.Minute} {
			off, auto := prewarmed(t, sparse(1, 120, c.gap), startup)
			t.Logf("%s, startup %v: late %.3f -> %.3f, replica-seconds %.0f -> %.0f", c.name, startup, off.Late, auto.Late, off.ReplicaSeconds, auto.ReplicaSeconds)
			if auto.Late > 0.1*off.Late || auto.ReplicaSeconds > 1.25*off.ReplicaSeconds {
				t.Errorf("%s, startup %v: late %.3f -> %.3f, replica-seconds %.0f -> %.0f", c.name, startup, off.Late, auto.Late, off.ReplicaSeconds, auto.ReplicaSeconds)
			}
		}
	}
}
