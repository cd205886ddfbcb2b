package history

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
)

func TestChanges(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ready := func(status, message string) service.Status {
		return service.Status{Conditions: []service.Condition{{Type: service.ConditionReady, Status: status, Reason: "R", Message: message}}}
	}
	counts := func(n int) service.Status {
		return service.Status{Components: []service.ComponentStatus{{Role: service.RoleEngine, Desired: n}}}
	}
	canary := func(name string, percent int) service.Status {
		return service.Status{Canary: &service.CanaryStatus{Revision: name, Percent: percent, Why: "its share grows"}}
	}
	failed := func(message string) service.Status {
		return service.Status{Model: service.ModelStatus{LastFailure: &service.Failure{Reason: "ModelLoadFailed", Message: message}}}
	}
	of := func(counted, conditioned service.Status) service.Status {
		counted.Conditions = conditioned.Conditions
		return counted
	}
	one := func(r replica.Replica) Seen {
		r.ID = "a"
		return See("", 1, service.Status{}, []replica.Replica{r})
	}
	for _, c := range []struct {
		name          string
		before, after Seen
		want          []string
	}{
		{"nothing", See("1", 1, counts(1), nil), See("1", 1, counts(1), nil), nil},
		{"a new manifest", See("1", 1, service.Status{}, nil), See("1", 2, service.Status{}, nil), []string{"ManifestChanged: the manifest was changed"}},
		{"another of its name", See("1", 4, counts(1), nil), See("2", 1, counts(1), nil), []string{"engine Scaled: 0 to 1 replicas: why"}},
		{"a count", See("", 1, counts(1), nil), See("", 1, counts(3), nil), []string{"engine Scaled: 1 to 3 replicas: why"}},
		{"a runtime", Seen{}, See("", 1, service.Status{Runtime: service.RuntimeChoice{Name: "vllm", Scope: "cluster", Why: "first"}, Revision: "chat-1"}, nil),
			[]string{"RuntimeSelected: vllm (cluster): first", "RevisionMade: chat-1"}},
		{"a canary", Seen{}, See("", 1, canary("chat-2", 10), nil), []string{"CanaryMade: chat-2"}},
		{"its share", See("", 1, canary("chat-2", 10), nil), See("", 1, canary("chat-2", 50), nil), []string{"CanaryShare: chat-2 gets 50 % of the requests, 10 % before: its share grows"}},
		{"a failure", See("", 1, failed("x"), nil), See("", 1, failed("no such file"), nil), []string{"! ModelLoadFailed: no such file"}},
		{"ready", Seen{}, See("", 1, ready("True", ""), nil), []string{"Ready: requests are answered"}},
		{"not ready", See("", 1, of(counts(1), ready("True", "")), nil), See("", 1, of(counts(1), ready("False", "it crashed")), nil), []string{"! NotReady: it crashed"}},
		{"it wakes", See("", 1, of(counts(0), ready("True", "")), nil), See("", 1, of(counts(1), ready("False", "0 of 1")), nil), []string{"engine Scaled: 0 to 1 replicas: why"}},
		{"not ready from the beginning", Seen{}, See("", 1, ready("False", "starting"), nil), nil},
		{"a replica", See("", 1, service.Status{}, nil), one(replica.Replica{Role: service.RoleEngine, Revision: "abc", Phase: replica.Pending}), []string{"replica a ReplicaCreated: engine of revision abc"}},
		{"it is ready", one(replica.Replica{Phase: replica.Starting, Started: at}), one(replica.Replica{Phase: replica.Ready, Started: at, ReadyAt: at.Add(1500 * time.Millisecond)}),
			[]string{"replica a ReplicaReady: ready 1.5 s after its process began"}},
		{"it failed", one(replica.Replica{Phase: replica.Starting}), one(replica.Replica{Phase: replica.Failed, Reason: "Exited", Message: "exit status 1"}), []string{"! replica a ReplicaFailed: Exited: exit status 1"}},
		{"it came back between two looks", one(replica.Replica{Phase: replica.Ready, ReadyAt: at}), one(replica.Replica{Phase: replica.Ready, ReadyAt: at.Add(time.Second), Restarts: 2}),
			[]string{"! replica a ReplicaRestarted: restarted 2 times so far", "replica a ReplicaReady: ready"}},
		{"its process is started again", one(replica.Replica{Phase: replica.Failed}), one(replica.Replica{Phase: replica.Starting, Restarts: 1}), []string{"! replica a ReplicaRestarted: restarted once"}},
		{"and again", one(replica.Replica{Phase: replica.Failed, Restarts: 2}), one(replica.Replica{Phase: replica.Starting, Restarts: 3}), []string{"! replica a ReplicaRestarted: restarted 3 times so far"}},
		{"it falls asleep", one(replica.Replica{Phase: replica.Ready}), one(replica.Replica{Phase: replica.Asleep, Standby: 1}), []string{"replica a ReplicaAsleep: asleep at level 1"}},
		{"its replica wakes", one(replica.Replica{Phase: replica.Asleep, Standby: 1}), one(replica.Replica{Phase: replica.Ready, Woke: &replica.Woke{Level: 1, Seconds: 0.25, At: at}}), []string{"replica a ReplicaReady: awake after 0.2 s, from level 1"}},
		{"it is gone", one(replica.Replica{Phase: replica.Ready}), See("", 1, service.Status{}, nil), []string{"replica a ReplicaStopped: stopped"}},
	} {
		var got []string
		for _, e := range Changes(c.before, c.after, map[service.Role]string{service.RoleEngine: "why"}) {
			line := fmt.Sprintf("%s: %s", e.Reason, e.Message)
			if e.Object != "" {
				line = e.Object + " " + line
			}
			if e.Warning {
				line = "! " + line
			}
			got = append(got, line)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, c.want)
		}
		if again := Changes(c.after, c.after, nil); len(again) > 0 {
			t.Errorf("%s: a state and itself differ: %+v", c.name, again)
		}
	}
}

