package fleet_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

const one = "scaling: {minReplicas: 1, maxReplicas: 1}"

func TestReconcileResolvesAppliesAndScales(t *testing.T) {
	r := newRig(t)
	if got := r.apply(serviceYAML("a", one)); !slices.Equal(got, []string{"created"}) {
		t.Errorf("actions %v", got)
	}
	if v, ok := r.traffic.views[key("a")]; !ok || v.Blocked {
		t.Errorf("before the first reconcile requests have to wait, got %+v", v)
	}
	r.reconcile("a")
	if got, want := r.took(), []string{"apply default/a oak", "scale default/a/engine 1"}; !slices.Equal(got, want) {
		t.Errorf("the platform was told %q, want %q", got, want)
	}
	r.reconcile("a") // sees the replica
	if c := r.ready("a"); c.Status != "True" || c.Reason != "Serving" {
		t.Errorf("Ready is %+v", c)
	}
	if v := r.traffic.views[key("a")]; len(v.Replicas) != 1 || v.Protocol != service.ProtocolV2 || v.Limits.Max != 1 {
		t.Errorf("published was %+v", v)
	}
	if got := r.took(); len(got) != 0 {
		t.Errorf("a second reconcile told the platform %q", got)
	}
}

func TestApplyTellsWhatChanged(t *testing.T) {
	r := newRig(t)
	r.apply(serviceYAML("a", one))
	created := r.store.objects[fleet.ID{Kind: "service", Key: key("a")}].Created()
	r.now = r.now.Add(time.Hour)
	writes := r.store.writes
	if got := r.apply(serviceYAML("a", one)); got[0] != "unchanged" || r.store.writes != writes {
		t.Errorf("the same again is %v and wrote %d times", got, r.store.writes-writes)
	}
	if got := r.apply(serviceYAML("a", "scaling: {minReplicas: 0}")); got[0] != "configured" {
		t.Errorf("another scaling is %v", got)
	}
	if got := r.store.objects[fleet.ID{Kind: "service", Key: key("a")}].Created(); !got.Equal(created) {
		t.Errorf("created %s became %s", created, got)
	}
}

// TestChoiceIsPinned: a better runtime that comes later changes nothing until
// somebody asks, or until what the runtime was chosen for changes.
func TestChoiceIsPinned(t *testing.T) {
	r := newRig(t)
	r.apply(serviceYAML("a", one))
	r.reconcile("a")
	r.reconcile("a") // which sees its replica ready
	r.apply(runtimeYAML("baobab", 9))
	r.platform.programs = append(r.platform.programs, "baobab")
	r.reconcile("a")
	if r.runs("a") != "oak" {
		t.Errorf("a new runtime took over: %s", r.runs("a"))
	}
	r.apply(serviceYAML("a", "scaling: {minReplicas: 1, maxReplicas: 2}"))
	r.reconcile("a")
	if r.runs("a") != "oak" {
		t.Errorf("a change of scaling chose anew: %s", r.runs("a"))
	}
	if _, err := r.Apply(t.Context(), parse(t, serviceYAML("a", "scaling: {minReplicas: 1, maxReplicas: 2}")), fleet.ApplyOptions{Reselect: true}); err != nil {
		t.Fatal(err)
	}
	r.reconcile("a")
	if r.runs("a") != "baobab" {
		t.Errorf("--reselect runs %s", r.runs("a"))
	}
}

// TestStartupTimesOutliveTheProcess: how long starts took is known after a restart,
// to the status, to what clients are told, and to the autoscaler.
func TestStartupTimesOutliveTheProcess(t *testing.T) {
	r := newRig(t)
	r.apply(serviceYAML("a", one))
	r.reconcile("a")
	v := replica.Replica{ID: "a-0", Service: key("a"), Role: service.RoleEngine, Revision: r.platform.revisions[key("a")].Hash, Phase: replica.Starting, Started: r.now, PID: 1}
	see := func() {
		r.platform.replicas[key("a")] = []replica.Replica{v}
		r.reconcile("a")
	}
	see()
	r.now = r.now.Add(40 * time.Second)
	v.Phase, v.ReadyAt = replica.Ready, r.now
	see()
	r.platform.replicas[key("a")] = nil
	r.restart()
	r.reconcile("a")
	st, err := r.Get(t.Context(), key("a"))
	if err != nil || len(st.Status.Components) != 1 || st.Status.Components[0].StartupSeconds != 40 {
		t.Errorf("the status has %+v (%v)", st.Status.Components, err)
	}
	if got := r.traffic.views[key("a")].Startup; got != 40*time.Second {
		t.Errorf("clients are told that a start takes %v", got)
	}
	if got := r.store.records[key("a")].Learned[service.RoleEngine].Startups; !slices.Equal(got, []float64{40}) {
		t.Errorf("the record has %v", got)
	}
}

