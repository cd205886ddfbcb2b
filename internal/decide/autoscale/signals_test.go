package autoscale

import (
	"math"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
)

func on(m service.ScaleMetric, target float64, lo, hi int) service.Limits {
	l := limits(lo, hi, target)
	l.Metric = m
	return l
}

// told are ready replicas whose engines tell what load has, one each.
func told(now time.Time, loads ...replica.Load) []Replica {
	out := ready(0, []string{"a", "b", "c", "d", "e", "f", "g", "h"}[:len(loads)]...)
	for i, l := range loads {
		if l.At.IsZero() {
			l.At = now
		}
		l.Tells = replica.Figures{Queue: true, KV: true}
		out[i].Load = &l
	}
	return out
}

// settled runs steps with an input until the third, and returns the last decision.
func settled(l service.Limits, in func(now time.Time) Input) Decision {
	var s State
	var d Decision
	for i := range 3 {
		now := t0.Add(time.Duration(i) * 2 * time.Second)
		step := in(now)
		step.Limits = l
		s, d = Step(s, step, now)
	}
	return d
}

func TestEngineSignals(t *testing.T) {
	l := func(waiting, running int, kv float64) replica.Load {
		return replica.Load{Waiting: waiting, Running: running, KV: kv, Blocks: 100, BlockTokens: 16}
	}
	for _, c := range []struct {
		name   string
		limits service.Limits
		loads  []replica.Load
		want   int
		why    string
	}{
		{"a queue that nobody here sent", on(service.MetricQueue, 2, 1, 9), []replica.Load{l(12, 8, 0)}, 2, "queue 12 of 2"},
		{"a queue within its target", on(service.MetricQueue, 2, 1, 9), []replica.Load{l(2, 8, 0)}, 1, "queue 2 of 2"},
		{"no more than four more at a time", on(service.MetricQueue, 2, 1, 99), []replica.Load{l(900, 8, 0)}, 5, "queue 900 of 2"},
		{"no more than twice the ready ones", on(service.MetricQueue, 2, 1, 99),
			[]replica.Load{l(900, 8, 0), l(900, 8, 0), l(900, 8, 0), l(900, 8, 0), l(900, 8, 0)}, 10, ""},
		{"no more than maxReplicas", on(service.MetricQueue, 2, 1, 3), []replica.Load{l(900, 8, 0)}, 3, "maxReplicas 3 (queue"},
		{"a full KV cache", on(service.MetricKV, 50, 1, 9), []replica.Load{l(0, 8, 0.9)}, 2, "kv 90 % of 50 %"},
		{"a KV cache near its target", on(service.MetricKV, 50, 1, 9), []replica.Load{l(0, 8, 0.54)}, 1, "kv 54 %"},
		{"tokens in the cache", on(service.MetricTokens, 500, 1, 9), []replica.Load{l(0, 8, 0.9)}, 3, "tokens 1440 of 500"},
		{"fewer, as far as a surplus may go", on(service.MetricKV, 50, 1, 9), []replica.Load{l(0, 1, 0.1), l(0, 1, 0.1), l(0, 1, 0.1)}, 3, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := settled(c.limits, func(now time.Time) Input { return Input{Replicas: told(now, c.loads...)} })
			if d.Count != c.want || !strings.Contains(d.Why, c.why) {
				t.Errorf("count %d (%s), want %d (%s)", d.Count, d.Why, c.want, c.why)
			}
			if len(d.Numbers.Signals) != 1 || d.Again == 0 {
				t.Errorf("signals %v, again %v", d.Numbers.Signals, d.Again)
			}
		})
	}
}

