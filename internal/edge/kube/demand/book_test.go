package demand

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/autoscale"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// naive remembers every report that came and looks through all of them.
type naive struct{ came []Report }

// newest is a pod's report of a service that counts: of its newest instance
// heard so far, the one with the highest number that lists the service, or
// that is full and does not.
func (n *naive) sum(service string) (d autoscale.Demand, inFlight map[string]int) {
	inFlight = map[string]int{}
	newest := map[string]int64{}
	type at struct {
		pod      string
		instance int64
	}
	counts := map[at]Line{}
	number := map[at]uint64{}
	for _, r := range n.came {
		if r.Instance < newest[r.Pod] {
			continue
		}
		newest[r.Pod] = r.Instance
		k := at{r.Pod, r.Instance}
		listed := false
		for _, l := range r.Services {
			if l.Service == service {
				if listed = true; r.Number > number[k] {
					counts[k], number[k] = l, r.Number
				}
			}
		}
		if r.Full && !listed && r.Number > number[k] {
			l := counts[k]
			l.Queued, l.Running, l.InFlight = 0, 0, nil
			if _, ok := counts[k]; ok {
				counts[k], number[k] = l, r.Number
			}
		}
	}
	for k, l := range counts {
		d.Arrived, d.Done, d.LoadSeconds = d.Arrived+l.Arrived, d.Done+l.Done, d.LoadSeconds+l.Load
		if k.instance == newest[k.pod] {
			d.Queued, d.Running = d.Queued+l.Queued, d.Running+l.Running
			for pod, n := range l.InFlight {
				inFlight[pod] += n
			}
		}
	}
	return d, inFlight
}

// TestBookAgainstNaive: whatever is lost, repeated or late, the sums are those
// of what came; they never fall, and gateways that restart lose nothing.
func TestBookAgainstNaive(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 5))
	for round := range 300 {
		now := t0
		b, n := newBook(t0.Add(-time.Second), time.Hour), &naive{}
		services := []string{"a/x", "a/y", "b/x"}
		type gw struct {
			pod      string
			instance int64
			born     time.Time
			number   uint64
			lines    map[string]*Line
		}
		var gws []*gw
		start := func(pod string) *gw {
			now = now.Add(ms(1 + r.IntN(50)))
			return &gw{pod: pod, instance: now.UnixNano(), born: now, lines: map[string]*Line{}}
		}
		for i := range 3 {
			gws = append(gws, start(fmt.Sprint("gw-", i)))
		}
		var late []Report
		last := map[string]autoscale.Demand{}
		deliver := func(rep Report) {
			n.came = append(n.came, rep)
			b.take(&rep, now)
		}
		for range 60 {
			now = now.Add(ms(r.IntN(700)))
			i := r.IntN(len(gws))
			g := gws[i]
			if r.IntN(15) == 0 {
				gws[i] = start(g.pod)
				continue
			}
			rep := Report{Pod: g.pod, Instance: g.instance, Age: now.Sub(g.born).Milliseconds(), Full: r.IntN(4) == 0}
			g.number++
			rep.Number = g.number
			for _, s := range services {
				l := g.lines[s]
				if l == nil {
					l = &Line{Service: s}
					g.lines[s] = l
				}
				if r.IntN(3) == 0 {
					continue // nothing changed
				}
				l.Arrived += uint64(r.IntN(50))
				l.Queued, l.Running = r.IntN(3), r.IntN(5)
				l.Done = l.Arrived
				l.Load += r.Float64() * 5
				l.InFlight = map[string]int{"p1": l.Running}
				rep.Services = append(rep.Services, *l)
			}
			switch r.IntN(6) {
			case 0: // lost
			case 1:
				late = append(late, rep)
			case 2:
				deliver(rep)
				deliver(rep)
			default:
				deliver(rep)
			}
			if len(late) > 0 && r.IntN(3) == 0 {
				k := r.IntN(len(late))
				deliver(late[k])
				late = append(late[:k], late[k+1:]...)
			}
			for _, s := range services {
				d := b.demand(s, now)
				if before := last[s]; d.Arrived < before.Arrived || d.Done < before.Done || d.LoadSeconds < before.LoadSeconds-1e-9 {
					t.Fatalf("round %d: %s fell from %+v to %+v", round, s, before, d)
				}
				last[s] = d
			}
		}
		now = now.Add(maxSpan)
		pods := 0
		for _, s := range services {
			got := b.demand(s, now)
			want, inFlight := n.sum(s)
			pods += inFlight["p1"]
			if got.Arrived != want.Arrived || got.Done != want.Done || got.Queued != want.Queued || got.Running != want.Running ||
				math.Abs(got.LoadSeconds-want.LoadSeconds) > 1e-6 {
				t.Fatalf("round %d: %s: %+v, the naive sum is %+v", round, s, got, want)
			}
		}
		if b.pods["p1"] != pods {
			t.Fatalf("round %d: %d in flight on p1, naive %d", round, b.pods["p1"], pods)
		}
	}
}

func rep(pod string, instance int64, age time.Duration, number uint64, full bool, lines ...Line) *Report {
	return &Report{Pod: pod, Instance: instance, Age: age.Milliseconds(), Number: number, Full: full, Services: lines}
}