// TestRuntimeRenamed: a runtime that comes back under another name is another
// one; the service keeps its revision until it has to be resolved again.
func TestRuntimeRenamed(t *testing.T) {
	r := newRig(t)
	r.platform.programs = append(r.platform.programs, "baobab", "ginkgo")
	r.apply(runtimeYAML("baobab", 9))
	r.apply(serviceYAML("a", one))
	r.reconcile("a")
	if r.runs("a") != "baobab" {
		t.Fatalf("runs %s", r.runs("a"))
	}
	r.reconcile("a") // which sees its replica ready
	r.took()
	if err := r.Delete(t.Context(), fleet.ID{Kind: "runtime", Key: service.Key{Name: "baobab"}}); err != nil {
		t.Fatal(err)
	}
	r.apply(runtimeYAML("ginkgo", 9))
	r.reconcile("a")
	if got := r.took(); len(got) != 0 {
		t.Errorf("what ran was disturbed: %q", got)
	}
	r.apply(serviceYAML("a", "protocol: v2, "+one))
	r.reconcile("a")
	if r.runs("a") != "ginkgo" {
		t.Errorf("resolved again it runs %s", r.runs("a"))
	}
}

func TestServiceRenamed(t *testing.T) {
	r := newRig(t)
	r.apply(serviceYAML("a", one))
	r.reconcile("a")
	if err := r.Delete(t.Context(), fleet.ID{Kind: "service", Key: key("a")}); err != nil {
		t.Fatal(err)
	}
	r.apply(serviceYAML("b", one))
	r.reconcile("a")
	r.reconcile("b")
	if _, there := r.platform.revisions[key("a")]; there || r.runs("b") != "oak" {
		t.Errorf("the platform has %v", r.platform.revisions)
	}
	if _, there := r.traffic.views[key("a")]; there {
		t.Error("requests still go to the old name")
	}
	if len(r.store.objects) != 1 || len(r.store.records) != 1 {
		t.Errorf("stored are %v and %v", r.store.objects, r.store.records)
	}
	if _, err := r.Get(t.Context(), key("a")); !isNotFound(err) {
		t.Errorf("the old name: %v", err)
	}
}

func isNotFound(err error) bool {
	var missing *fleet.NotFoundError
	return errors.As(err, &missing)
}

func TestDeleteIsTriedAgain(t *testing.T) {
	r := newRig(t)
	r.apply(serviceYAML("a", one))
	r.reconcile("a")
	if err := r.Delete(t.Context(), fleet.ID{Kind: "service", Key: key("a")}); err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(t.Context(), fleet.ID{Kind: "service", Key: key("a")}); !isNotFound(err) {
		t.Errorf("deleted twice: %v", err)
	}
	r.platform.fail = errors.New("busy")
	if _, err := r.Reconcile(t.Context(), key("a")); err == nil {
		t.Error("a failed Remove is no error")
	}
	r.platform.fail = nil
	r.reconcile("a")
	if len(r.platform.revisions) != 0 || len(r.store.records) != 0 {
		t.Errorf("left are %v and %v", r.platform.revisions, r.store.records)
	}
}

