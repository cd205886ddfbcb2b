package autoscale

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestHoldByPauses: a replica outlasts the pauses that are cheaper to wait for than a
// start is, and is ended soon where they are not.
func TestHoldByPauses(t *testing.T) {
	for _, c := range []struct {
		name        string
		pauses      []float64
		least, most float64
	}{
		{"too few seen", []float64{40}, 45, 45},
		{"short ones", []float64{40, 50, 45, 38}, 50, 70},
		{"long ones", []float64{900, 910, 905}, 10, 15},
		{"short ones, and one that does not pay", []float64{40, 50, 2000, 45, 38}, 50, 70},
		{"as long as pays at most", slices.Repeat([]float64{240}, pauses), 300, 300},
	} {
		got := pausing{last: [][]float64{c.pauses}}.hold(0, 60)
		if got < c.least || got > c.most {
			t.Errorf("%s: held for %.0f s, want %.0f to %.0f", c.name, got, c.least, c.most)
		}
	}
}

// TestPauses: what was remembered stays as it is when a later step adds to it, and
// neither many ranks, many pauses nor a clock that jumps leave more than its bounds.
func TestPauses(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	p, now := pausing{}, t0
	for range 5000 {
		now = now.Add(time.Duration(r.IntN(60)-3) * time.Second)
		before := make([][]float64, len(p.last))
		for i := range p.last {
			before[i] = append([]float64(nil), p.last[i]...)
		}
		old := p
		p = p.needs(1+r.IntN(100), r.IntN(100), now)
		for i := range before {
			for k, took := range before[i] {
				if old.last[i][k] != took {
					t.Fatal("a step changed the state before it")
				}
			}
		}
		if len(p.last) > ranks {
			t.Fatalf("%d ranks", len(p.last))
		}
		for i, last := range p.last {
			if len(last) > pauses {
				t.Fatalf("rank %d has %d pauses", i, len(last))
			}
			for _, took := range last {
				if took < pauseLeast.Seconds() {
					t.Fatalf("a pause of %v s", took)
				}
			}
		}
		for i, since := range p.since {
			if since.After(now) {
				t.Fatalf("rank %d is not needed since %v from now", i, since.Sub(now))
			}
		}
	}
}

// TestRises: of bursts that are shorter than a start nothing is left when it is over, of
// longer ones all, and of what was never seen all is taken to last.
func TestRises(t *testing.T) {
	for _, c := range []struct {
		lasts       int // seconds, of every 600
		least, most float64
	}{{10, 0, 0.1}, {400, 0.8, 1}} {
		var w Window
		r, arrived := rises{}, uint64(0)
		if r.lasting() != 1 {
			t.Error("what is unknown does not last")
		}
		for second := range 3600 {
			if arrived++; second%600 < c.lasts {
				arrived += 20
			}
			now := t0.Add(time.Duration(second) * time.Second)
			here := sample{at: now, arrived: arrived}
			w.add(here)
			r = r.seen(w.since(window, here), w.since(long, here), 60, now)
		}
		if got := r.lasting(); got < c.least || got > c.most {
			t.Errorf("of bursts of %d s %.2f is left after a minute, want %.2f to %.2f", c.lasts, got, c.least, c.most)
		}
	}
}
