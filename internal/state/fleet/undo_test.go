package fleet_test

import (
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// TestUndo: a service goes back to the manifest of its revision before, and by a
// second undo forth again. Counts and edits make no revision: they neither become what
// is gone back to, nor are they lost. What is kept outlives the process.
func TestUndo(t *testing.T) {
	r := newRig(t)
	of := func(env, scaling string) string {
		return serviceYAML("a", "engine: {containers: [{name: kserve-container, env: [{name: V, value: "+env+"}]}]}, scaling: {"+scaling+"}")
	}
	manifest := func() string {
		return string(r.store.objects[fleet.ID{Kind: "service", Key: key("a")}].Original)
	}
	undo := func() error { _, err := r.Fleet.Undo(t.Context(), key("a")); return err }
	has := func(when string, words ...string) {
		t.Helper()
		for _, w := range words {
			if !strings.Contains(manifest(), w) {
				t.Errorf("%s: no %q in\n%s", when, w, manifest())
			}
		}
	}
	if err := undo(); err == nil || !strings.Contains(err.Error(), "no service default/a") {
		t.Error(err)
	}
	r.apply(of("first", "minReplicas: 1"))
	r.apply(of("first", "minReplicas: 2"))
	if err := undo(); err == nil || !strings.Contains(err.Error(), "there is no earlier manifest") {
		t.Error(err)
	}
	r.apply(of("second", "minReplicas: 2"))
	r.apply(of("second", "minReplicas: 3"))
	if _, err := r.Fleet.Edit(t.Context(), key("a"), map[string]any{"spec": map[string]any{"stopped": true}}); err != nil {
		t.Fatal(err)
	}
	r.restart()
	if err := undo(); err != nil {
		t.Fatal(err)
	}
	has("undone", "first", "minReplicas: 2", "stopped: true")
	r.restart()
	if err := undo(); err != nil {
		t.Fatal(err)
	}
	has("undone again", "second", "minReplicas: 3", "stopped: true")
	r.apply(of("second", "minReplicas: 1")) // the edit stays, as ever
	has("applied again", "second", "minReplicas: 1", "stopped: true")
	r.apply(of("third", "minReplicas: 1"))
	if err := undo(); err != nil {
		t.Fatal(err)
	}
	has("undone at last", "second", "stopped: true")
}
