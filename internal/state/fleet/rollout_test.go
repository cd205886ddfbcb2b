package fleet_test

import (
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// TestNewRevisionIsNotReady: while replicas of the one before serve, the
// service is ready, and its status says how the new one fares.
func TestNewRevisionIsNotReady(t *testing.T) {
	r := newRig(t)
	k := key("iris")
	r.apply(canaryYAML("--one", ""))
	r.settle("iris")
	old := r.platform.revisions[k].Hash
	r.apply(canaryYAML("--two", ""))
	r.settle("iris")
	now := r.platform.revisions[k].Hash
	one := func(hash string, p replica.Phase, message string) replica.Replica {
		return replica.Replica{ID: hash + message, Service: k, Role: service.RoleEngine, Revision: hash, Phase: p, Reason: "Why", Message: message}
	}
	since, last := r.now, service.UpToDate
	for _, c := range []struct {
		name       string
		replicas   []replica.Replica
		transition service.Transition
		target     service.ModelState
		serving    string
		message    string
	}{
		{"both ready", []replica.Replica{one(old, replica.Ready, ""), one(now, replica.Ready, "")}, service.UpToDate, service.ModelLoaded, now, ""},
		{"starting", []replica.Replica{one(old, replica.Ready, ""), one(now, replica.Starting, "")}, service.InProgress, service.ModelLoaded, old, "keeps serving"},
		{"no node", []replica.Replica{one(old, replica.Ready, ""), one(now, replica.Pending, "no node")}, service.InProgress, service.ModelLoaded, old, "keeps serving: no node"},
		{"failing", []replica.Replica{one(old, replica.Ready, ""), one(now, replica.Failed, "exit code 1")}, service.BlockedByFailedLoad, service.ModelFailedToLoad, old,
			"keeps serving: exit code 1"},
		{"tried again", []replica.Replica{one(old, replica.Ready, ""), {ID: now + "exit code 1", Service: k, Role: service.RoleEngine, Revision: now, Phase: replica.Starting}},
			service.InProgress, service.ModelLoaded, old, "keeps serving; the last try failed: exit code 1"},
		{"the old one fails", []replica.Replica{one(old, replica.Failed, "exit code 1"), one(now, replica.Ready, "")}, service.UpToDate, service.ModelLoaded, now, ""},
	} {
		r.platform.replicas[k] = c.replicas
		r.now = r.now.Add(time.Minute)
		r.settle("iris")
		st, err := r.Get(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		for _, cond := range st.Status.Conditions {
			if cond.Type == service.ConditionPredictorReady && (cond.Status != "True" || !strings.HasSuffix(cond.Message, c.message) || (c.message == "") != (cond.Message == "")) {
				t.Errorf("%s: %+v", c.name, cond)
			}
		}
		if st.Status.Model.Transition != c.transition {
			t.Errorf("%s: %s, want %s", c.name, st.Status.Model.Transition, c.transition)
		}
		if c.transition != last {
			since, last = r.now, c.transition
		}
		if got := st.Status.LatestSince; !got.Equal(since) {
			t.Errorf("%s: %s since %v, want %v", c.name, c.transition, got, since)
		}
		if st.Status.Model.Target != c.target {
			t.Errorf("%s: target %s, want %s", c.name, st.Status.Model.Target, c.target)
		}
		if got, want := st.Status.Components[0].Serving, workload.RevisionName("iris", c.serving); got != want {
			t.Errorf("%s: %s serves, want %s", c.name, got, want)
		}
	}
}

// TestTooFew says why a service that serves has fewer replicas than it should.
func TestTooFew(t *testing.T) {
	r := newRig(t)
	k := key("iris")
	r.apply(serviceYAML("iris", `scaling: {minReplicas: 3, maxReplicas: 3}`))
	r.settle("iris")
	hash := r.platform.revisions[k].Hash
	one := func(id string, p replica.Phase, message string) replica.Replica {
		return replica.Replica{ID: id, Service: k, Role: service.RoleEngine, Revision: hash, Phase: p, Reason: "Why", Message: message}
	}
	for _, c := range []struct {
		name, message string
		third         []replica.Replica
	}{
		{"starting", "", []replica.Replica{one("c", replica.Starting, "")}},
		{"refused", "engine: 2 of 3 ready: exceeded quota", []replica.Replica{one("c", replica.Pending, "exceeded quota")}},
		{"there", "", []replica.Replica{one("c", replica.Ready, "")}},
	} {
		r.platform.replicas[k] = append([]replica.Replica{one("a", replica.Ready, ""), one("b", replica.Ready, "")}, c.third...)
		r.settle("iris")
		if got := r.ready("iris"); got.Status != "True" || got.Message != c.message {
			t.Errorf("%s: %+v, want the message %q", c.name, got, c.message)
		}
	}
}

// TestRevisionBeforeIsOnRecord: the revision that served stays on record until
// its successor is ready, over edits that fail too and over a restart.
func TestRevisionBeforeIsOnRecord(t *testing.T) {
	r := newRig(t)
	before := func() string {
		if b := r.store.records[key("a")].Revision.Before; b != nil {
			return b.Hash
		}
		return ""
	}
	replicas := func(ready ...string) {
		var rs []replica.Replica
		for _, hash := range ready {
			rs = append(rs, replica.Replica{ID: hash, Service: key("a"), Role: service.RoleEngine, Revision: hash, Phase: replica.Ready})
		}
		r.platform.replicas[key("a")] = rs
	}
	edit := func(env string) (hash string) {
		r.apply(serviceYAML("a", "scaling: {minReplicas: 1}, engine: {containers: [{name: e, env: [{name: E, value: "+env+"}]}]}"))
		r.reconcile("a")
		return r.platform.revisions[key("a")].Hash
	}
	edit("never")
	good := edit("good")
	if got := before(); got != "" {
		t.Errorf("one that never served stands in: %s", got)
	}
	replicas(good)
	edit("broken")
	edit("worse")
	if got := before(); got != good {
		t.Errorf("while it fails: %q, want %q", got, good)
	}
	r.restart()
	r.reconcile("a")
	if b := r.platform.revisions[key("a")].Before; b == nil || b.Hash != good || b.Before != nil {
		t.Errorf("the platform got %+v", b)
	}
	mended := edit("mended")
	replicas(good, mended)
	r.reconcile("a")
	if b := r.platform.revisions[key("a")].Before; b != nil || before() != "" {
		t.Errorf("kept although the new one is ready: %q", before())
	}
	replicas(mended)
	edit("broken")
	if edit("mended"); before() != "" {
		t.Errorf("a revision stands in for itself")
	}
}
