package fleet_test

import (
	"testing"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// TestFollow has one fleet decide and another, over the same platform, tell the
// request path of it without deciding anything.
func TestFollow(t *testing.T) {
	leader := newRig(t)
	leader.apply(serviceYAML("iris", "scaling: {minReplicas: 1}"))
	leader.reconcile("iris")
	leader.reconcile("iris")
	record := leader.store.records[key("iris")]

	r := newRig(t)
	r.follow = true
	r.restart()
	r.apply(serviceYAML("iris", "scaling: {minReplicas: 1}"))
	r.reconcile("iris")
	if v := r.traffic.views[key("iris")]; v.Blocked || v.Cause != "not yet resolved" {
		t.Errorf("before anything is decided: %+v", v)
	}
	r.Followed(key("iris"), &record, nil, false)
	r.platform.replicas[key("iris")] = []replica.Replica{{ID: "a", Service: key("iris"), Role: service.RoleEngine, Phase: replica.Ready, HTTP: "10.0.0.1:8080"}}
	r.reconcile("iris")
	v := r.traffic.views[key("iris")]
	if len(v.Replicas) != 1 || v.Protocol != service.ProtocolV2 || v.Limits.Max != 1 || v.Cause != "" {
		t.Errorf("followed: %+v", v)
	}
	r.Followed(key("iris"), &record, &service.Failure{Reason: "ImagePullBackOff", Message: "no such image"}, true)
	r.reconcile("iris")
	if v := r.traffic.views[key("iris")]; v.Reason != "ImagePullBackOff" || !v.Blocked {
		t.Errorf("with a failure: %+v", v)
	}
	if calls := r.took(); len(calls) > 0 {
		t.Errorf("a follower called the platform: %v", calls)
	}
	if len(r.store.records) > 0 {
		t.Errorf("a follower stored records: %v", r.store.records)
	}
	if err := r.Delete(t.Context(), fleet.ID{Kind: "service", Key: key("iris")}); err != nil {
		t.Fatal(err)
	}
	r.reconcile("iris")
	if _, there := r.traffic.views[key("iris")]; there || len(r.List()) > 0 {
		t.Error("a deleted service is still there")
	}
	if calls := r.took(); len(calls) > 0 {
		t.Errorf("a follower called the platform at a deletion: %v", calls)
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
}
