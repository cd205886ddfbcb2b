package scaling

import (
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/kpa"
)

// both is Knative's contestant, with the product's preset beside it, which has to
// ask for the same count at every step.
type both struct {
	t         *testing.T
	knative   *Knative
	preset    *Shipped
	steps     int
	different int
}

func (b *both) Reacts(e Event) (time.Duration, bool) { return b.knative.Reacts(e) }

func (b *both) Step(v *View) Decision {
	b.steps++
	want, got := b.knative.Step(v), b.preset.Step(v)
	if got.Count != want.Count || got.Again != want.Again {
		if b.different++; b.different < 3 {
			b.t.Errorf("at %s the preset asks for %d and looks again at %s, want %d and %s", v.Now, got.Count, got.Again, want.Count, want.Again)
		}
	}
	return want
}

// The product's preset knative decides what Knative's contestant decides, with the
// defaults and with every annotation.
func TestPresetDecidesAsKnative(t *testing.T) {
	none, three, delay, window, retention := 0, 3, 20*time.Second, 30*time.Second, 90*time.Second
	panicPart, threshold, utilization, burst := 25.0, 150.0, 50.0, 0.0
	slots := float64(pool(time.Minute).Slots)
	set := kpa.Default(slots, 0, limits().Max)
	set.StableWindow, set.PanicWindow, set.PanicThreshold, set.Utilization = window, panicPart, threshold, 0.5
	set.ScaleDownDelay, set.Retention, set.ActivationScale, set.BurstCapacity = delay, retention, three, burst
	for _, w := range Workloads() {
		trace := generate(t, w.Name, Asked{Seed: 1, Length: part(w, time.Hour)})
		for _, c := range []struct {
			cfg    kpa.Config
			stated service.Knative
		}{
			{kpa.Default(slots, 0, limits().Max), service.Knative{InitialScale: &none}},
			{set, service.Knative{InitialScale: &none, Window: &window, PanicWindow: &panicPart, PanicThreshold: &threshold, TargetUtilization: &utilization,
				ScaleDownDelay: &delay, Retention: &retention, ActivationScale: &three, BurstCapacity: &burst}},
		} {
			most, concurrency := limits().Max, int(slots)
			l := service.Scaling{Preset: service.PresetKnative, Knative: &c.stated, MaxConcurrency: &concurrency, MinReplicas: &none, MaxReplicas: &most}.Settled()
			b := &both{t: t, knative: NewKnative(c.cfg), preset: NewShipped(l, trace.Begin)}
			if _, err := Run(pool(time.Minute), trace, b); err != nil {
				t.Fatal(err)
			}
			if b.steps < 100 || b.different > 0 {
				t.Errorf("%s: %d of %d decisions differ", w.Name, b.different, b.steps)
			}
		}
	}
}