// TestLyingSignals: no value that cannot be, that is old, or that comes once moves
// the count, to zero or upwards.
func TestLyingSignals(t *testing.T) {
	kv := on(service.MetricKV, 50, 0, 50)
	external := on(service.MetricExternal, 10, 0, 50)
	external.External = &service.ExternalMetric{URL: "http://h", Query: "q"}
	name := external.Measured()[0].Name()
	reading := func(x float64, age time.Duration) func(time.Time) Input {
		return func(now time.Time) Input {
			return Input{Replicas: ready(0, "a", "b", "c"), External: map[string]Reading{name: {At: now.Add(-age), Value: x, Problem: "refused"}}}
		}
	}
	engine := func(x float64, age time.Duration) func(time.Time) Input {
		return func(now time.Time) Input {
			l := replica.Load{KV: x, Running: 1, At: now.Add(-age)}
			return Input{Demand: Demand{Running: 3}, Replicas: told(now, l, l, l)}
		}
	}
	for _, c := range []struct {
		name   string
		limits service.Limits
		in     func(time.Time) Input
		why    string
	}{
		{"external NaN", external, reading(math.NaN(), 0), "external q: not a number; the count stays"},
		{"external infinite", external, reading(math.Inf(1), 0), "infinite"},
		{"external negative", external, reading(-4, 0), "negative (-4)"},
		{"external old", external, reading(900, time.Hour), "last read 1h0m0s ago: refused"},
		{"external never read", external, func(time.Time) Input { return Input{Replicas: ready(0, "a", "b", "c")} }, "not read yet"},
		{"engine NaN", kv, engine(math.NaN(), 0), "a: not a number; the count stays"},
		{"engine negative", kv, engine(-1, 0), "negative"},
		{"engine old", kv, engine(0.99, time.Hour), "last read 1h0m0s ago"},
		{"engine silent", kv, func(time.Time) Input { return Input{Demand: Demand{Running: 1}, Replicas: ready(0, "a", "b", "c")} }, "metrics are not read"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s State
			for i := range 600 { // ten minutes: longer than any surplus is kept
				now := t0.Add(time.Duration(i) * time.Second)
				in := c.in(now)
				in.Limits = c.limits
				var d Decision
				if s, d = Step(s, in, now); d.Count != 3 || !strings.Contains(d.Why, c.why) {
					t.Fatalf("second %d: count %d (%s)", i, d.Count, d.Why)
				}
			}
		})
	}
	t.Run("one jump", func(t *testing.T) {
		var s State
		for i := range 60 {
			now := t0.Add(time.Duration(i) * time.Second)
			x := 0.5
			if i%2 == 1 {
				x = 1 // ten times as much is no more than all of it
			}
			var d Decision
			in := engine(x, 0)(now)
			in.Limits = kv
			if s, d = Step(s, in, now); d.Count != 3 {
				t.Fatalf("second %d: count %d (%s)", i, d.Count, d.Why)
			}
		}
	})
}

func TestExternalWakesAndKeeps(t *testing.T) {
	l := on(service.MetricExternal, 10, 0, 9)
	l.External = &service.ExternalMetric{URL: "http://h", Query: "q"}
	name := l.Measured()[0].Name()
	at := func(x float64) func(time.Time) Input {
		return func(now time.Time) Input { return Input{External: map[string]Reading{name: {At: now, Value: x}}} }
	}
	if d := settled(l, at(25)); d.Count != 3 {
		t.Errorf("25 of 10 each: count %d (%s)", d.Count, d.Why)
	}
	if d := settled(l, at(0)); d.Count != 0 || d.Again == 0 {
		t.Errorf("nothing: count %d (%s), again %v", d.Count, d.Why, d.Again)
	}
	with := l
	with.Metric, with.External, with.Target = service.MetricConcurrency, nil, 10
	with.Metrics = l.Measured()
	if d := settled(with, at(45)); d.Count != 4 { // four more at a time
		t.Errorf("beside requests: count %d (%s)", d.Count, d.Why)
	}
	if d := settled(with, func(time.Time) Input { return Input{Demand: Demand{Queued: 31, Arrived: 31}} }); d.Count != 4 {
		t.Errorf("requests ask for more than what is not known: count %d (%s)", d.Count, d.Why)
	}
}

