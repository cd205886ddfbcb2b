package fleet

import (
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/residency"
)

// TestWakePlanReads: each state of a plan says what is stopped, why, and how long
// the start takes.
func TestWakePlanReads(t *testing.T) {
	for state, c := range map[string]struct {
		plan residency.Plan
		want []string
	}{
		"fits":       {residency.Plan{}, []string{"stops    nothing: what it needs is free", "starts   in about 12s"}},
		"waits":      {residency.Plan{Wait: []residency.Verdict{{Service: "d/b", Why: "a is busy"}}}, []string{"waits    a is busy", "starts   in about 12s"}},
		"refused":    {residency.Plan{Refuse: []residency.Verdict{{Service: "d/b", Why: "too large"}}}, []string{"refused  too large"}},
		"makes room": {residency.Plan{Stop: []residency.Stop{{Service: "d/a", For: "d/b", Why: "it is idle"}, {Service: "d/c", For: "d/d"}}}, []string{"stops    d/a: it is idle"}},
	} {
		p := WakePlan{Service: "d/b", Need: residency.Need{GPUs: 1}, Startup: 12 * time.Second}
		p.judge(c.plan)
		if p.State != state {
			t.Errorf("state %q, want %q", p.State, state)
		}
		for _, want := range append(c.want, "needs    1 GPU") {
			if !strings.Contains(p.String(), want) {
				t.Errorf("%s reads %q", state, p)
			}
		}
		if strings.Contains(p.String(), "d/c") {
			t.Errorf("stops for another are told: %s", p)
		}
	}
}
