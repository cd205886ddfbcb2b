package scaling

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/kpa"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// driver feeds a scaler a script: in every second so many requests wait or run
// all the time, and so many replicas are ready.
type driver struct {
	scaler Scaler
	view   View
}

func (d *driver) replicas(n int) {
	d.view.Replicas = d.view.Replicas[:0]
	for i := range n {
		d.view.Replicas = append(d.view.Replicas, &Replica{ID: i, Ready: true})
	}
}

// until steps every second up to a time and returns the last count.
func (d *driver) until(second int, load float64, ready int) int {
	d.replicas(ready)
	count := -1
	for s := int(d.view.Now/time.Second) + 1; s <= second; s++ {
		now := time.Duration(s) * time.Second
		d.view.LoadSeconds += load * (now - d.view.Now).Seconds()
		d.view.Now, d.view.Running = now, int(load)
		count = d.scaler.Step(&d.view).Count
	}
	return count
}

// step is a part of a script.
type step struct {
	second int
	load   float64
	ready  int
	want   int
	why    string
}

func (d *driver) play(t *testing.T, script []step) {
	t.Helper()
	for _, s := range script {
		if got := d.until(s.second, s.load, s.ready); got != s.want {
			t.Errorf("at %d s, load %v, %d ready: %d replicas, want %d: %s", s.second, s.load, s.ready, got, s.want, s.why)
		}
	}
}

// wake has a first request come 0.3 s after the beginning.
func wake(t *testing.T, k *Knative) *driver {
	t.Helper()
	d := &driver{scaler: k}
	d.scaler.Step(&d.view)
	if _, reacts := k.Reacts(Idle); !reacts {
		t.Fatal("the first request is not told at once")
	}
	d.view.Now, d.view.Queued = 300*time.Millisecond, 1
	if n := k.Step(&d.view).Count; n != 1 {
		t.Fatalf("a first request asks for %d replicas, want 1", n)
	}
	return d
}

// Each count is computed by hand: containerConcurrency 10, so the target is 7.
func TestKnativeByHand(t *testing.T) {
	d := wake(t, NewKnative(kpa.Default(10, 0, 64)))
	d.view.LoadSeconds = 0
	d.view.Now, d.view.Queued = 0, 0
	d.play(t, []step{
		{second: 1, load: 15, want: 1, why: "no decision in odd seconds; the bucket gets 15 less the 1 told ahead"},
		{second: 2, load: 20, want: 2, why: "(1+14+20)/3 = 11.67, by 7 rounds up to 2: twice the one replica, so it panics"},
		{second: 4, load: 40, want: 4, why: "(1+14+20+40+40)/5 = 23"},
		{second: 6, load: 40, want: 5, why: "the panic window: (14+20+4*40)/6 = 32.33"},
		{second: 8, load: 0, ready: 5, want: 5, why: "in panic the count never falls"},
		{second: 66, load: 0, ready: 5, want: 5, why: "panic lasts until more than 60 s after the last time over the threshold, at 6 s"},
		{second: 68, load: 0, ready: 5, want: 2, why: "nothing in the window, but at most half of five may go"},
		{second: 70, load: 0, ready: 2, want: 1, why: "half of two"},
		{second: 72, load: 0, ready: 1, want: 1, why: "zero is wanted: it becomes inactive first"},
		{second: 73, load: 0, ready: 1, want: 0, why: "the activator has been in the path for the grace period, as 50 slots are fewer than 211"},
	})
	if again := d.scaler.(*Knative).Step(&View{Now: 74 * time.Second, LoadSeconds: d.view.LoadSeconds}).Again; again != 0 {
		t.Errorf("asleep, it looks again at %v", again)
	}
}

