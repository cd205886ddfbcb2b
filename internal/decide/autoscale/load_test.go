package autoscale

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// drained reports, by adding up second by second, whether k replicas of p take
// its load and have its backlog gone in time: those that exist, soonest first,
// then new ones.
func (p *plan) drained(k int) bool {
	if float64(k)*p.target < p.load-1e-6 || float64(k)*p.slots < p.load+p.free(p.load)-1e-6 {
		return false
	}
	if p.backlog == 0 {
		return true
	}
	work, end := p.backlog*p.service, p.start+p.drain
	const dt = 0.25
	for at := 0.0; at < end; at += dt {
		slots := 0.0
		for i := range k {
			if ready := p.start; i < len(p.ready) {
				if p.ready[i] <= at {
					slots += p.slots
				}
			} else if ready <= at {
				slots += p.slots
			}
		}
		work += (p.load - slots) * dt
	}
	return work <= 1e-6
}

// FuzzWantedAgainstNaive: the count is the least that a search from 0 finds.
func FuzzWantedAgainstNaive(f *testing.F) {
	for seed := range uint64(50) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 3))
		quarter := func(n int) float64 { return float64(r.IntN(4*n)) / 4 }
		p := plan{target: 1 + quarter(10), load: quarter(60), service: 0.25 + quarter(8), start: quarter(90), drain: 2 + quarter(30)}
		p.slots = p.target + quarter(4)
		if r.IntN(4) > 0 {
			p.backlog = quarter(300)
		}
		for range r.IntN(12) {
			p.ready = append(p.ready, min(quarter(90), p.start))
		}
		slices.Sort(p.ready)
		naive := 0
		for !p.drained(naive) {
			naive++
		}
		if got := p.wanted(); got != naive {
			t.Fatalf("%+v: %d, naively %d", p, got, naive)
		}
		more := p
		more.backlog += quarter(40)
		if a, b := p.wanted(), more.wanted(); b < a {
			t.Errorf("%+v: %d, with a backlog of %v %d", p, a, more.backlog, b)
		}
		more = p
		more.ready = slices.Sorted(slices.Values(append(slices.Clone(p.ready), p.start)))
		if a, b := p.wanted(), more.wanted(); b > max(a, p.base()) {
			t.Errorf("%+v: %d, with one more that starts %d", p, a, b)
		}
	})
}

// FuzzWindowAgainstNaive: rates and service times over a window are those of a
// list of all samples.
func FuzzWindowAgainstNaive(f *testing.F) {
	for seed := range uint64(50) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 5))
		var w Window
		var all []sample
		d, now := Demand{}, t0
		for range 300 {
			now = now.Add(time.Duration(r.IntN(3000)) * time.Millisecond)
			if r.IntN(50) == 0 {
				now = now.Add(time.Duration(r.IntN(100)) * time.Second)
			}
			d.Arrived += uint64(r.IntN(20))
			d.Done += uint64(r.IntN(int(d.Arrived-d.Done) + 1))
			d.Running = int(d.Arrived - d.Done)
			d.BusySeconds += float64(d.Running)
			here := sampleOf(d, now)
			for _, span := range []time.Duration{window, long} {
				got := w.since(span, here)
				var from *sample // the newest that is as old, or the oldest there is
				for i := range all {
					if now.Sub(all[i].at) >= span || from == nil && i >= len(all)-samples {
						from = &all[i]
					}
				}
				if from == nil {
					if got != (flow{seconds: span.Seconds()}) {
						t.Fatalf("nothing is known: %+v", got)
					}
					continue
				}
				if got.arrived != float64(d.Arrived-from.arrived) || got.done != float64(d.Done-from.done) || math.Abs(got.busy-(d.BusySeconds-from.busy)) > 1e-9 {
					t.Fatalf("%v before %v: %+v, since %+v", span, now, got, *from)
				}
				if got.seconds < span.Seconds() || got.seconds > (span+2*spacing).Seconds() {
					t.Fatalf("%v are %v s", span, got.seconds)
				}
			}
			if len(all) == 0 || now.Sub(all[len(all)-1].at) >= spacing {
				all = append(all, here)
			}
			w.add(here)
		}
	})
}

// TestRateNeedsMoreThanChance: the average of a minute counts, until the last ten
// seconds differ from it by more than chance explains.
func TestRateNeedsMoreThanChance(t *testing.T) {
	for _, c := range []struct{ lasting, short, want float64 }{
		{600, 100, 10}, {600, 129, 10}, {600, 144, 13.2}, {600, 69, 6.9}, {600, 71, 10}, {0, 3, 0}, {0, 4, 0.2},
	} {
		if got := rate(flow{seconds: 10, arrived: c.short}, flow{seconds: 60, arrived: c.lasting}); got != c.want {
			t.Errorf("%v in a minute and %v in ten seconds: %v per second, want %v", c.lasting, c.short, got, c.want)
		}
	}
}

