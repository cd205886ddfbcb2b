package fleet_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// hallRuntime serves a repository, hutRuntime one model.
const hallRuntime = `apiVersion: roundhouse.dev/v1alpha1
kind: ClusterServingRuntime
metadata: {name: hall}
spec:
  supportedModelFormats: [{name: tree, version: "1", autoSelect: true, priority: 9}]
  protocolVersions: [v1, v2]
  local: {command: [roundhouse, serve, "{{.ModelPath}}", --name, "{{.Name}}"]}
`

func parent(rest string) string {
	return `---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: p}
spec: {predictor: {minReplicas: 1, model: {modelFormat: {name: tree}, resources: {limits: {memory: 100Mi}}` + rest + "}}}\n"
}

func child(name, memory string) string {
	return `---
apiVersion: serving.kserve.io/v1alpha1
kind: TrainedModel
metadata: {name: ` + name + `}
spec: {inferenceService: p, model: {framework: tree, storageUri: "s3://b/` + name + `", memory: ` + memory + "}}\n"
}

// guestsOf are the models that the platform was last told to load for p.
func (r *rig) guestsOf() (names []string) {
	for _, g := range r.platform.revisions[key("p")].Guests {
		names = append(names, g.Name+" "+g.Model.URI)
	}
	return names
}

// family reconciles p and its models until neither changes the other.
func (r *rig) family(names ...string) {
	r.t.Helper()
	for range 3 {
		for _, name := range append([]string{"p"}, names...) {
			r.reconcile(name)
		}
	}
}

// have has p's only replica have loaded these models, and failed with others.
func (r *rig) have(loaded []string, failed map[string]string) {
	v := replica.Replica{ID: "p-0", Service: key("p"), Role: service.RoleEngine, Revision: r.platform.revisions[key("p")].Hash,
		Phase: replica.Ready, Started: epoch, ReadyAt: epoch, PID: 100, Guests: map[string]replica.Guest{}}
	for _, name := range loaded {
		v.Guests[name] = replica.Guest{Loaded: true}
	}
	for name, why := range failed {
		g := v.Guests[name]
		g.Message, g.Failures, g.Retry = why, 3, r.now.Add(time.Minute)
		v.Guests[name] = g
	}
	r.platform.replicas[key("p")] = []replica.Replica{v}
}