func TestKnativeSettingsByHand(t *testing.T) {
	cfg := kpa.Default(10, 0, 64)
	cfg.BurstCapacity = 0
	d := wake(t, NewKnative(cfg))
	d.play(t, []step{
		{second: 2, load: 5, ready: 1, want: 1, why: "5 of 7"},
		{second: 62, load: 0, ready: 1, want: 1, why: "the first second's bucket has left the window, yet it was active for less than 60 s"},
		{second: 64, load: 0, ready: 1, want: 1, why: "inactive: the activator comes into the path"},
		{second: 91, load: 0, ready: 1, want: 1, why: "in the path for less than 30 s"},
		{second: 96, load: 0, ready: 1, want: 0, why: "for 30 s"},
	})

	cfg = kpa.Default(10, 0, 64)
	cfg.MaxScaleUpRate = 2
	d = wake(t, NewKnative(cfg))
	d.play(t, []step{
		{second: 2, load: 100, ready: 1, want: 2, why: "at most twice the one that is ready"},
		{second: 4, load: 100, ready: 2, want: 4, why: "at most twice the two"},
	})

	cfg = kpa.Default(10, 1, 3)
	cfg.ScaleDownDelay = 20 * time.Second
	cfg.StableWindow = 6 * time.Second
	d = wake(t, NewKnative(cfg))
	d.play(t, []step{
		{second: 10, load: 100, ready: 1, want: 3, why: "the maximum"},
		{second: 20, load: 7, ready: 15, want: 3, why: "fewer are enough, but not for 20 s"},
		{second: 50, load: 7, ready: 1, want: 1, why: "for 20 s"},
		{second: 90, load: 0, ready: 1, want: 1, why: "the minimum"},
	})
}

func TestAverageByHand(t *testing.T) {
	cfg := DefaultAverage(10, 0, 64)
	cfg.Samples = 3
	d := &driver{scaler: NewAverage(cfg)}
	d.play(t, []step{
		{second: 9, load: 60, want: 1, why: "no sample yet, but a request"},
		{second: 10, load: 60, want: 2, why: "60/3 = 20"},
		{second: 20, load: 60, want: 4, why: "120/3"},
		{second: 30, load: 60, want: 6, why: "180/3"},
		{second: 50, load: 0, want: 2, why: "60/3"},
		{second: 60, load: 0, want: 0, why: "nothing"},
	})
}

func TestHPAByHand(t *testing.T) {
	h := NewHPA(DefaultHPA(10, 0, 64))
	at := func(second, load int) int {
		return h.Step(&View{Now: time.Duration(second) * time.Second, Running: load}).Count
	}
	for _, s := range []step{
		{second: 0, load: 0, want: 1, why: "never below one"},
		{second: 15, load: 10, want: 1, why: "on target"},
		{second: 30, load: 200, want: 5, why: "at most 4 more in 15 s, as 100 % is 1"},
		{second: 45, load: 200, want: 10, why: "twice as many"},
		{second: 60, load: 200, want: 20, why: "all that are wanted"},
		{second: 75, load: 215, want: 20, why: "within the tolerance of 10 %"},
		{second: 90, load: 10, want: 20, why: "fewer, but not yet for 5 minutes"},
		{second: 300, load: 50, want: 20, why: "the 20 of 75 s are 225 s old"},
		{second: 376, load: 10, want: 5, why: "the most within 5 minutes is 5"},
	} {
		if got := at(s.second, int(s.load)); got != s.want {
			t.Errorf("at %d s, load %v: %d replicas, want %d: %s", s.second, s.load, got, s.want, s.why)
		}
	}
}

// The rivals' figures change only when the simulation does. Those of the
// product's decision are not here: they change with every change of it.
func TestGoldenTable(t *testing.T) {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, "workload\tpolicy\tp50\tp99\tover 2 s\treplica-seconds\tstarts\tflaps")
	for _, w := range Workloads() {
		trace := generate(t, w.Name, Asked{Seed: 1, Length: part(w, 4*time.Hour)})
		for _, c := range Contestants() {
			if c.Name == "roundhouse" {
				continue
			}
			r, err := Case{Pool: pool(time.Minute), Trace: trace, Limits: limits(), Goal: 2 * time.Second}.Replay(c)
			if err != nil {
				t.Fatal(err)
			}
			m := r.Summarize(2 * time.Second)
			_, _ = fmt.Fprintf(tw, "%s\t%s\t%.1f\t%.1f\t%.3f\t%.0f\t%d\t%d\n", w.Name, c.Name, m.P50, m.P99, m.Late, m.ReplicaSeconds, m.Starts, m.Flaps)
		}
	}
	_ = tw.Flush()
	golden := filepath.Join("testdata", "table.golden")
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the table has changed (go test -update rewrites it):\n%s", b.String())
	}
}