// TestFailureKeepsTheOldRevision: what cannot be resolved leaves what runs as
// it is, says so, and is tried again.
func TestFailureKeepsTheOldRevision(t *testing.T) {
	for name, breaks := range map[string]struct {
		rest   string
		make   func(*rig)
		unmake func(*rig)
		says   string
	}{
		"no such runtime": {rest: "runtime: {name: ivy}, " + one, make: func(*rig) {}, says: "ivy",
			unmake: func(r *rig) {
				r.platform.programs = append(r.platform.programs, "ivy")
				r.apply(runtimeYAML("ivy", 1))
			}},
		"model gone": {rest: "engine: {env: [{name: A, value: b}]}, " + one, says: "gone",
			make:   func(r *rig) { r.models.fail = notThere{} },
			unmake: func(r *rig) { r.models.fail = nil }},
		"disk full": {rest: "engine: {env: [{name: A, value: b}]}, " + one, says: "no space",
			// The object is stored, its record is not.
			make:   func(r *rig) { r.store.fail = errors.New("no space left on device") },
			unmake: func(r *rig) { r.store.fail = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.apply(serviceYAML("a", one))
			r.reconcile("a")
			before := r.platform.revisions[key("a")].Hash
			r.apply(serviceYAML("a", breaks.rest))
			breaks.make(r)
			again := r.reconcile("a")
			if r.platform.revisions[key("a")].Hash != before {
				t.Error("what ran was replaced")
			}
			if again == 0 {
				t.Error("it is not tried again")
			}
			st, err := r.Get(t.Context(), key("a"))
			if err != nil || st.Status.Model.LastFailure == nil || !strings.Contains(st.Status.Model.LastFailure.Message, breaks.says) {
				t.Errorf("the status says %+v, want %q in it", st.Status.Model.LastFailure, breaks.says)
			}
			if c := r.ready("a"); c.Status != "True" {
				t.Errorf("it serves on, and Ready is %+v", c)
			}
			breaks.unmake(r)
			r.now = r.now.Add(again)
			r.reconcile("a")
			if r.platform.revisions[key("a")].Hash == before {
				t.Error("the cause is gone and nothing was resolved")
			}
		})
	}
}

type notThere struct{}

func (notThere) Error() string  { return "the model is gone" }
func (notThere) NotExist() bool { return true }

// TestLackingProgram: the status names it, requests are refused with the
// cause, and a reconcile after it has been installed runs the service.
func TestLackingProgram(t *testing.T) {
	r := newRig(t)
	r.platform.programs = nil
	r.apply(serviceYAML("a", one))
	again := r.reconcile("a")
	if again == 0 {
		t.Error("it is not looked for again")
	}
	if c := r.ready("a"); c.Status != "False" || !strings.Contains(c.Message, "oak is not on PATH: grow oak") {
		t.Errorf("Ready is %+v", c)
	}
	if v := r.traffic.views[key("a")]; !v.Blocked || !strings.Contains(v.Cause, "grow oak") {
		t.Errorf("published was %+v", v)
	}
	r.platform.programs = []string{"elm"}
	r.now = r.now.Add(again)
	r.reconcile("a")
	if r.runs("a") != "elm" {
		t.Errorf("with elm there it runs %q", r.runs("a"))
	}
}

// TestCustomCommandLacksItsProgram: the reason is not that of a missing runtime,
// the catalog's install line is in the message, and the program is looked for
// every second.
func TestCustomCommandLacksItsProgram(t *testing.T) {
	r := newRig(t)
	r.platform.programs = nil
	r.apply("apiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: a}\nspec: {engine: {local: {command: [oak, --mine]}}}\n")
	var again time.Duration
	for range 8 {
		again = r.reconcile("a")
		r.now = r.now.Add(again)
		if again > 1200*time.Millisecond {
			t.Errorf("it is looked for again after %s", again)
		}
	}
	if c := r.ready("a"); c.Status != "False" || c.Reason != replica.ReasonProgramMissing || c.Message != "oak is not on PATH: grow oak" {
		t.Errorf("Ready is %+v", c)
	}
	if v := r.traffic.views[key("a")]; !v.Blocked || !strings.Contains(v.Cause, "grow oak") {
		t.Errorf("published was %+v", v)
	}
	r.platform.programs = []string{"oak"}
	r.reconcile("a")
	if r.platform.revisions[key("a")].Hash == "" {
		t.Error("with the program there it does not run")
	}
}

// TestUnreadableModel: asking for it again waits longer and longer, whatever
// else has the service looked at, until it is applied again.
func TestUnreadableModel(t *testing.T) {
	r := newRig(t)
	r.models.fail = notThere{}
	r.apply(serviceYAML("a", one))
	for _, want := range []time.Duration{5, 10, 20, 40, 60, 60} {
		if again := r.reconcile("a"); again != want*time.Second {
			t.Errorf("looked at again after %s, want %ds", again, want)
		}
		asked := r.models.asked
		r.now = r.now.Add(2 * time.Second)
		if again := r.reconcile("a"); again != (want-2)*time.Second || r.models.asked != asked {
			t.Errorf("2s later: again after %s, asked %d times", again, r.models.asked-asked)
		}
		r.now = r.now.Add((want - 2) * time.Second)
	}
	r.reconcile("a")
	r.models.fail = nil
	if got := r.apply(serviceYAML("a", one)); got[0] != "unchanged" {
		t.Errorf("actions %v", got)
	}
	r.reconcile("a")
	if r.runs("a") != "oak" {
		t.Error("applied again, it was not looked at")
	}
}

