package fleet_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// loraYAML is a runtime that takes adapters and is told of their ranks.
const loraYAML = `apiVersion: roundhouse.dev/v1alpha1
kind: ClusterServingRuntime
metadata: {name: ash}
spec:
  supportedModelFormats: [{name: tree, version: "1", autoSelect: true}]
  protocolVersions: [v2]
  adapters: {args: [--lora], each: ["{{.Adapter}}={{.AdapterPath}}"], rank: [--rank, "{{.AdapterRank}}"]}
  engine: {image: ash, local: {command: [oak, "--port={{.Port}}"]}}
`

func adaptersYAML(adapters ...string) string {
	return strings.Replace(serviceYAML("a", one), "format:", "adapters: ["+strings.Join(adapters, ", ")+"], format:", 1)
}

// command is what a service's engine is started with.
func (r *rig) command(name string) string {
	rev := r.platform.revisions[key(name)]
	if c := rev.Component(service.RoleEngine); c != nil && c.Process != nil {
		return strings.Join(c.Process.Command, " ")
	}
	return ""
}

func TestAdaptersAreResolved(t *testing.T) {
	r := newRig(t)
	r.apply(loraYAML)
	r.models.ranks = map[string]int{"file:///sql": 4, "hf://org/chat": 20}
	r.apply(adaptersYAML(`{name: sql, uri: "file:///sql"}`, `{name: chat, uri: "hf://org/chat"}`))
	r.reconcile("a")
	if got, want := r.command("a"), `oak --port={{.Port}} --rank 32 --lora sql={{index .AdapterPaths "sql"}} chat={{index .AdapterPaths "chat"}}`; r.runs("a") != "ash" || got != want {
		t.Errorf("%s runs %s, want %s", r.runs("a"), got, want)
	}
	want := []workload.Adapter{{Name: "sql", URI: "file:///sql", Rank: 4}, {Name: "chat", URI: "hf://org/chat", Rank: 20}}
	if got := r.traffic.views[key("a")].Adapters; !slices.Equal(got, want) {
		t.Errorf("published are %+v", got)
	}

	// A revision that stands keeps the ranks that were found, also where a change
	// of counts has it rendered anew and nothing is to be found.
	hash, asked := r.platform.revisions[key("a")].Hash, r.models.asked
	r.models.ranks = nil
	r.apply(strings.Replace(adaptersYAML(`{name: sql, uri: "file:///sql"}`, `{name: chat, uri: "hf://org/chat"}`), "maxReplicas: 1", "maxReplicas: 3", 1))
	r.reconcile("a")
	if got := r.platform.revisions[key("a")]; got.Hash != hash || !strings.Contains(r.command("a"), "--rank 32") {
		t.Errorf("another count is revision %s, before %s: %s", got.Hash, hash, r.command("a"))
	}
	if n := r.models.asked - asked; n != 2 { // the model and the adapter on this machine
		t.Errorf("%d looks at files, want those at the two of this machine", n)
	}

	// Another adapter is another revision, on the same runtime.
	r.apply(adaptersYAML(`{name: sql, uri: "file:///sql", rank: 64}`))
	r.reconcile("a")
	if got := r.platform.revisions[key("a")].Hash; got == hash || r.runs("a") != "ash" || !strings.Contains(r.command("a"), "--rank 64 --lora sql=") {
		t.Errorf("revision %s, before %s: %s", got, hash, r.command("a"))
	}
	// None any more.
	r.apply(serviceYAML("a", one))
	r.reconcile("a")
	if got := r.command("a"); got != "oak --port={{.Port}}" || len(r.traffic.views[key("a")].Adapters) != 0 {
		t.Errorf("without adapters it runs %s", got)
	}
}

// TestAdaptersOfAServiceThatCannotRun: who asks for one is told what is wrong with
// its service, and not that there is no such model.
func TestAdaptersOfAServiceThatCannotRun(t *testing.T) {
	r := newRig(t)
	r.apply(adaptersYAML(`{name: sql, uri: "file:///sql"}`)) // no runtime takes any
	r.reconcile("a")
	v := r.traffic.views[key("a")]
	if want := []workload.Adapter{{Name: "sql", URI: "file:///sql"}}; !slices.Equal(v.Adapters, want) || !v.Blocked || v.Cause == "" {
		t.Errorf("published are %+v, %q", v.Adapters, v.Cause)
	}
}

type gone struct{ error }

func (gone) NotExist() bool { return true }

// TestAdapterIsNotThere: the failure names the adapter, and what ran goes on.
func TestAdapterIsNotThere(t *testing.T) {
	for _, tc := range []struct {
		name    string
		cluster bool
		fail    error
		runs    bool
		again   bool
	}{
		{"gone", false, gone{errors.New("no such repository")}, false, true},
		{"not reached", false, errors.New("timeout"), false, true},
		{"gone, from a cluster", true, gone{errors.New("no such repository")}, false, true},
		{"for pods alone to read", true, errors.New("403"), true, false},
		{"others are looked at", true, busy{}, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			r.cluster = tc.cluster
			r.restart()
			r.apply(loraYAML)
			r.apply(strings.Replace(serviceYAML("a", one), "file:///m", "s3://m", 1))
			r.reconcile("a")
			before := r.platform.revisions[key("a")].Hash
			r.models.fails = map[string]error{"hf://org/sql": tc.fail}
			r.apply(strings.Replace(adaptersYAML(`{name: sql, uri: "hf://org/sql"}`), "file:///m", "s3://m", 1))
			again := r.reconcile("a")
			after := r.platform.revisions[key("a")]
			if (after.Hash != before) != tc.runs || before == "" {
				t.Errorf("revision %s, before %s", after.Hash, before)
			}
			if (again > 0) != tc.again {
				t.Errorf("looked at again in %s", again)
			}
			st, err := r.Get(t.Context(), key("a"))
			if err != nil {
				t.Fatal(err)
			}
			f := st.Status.Model.LastFailure
			if tc.runs || errors.Is(tc.fail, busy{}) {
				if f != nil {
					t.Errorf("failure %+v", f)
				}
			} else if f == nil || f.Reason != "ModelLoadFailed" || f.Message != `adapter "sql": `+tc.fail.Error() {
				t.Errorf("failure %+v", f)
			} else {
				checkBefore(t, st.Status)
			}
		})
	}
}

