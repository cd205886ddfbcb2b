package fleet_test

import (
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// TestFollow has a fleet decide, and a follower tell the request path of it
// without deciding anything.
func TestFollow(t *testing.T) {
	leader := newRig(t)
	leader.apply(serviceYAML("iris", "scaling: {minReplicas: 1}"))
	leader.reconcile("iris")
	leader.reconcile("iris")
	record := leader.store.records[key("iris")]

	r := newFollower(t, serviceYAML("iris", "scaling: {minReplicas: 1}"))
	r.reconcile("iris")
	if v := r.traffic.views[key("iris")]; v.Blocked || v.Cause != "not yet resolved" {
		t.Errorf("before anything is decided: %+v", v)
	}
	r.SetDecision(key("iris"), fleet.Decision{Record: &record})
	r.platform.replicas[key("iris")] = []replica.Replica{{ID: "a", Service: key("iris"), Role: service.RoleEngine, Phase: replica.Ready, HTTP: "10.0.0.1:8080"}}
	r.reconcile("iris")
	v := r.traffic.views[key("iris")]
	if len(v.Replicas) != 1 || v.Protocol != service.ProtocolV2 || v.Limits.Max != 1 || v.Cause != "" {
		t.Errorf("followed: %+v", v)
	}
	r.SetDecision(key("iris"), fleet.Decision{Record: &record, Failure: &service.Failure{Reason: "ImagePullBackOff", Message: "no such image"}, Blocked: true})
	r.reconcile("iris")
	if v := r.traffic.views[key("iris")]; v.Reason != "ImagePullBackOff" || !v.Blocked {
		t.Errorf("with a failure: %+v", v)
	}
	if calls := r.took(); len(calls) > 0 {
		t.Errorf("a follower called the platform: %v", calls)
	}
	if err := r.Follower.Delete(t.Context(), fleet.ID{Kind: "service", Key: key("iris")}); err != nil {
		t.Fatal(err)
	}
	r.reconcile("iris")
	if _, there := r.traffic.views[key("iris")]; there {
		t.Error("a deleted service is still there")
	}
	if calls := r.took(); len(calls) > 0 {
		t.Errorf("a follower called the platform at a deletion: %v", calls)
	}
}

// TestFollowCanary: a follower gives a canary what the leader says, which sees
// why a replica is not ready, and what it finds itself where nobody says.
func TestFollowCanary(t *testing.T) {
	leader := newRig(t)
	k, c := key("iris"), key("iris").Canary()
	leader.apply(canaryYAML("--one", "20"))
	leader.settle("iris")
	leader.apply(canaryYAML("--two", "20"))
	leader.settle("iris")
	stable, canary := leader.store.records[k], leader.store.records[c]

	r := newFollower(t, canaryYAML("--two", "20"))
	r.platform.replicas[k] = []replica.Replica{{ID: "a", Service: k, Role: service.RoleEngine, Phase: replica.Ready}}
	r.platform.replicas[c] = []replica.Replica{{ID: "b", Service: c, Role: service.RoleEngine, Phase: replica.Starting, Revision: canary.Revision.Hash}}
	for _, step := range []struct {
		name   string
		record *fleet.Record
		says   *service.CanaryStatus
		want   int
	}{
		{"no record of it", nil, nil, 0},
		{"proven, and nobody says", &canary, nil, 20},
		{"the leader sees it fail", &canary, &service.CanaryStatus{Percent: 0}, 0},
		{"the leader says that it is ready", &canary, &service.CanaryStatus{Percent: 20}, 20},
		{"more than the manifest asks for", &canary, &service.CanaryStatus{Percent: 50}, 20},
		{"nonsense", &canary, &service.CanaryStatus{Percent: -5}, 0},
		{"gone", nil, nil, 0},
	} {
		r.SetDecision(c, fleet.Decision{Record: step.record})
		r.SetDecision(k, fleet.Decision{Record: &stable, Canary: step.says})
		r.settle("iris")
		if got := r.traffic.views[k].CanaryPercent; got != step.want {
			t.Errorf("%s: %d, want %d", step.name, got, step.want)
		}
		if _, there := r.traffic.views[c]; there != (step.record != nil) {
			t.Errorf("%s: the canary is known %v", step.name, there)
		}
	}
	if calls := r.took(); len(calls) > 0 {
		t.Errorf("a follower called the platform: %v", calls)
	}
}

// TestFollowGuests: a model that another service loads has the replicas of that one, as
// the record of that says, until it is no more, or stopped.
func TestFollowGuests(t *testing.T) {
	leader := newRig(t)
	leader.apply(hallRuntime + parent("") + child("a", "40Mi") + child("b", "40Mi"))
	leader.family("a", "b")
	record := leader.store.records[key("p")]
	if len(record.Revision.Guests) != 2 {
		t.Fatalf("p is to load %v", record.Revision.Guests)
	}
	r := newFollower(t, strings.TrimPrefix(parent(""), "---\n")+child("a", "40Mi")+child("b", "40Mi"))
	all := func() {
		r.settle("p")
		r.settle("a")
		r.settle("b")
	}
	ready := replica.Replica{ID: "x", Service: key("p"), Role: service.RoleEngine, Phase: replica.Ready, HTTP: "10.0.0.1:8080",
		Guests: map[string]replica.Guest{"a": {Loaded: true}, "b": {Failures: 3, Message: "no tree", Retry: r.now.Add(time.Hour)}}}
	r.platform.replicas[key("p")] = []replica.Replica{ready}
	r.SetDecision(key("p"), fleet.Decision{Record: &record})
	all()
	if v := r.traffic.views[key("a")]; v.Host != key("p") || len(v.Replicas) != 1 || v.Replicas[0].Phase != replica.Ready || v.Blocked {
		t.Errorf("of a is told %+v", v)
	}
	if v := r.traffic.views[key("b")]; v.Host != key("p") || !v.Blocked || v.Cause != "no tree" {
		t.Errorf("of b is told %+v", v)
	}
	if v := r.traffic.views[key("p")]; !v.Repository || v.Host != (service.Key{}) {
		t.Errorf("of p is told %+v", v)
	}

	// What the record has no longer is not served by it.
	less := record
	less.Revision.Guests = record.Revision.Guests[:1]
	r.SetDecision(key("p"), fleet.Decision{Record: &less})
	r.SetDecision(key("b"), fleet.Decision{Failure: &service.Failure{Reason: "MemoryResourceNotAvailable", Message: "declares too much"}, Blocked: true})
	all()
	if v := r.traffic.views[key("b")]; v.Host != (service.Key{}) || !v.Blocked || v.Cause != "declares too much" || len(v.Replicas) > 0 {
		t.Errorf("of b is told %+v", v)
	}
	// A stopped host is not woken by requests for its models.
	stopped := strings.Replace(strings.TrimPrefix(parent(""), "---\n"), "{name: p}", `{name: p, annotations: {serving.kserve.io/stop: "true"}}`, 1)
	if _, err := r.Follower.Apply(t.Context(), parse(t, stopped), fleet.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	all()
	if v := r.traffic.views[key("a")]; v.Host != (service.Key{}) || len(v.Replicas) > 0 {
		t.Errorf("of a is told %+v", v)
	}
	if calls := r.took(); len(calls) > 0 {
		t.Errorf("a follower called the platform: %v", calls)
	}
}

// TestReport is told of every reconcile that came to its end.
func TestReport(t *testing.T) {
	r := newRig(t)
	r.apply(serviceYAML("iris", "scaling: {minReplicas: 1}"))
	r.reconcile("iris")
	r.reconcile("iris")
	if n := len(r.reports); n != 2 || r.reports[1].Status.Model.Copies != 1 || r.reports[1].Revision == nil {
		t.Errorf("%d reports: %+v", n, r.reports)
	}
	r.retell = 300 * time.Millisecond
	if again := r.reconcile("iris"); again != r.retell {
		t.Errorf("it comes again after %s", again)
	}
}