// TestGuests: models are the guests of the service that they name, are ready where its
// replicas have loaded them, and have no workload of their own.
func TestGuests(t *testing.T) {
	r := newRig(t)
	r.apply(hallRuntime + parent("") + child("a", "40Mi") + child("b", "40Mi"))
	r.reconcile("a") // before its parent is resolved
	if v := r.traffic.views[key("a")]; v.Blocked || v.Cause != "not yet resolved" {
		t.Errorf("requests have to wait: %+v", v)
	}
	r.family("a", "b")
	if got := r.guestsOf(); !slices.Equal(got, []string{"a s3://b/a", "b s3://b/b"}) {
		t.Errorf("p is to load %q", got)
	}
	r.have([]string{"a"}, map[string]string{"b": "no tree"})
	r.family("a", "b")
	for _, call := range r.took() {
		if !strings.Contains(call, "default/p") {
			t.Errorf("the platform was told %q", call)
		}
	}
	if c := r.ready("a"); c.Status != "True" {
		t.Errorf("a is %+v", c)
	}
	if v := r.traffic.views[key("a")]; v.Host != key("p") || len(v.Replicas) != 1 || v.Replicas[0].Phase != replica.Ready {
		t.Errorf("of a was published %+v", v)
	}
	if c := r.ready("b"); c.Status != "False" || c.Reason != "ModelLoadFailed" || c.Message != "no tree" {
		t.Errorf("b is %+v", c)
	}
	if v := r.traffic.views[key("b")]; !v.Blocked || v.Cause != "no tree" || v.RetryAfter == 0 {
		t.Errorf("of b was published %+v", v)
	}
	st, err := r.Get(t.Context(), key("b"))
	if err != nil || len(st.Replicas) != 1 || st.Replicas[0].Phase != replica.Failed || st.Status.Model.LastFailure == nil {
		t.Errorf("b has %+v, %v", st, err)
	}
	// Files that a replica refuses leave what it had.
	r.have([]string{"a", "b"}, map[string]string{"b": "rotten"})
	r.family("a", "b")
	if c := r.ready("b"); c.Status != "True" || !strings.Contains(c.Message, "rotten") {
		t.Errorf("b is %+v", c)
	}
	r.have([]string{"a", "b"}, nil)
	r.family("a", "b")
	if c := r.ready("b"); c.Status != "True" || strings.Contains(c.Message, "rotten") {
		t.Errorf("b is %+v", c)
	}
	// What wakes a model wakes its parent; the replicas are not its own to end.
	if err := r.Sleep(t.Context(), key("a")); err == nil || !strings.Contains(err.Error(), "those of default/p load it") {
		t.Errorf("sleep: %v", err)
	}

	// While the parent is stopped, its models say so, and stay its guests.
	r.apply(strings.Replace(parent("")[4:], "{name: p}", `{name: p, annotations: {serving.kserve.io/stop: "true"}}`, 1))
	r.family("a", "b")
	if c := r.ready("a"); c.Status != "False" || c.Reason != "InferenceServiceNotReady" || !strings.Contains(c.Message, "stopped by its owner") {
		t.Errorf("a is %+v", c)
	}
	if v := r.traffic.views[key("a")]; !v.Blocked {
		t.Errorf("of a was published %+v", v)
	}
	r.apply(parent("")[4:])
	r.family("a", "b")
	if c := r.ready("a"); c.Status != "True" || len(r.guestsOf()) != 2 {
		t.Errorf("a is %+v, p is to load %q", c, r.guestsOf())
	}

	// A restart forgets no guest, though the models have not been looked at yet.
	r.restart()
	r.reconcile("p")
	if got := r.guestsOf(); len(got) != 2 {
		t.Errorf("after a restart p is to load %q", got)
	}
	if err := r.Delete(t.Context(), fleet.ID{Kind: "service", Key: key("a")}); err != nil {
		t.Fatal(err)
	}
	r.family("a", "b")
	if got := r.guestsOf(); !slices.Equal(got, []string{"b s3://b/b"}) {
		t.Errorf("p is to load %q", got)
	}
}

// TestGuestsMemory: the oldest models have the memory; one that does not fit is told so.
func TestGuestsMemory(t *testing.T) {
	r := newRig(t)
	r.apply(hallRuntime + parent("") + child("a", "60Mi"))
	r.now = r.now.Add(time.Minute)
	r.apply(child("b", "60Mi")[4:] + child("c", "40Mi"))
	r.family("a", "b", "c")
	if got := r.guestsOf(); !slices.Equal(got, []string{"a s3://b/a", "c s3://b/c"}) {
		t.Errorf("p is to load %q", got)
	}
	if c := r.ready("b"); c.Status != "False" || c.Reason != "MemoryResourceNotAvailable" || !strings.Contains(c.Message, "40 MiB are left") {
		t.Errorf("b is %+v", c)
	}
	if v := r.traffic.views[key("b")]; !v.Blocked {
		t.Errorf("of b was published %+v", v)
	}
	if err := r.Delete(t.Context(), fleet.ID{Kind: "service", Key: key("a")}); err != nil {
		t.Fatal(err)
	}
	r.family("a", "b", "c")
	if got := r.guestsOf(); !slices.Equal(got, []string{"b s3://b/b", "c s3://b/c"}) {
		t.Errorf("p is to load %q", got)
	}
}

// TestGuestsWithoutFiles: a model whose files are not there says so, and is no guest.
func TestGuestsWithoutFiles(t *testing.T) {
	r := newRig(t)
	o := strings.Replace(child("a", "1Mi"), "s3://b/a", "file:///gone", 1)
	r.models.fails = map[string]error{"file:///gone": notThere{}}
	r.apply(hallRuntime + parent("") + o + child("b", "1Mi"))
	r.family("a", "b")
	if got := r.guestsOf(); !slices.Equal(got, []string{"b s3://b/b"}) {
		t.Errorf("p is to load %q", got)
	}
	if c := r.ready("a"); c.Status != "False" || c.Message != "the model is gone" {
		t.Errorf("a is %+v", c)
	}
	r.models.fails = nil
	r.now = r.now.Add(time.Hour)
	r.family("a", "b")
	if got := r.guestsOf(); len(got) != 2 {
		t.Errorf("p is to load %q", got)
	}
}