// TestStartingAfterFailure: while a replica is tried again, the status still
// says what went wrong.
func TestStartingAfterFailure(t *testing.T) {
	r := newRig(t)
	r.apply(serviceYAML("a", one))
	r.reconcile("a")
	rep := replica.Replica{ID: "a-0", Role: service.RoleEngine, Revision: r.platform.revisions[key("a")].Hash,
		Phase: replica.Failed, Reason: "Exited", Message: "exited with code 3", Restart: r.now}
	for _, c := range []struct {
		phase  replica.Phase
		reason string
	}{{replica.Failed, "Exited"}, {replica.Fetching, "Fetching"}, {replica.Starting, "Starting"}, {replica.Ready, "Serving"}} {
		rep.Phase = c.phase
		if c.phase != replica.Failed {
			rep.Reason, rep.Message = "", ""
		}
		r.platform.replicas[key("a")] = []replica.Replica{rep}
		r.reconcile("a")
		got := r.ready("a")
		if got.Reason != c.reason || strings.Contains(got.Message, "exited with code 3") != (c.phase != replica.Ready) {
			t.Errorf("%s: Ready is %+v", c.phase, got)
		}
	}
}

// TestAsleepAfterFailure: a service that sleeps says that its last start failed, until
// a replica has been ready.
func TestAsleepAfterFailure(t *testing.T) {
	r := newRig(t)
	r.apply(serviceYAML("a", "scaling: {minReplicas: 0, maxReplicas: 1, scaleToZeroAfter: 1m}"))
	woken := func(rep replica.Replica) service.Condition {
		t.Helper()
		if err := r.Wake(t.Context(), key("a"), 1); err != nil {
			t.Fatal(err)
		}
		r.reconcile("a")
		rep.ID, rep.Role, rep.Revision = "a-0", service.RoleEngine, r.platform.revisions[key("a")].Hash
		r.platform.replicas[key("a")] = []replica.Replica{rep}
		r.reconcile("a")
		for range 3 {
			r.now = r.now.Add(time.Hour)
			r.reconcile("a")
		}
		if n := r.platform.counts[engine("a")]; n != 0 {
			t.Fatalf("idle, %d replicas are wanted", n)
		}
		r.platform.replicas[key("a")] = nil
		r.reconcile("a")
		return r.ready("a")
	}
	failed := woken(replica.Replica{Phase: replica.Failed, Reason: "Exited", Message: "exited with code 3"})
	if want := service.WakesAtRequest + "; the last try failed: exited with code 3"; failed.Reason != "Asleep" || failed.Message != want {
		t.Errorf("asleep after a failure, Ready is %+v", failed)
	}
	if c := woken(replica.Replica{Phase: replica.Ready}); c.Reason != "Asleep" || c.Message != service.WakesAtRequest {
		t.Errorf("asleep after an answer, Ready is %+v", c)
	}
}

// TestPlatformFailure: a revision the platform refused is handed to it again,
// the wish to wake included.
func TestPlatformFailure(t *testing.T) {
	r := newRig(t)
	r.apply(serviceYAML("a", "scaling: {minReplicas: 0, maxReplicas: 1}"))
	if err := r.Wake(t.Context(), key("a"), 1); err != nil {
		t.Fatal(err)
	}
	r.platform.fail = errors.New("out of order")
	for range 2 {
		if _, err := r.Reconcile(t.Context(), key("a")); err == nil || !strings.Contains(err.Error(), "out of order") {
			t.Fatalf("want the platform's error, got %v", err)
		}
	}
	if c := r.ready("a"); c.Status != "False" || !strings.Contains(c.Message, "out of order") {
		t.Errorf("Ready is %+v", c)
	}
	r.platform.fail = nil
	r.took()
	r.reconcile("a")
	if got, want := r.took(), []string{"apply default/a oak", "scale default/a/engine 1"}; !slices.Equal(got, want) {
		t.Errorf("the platform was told %q, want %q", got, want)
	}
}