func TestResourceSignals(t *testing.T) {
	use := func(cpu float64) func(time.Time) Input {
		return func(now time.Time) Input {
			in := Input{Demand: Demand{Running: 2, Arrived: 2}, Replicas: ready(0, "a", "b")}
			for i := range in.Replicas {
				in.Replicas[i].Use = &replica.Use{At: now, CPU: cpu, Memory: 10}
			}
			return in
		}
	}
	if d := settled(on(service.MetricCPU, 80, 0, 9), use(150)); d.Count != 4 || !strings.Contains(d.Why, "cpu 150 % of 80 %") {
		t.Errorf("count %d (%s)", d.Count, d.Why)
	}
	if d := settled(on(service.MetricMemory, 80, 0, 9), use(150)); d.Count != 2 {
		t.Errorf("count %d (%s)", d.Count, d.Why)
	}
	// Without requests it goes to zero, whatever a process takes.
	var s State
	var d Decision
	l := on(service.MetricCPU, 80, 0, 9)
	for i := range 300 {
		now := t0.Add(time.Duration(i) * time.Second)
		in := use(95)(now)
		in.Demand, in.Limits = Demand{}, l
		if s, d = Step(s, in, now); d.Count == 0 {
			break
		}
	}
	if d.Count != 0 {
		t.Errorf("after 5 idle minutes: count %d (%s)", d.Count, d.Why)
	}
	slots := on(service.MetricCPU, 80, 0, 9)
	slots.MaxConcurrency = 4
	if d := settled(slots, func(time.Time) Input { return Input{Demand: Demand{Queued: 20, Arrived: 20}} }); d.Count != 5 {
		t.Errorf("20 requests, 4 at a time: count %d (%s)", d.Count, d.Why)
	}
}

func TestRatioAsksForMore(t *testing.T) {
	_, d := Step(State{}, Input{Demand: Demand{Queued: 5, Arrived: 5}, Limits: limits(0, 5, 10), AtLeast: 4}, t0)
	if d.Count != 4 || d.Need != 1 || !strings.Contains(d.Why, "ratio") {
		t.Errorf("count %d, need %d (%s)", d.Count, d.Need, d.Why)
	}
	if _, d = Step(State{}, Input{Demand: Demand{Queued: 5, Arrived: 5}, Limits: limits(0, 3, 10), AtLeast: 4}, t0); d.Count != 3 {
		t.Errorf("count %d (%s)", d.Count, d.Why)
	}
}

// FuzzSignals: whatever is read, the count stays within the limits, and without a
// reason to be zero it is not.
func FuzzSignals(f *testing.F) {
	f.Add(uint8(4), 0.5, 1e300, int64(3), -1, 7)
	f.Add(uint8(7), math.Inf(1), math.NaN(), int64(-90), 1<<40, -5)
	f.Fuzz(func(t *testing.T, metric uint8, a, b float64, age int64, waiting, running int) {
		m := service.ScaleMetrics[int(metric)%len(service.ScaleMetrics)]
		l := on(m, 3, 1, 6)
		if m == service.MetricExternal {
			l.External = &service.ExternalMetric{URL: "http://h", Query: "q"}
		}
		name := service.MetricTarget{Metric: m, External: l.External}.Name()
		var s State
		for i, x := range []float64{a, b, a, b, b} {
			now := t0.Add(time.Duration(i) * 3 * time.Second)
			at := now.Add(time.Duration(age%100) * time.Second)
			in := Input{Limits: l, Replicas: told(now, replica.Load{At: at, KV: x, Waiting: waiting, Running: running, Blocks: 1 << 20, BlockTokens: 1 << 10}),
				External: map[string]Reading{name: {At: at, Value: x}}}
			in.Replicas[0].Use = &replica.Use{At: at, CPU: x, Memory: x}
			var d Decision
			if s, d = Step(s, in, now); d.Count < 1 || d.Count > 6 {
				t.Fatalf("%s %v: count %d (%s)", m, x, d.Count, d.Why)
			}
		}
	})
}