// TestUnknownUntilEveryLiveGatewayTold follows a controller's restart.
func TestUnknownUntilEveryLiveGatewayTold(t *testing.T) {
	b := newBook(t0, 15*time.Second)
	now := t0
	unknown := func(when string, want bool) {
		t.Helper()
		if got := b.demand("a/x", now).Unknown; got != want {
			t.Errorf("%s: unknown is %t", when, got)
		}
	}
	unknown("before anything is known", true)
	b.live = map[string]bool{"g1": true, "g2": true}
	unknown("before anybody told", true)
	x := Line{Service: "a/x", Arrived: 1000, Done: 999, Running: 1, Load: 5000}
	if all, changed := b.take(rep("g1", 1, time.Hour, 7, true, x), now); all || len(changed) != 1 {
		t.Error("a full report is asked for after one")
	}
	unknown("one of two told", true)
	if all, _ := b.take(rep("g2", 2, time.Hour, 90, false), now); !all {
		t.Error("a stranger's heartbeat does not ask for a full report")
	}
	unknown("the other told no more than a heartbeat", true)
	b.take(rep("g2", 2, time.Hour, 91, true), now)
	unknown("both told", false)
	if d := b.demand("a/x", now.Add(maxSpan)); d.Arrived != 0 || d.LoadSeconds != 0 || d.Running != 1 {
		t.Errorf("a gateway's history before this controller is no load now: %+v", d)
	}
	x.Arrived, x.Load = 1003, 5004
	now = now.Add(2 * time.Second)
	b.take(rep("g1", 1, time.Hour+2*time.Second, 8, false, x), now)
	if d := b.demand("a/x", now.Add(time.Second)); d.Arrived != 1 || math.Abs(d.LoadSeconds-2) > 1e-9 {
		t.Errorf("after half of the two seconds that it took: %+v", d)
	}
	if d := b.demand("a/x", now.Add(2*time.Second)); d.Arrived != 3 || d.LoadSeconds != 4 {
		t.Errorf("after all of it: %+v", d)
	}
	now = now.Add(16 * time.Second)
	b.take(rep("g2", 2, time.Hour, 92, false), now)
	if changed := b.sweep(now); len(changed) != 1 || changed[0] != "a/x" {
		t.Errorf("the silence of g1 changed %v", changed)
	}
	unknown("one is silent and still takes requests", true)
	if d := b.demand("a/x", now); d.Running != 0 || d.Arrived != 3 {
		t.Errorf("its requests in flight go, its counts stay: %+v", d)
	}
	b.live = map[string]bool{"g2": true}
	unknown("it takes no more requests", false)
	b.live["g1"] = true
	if all, _ := b.take(rep("g1", 1, time.Hour, 9, false, x), now); !all {
		t.Error("who was silent is not asked for all")
	}
	now = now.Add(maxSpan)
	if d := b.demand("a/x", now); d.Arrived != 3 || d.LoadSeconds != 4 || d.Running != 1 {
		t.Errorf("back: %+v", d)
	}
	// A new process in the same pod adds to what the one before counted.
	b.take(rep("g1", 5, 0, 1, true, Line{Service: "a/x", Arrived: 2, Queued: 2}), now)
	if d := b.demand("a/x", now.Add(maxSpan)); d.Arrived != 5 || d.Queued != 2 || d.Running != 0 {
		t.Errorf("restarted: %+v", d)
	}
	b.take(rep("g1", 5, 0, 2, false, Line{Service: "a/x", Gone: true}), now)
	if d := b.demand("a/x", now); d.Arrived != 0 || len(b.past) != 0 || len(b.services) != 0 {
		t.Errorf("deleted: %+v, %d past", d, len(b.past))
	}
}

// TestOnlyChangesAreTold: a full report of services that are idle has none of
// them looked at.
func TestOnlyChangesAreTold(t *testing.T) {
	b := newBook(t0, time.Minute)
	idle, busy := Line{Service: "a/idle", Arrived: 9, Done: 9}, Line{Service: "a/busy", Arrived: 1, Running: 1}
	for i, want := range []string{"[a/busy]", "[a/busy]", "[a/busy]", "[]"} {
		if i == 2 {
			busy.Running, busy.Done = 0, 1
		}
		_, changed := b.take(rep("g", 1, time.Hour, uint64(i+1), true, idle, busy), t0.Add(ms(i)))
		if got := fmt.Sprint(changed); got != want {
			t.Errorf("report %d: %s, want %s", i+1, got, want)
		}
	}
}

// TestLastDoneStands: a heartbeat, and what it says of the same request, moves
// nothing.
func TestLastDoneStands(t *testing.T) {
	b := newBook(t0, time.Minute)
	l := Line{Service: "a/x", Arrived: 1, Done: 1, Ago: 1001}
	b.take(rep("g", 1, 0, 1, true, l), t0.Add(10*time.Second))
	want := t0.Add(9 * time.Second)
	l.Ago = 5001
	b.take(rep("g", 1, 0, 2, false, l), t0.Add(15*time.Second))
	if d := b.demand("a/x", t0.Add(16*time.Second)); !d.LastDone.Equal(want) {
		t.Errorf("last done %v, want %v", d.LastDone, want)
	}
}

// TestBounds: more gateways and services than fit are refused or forgotten,
// and never more than the bound are kept.
func TestBounds(t *testing.T) {
	b := newBook(t0, time.Minute)
	for i := range maxGateways + 10 {
		b.take(rep(fmt.Sprint("g", i), 1, 0, 1, true), t0.Add(ms(i)))
	}
	if len(b.gateways) != maxGateways {
		t.Errorf("%d gateways", len(b.gateways))
	}
	for name, r := range map[string]Report{
		"no pod":    {Instance: 1, Number: 1},
		"number 0":  {Pod: "g", Instance: 1},
		"negative":  {Pod: "g", Instance: 1, Number: 1, Services: []Line{{Service: "a/x", Running: -1}}},
		"in flight": {Pod: "g", Instance: 1, Number: 1, Services: []Line{{Service: "a/x", InFlight: map[string]int{"p": -1}}}},
		"too many":  {Pod: "g", Instance: 1, Number: 1, Services: make([]Line, maxServices+1)},
	} {
		if r.Validate() == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