// TestGuestsMove: models move between replicas of their own and those of their parent
// as that changes.
func TestGuestsMove(t *testing.T) {
	r := newRig(t)
	places := func(guest bool, why string) {
		t.Helper()
		r.family("a")
		_, own := r.platform.revisions[key("a")]
		if own == guest || (len(r.guestsOf()) == 1) != guest {
			t.Errorf("own replicas: %v; p is to load %q", own, r.guestsOf())
		}
		_, stored := r.store.records[key("a")]
		if stored == guest {
			t.Errorf("a record of its own: %v", stored)
		}
		st, err := r.Get(t.Context(), key("a"))
		if said := fmt.Sprint(st.Status.Conditions); err != nil || !strings.Contains(said, why) {
			t.Errorf("it says %s, %v", said, err)
		}
		ex, err := r.Explain(t.Context(), st.Object)
		if err != nil || !strings.Contains(ex.Placed, why) || ex.Result.Chosen == nil {
			t.Errorf("explained as %q, %+v, %v", ex.Placed, ex.Result, err)
		}
	}
	r.apply(hallRuntime + child("a", "1Mi"))
	r.reconcile("a")
	if _, own := r.platform.revisions[key("a")]; !own {
		t.Error("without a parent it has no replicas of its own")
	}
	r.apply(parent("")[4:])
	places(true, "is loaded into the replicas of p, which run on hall")
	r.apply(parent(`, storageUri: "s3://b/m"`)[4:])
	places(false, "p serves a model of its own")
	r.apply(parent(`, runtime: oak`)[4:])
	places(false, "p runs on oak, which loads no models")
	r.apply(parent("")[4:])
	places(true, "is loaded into the replicas of p")
	if err := r.Delete(t.Context(), fleet.ID{Kind: "service", Key: key("p")}); err != nil {
		t.Fatal(err)
	}
	r.family("a")
	if _, own := r.platform.revisions[key("a")]; !own {
		t.Error("without its parent it has no replicas of its own")
	}
}

// TestGuestsOfNothing: while the parent cannot be run, its models say so.
func TestGuestsOfNothing(t *testing.T) {
	r := newRig(t)
	r.apply(strings.Replace(parent("")[4:], "tree", "bush", 1) + child("a", "1Mi"))
	r.family("a")
	if c := r.ready("a"); c.Status != "False" || c.Reason != "InferenceServiceNotReady" || !strings.Contains(c.Message, "bush") {
		t.Errorf("a is %+v", c)
	}
	r.apply(parent("")[4:] + "---\n" + hallRuntime)
	r.family("a")
	if got := r.guestsOf(); len(got) != 1 {
		t.Errorf("p is to load %q", got)
	}
	r.platform.fail = errors.New("refused")
	r.apply(child("b", "1Mi")[4:])
	r.reconcile("b")
	if _, err := r.Reconcile(t.Context(), key("p")); err == nil {
		t.Error("the platform's refusal is lost")
	}
	r.platform.fail = nil
	r.family("a", "b")
	if got := r.guestsOf(); len(got) != 2 {
		t.Errorf("p is to load %q", got)
	}
}

// TestGuestsOfSeveralModels: a parent that names a runtime for several models gets it.
func TestGuestsOfSeveralModels(t *testing.T) {
	r := newRig(t)
	r.apply(strings.Replace(hallRuntime, "spec:\n", "spec:\n  multiModel: true\n", 1) + parent(", runtime: hall") + child("a", "1Mi"))
	r.family("a")
	if got := r.guestsOf(); len(got) != 1 || r.runs("p") != "hall" {
		t.Errorf("p runs on %q, is to load %q: %+v", r.runs("p"), got, r.ready("p"))
	}
}
