package rollout

import (
	"testing"
	"testing/quick"
)

func TestStep(t *testing.T) {
	ten, zero, all := 10, 0, 100
	for _, c := range []struct {
		name string
		in   Input
		want Decision
	}{
		{"nothing serves", Input{Percent: &ten}, Decision{false, 0, "the manifest's revision is the service's"}},
		{"no percent", Input{Serving: true, Canary: Canary{Ready: 1}}, Decision{false, 0, "the manifest's revision is the service's"}},
		{"promoted", Input{Percent: &all, Serving: true, Canary: Canary{Ready: 1}}, Decision{false, 0, "the manifest's revision is the service's"}},
		{"rolled back", Input{Percent: &ten, Serving: true, Same: true}, Decision{false, 0, "the manifest's revision is the service's"}},
		{"starting", Input{Percent: &ten, Serving: true}, Decision{true, 0, "the canary is not ready yet; the previous revision answers all requests"}},
		{"ready", Input{Percent: &ten, Serving: true, Canary: Canary{Ready: 1}}, Decision{true, 10, "ready, takes 10 %"}},
		{"asked for nothing", Input{Percent: &zero, Serving: true, Canary: Canary{Ready: 1}}, Decision{true, 0, "ready, takes 0 %"}},
		{"asleep", Input{Percent: &ten, Serving: true, Canary: Canary{WasReady: true, Asleep: true}}, Decision{true, 10, "asleep, takes 10 % and wakes for it"}},
		{"never ready", Input{Percent: &ten, Serving: true, Canary: Canary{Asleep: true}}, Decision{true, 0, "the canary is not ready yet; the previous revision answers all requests"}},
		{"fails at the start", Input{Percent: &ten, Serving: true, Canary: Canary{Failing: "exit code 1"}}, Decision{true, 0, "the canary is not ready (exit code 1); the previous revision answers all requests"}},
		{"fails later", Input{Percent: &ten, Serving: true, Canary: Canary{WasReady: true, Failing: "exit code 1"}}, Decision{true, 0, "the canary is not ready (exit code 1); the previous revision answers all requests"}},
		{"one of two fails", Input{Percent: &ten, Serving: true, Canary: Canary{WasReady: true, Ready: 1, Failing: "exit code 1"}}, Decision{true, 10, "ready, takes 10 %"}},
		{"refused", Input{Percent: &ten, Serving: true, Canary: Canary{Refused: "no runtime"}}, Decision{true, 0, "the canary cannot be made (no runtime); the previous revision answers all requests"}},
	} {
		if got := Step(c.in); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// TestShare holds for every input: a share is what was asked for or nothing,
// and nobody gets one who never was ready.
func TestShare(t *testing.T) {
	err := quick.Check(func(percent uint8, in Input) bool {
		p := int(percent % 101)
		in.Percent = &p
		d := Step(in)
		switch {
		case d.Percent != 0 && d.Percent != p, d.Percent != 0 && !d.Canary:
			return false
		case in.Canary.Ready <= 0 && !in.Canary.WasReady && d.Percent != 0:
			return false
		}
		return d.Why != "" && d.Canary == (p < 100 && in.Serving && !in.Same)
	}, nil)
	if err != nil {
		t.Error(err)
	}
}
