package autoscale

import (
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestFirstArrivals: a handful of requests that wake a service, and as many in each
// second of a long start, start no more than two slots for each that is there.
func TestFirstArrivals(t *testing.T) {
	s, _ := Step(State{Learned: Learned{Startups: []float64{120}, Service: 5, Requests: 50}}, Input{Limits: limits(0, 50, 5)}, t0)
	in := Input{Limits: limits(0, 50, 5)}
	for second := 1; second <= 6; second++ {
		in.Demand.Queued += 5
		in.Demand.Arrived += 5
		var d Decision
		s, d = Step(s, in, t0.Add(time.Duration(second)*time.Second))
		if most := 2 * second; d.Count > most || second > 1 && d.Count < most/2 {
			t.Errorf("%d wait: %d replicas of 5 slots", in.Demand.Queued, d.Count)
		}
	}
}

// TestFirstArrivalsOfLongRequests: nor does the rate of a few that come within a second
// or two, however long each will run. What comes all the time does.
func TestFirstArrivalsOfLongRequests(t *testing.T) {
	learned := Learned{Startups: []float64{30}, Service: 40, Requests: 50}
	s, _ := Step(State{Learned: learned}, Input{Limits: limits(0, 50, 7)}, t0)
	in := Input{Limits: limits(0, 50, 7)}
	for second := 1; second <= 3; second++ {
		in.Demand.Queued += 3
		in.Demand.Arrived += 3
		var d Decision
		s, d = Step(s, in, t0.Add(time.Duration(second)*time.Second))
		if most := ceil(2 * float64(in.Demand.Queued) / 7); d.Count < 1 || d.Count > most {
			t.Errorf("%d wait: %d replicas of 7 slots, of which %d are two for each: %+v", in.Demand.Queued, d.Count, most, d.Numbers)
		}
	}
	s, _ = Step(State{Learned: learned}, Input{Limits: limits(0, 50, 7)}, t0)
	in = Input{Limits: limits(0, 50, 7), Demand: Demand{Running: 1}, Replicas: ready(0, "a")}
	for second := 1; second <= 60; second++ { // as when most have just been answered
		in.Demand.Arrived++
		in.Demand.Done++
		in.Demand.BusySeconds += 40
		var d Decision
		if s, d = Step(s, in, t0.Add(time.Duration(second)*time.Second)); second == 60 && d.Numbers.Base < 6 {
			t.Errorf("40 at a time, by a minute's average: %+v", d)
		}
	}
}

func TestAverageCatchesWhatTheMomentMisses(t *testing.T) {
	l := limits(1, 10, 1)
	s, _ := Step(State{}, Input{Limits: l, Replicas: ready(0, "a")}, t0)
	_, d := Step(s, Input{Limits: l, Replicas: ready(0, "a"), Demand: Demand{Running: 1, LoadSeconds: 4}}, t0.Add(time.Second))
	if d.Count != 4 {
		t.Fatalf("4 request-seconds in a second: %+v", d)
	}
}

// rps is a service that is scaled by arrivals.
func rps(lo, hi int, target float64) service.Limits {
	l := limits(lo, hi, target)
	l.Metric = service.MetricRPS
	return l
}

// TestArrivalsAreCountedOverAWindow: whatever the time between two steps, the
// rate is that of the last ten seconds.
// TestAverageReadLateAddsNoReplica: a steady load of exactly what two replicas
// take, whose integral is read some milliseconds late once or adds up with
// rounding errors, starts no third.
func TestAverageReadLateAddsNoReplica(t *testing.T) {
	for _, late := range []time.Duration{0, time.Nanosecond, 5 * time.Millisecond} {
		s, up := State{}, ready(0, "a", "b")
		in := Input{Demand: Demand{Running: 16, Arrived: 16}, Limits: limits(0, 3, 8), Replicas: up}
		seconds := 0.0
		for at := range 20 {
			now := t0.Add(time.Duration(at) * time.Second)
			in.Demand.LoadSeconds = seconds
			if at == 10 {
				in.Demand.LoadSeconds += 16 * late.Seconds()
			}
			var d Decision
			if s, d = Step(s, in, now); d.Count != 2 {
				t.Fatalf("read %v late: count %d after %d s (%s)", late, d.Count, at, d.Why)
			}
			for range 1000 { // as dispatch adds them up
				seconds += 16 * 0.001
			}
		}
	}
}

func TestArrivalsAreCountedOverAWindow(t *testing.T) {
	type arrival struct {
		after time.Duration // the step before
		n     int
		waits bool
	}
	steady := func(n int, every time.Duration, per int) (out []arrival) {
		for range n {
			out = append(out, arrival{every, per, false})
		}
		return out
	}
	for _, c := range []struct {
		name   string
		limits service.Limits
		come   []arrival
		want   int // the most there ever are
	}{
		{"2 a second, target 5, looked at whenever one comes and goes", rps(1, 10, 5), steady(1200, 50*time.Millisecond, 0), 1},
		{"two 5 ms apart", rps(1, 40, 5), []arrival{{time.Hour, 1, false}, {5 * time.Millisecond, 1, false}}, 1},
		{"50 a second, target 20", rps(1, 10, 20), steady(60, time.Second, 50), 3},
		{"50 a second, looked at every millisecond after a burst", rps(1, 40, 20), append(steady(20, time.Second, 50), steady(20, time.Millisecond, 1)...), 3},
		{"2500 wait after an hour asleep", rps(0, 100, 25), []arrival{{time.Hour, 2500, true}}, 10},
		{"2500 came and went after an hour asleep", rps(0, 100, 25), []arrival{{time.Hour, 2500, false}}, 10},
		{"one waits", rps(0, 100, 25), []arrival{{time.Hour, 1, true}}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			now, d, most := t0, Demand{Arrived: 7, Done: 7}, 0
			s, _ := Step(State{}, Input{Limits: c.limits, Demand: d}, now)
			for i, a := range c.come {
				now = now.Add(a.after)
				n := a.n
				if n == 0 && i%10 == 0 { // 2 a second
					n = 1
				}
				d.Arrived += uint64(n)
				if d.Queued = 0; a.waits {
					d.Queued = n
				} else {
					d.Done, d.LastDone = d.Arrived, now
				}
				var got Decision
				if s, got = Step(s, Input{Limits: c.limits, Demand: d, Replicas: ready(0, "a")}, now); got.Count > most {
					most = got.Count
				}
			}
			if most != c.want {
				t.Errorf("there were %d at the most, want %d", most, c.want)
			}
		})
	}
}

// TestBacklogIsNoLessThanItsRate: those that wait keep their replicas coming,
// although nothing arrives any more.
func TestBacklogIsNoLessThanItsRate(t *testing.T) {
	l := rps(0, 100, 25)
	d := Demand{Arrived: 2500, Queued: 2500}
	s, got := Step(State{Last: t0.Add(-time.Hour), Learned: Learned{Startups: []float64{1}}}, Input{Limits: l, Demand: d}, t0)
	for i := range 300 {
		if s, got = Step(s, Input{Limits: l, Demand: d, Replicas: []Replica{{ID: "a", Starting: true}}}, t0.Add(time.Duration(i)*time.Second)); got.Count != 10 || got.Again != time.Second {
			t.Fatalf("second %d: %+v, want 10", i, got)
		}
	}
	d.Queued, d.Done, d.LastDone = 0, 2500, t0.Add(301*time.Second)
	for i := range 50 {
		s, got = Step(s, Input{Limits: l, Demand: d, Replicas: ready(0, "a", "b")}, t0.Add(time.Duration(302+i)*time.Second))
	}
	if got.Count != 1 {
		t.Errorf("51 s after the last was answered: %+v, want 1", got)
	}
}