// checkBefore checks that a status tells, in the one condition that all
// dialects have, of a change that cannot be run while its service serves.
func checkBefore(t *testing.T, st service.Status) {
	t.Helper()
	if ready := st.Conditions[0]; ready.Type != service.ConditionReady || ready.Status != "True" || !strings.HasSuffix(ready.Message, service.BeforeServes) {
		t.Errorf("%+v", ready)
	}
	if st.Model.Transition != service.BlockedByFailedLoad || st.Model.Target != service.ModelFailedToLoad || st.Model.Active == service.ModelFailedToLoad {
		t.Errorf("%+v", st.Model)
	}
}

type busy struct{}

func (busy) Error() string { return "busy" }
func (busy) Busy() bool    { return true }

// weightYAML is a FineTunedWeight.
func weightYAML(name, base, more string) string {
	return fmt.Sprintf(`apiVersion: ome.io/v1beta1
kind: FineTunedWeight
metadata: {name: %s}
spec: {baseModelRef: %s, modelType: LoRA, hyperParameters: {rank: 12}, storage: {storageUri: "hf://org/%s"}%s}
`, name, base, name, more)
}

// TestFineTunedWeights: what is wrong with a service's weights is said, and
// mended by whoever mends them.
func TestFineTunedWeights(t *testing.T) {
	r := newRig(t)
	r.apply(loraYAML + `---
apiVersion: ome.io/v1beta1
kind: BaseModel
metadata: {name: llama, namespace: default}
spec: {modelFormat: {name: tree}, storage: {storageUri: "hf://org/llama"}}
---
apiVersion: ome.io/v1beta1
kind: ClusterBaseModel
metadata: {name: sql}
spec: {modelFormat: {name: tree}, storage: {storageUri: "hf://org/other"}}
---
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {name: a}
spec: {model: {name: llama, fineTunedWeights: [sql]}, runtime: {name: ash}}
`)
	for _, step := range []struct{ manifest, want string }{
		{"", `no FineTunedWeight named "sql": apply it`},
		{weightYAML("sql", "{name: mistral}", ""), `FineTunedWeight "sql" is of base model "mistral", and the service serves "default/llama"`},
		{weightYAML("sql", "{name: llama, namespace: elsewhere}", ""), `FineTunedWeight "sql" is of base model "elsewhere/llama"`},
		{weightYAML("sql", "{name: llama}", ", disabled: true"), `FineTunedWeight "sql" is disabled`},
		{weightYAML("sql", "{name: llama}", ", configuration: {merged_weights: true}"), "holds merged weights"},
		{weightYAML("sql", "{name: llama, namespace: default}", ", configuration: {merged_weights: false}"), ""},
	} {
		if step.manifest != "" {
			r.apply(step.manifest)
		}
		r.reconcile("a")
		c := r.ready("a")
		if step.want != "" && (!strings.Contains(c.Message, step.want) || !strings.HasPrefix(c.Message, "spec.model.fineTunedWeights[0]: ")) {
			t.Errorf("got %q, want %q", c.Message, step.want)
		}
	}
	if !strings.HasSuffix(r.command("a"), `--rank 16 --lora sql={{index .AdapterPaths "sql"}}`) {
		t.Errorf("runs %q: %+v", r.command("a"), r.ready("a"))
	}
	if got := r.platform.revisions[key("a")].Model.Adapters; !slices.Equal(got, []workload.Adapter{{Name: "sql", URI: "hf://org/sql", Rank: 12}}) {
		t.Errorf("the revision has %+v", got)
	}

	// They are objects beside models, whatever models are called.
	if models, weights := r.Objects("model"), r.Objects("weight"); len(models) != 2 || len(weights) != 1 || weights[0].ID().String() != "weight sql" {
		t.Errorf("models %v, weights %v", models, weights)
	}
	before := r.platform.revisions[key("a")].Hash
	r.apply(strings.Replace(weightYAML("sql", "{name: llama}", ""), "hf://org/sql", "hf://org/sql-v2", 1))
	r.reconcile("a")
	if r.platform.revisions[key("a")].Hash == before {
		t.Error("weights that moved are no new revision")
	}
	r.restart()
	if len(r.Objects("weight")) != 1 {
		t.Error("they did not survive a restart")
	}
	if err := r.Delete(t.Context(), fleet.ID{Kind: "weight", Key: service.Key{Name: "sql"}}); err != nil || len(r.Objects("weight")) != 0 || len(r.Objects("model")) != 2 {
		t.Errorf("deleted: %v", err)
	}
}