// TestRestartWritesNothing: a fleet over an old store hands back every pinned
// revision, removes what nobody wants, and stores nothing.
func TestRestartWritesNothing(t *testing.T) {
	r := newRig(t)
	r.apply(serviceYAML("a", one) + "---\n" + serviceYAML("b", "scaling: {minReplicas: 0}"))
	r.reconcile("a")
	r.reconcile("b")
	hash := r.platform.revisions[key("a")].Hash
	r.platform.revisions[key("stray")] = r.platform.revisions[key("a")]
	r.took()
	writes := r.store.writes
	r.restart()
	for _, k := range []string{"a", "b"} {
		if v, ok := r.traffic.views[key(k)]; !ok || v.Blocked {
			t.Errorf("requests for %s have to wait from the start, got %+v", k, v)
		}
		r.reconcile(k)
	}
	calls := r.took()
	slices.Sort(calls)
	want := []string{"apply default/a oak", "apply default/b oak", "remove default/stray", "scale default/a/engine 1", "scale default/b/engine 0"}
	if !slices.Equal(calls, want) {
		t.Errorf("the platform was told %q, want %q", calls, want)
	}
	if r.store.writes != writes || r.platform.revisions[key("a")].Hash != hash {
		t.Errorf("%d writes; revision %s was %s", r.store.writes-writes, r.platform.revisions[key("a")].Hash, hash)
	}
	if c := r.ready("a"); c.Status != "True" {
		t.Errorf("Ready is %+v", c)
	}
}

func TestWakeAndSleep(t *testing.T) {
	r := newRig(t)
	r.apply(serviceYAML("a", "scaling: {minReplicas: 0, maxReplicas: 2, scaleToZeroAfter: 1m}"))
	r.reconcile("a")
	if c := r.ready("a"); c.Status != "True" || c.Reason != "Asleep" {
		t.Errorf("unasked, Ready is %+v", c)
	}
	if err := r.Wake(t.Context(), key("a"), 2); err != nil {
		t.Fatal(err)
	}
	r.reconcile("a")
	if n := r.platform.counts[engine("a")]; n != 2 {
		t.Errorf("woken to 2, it has %d", n)
	}
	if err := r.Sleep(t.Context(), key("a")); err != nil {
		t.Fatal(err)
	}
	r.reconcile("a")
	if n := r.platform.counts[engine("a")]; n != 0 {
		t.Errorf("put to sleep, it has %d", n)
	}
	st, err := r.Get(t.Context(), key("a"))
	if err != nil || st.Status.Components[0].StartupSeconds != 1 {
		t.Errorf("asleep, the last start took %v seconds (%v), want 1", st.Status.Components[0].StartupSeconds, err)
	}
	if err := r.Wake(t.Context(), key("nobody"), 1); !isNotFound(err) {
		t.Errorf("wake of what is not there: %v", err)
	}
}

// TestCrashLoop: requests wait over one crash, and are told at once when
// starts keep failing.
func TestCrashLoop(t *testing.T) {
	r := newRig(t)
	r.apply(serviceYAML("a", one))
	r.reconcile("a")
	for _, c := range []struct {
		wait    time.Duration
		starts  int
		blocked bool
		again   time.Duration
	}{{500 * time.Millisecond, 1, false, 0}, {500 * time.Millisecond, 2, true, time.Second}, {8 * time.Second, 0, true, 8 * time.Second}} {
		wait, blocked := c.wait, c.blocked
		r.platform.replicas[key("a")] = []replica.Replica{{ID: "a-0", Role: service.RoleEngine, Revision: r.platform.revisions[key("a")].Hash,
			Phase: replica.Failed, Reason: "Exited", Message: "exited with code 3", Restart: r.now.Add(wait), FailedStarts: c.starts}}
		r.reconcile("a")
		if v := r.traffic.views[key("a")]; v.Blocked != blocked || v.RetryAfter != c.again || v.Cause != "exited with code 3" {
			t.Errorf("tried again in %s: published was %+v", wait, v)
		}
		if c := r.ready("a"); c.Status != "False" || c.Reason != "Exited" {
			t.Errorf("Ready is %+v", c)
		}
	}
}

