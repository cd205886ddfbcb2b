package fleet_test

import (
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

func canaryYAML(arg string, percent string) string {
	rest := `scaling: {minReplicas: 1}, engine: {args: ["` + arg + `"]}`
	if percent != "" {
		rest += ", canaryTrafficPercent: " + percent
	}
	return serviceYAML("iris", rest)
}

// settle reconciles the service and its canary as often as a change of the one
// may call for the other.
func (r *rig) settle(name string) {
	r.t.Helper()
	for range 3 {
		r.reconcile(name)
		if _, err := r.Reconcile(r.t.Context(), key(name).Canary()); err != nil {
			r.t.Fatal(err)
		}
	}
	r.reconcile(name)
}

func (r *rig) canary(name string) *service.CanaryStatus {
	r.t.Helper()
	st, err := r.Get(r.t.Context(), key(name))
	if err != nil {
		r.t.Fatal(err)
	}
	return st.Status.Canary
}

func args(r workload.Revision) string {
	var out []string
	for _, c := range r.Components {
		for _, k := range c.Pod.Containers {
			out = append(out, k.Args...)
		}
	}
	return strings.Join(out, " ")
}

func TestCanary(t *testing.T) {
	r := newRig(t)
	k, c := key("iris"), key("iris").Canary()
	r.apply(canaryYAML("--one", "20"))
	r.settle("iris")
	if got := args(r.platform.revisions[k]); got != "--one" || r.canary("iris") != nil || len(r.platform.revisions) != 1 {
		t.Fatalf("the first revision: %q, %+v", got, r.canary("iris"))
	}

	// A changed manifest runs beside, and takes nothing before it is ready.
	r.platform.replicas[c] = []replica.Replica{}
	r.apply(canaryYAML("--two", "20"))
	r.settle("iris")
	if args(r.platform.revisions[k]) != "--one" || args(r.platform.revisions[c]) != "--two" {
		t.Fatalf("revisions %v", r.platform.revisions)
	}
	if v := r.traffic.views[k]; v.CanaryPercent != 0 || r.canary("iris").Wanted != 20 || r.canary("iris").Why != "the canary is not ready yet; the previous revision answers all requests" {
		t.Errorf("before it is ready: %+v", r.canary("iris"))
	}
	delete(r.platform.replicas, c)
	r.settle("iris")
	if v := r.traffic.views[k]; v.CanaryPercent != 20 || r.canary("iris").Ready != 1 || len(r.List()) != 1 {
		t.Errorf("ready: %d, %+v", v.CanaryPercent, r.canary("iris"))
	}
	if !r.store.records[c].WasReady {
		t.Error("that it has been ready is not stored")
	}

	// A restart finds both.
	r.restart()
	writes := r.store.writes
	r.settle("iris")
	if v := r.traffic.views[k]; v.CanaryPercent != 20 || r.store.writes != writes || args(r.platform.revisions[k]) != "--one" {
		t.Errorf("after a restart: %d, %d writes", v.CanaryPercent, r.store.writes-writes)
	}

	// One that fails loses its share, and the status says why.
	r.platform.replicas[c] = []replica.Replica{{ID: "x", Service: c, Role: service.RoleEngine, Revision: r.platform.revisions[c].Hash, Phase: replica.Failed, Message: "exit code 7"}}
	r.settle("iris")
	if v, st := r.traffic.views[k], r.canary("iris"); v.CanaryPercent != 0 || !strings.Contains(st.Why, "exit code 7") || r.ready("iris").Status != "True" || r.ready("iris").Message != st.Why {
		t.Errorf("failing: %+v", st)
	}
	delete(r.platform.replicas, c)

	// Without the percentage it is the service, and alone.
	r.apply(canaryYAML("--two", ""))
	r.settle("iris")
	if _, there := r.platform.revisions[c]; there || args(r.platform.revisions[k]) != "--two" || r.canary("iris") != nil {
		t.Errorf("promoted: %v", r.platform.revisions)
	}
	if _, there := r.store.records[c]; there {
		t.Error("the canary's record stays")
	}
	if _, there := r.traffic.views[c]; there {
		t.Error("the canary's pool stays")
	}
}

// TestCanaryRolledBack has a manifest ask for what serves: there is nothing to
// run beside it.
func TestCanaryRolledBack(t *testing.T) {
	r := newRig(t)
	c := key("iris").Canary()
	r.apply(canaryYAML("--one", "10"))
	r.settle("iris")
	r.apply(canaryYAML("--two", "10"))
	r.settle("iris")
	if _, there := r.platform.revisions[c]; !there {
		t.Fatal("no canary")
	}
	r.apply(canaryYAML("--one", "10"))
	r.settle("iris")
	if _, there := r.platform.revisions[c]; there || r.canary("iris") != nil {
		t.Errorf("rolled back: %+v", r.canary("iris"))
	}
	if args(r.platform.revisions[key("iris")]) != "--one" {
		t.Errorf("serves %v", r.platform.revisions)
	}
}

func TestCanaryGoesWithItsService(t *testing.T) {
	r := newRig(t)
	r.apply(canaryYAML("--one", "10"))
	r.settle("iris")
	r.apply(canaryYAML("--two", "10"))
	r.settle("iris")
	if err := r.Delete(t.Context(), fleet.ID{Kind: "service", Key: key("iris")}); err != nil {
		t.Fatal(err)
	}
	r.settle("iris")
	if len(r.platform.revisions) > 0 || len(r.store.records) > 0 || len(r.traffic.views) > 0 {
		t.Errorf("left: %v %v %v", r.platform.revisions, r.store.records, r.traffic.views)
	}
}

// TestCanaryRefused keeps the service as it is and says what is wrong.
func TestCanaryRefused(t *testing.T) {
	r := newRig(t)
	r.apply(canaryYAML("--one", "10"))
	r.settle("iris")
	r.apply(strings.Replace(canaryYAML("--two", "10"), "name: tree", "name: shrub", 1))
	r.settle("iris")
	if st := r.canary("iris"); st == nil || st.Percent != 0 || !strings.Contains(st.Why, "shrub") || r.ready("iris").Status != "True" || r.ready("iris").Message != st.Why {
		t.Errorf("%+v", st)
	}
}
