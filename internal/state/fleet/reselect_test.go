package fleet_test

import (
	"errors"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// TestReselectIsTriedAgain: a choice that was asked for anew, and could not be
// made or kept at once, is made when the inputs are looked at again.
func TestReselectIsTriedAgain(t *testing.T) {
	for name, c := range map[string]struct{ begins, ends func(*rig) }{
		"the record cannot be stored": {
			func(r *rig) { r.store.fail = errors.New("disk full") },
			func(r *rig) { r.store.fail = nil }},
		"the model is not there": {
			func(r *rig) { r.models.fail = notThere{} },
			func(r *rig) { r.models.fail = nil }},
		"no program": {
			func(r *rig) { r.platform.programs = nil },
			func(r *rig) { r.platform.programs = []string{"oak", "elm", "baobab"} }},
		"until somebody changes the manifest": {
			func(r *rig) { r.models.fail = notThere{} },
			func(r *rig) {
				r.models.fail = nil
				r.apply(serviceYAML("a", "scaling: {minReplicas: 1, maxReplicas: 2}"))
			}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.apply(serviceYAML("a", one))
			r.reconcile("a")
			r.platform.programs = append(r.platform.programs, "baobab")
			r.apply(runtimeYAML("baobab", 9))
			if _, err := r.Apply(t.Context(), parse(t, serviceYAML("a", one)), fleet.ApplyOptions{Reselect: true}); err != nil {
				t.Fatal(err)
			}
			c.begins(r)
			if again := r.reconcile("a"); again == 0 || r.runs("a") != "oak" {
				t.Fatalf("runs %s, looked at again after %v", r.runs("a"), again)
			}
			c.ends(r)
			r.now = r.now.Add(time.Minute)
			r.reconcile("a")
			if r.runs("a") != "baobab" {
				t.Errorf("runs %s, and baobab was asked for", r.runs("a"))
			}
			// Once made it is pinned as any other.
			r.apply(runtimeYAML("cedar", 12))
			r.platform.programs = append(r.platform.programs, "cedar")
			r.apply(serviceYAML("a", "scaling: {minReplicas: 1, maxReplicas: 3}"))
			r.reconcile("a")
			if r.runs("a") != "baobab" {
				t.Errorf("a change of scaling chose anew: %s", r.runs("a"))
			}
		})
	}
}