// TestLearns: startup times are those of the last replicas that became ready,
// each once; the service time is an average of the last hundred or so requests.
func TestLearns(t *testing.T) {
	var l Learned
	var known seen
	at := func(started, ready float64) Replica {
		return Replica{ID: fmt.Sprint(started, ready), Ready: true, Started: t0.Add(time.Duration(started * 1e9)), ReadyAt: t0.Add(time.Duration(ready * 1e9))}
	}
	learn := func(rs ...Replica) { l, known = l.started(rs, known, t0) }
	if got := l.startup(median); got != unknownStartup {
		t.Errorf("nothing is known: %v", got)
	}
	rs := []Replica{at(0, 20), at(0, 40), at(0, 30), {ID: "starting", Starting: true, Started: t0}, {ID: "found", Ready: true, ReadyAt: t0.Add(time.Hour)}}
	learn(rs...)
	// An owner that has come back finds replicas ready later than they were.
	rs[0].ReadyAt = t0.Add(time.Hour)
	learn(rs...)
	// One of a revision that is desired again was not among them.
	learn(at(-7200, 3600))
	if len(l.Startups) > 0 || l.Differs(Learned{}) {
		t.Errorf("what was there before taught %+v", l)
	}
	rs = []Replica{at(1, 21), at(1, 41), at(1, 31), {ID: "starting", Starting: true, Started: t0}}
	for range 4 {
		learn(rs...)
	}
	rs[0].Ready = false
	learn(rs...)
	rs[0].Ready, rs[0].ReadyAt = true, t0.Add(time.Hour)
	learn(rs...) // ready again is not started again
	if got := l.startup(median); len(l.Startups) != 3 || got != 30 {
		t.Errorf("%+v: %v", l, got)
	}
	after := func(rs ...Replica) Learned { out, _ := l.started(rs, known, t0); return out }
	if stored := l; !l.Differs(Learned{}) || l.Differs(stored) || !after(at(100, 190), at(100, 191), at(100, 192)).Differs(stored) || after(at(100, 131)).Differs(stored) {
		t.Error("what is worth a write")
	}
	again := rs[1]
	again.Started, again.ReadyAt = t0.Add(2*time.Hour), t0.Add(2*time.Hour+50*time.Second)
	if got := after(again); len(got.Startups) != 4 { // of a process that took the place of one that crashed
		t.Errorf("%+v", got)
	}
	for i := range 100 {
		learn(at(float64(1000*(i+1)), float64(1000*(i+1)+5)))
	}
	if got := l.startup(0.9); len(l.Startups) != startups || got != 5 {
		t.Errorf("%+v: %v", l, got)
	}
	// Ten at once, each for 4 s, looked at every 2 s.
	for range 100 {
		l = l.served(flow{busy: 20, done: 5})
	}
	if got := l.seconds(flow{busy: 20, done: 5}); math.Abs(got-4) > 1e-6 {
		t.Errorf("each takes %v s, want 4", got)
	}
	if (Learned{}).served(flow{busy: 20, done: 4}).seconds(flow{busy: 20, done: 4}) != 0 {
		t.Error("four requests tell how long one takes")
	}
	// What a damaged record says does no harm.
	if got := (Learned{Startups: []float64{-5}}).startup(median); got != 0 {
		t.Errorf("a start of -5 s takes %v s", got)
	}
}

// TestDoesNotBuyTwice: while replicas start for a backlog, and nothing else
// arrives, no more are started.
func TestDoesNotBuyTwice(t *testing.T) {
	for _, startup := range []float64{2, 30, 120} {
		s := State{Last: t0, Learned: Learned{Startups: []float64{startup}, Service: 2, Requests: 100}}
		in := Input{Limits: limits(0, 100, 10), Demand: Demand{Queued: 400, Arrived: 400}}
		s, d := Step(s, in, t0)
		bought := d.Count
		for range bought {
			in.Replicas = append(in.Replicas, Replica{ID: string(rune('a' + len(in.Replicas))), Starting: true, Started: t0})
		}
		for at := 1.0; at < startup; at++ {
			if s, d = Step(s, in, t0.Add(time.Duration(at*1e9))); d.Count > bought {
				t.Fatalf("%v s of %v s after the start of %d: %+v", at, startup, bought, d)
			}
		}
		if bought < 2 || bought > 40 || startup > 2 && bought == 40 {
			t.Errorf("a start takes %v s: %d replicas for 400 requests of 2 s, 10 at once each", startup, bought)
		}
	}
}

// TestWhoLeavesTeachesNothing: a request that ends without having run says nothing of
// how long one runs, so those that wait go on to call for replicas.
func TestWhoLeavesTeachesNothing(t *testing.T) {
	d, s, now := Demand{}, State{}, t0
	step := func(seconds int, change func(*Demand)) (out Decision) {
		for range seconds {
			now = now.Add(time.Second)
			change(&d)
			s, out = Step(s, Input{Limits: limits(0, 10, 1), Demand: d, Replicas: ready(0, "a")}, now)
		}
		return out
	}
	step(60, func(d *Demand) { // each runs for 10 s
		d.Arrived, d.Done, d.Running, d.BusySeconds, d.LoadSeconds = d.Arrived+1, d.Done+1, 10, d.BusySeconds+10, d.LoadSeconds+10
	})
	known := s.Learned.Service
	got := step(600, func(d *Demand) { // none runs, and one leaves each second
		d.Arrived, d.Done, d.Left, d.Running, d.Queued, d.LoadSeconds = d.Arrived+1, d.Done+1, d.Left+1, 0, 60, d.LoadSeconds+60
	})
	if s.Learned.Service < known/2 || got.Need != 10 {
		t.Errorf("a request is taken to run for %.3f s, and for %.3f s before; %d replicas are needed, want 10", s.Learned.Service, known, got.Need)
	}
}