// TestTallies counts what metrics tell of replicas.
func TestTallies(t *testing.T) {
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	one := func(r replica.Replica) Seen {
		r.ID, r.Role = "a", service.RoleEngine
		return Seen{Identity: "x", Replicas: map[string]replica.Replica{"a": r}}
	}
	none := Seen{Identity: "x"}
	starting := one(replica.Replica{Phase: replica.Starting, Started: at})
	ready := one(replica.Replica{Phase: replica.Ready, Started: at, ReadyAt: at.Add(3 * time.Second)})
	failed := one(replica.Replica{Phase: replica.Failed, Reason: "OOMKilled", Message: "9 GiB"})
	again := one(replica.Replica{Phase: replica.Starting, Restarts: 2})
	woken := one(replica.Replica{Phase: replica.Ready, Started: at, ReadyAt: at.Add(time.Hour), Woke: &replica.Woke{Level: 1, Seconds: 0.5, At: at.Add(time.Hour)}})
	for name, c := range map[string]struct {
		before, after Seen
		want          Tally
	}{
		"a start":            {starting, ready, Tally{Starts: []time.Duration{3 * time.Second}}},
		"a start at a sight": {none, ready, Tally{Starts: []time.Duration{3 * time.Second}}},
		"still ready":        {ready, ready, Tally{}},
		"out of memory":      {ready, failed, Tally{Failures: map[string]int{"OOMKilled": 1}}},
		"still failed":       {failed, failed, Tally{}},
		"restarts":           {failed, again, Tally{Restarts: 2}},
		"from sleep":         {one(replica.Replica{Phase: replica.Asleep, Standby: 1}), woken, Tally{Wakes: []time.Duration{500 * time.Millisecond}}},
		"another service":    {Seen{Identity: "y"}, ready, Tally{}},
		"gone":               {ready, none, Tally{}},
	} {
		if got := Tallies(c.before, c.after)[service.RoleEngine]; !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestReadScaled: what Changes writes of a count is read again, and nothing else is.
func TestReadScaled(t *testing.T) {
	was := See("1", 1, service.Status{Components: []service.ComponentStatus{{Role: service.RoleEngine, Desired: 1}}}, nil)
	is := See("1", 1, service.Status{Components: []service.ComponentStatus{{Role: service.RoleEngine, Desired: 12}}}, nil)
	events := Changes(was, is, map[service.Role]string{service.RoleEngine: "3 to 4 replicas: a reason"})
	if len(events) != 1 || events[0].Reason != Scaled {
		t.Fatalf("%+v", events)
	}
	before, after, why, ok := ReadScaled(events[0].Message)
	if !ok || before != 1 || after != 12 || why != "3 to 4 replicas: a reason" {
		t.Error(before, after, why, ok)
	}
	for _, other := range []string{"", "1 to", "1 to x replicas: y", "it went from 1 to 2 replicas: y", "1  to 2 replicas: y", "99999999999999999999 to 1 replicas: y"} {
		if _, _, _, ok := ReadScaled(other); ok {
			t.Errorf("%q is read", other)
		}
	}
}

func TestRouteChanges(t *testing.T) {
	is := func(manifest string, status, reason, message string) *Route {
		return &Route{Manifest: manifest, Does: "chat → one=9,two=1", Ready: service.Condition{Status: status, Reason: reason, Message: message}}
	}
	ready, dead := is("1", "True", "Routed", "sends chat to one"), is("1", "False", "NoEndpoints", "no server answers")
	checking, ill := is("1", "Unknown", "Checking", "no server has been checked yet"), is("1", "True", "Degraded", "one of two does not answer")
	for _, c := range []struct {
		name          string
		before, after *Route
		want          []string
	}{
		{"applied", nil, checking, []string{"Applied: chat → one=9,two=1"}},
		{"applied, and dead", nil, dead, []string{"Applied: chat → one=9,two=1", "! NotReady: no server answers"}},
		{"nothing", ready, ready, nil},
		{"ready", checking, ready, []string{"Ready: sends chat to one"}},
		{"not yet known", ready, checking, nil},
		{"changed", ready, is("2", "True", "Routed", "sends chat to two"), []string{"ManifestChanged: chat → one=9,two=1"}},
		{"degraded", ready, ill, []string{"! Degraded: one of two does not answer"}},
		{"whole again", ill, ready, []string{"Ready: sends chat to one"}},
		{"dead", ill, dead, []string{"! NotReady: no server answers"}},
		{"another reason to be ready", ready, is("1", "True", "Accepted", ""), nil},
		{"deleted", ready, nil, []string{"Deleted: deleted"}},
	} {
		var got []string
		for _, e := range RouteChanges(c.before, c.after) {
			text := e.Reason + ": " + e.Message
			if e.Warning {
				text = "! " + text
			}
			got = append(got, text)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
