package fleet_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/selection"
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
			r.reconcile("a") // which sees its replica ready
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
			r.reconcile("a")
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

// TestRuntimeOfTheSameApply: on a cluster a service may be seen before the runtime
// that was applied with it. The choice is made again for half a minute, and no
// longer than until a replica is ready.
func TestRuntimeOfTheSameApply(t *testing.T) {
	sleeping := "scaling: {minReplicas: 0}"
	for name, c := range map[string]struct {
		rest string
		then func(*rig) // between the choice and the runtime
		want string
	}{
		"at once":            {sleeping, func(*rig) {}, "baobab"},
		"half a minute on":   {sleeping, func(r *rig) { r.now = r.now.Add(30 * time.Second) }, "oak"},
		"the clock went":     {sleeping, func(r *rig) { r.now = r.now.Add(-time.Hour) }, "oak"},
		"a replica starts":   {one, func(*rig) {}, "baobab"},
		"a replica is ready": {one, func(r *rig) { r.reconcile("a") }, "oak"},
		"another process":    {sleeping, func(r *rig) { r.restart() }, "oak"},
		"an edit": {one, func(r *rig) {
			r.reconcile("a")
			r.now = r.now.Add(time.Hour)
			r.apply(serviceYAML("a", "protocol: v2, "+one))
		}, "baobab"},
		"an edit of the scaling": {one, func(r *rig) {
			r.reconcile("a")
			r.now = r.now.Add(time.Hour)
			r.apply(serviceYAML("a", "scaling: {minReplicas: 2}"))
		}, "oak"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.platform.programs = append(r.platform.programs, "baobab")
			r.apply(serviceYAML("a", c.rest))
			r.reconcile("a")
			if r.runs("a") != "oak" {
				t.Fatalf("runs %s before there is a baobab", r.runs("a"))
			}
			c.then(r)
			r.apply(runtimeYAML("baobab", 9))
			r.reconcile("a")
			if r.runs("a") != c.want {
				t.Errorf("runs %s, want %s", r.runs("a"), c.want)
			}
		})
	}
}

// TestRuntimeDuringTheChoice: a runtime that comes after a reconcile has chosen, and
// before it has ended, is chosen by the next.
func TestRuntimeDuringTheChoice(t *testing.T) {
	for name, edited := range map[string]bool{"new": false, "edited": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.platform.programs = append(r.platform.programs, "baobab")
			r.apply(serviceYAML("a", one))
			if edited {
				r.reconcile("a")
				r.reconcile("a")
				r.now = r.now.Add(time.Hour)
				r.apply(serviceYAML("a", "protocol: v2, engine: {args: [x]}, "+one))
			}
			r.platform.applying = func() { r.apply(runtimeYAML("baobab", 9)) }
			r.reconcile("a")
			r.reconcile("a")
			if r.runs("a") != "baobab" {
				t.Errorf("runs %s", r.runs("a"))
			}
		})
	}
}

// TestRemoteModelBringsItsEnvironment: a model in a store, whose manifest says
// all that selection needs, is inspected where the machine lacks something; the
// environment that it brings stands in for that.
func TestRemoteModelBringsItsEnvironment(t *testing.T) {
	for _, c := range []struct {
		lacks, brings, chosen string
		asked                 int
	}{{"", "", "oak", 0}, {"lacks bark", "", "elm", 1}, {"lacks bark", "./bark.tar.gz", "oak", 1}} {
		r := newRig(t)
		r.catalog[0].Components.Engine.Local.Requires = []service.Requirement{{Python: []string{"bark"}}}
		r.restart()
		r.platform.lacks, r.models.brings = c.lacks, c.brings
		ex, err := r.Explain(t.Context(), parse(t, strings.Replace(serviceYAML("a", "scaling: {}"), "file:///m", "s3://models/m", 1))[0])
		if err != nil {
			t.Fatal(err)
		}
		if ex.Result.Chosen == nil || ex.Result.Chosen.Name != c.chosen || r.models.asked != c.asked {
			t.Errorf("%+v: inspected %d times, chosen %+v", c, r.models.asked, ex.Result.Chosen)
		}
	}
}

// TestVersionOfAReferredModelIsMatched: what a BaseModel states of its format
// counts like what a service states in place.
func TestVersionOfAReferredModelIsMatched(t *testing.T) {
	const runtime = `apiVersion: ome.io/v1beta1
kind: ClusterServingRuntime
metadata: {name: %s}
spec:
  supportedModelFormats:
  - {modelFormat: {name: safetensors, version: %q, operator: %s}, autoSelect: true}
  engineConfig: {runner: {name: ome-container, image: example.com/engine}}
---
`
	manifest := fmt.Sprintf(runtime, "equal", "1.0.0", "Equal") + fmt.Sprintf(runtime, "above", "3.0.0", "GreaterThan")
	for version, want := range map[string]string{"1.0.0": "above equal", "2.0.0": "above", "2": "", "2.0.0-dev": "", "3.0.0": "", "4.0.0": ""} {
		r := newRig(t)
		r.apply(manifest + fmt.Sprintf(`apiVersion: ome.io/v1beta1
kind: BaseModel
metadata: {name: m}
spec:
  modelFormat: {name: safetensors, version: %q}
  modelParameterSize: 7B
  modelArchitecture: LlamaForCausalLM
  storage: {storageUri: "s3://models/m"}
`, version))
		s := parse(t, `apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {name: s}
spec: {model: {name: m}}
`)[0]
		ex, err := r.Explain(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		var matched []string
		for _, c := range ex.Result.Candidates {
			if slices.ContainsFunc(c.Rules, func(rule selection.Rule) bool { return rule.Name == selection.RuleFormat && rule.Pass }) {
				matched = append(matched, c.Name)
			}
		}
		slices.Sort(matched)
		if got := strings.Join(matched, " "); got != want {
			t.Errorf("version %s is served by %q, want %q\n%s", version, got, want, ex.Result.Explain())
		}
		if !strings.Contains(ex.Result.Explain(), "safetensors "+version+" (from BaseModel m)") {
			t.Errorf("version %s is not explained:\n%s", version, ex.Result.Explain())
		}
	}
}
