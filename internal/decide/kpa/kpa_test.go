package kpa

import (
	"math"
	"testing"
	"time"
)

// driver feeds a state a script: in every second so many requests wait or run
// all the time, and so many replicas are ready.
type driver struct {
	cfg   Config
	state State
	view  View
	made  Decision
}

// step is a part of a script.
type step struct {
	second int
	load   int
	ready  int
	want   int
	why    string
}

func (d *driver) step(at time.Duration) int {
	d.view.LoadSeconds += float64(d.view.Load) * (at - d.view.Now).Seconds()
	d.view.Now = at
	d.state, d.made = d.state.Step(d.cfg, d.view)
	return d.made.Count
}

func (d *driver) play(t *testing.T, script []step) {
	t.Helper()
	for _, s := range script {
		d.view.Present, d.view.Ready, d.view.Load = s.ready, s.ready, s.load
		count := -1
		for at := d.view.Now.Truncate(time.Second) + time.Second; at <= time.Duration(s.second)*time.Second; at += time.Second {
			count = d.step(at)
		}
		if count != s.want {
			t.Errorf("at %d s, load %d, %d ready: %d replicas, want %d: %s", s.second, s.load, s.ready, count, s.want, s.why)
		}
	}
}

// begin is a driver that has seen a second without anything, and then a first
// request at 1.3 s.
func begin(t *testing.T, cfg Config, first int) *driver {
	t.Helper()
	d := &driver{cfg: cfg}
	d.step(0)
	d.step(time.Second)
	d.view.Load = 1
	if n := d.step(1300 * time.Millisecond); n != first {
		t.Fatalf("a first request asks for %d replicas, want %d", n, first)
	}
	return d
}

// Each count is computed by hand of Knative's rules: replicas take 10, of which 70 %
// is the target, 7; the windows are 60 s and 6 s.
func TestByHand(t *testing.T) {
	changed := func(change func(c *Config)) Config {
		c := Default(10, 0, 0)
		change(&c)
		return c
	}
	for _, c := range []struct {
		name   string
		cfg    Config
		first  int
		script []step
	}{
		{"panic begins at 200 %", Default(10, 0, 0), 1, []step{
			{2, 7, 1, 1, "the request told at once and 0.7*7 less that one: (1 + 3.9)/2, which one takes"},
			{16, 7, 1, 1, "7 per replica is the target: 100 %"},
			{22, 14, 1, 2, "the panic window is at 14, 200 % of one"},
			{24, 0, 2, 2, "in panic a count does not fall"},
			{60, 0, 2, 2, "less than 60 s after the last time over 200 %"},
		}},
		{"not below 200 %", Default(10, 0, 0), 1, []step{
			{60, 7, 4, 2, "one would do, but at most half of four may go at once"},
			{62, 28, 4, 2, "(4*7 + 2*28)/6 = 14, which two take: 50 % of four"},
			{90, 28, 4, 3, "the stable window: 30 at 7 and 28 at 28 and less are about 17.5, which three take"},
		}},
		{"the rate of rises", changed(func(c *Config) { c.MaxScaleUpRate = 3 }), 1, []step{
			{4, 1000, 1, 3, "three times the one"},
			{6, 1000, 3, 9, "three times the three"},
		}},
		{"without that rate it is 1000", Default(10, 0, 0), 1, []step{
			{8, 20000, 1, 1000, "a thousand times the one, not 20000/7"},
		}},
		{"the rate of falls", changed(func(c *Config) { c.StableWindow, c.PanicThreshold = 6*time.Second, 1000 }), 1, []step{
			{8, 140, 20, 20, "140/7"},
			{20, 7, 20, 10, "half of twenty"},
			{22, 7, 10, 5, "half of ten"},
			{24, 7, 5, 2, "half of five, rounded down"},
			{26, 7, 2, 1, "one is enough"},
		}},
		{"activation-scale", changed(func(c *Config) { c.ActivationScale = 3 }), 3, []step{
			{2, 1, 0, 3, "at least three while any are wanted"},
			{30, 1, 3, 3, "at least three while any are wanted"},
		}},
		{"the grace period counts while the activator is not in the path", changed(func(c *Config) { c.BurstCapacity = 0 }), 1, []step{
			{2, 1, 1, 1, "a request"},
			{62, 0, 1, 1, "active since 2 s: for 60 s"},
			{64, 0, 1, 1, "inactive at the next step: the activator comes into the path"},
			{91, 0, 1, 1, "in the path for less than 30 s"},
			{96, 0, 1, 0, "for 30 s"},
		}},
		{"pod retention", changed(func(c *Config) { c.Retention = 2 * time.Minute }), 1, []step{
			{2, 1, 1, 1, "a request"},
			{180, 0, 1, 1, "inactive since 64 s at the latest: for less than 2 min"},
			{186, 0, 1, 0, "for 2 min"},
		}},
	} {
		t.Run(c.name, func(t *testing.T) { begin(t, c.cfg, c.first).play(t, c.script) })
	}
}

