package autoscale

import (
	"encoding/json"
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
		got := Learned{Pauses: [][]float64{c.pauses}}.hold(0, 60)
		if got < c.least || got > c.most {
			t.Errorf("%s: held for %.0f s, want %.0f to %.0f", c.name, got, c.least, c.most)
		}
	}
}

// TestPauses: what was remembered stays as it is when a later step adds to it, and
// neither many ranks, many pauses nor a clock that jumps leave more than its bounds.
func TestPauses(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	p, now, seen := pausing{}, t0, [][]float64(nil)
	for range 5000 {
		now = now.Add(time.Duration(r.IntN(60)-3) * time.Second)
		before := make([][]float64, len(seen))
		for i := range seen {
			before[i] = append([]float64(nil), seen[i]...)
		}
		old := seen
		p, seen = p.needs(1+r.IntN(100), r.IntN(100), seen, now)
		for i := range before {
			for k, took := range before[i] {
				if old[i][k] != took {
					t.Fatal("a step changed the state before it")
				}
			}
		}
		if len(seen) > ranks {
			t.Fatalf("%d ranks", len(seen))
		}
		for i, last := range seen {
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
		r, arrived, l := rises(nil), uint64(0), Learned{Startups: []float64{60}}
		if l.lasting() != 1 {
			t.Error("what is unknown does not last")
		}
		for second := range 3600 {
			if arrived++; second%600 < c.lasts {
				arrived += 20
			}
			now := t0.Add(time.Duration(second) * time.Second)
			here := sample{at: now, arrived: arrived}
			w.add(here)
			l, r = l.rose(r, w.since(window, here), w.since(long, here), now)
		}
		if got := l.lasting(); got < c.least || got > c.most {
			t.Errorf("of bursts of %d s %.2f is left after a minute, want %.2f to %.2f", c.lasts, got, c.least, c.most)
		}
	}
}

// bursts steps a service whose load is of 8 in flight but for the last 45 s of each
// 105, in which it is of 1.
type bursts struct {
	state  State
	in     Input
	second int
}

// step is one second, after which the count runs.
func (b *bursts) step() int {
	b.second++
	b.in.Demand.Running = 8
	if b.second%105 >= 60 {
		b.in.Demand.Running = 1
	}
	now := t0.Add(time.Duration(b.second) * time.Second)
	n := uint64(b.in.Demand.Running) // each runs for a second
	b.in.Demand.Arrived += n
	b.in.Demand.Done += n
	b.in.Demand.BusySeconds += float64(n)
	b.in.Demand.LoadSeconds += float64(n)
	var d Decision
	b.state, d = Step(b.state, b.in, now)
	b.in.Replicas = nil
	for i := range d.Count {
		at := now.Add(-time.Hour)
		b.in.Replicas = append(b.in.Replicas, Replica{ID: string(rune('a' + i)), Ready: true, Started: at, ReadyAt: at})
	}
	return d.Count
}

// TestRestartDecidesTheSame: what was learned of pauses and rises outlives the process
// that saw it, so an owner that comes back decides as one that stayed.
func TestRestartDecidesTheSame(t *testing.T) {
	limits := limits(1, 16, 2)
	stayed := &bursts{in: Input{Limits: limits}}
	stored := Learned{}
	writes := 0
	for range 105 * 8 {
		stayed.step()
		if stayed.state.Learned.Differs(stored) {
			stored, writes = stayed.state.Learned, writes+1
		}
	}
	if writes > 12 {
		t.Errorf("%d writes in 8 pauses", writes)
	}
	data, err := json.Marshal(stored)
	if err != nil {
		t.Fatal(err)
	}
	back, forgetful := *stayed, *stayed
	back.state, forgetful.state = State{}, State{}
	if err := json.Unmarshal(data, &back.state.Learned); err != nil {
		t.Fatal(err)
	}
	forgetful.state.Learned = back.state.Learned
	forgetful.state.Learned.Pauses = nil
	same, forgot := true, false
	for i := range 105 * 3 {
		want, got, without := stayed.step(), back.step(), forgetful.step()
		if got != want && i > 60 && same { // after a minute the window is full again
			same = false
			t.Errorf("second %d after the restart: %d replicas, want %d", i, got, want)
		}
		forgot = forgot || without != want
	}
	if !forgot {
		t.Error("an owner that knows no pauses decides the same: the test shows nothing")
	}
}

// TestLearnedIsBounded: what is stored of a service stays small, whatever it does.
func TestLearnedIsBounded(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	p, l, now := pausing{}, Learned{}, t0
	for range 20000 {
		now = now.Add(time.Duration(10+r.IntN(600)) * time.Second)
		p, l.Pauses = p.needs(1+r.IntN(1000), r.IntN(1000), l.Pauses, now)
	}
	data, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > 16<<10 {
		t.Errorf("%d bytes", len(data))
	}
}