// TestApplyIsAllOrNothing: of runtimes between which a choice would be
// arbitrary, none is stored.
func TestApplyIsAllOrNothing(t *testing.T) {
	r := newRig(t)
	_, err := r.Apply(t.Context(), parse(t, serviceYAML("a", one)+"---\n"+runtimeYAML("baobab", 7)+"---\n"+runtimeYAML("ginkgo", 7)), fleet.ApplyOptions{})
	if err == nil || !strings.Contains(err.Error(), "priority") {
		t.Errorf("want an error about priorities, got %v", err)
	}
	if r.store.writes != 0 || len(r.List()) != 0 || len(r.traffic.views) != 0 {
		t.Errorf("%d writes, %d services", r.store.writes, len(r.List()))
	}
}

// TestDraft: explaining a file next to what is applied leaves no trace.
func TestDraft(t *testing.T) {
	r := newRig(t)
	d, err := r.Draft(t.Context(), parse(t, serviceYAML("a", one)+"---\n"+runtimeYAML("baobab", 9)))
	if err != nil {
		t.Fatal(err)
	}
	r.platform.programs = append(r.platform.programs, "baobab")
	ex, err := d.Explain(t.Context(), parse(t, serviceYAML("a", one))[0])
	if err != nil || ex.Result.Chosen == nil || ex.Result.Chosen.Name != "baobab" {
		t.Errorf("chosen is %+v (%v)", ex.Result.Chosen, err)
	}
	if r.store.writes != 0 || len(r.traffic.views) != 0 || len(r.List()) != 0 || len(r.Objects("runtime")) != 0 {
		t.Error("a draft left something behind")
	}
	if len(r.applied) != 0 || r.routed != 0 {
		t.Errorf("a draft told of %v, and %d times of routes", r.applied, r.routed)
	}
}

// TestApplied: what is done with runtimes is told, what changes nothing and what is done
// with services is not.
func TestApplied(t *testing.T) {
	r := newRig(t)
	for _, text := range []string{serviceYAML("a", one), runtimeYAML("baobab", 9), runtimeYAML("baobab", 9), runtimeYAML("baobab", 8)} {
		if _, err := r.Apply(t.Context(), parse(t, text), fleet.ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Delete(t.Context(), r.Objects("runtime")[0].ID()); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range r.applied {
		got = append(got, c.ID.Name+" "+c.Action)
	}
	if want := []string{"baobab created", "baobab configured", "baobab deleted"}; !slices.Equal(got, want) {
		t.Errorf("told %v, want %v", got, want)
	}
}

// TestSourced: objects remember the file they came from.
func TestSourced(t *testing.T) {
	r := newRig(t)
	objects := parse(t, serviceYAML("a", one)+"---\n"+runtimeYAML("baobab", 9)+"---\n"+serviceYAML("b", one))
	objects[0].Source, objects[1].Source = "/m/a.yaml", "/m/a.yaml"
	if _, err := r.Apply(t.Context(), objects, fleet.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	r.restart()
	var got []string
	for _, id := range r.Sourced(func(s string) bool { return strings.HasPrefix(s, "/m/") }) {
		got = append(got, id.String())
	}
	if want := []string{"runtime baobab", "service default/a"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestBusyModels: a model that is not looked at yet, since others are, is asked
// for soon again, and is no failure; one that has failed gives way.
func TestBusyModels(t *testing.T) {
	r := newRig(t)
	r.models.fail = tooMany{}
	r.apply(serviceYAML("a", "scaling: {minReplicas: 1}"))
	if again := r.reconcile("a"); again != time.Second || r.ready("a").Reason != "NoRevision" || r.runs("a") != "" {
		t.Errorf("again after %s, %+v, runs on %q", again, r.ready("a"), r.runs("a"))
	}
	r.models.fail = errors.New("no answer")
	r.apply(strings.Replace(serviceYAML("b", "scaling: {minReplicas: 1}"), ", format: {name: tree}", "", 1))
	for range 3 {
		r.now = r.now.Add(r.reconcile("b"))
	}
	failed := r.ready("b")
	r.models.fail = tooMany{}
	if again := r.reconcile("b"); again != 8*time.Second || r.ready("b") != failed {
		t.Errorf("again after %s, %+v", again, r.ready("b"))
	}
	r.models.fail = nil
	r.now = r.now.Add(time.Second)
	if r.reconcile("a"); r.runs("a") != "oak" {
		t.Errorf("once there is a turn it runs on %q", r.runs("a"))
	}
}

// tooMany is an error of Models.
type tooMany struct{}

func (tooMany) Error() string { return "too many" }
func (tooMany) Busy() bool    { return true }