func TestInitialScale(t *testing.T) {
	cfg := Default(10, 0, 0)
	d := &driver{cfg: cfg}
	if n := d.step(0); n != 0 || d.made.Again != 0 {
		t.Errorf("with initial scale 0 there are %d, and it looks again at %s; want none, and never", n, d.made.Again)
	}
	cfg.InitialScale = 3
	d = &driver{cfg: cfg}
	if n := d.step(0); n != 3 {
		t.Fatalf("%d replicas, want the initial 3", n)
	}
	d.play(t, []step{
		{second: 20, ready: 2, want: 3, why: "two of three are ready"},
		{second: 22, ready: 3, want: 1, why: "reached; none is wanted, so one stays for the stable window"},
	})
	d = &driver{cfg: cfg, state: Begin()}
	if n := d.step(0); n != 0 {
		t.Errorf("%d replicas, want none: the initial scale was reached before", n)
	}
}

// A returning autoscaler begins in panic, so that it ends nothing for want of data.
func TestReturn(t *testing.T) {
	d := &driver{cfg: Default(10, 0, 0), state: Begin()}
	d.view.Present, d.view.Ready = 4, 4
	d.step(0)
	d.play(t, []step{
		{second: 60, ready: 4, want: 4, why: "in panic for 60 s"},
		{second: 62, ready: 4, want: 2, why: "half of four"},
	})
}

// A replica that never becomes ready stops after the activation timeout, unless
// requests wait.
func TestActivationTimeout(t *testing.T) {
	cfg := Default(10, 0, 0)
	cfg.ActivationTimeout = 5 * time.Minute
	d := begin(t, cfg, 1)
	d.view.Present = 1
	for at := 2 * time.Second; at <= 301*time.Second; at += time.Second {
		if d.view.Load = 0; d.step(at) != 1 {
			t.Fatalf("%d replicas after %s, want 1 for 5 minutes", d.made.Count, at)
		}
	}
	if n := d.step(302 * time.Second); n != 0 {
		t.Errorf("%d replicas after 5 minutes, want none", n)
	}
}

// Steps at odd times, and late ones, find the same averages.
func TestLateSteps(t *testing.T) {
	d := begin(t, Default(10, 0, 0), 1)
	d.view.Load, d.view.Present, d.view.Ready = 20, 3, 3
	for _, at := range []float64{2.1, 3.02, 3.4, 7.9, 8.001, 20.5} {
		d.step(time.Duration(at * float64(time.Second)))
	}
	if math.Abs(d.made.Panic-20) > 1e-3 || d.made.Count != 3 {
		t.Errorf("the panic average is %v and the count %d, want 20 and 3", d.made.Panic, d.made.Count)
	}
}

// A step changes nothing of the state before.
func TestPure(t *testing.T) {
	d := begin(t, Default(10, 0, 0), 1)
	d.play(t, []step{{second: 9, load: 30, ready: 1, want: 5, why: "30 each"}})
	before := d.state
	v := d.view
	v.Now, v.LoadSeconds = 11*time.Second, v.LoadSeconds+60
	_, first := before.Step(d.cfg, v)
	for range 3 {
		if _, again := before.Step(d.cfg, v); again != first {
			t.Fatalf("%+v, then %+v", first, again)
		}
	}
}

// What was counted before it began is no load.
func TestBeginsLate(t *testing.T) {
	d := &driver{cfg: Default(10, 0, 0)}
	d.view = View{Now: time.Hour + 300*time.Millisecond, LoadSeconds: 1e6, Load: 1, Present: 1, Ready: 1}
	d.step(d.view.Now)
	d.play(t, []step{{second: 3610, load: 1, ready: 1, want: 1, why: "a request"}})
}
