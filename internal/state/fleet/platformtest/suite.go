// Package platformtest is the conformance suite of fleet.Platform: what every
// platform must do, whether its replicas are processes or pods.
package platformtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Harness is a platform under test.
type Harness struct {
	// New makes an empty platform that is closed when the test ends.
	New func(t *testing.T) fleet.Platform
	// Revision makes a revision of k that runs s, with a hash of s.
	Revision func(k service.Key, s Server) workload.Revision
	Can      Capabilities
	// Crash is after how long a server ends that is to be seen ready before; 0
	// is 300 ms, too little where readiness is asked for once a second.
	Crash time.Duration
	// Settles is for how long a replica that has just turned ready may be taken
	// back, once; 0: it may not be. A kubelet reports a container whose startup
	// probe has passed as ready for a moment, then as not ready until its
	// readiness probe has passed, in the next period.
	Settles time.Duration
}

func (h Harness) crash() time.Duration { return cmp.Or(h.Crash, 300*time.Millisecond) }

// Capabilities are what a platform, where it is tested, does beyond the
// bookkeeping. A cluster without nodes has none of them.
type Capabilities struct {
	Runs    bool // replicas really run and become ready
	Reached bool // their addresses answer this test
	Logs    bool // their output can be read
	Kept    bool // also once they are gone
	Fails   bool // one that ends by itself is Failed, then tried again
	Sleeps  bool // it is a fleet.Sleeper
}

// patience bounds every wait of the suite.
const patience = time.Minute

// Run holds the platform to the contract of fleet.Platform.
func Run(t *testing.T, h Harness) {
	for _, c := range []struct {
		name  string
		needs bool
		run   func(*testing.T, Harness)
	}{
		{"Host", true, testHost},
		{"ApplyStartsNothing", true, testApplyStartsNothing},
		{"UnknownIsNoError", true, testUnknown},
		{"ScaleUpAndDown", h.Can.Runs, testScale},
		{"SleepAndWake", h.Can.Runs && h.Can.Sleeps, testSleep},
		{"VictimsGoFirst", h.Can.Runs, testVictims},
		{"ApplyAgainChangesNothing", h.Can.Runs, testApplyAgain},
		{"NewRevisionReplaces", h.Can.Runs, testReplace},
		{"FailingRevisionKeepsOld", h.Can.Runs && h.Can.Fails, testFailingRevision},
		{"RolesComeAndGo", h.Can.Runs, testRoles},
		{"Remove", h.Can.Runs, testRemove},
		{"ApplyAfterRemove", h.Can.Runs, testApplyAfterRemove},
		{"OneDelaysNoOther", h.Can.Runs, testIndependence},
		{"Reached", h.Can.Runs && h.Can.Reached, testReached},
		{"Restarted", h.Can.Fails, testRestarted},
		{"Logs", h.Can.Runs && h.Can.Logs, testLogs},
		{"LogsKept", h.Can.Runs && h.Can.Kept, testLogsKept},
		{"LogsFollow", h.Can.Runs && h.Can.Logs, testLogsFollow},
		{"LogsPrevious", h.Can.Fails && h.Can.Logs, testLogsPrevious},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !c.needs {
				t.Skip("the platform cannot do this here")
			}
			c.run(t, h)
		})
	}
}

func testHost(t *testing.T, h Harness) {
	host, err := h.New(t).Host(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !host.Cluster && !host.Programs["roundhouse"] {
		t.Errorf("a machine has no program roundhouse: %v", host.Programs)
	}
	if host.Accelerators < 0 || host.MemoryBytes < 0 {
		t.Errorf("negative resources: %+v", host)
	}
}

func testApplyStartsNothing(t *testing.T, h Harness) {
	s := On(t, h.New(t))
	k := Key("still")
	s.MustApply(h.Revision(k, Server{}))
	if rs := s.See(k); len(rs) != 0 {
		t.Errorf("a new role has count 0, got %s", Describe(rs))
	}
	keys, err := s.Services(t.Context())
	if err != nil || !slices.Contains(keys, k) {
		t.Errorf("Services = %v, %v; want %s among them", keys, err, k)
	}
}

func testUnknown(t *testing.T, h Harness) {
	s := On(t, h.New(t))
	k := Key("nobody")
	if err := s.Remove(t.Context(), k); err != nil {
		t.Errorf("removing what is not there: %v", err)
	}
	if rs := s.See(k); len(rs) != 0 {
		t.Errorf("replicas of an unknown service: %s", Describe(rs))
	}
	if err := s.Scale(t.Context(), workload.Ref{Service: k, Role: service.RoleEngine}, 1, nil); err == nil {
		t.Error("scaling an unknown service is no error")
	}
	s.MustApply(h.Revision(k, Server{}))
	if err := s.Scale(t.Context(), workload.Ref{Service: k, Role: service.RoleDecoder}, 1, nil); err == nil {
		t.Error("scaling a role the revision does not have is no error")
	}
	for _, id := range []string{"nobody-engine-1", "", "../x", "*"} {
		if l, err := s.Logs(t.Context(), id, fleet.LogOptions{}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Logs(%q) = %v, %v; want fs.ErrNotExist", id, l, err)
		}
	}
}

func testScale(t *testing.T, h Harness) {
	s := On(t, h.New(t))
	k := Key("scaled")
	r := h.Revision(k, Server{})
	s.MustApply(r)
	before := time.Now()
	s.MustScale(k, 1)
	first := s.AwaitReady(k, 1)[0]
	if first.ID == "" || first.Service != k || first.Role != service.RoleEngine || first.Revision != r.Hash {
		t.Errorf("identity: %+v", first)
	}
	if first.HTTP == "" || first.Created.Before(before.Add(-2*time.Second)) || first.ReadyAt.Before(first.Started) {
		t.Errorf("address or times: %+v", first)
	}
	s.MustScale(k, 3)
	rs := s.AwaitReady(k, 3)
	if rs[0].ID != first.ID {
		t.Errorf("oldest first: %v, want %s at the front", IDs(rs), first.ID)
	}
	if ids := slices.Compact(slices.Sorted(slices.Values(IDs(rs)))); len(ids) != 3 {
		t.Errorf("ids are not unique: %v", IDs(rs))
	}
	s.MustScale(k, 1)
	s.AwaitReady(k, 1)
	s.MustScale(k, 0)
	s.AwaitNone(k)
	s.MustScale(k, 1)
	s.AwaitReady(k, 1)
}

func testSleep(t *testing.T, h Harness) {
	s := On(t, h.New(t))
	k := Key("sleeper")
	r := h.Revision(k, Server{Sleeps: true})
	engine := workload.Ref{Service: k, Role: service.RoleEngine}
	if err := s.Platform.(fleet.Sleeper).Sleep(t.Context(), engine, 1); err == nil {
		t.Error("to put an unknown service to sleep is no error")
	}
	s.MustApply(r)
	s.MustScale(k, 1)
	first := s.AwaitReady(k, 1)[0]
	for n := 1; n <= 2; n++ {
		asleep := s.MustSleep(k, 1)
		if asleep.ID != first.ID || asleep.AsleepSince.IsZero() || !asleep.ReadyAt.IsZero() {
			t.Errorf("asleep: %+v", asleep)
		}
		s.MustApply(r) // which changes nothing
		s.MustScale(k, 1)
		woken := s.AwaitReady(k, 1)[0]
		if woken.ID != first.ID || woken.Woke == nil || woken.Woke.Level != 1 || woken.Standby != 0 || !woken.AsleepSince.IsZero() {
			t.Errorf("woken: %+v", woken)
		}
	}
	s.MustSleep(k, 1)
	s.MustScale(k, 0)
	s.AwaitNone(k)
	s.MustScale(k, 1)
	s.AwaitReady(k, 1)
	s.MustSleep(k, 1)
	s.MustApply(h.Revision(k, Server{Salt: "edited", Sleeps: true}))
	s.AwaitNone(k)
	// One that cannot sleep at the level ends.
	s.MustScale(k, 1)
	s.AwaitReady(k, 1)
	if err := s.Platform.(fleet.Sleeper).Sleep(t.Context(), engine, 2); err != nil {
		t.Fatal(err)
	}
	s.AwaitNone(k)
}

func testVictims(t *testing.T, h Harness) {
	s := On(t, h.New(t))
	k := Key("victims")
	s.MustApply(h.Revision(k, Server{}))
	s.MustScale(k, 3)
	ids := IDs(s.AwaitReady(k, 3))
	s.MustScale(k, 2, ids[0])
	if left := IDs(s.AwaitReady(k, 2)); !slices.Equal(left, ids[1:]) {
		t.Errorf("left %v, want %v", left, ids[1:])
	}
}

func testApplyAgain(t *testing.T, h Harness) {
	s := On(t, h.New(t))
	k := Key("again")
	r := h.Revision(k, Server{})
	s.MustApply(r)
	s.MustScale(k, 2)
	before := s.AwaitReady(k, 2)
	r.Components[0].Limits.Max = 7 // scaling is no part of the revision
	s.MustApply(r)
	after := s.See(k)
	if !slices.Equal(IDs(before), IDs(after)) || Count(after, replica.Ready) != 2 {
		t.Errorf("applying the same revision changed %s to %s", Describe(before), Describe(after))
	}
}

func testReplace(t *testing.T, h Harness) {
	s := On(t, h.New(t))
	k := Key("replaced")
	r1, r2 := h.Revision(k, Server{Salt: "1"}), h.Revision(k, Server{Salt: "2", ReadyAfter: 100 * time.Millisecond})
	s.MustApply(r1)
	s.MustScale(k, 2)
	s.settled(k, 2, h.Settles)
	s.MustApply(r2)
	turned := map[string]time.Time{} // when each of the new revision was first ready
	s.Await(k, "2 ready of the new revision alone", func(rs []replica.Replica) bool {
		n := Count(rs, replica.Ready)
		for _, r := range rs {
			at, before := turned[r.ID]
			switch {
			case r.Revision == r2.Hash && r.Phase == replica.Ready && !before:
				turned[r.ID] = time.Now()
			case before && r.Phase == replica.Starting && time.Since(at) < h.Settles:
				n++ // taken back for a moment
			}
		}
		if n < 2 {
			t.Errorf("only %d ready while the revision changes: %s", n, Describe(rs))
		}
		return AllReady(2)(rs) && !slices.ContainsFunc(rs, func(r replica.Replica) bool { return r.Revision != r2.Hash })
	})
	for _, r := range s.settled(k, 2, h.Settles) {
		if r.Revision != r2.Hash {
			t.Errorf("a replica of the revision before is back: %s", r.ID)
		}
	}
}

func testFailingRevision(t *testing.T, h Harness) {
	s := On(t, h.New(t))
	k := Key("failing")
	good := h.Revision(k, Server{Salt: "good"})
	s.MustApply(good)
	s.MustScale(k, 1)
	old := s.settled(k, 1, h.Settles)[0]
	s.MustApply(h.Revision(k, Server{CrashAfter: -1, CrashCode: 1}))
	s.Await(k, "the new one failed twice", func(rs []replica.Replica) bool {
		if !slices.ContainsFunc(rs, func(r replica.Replica) bool { return r.ID == old.ID && r.Phase == replica.Ready }) {
			t.Fatalf("the old replica does not serve any more: %s", Describe(rs))
		}
		return slices.ContainsFunc(rs, func(r replica.Replica) bool { return r.ID != old.ID && r.Restarts >= 2 })
	})
	s.MustApply(good)
	if rs := s.AwaitReady(k, 1); rs[0].ID != old.ID {
		t.Errorf("after going back: %s, want %s alone", Describe(rs), old.ID)
	}
}

func testRoles(t *testing.T, h Harness) {
	s := On(t, h.New(t))
	k := Key("roles")
	s.MustApply(h.Revision(k, Server{Roles: []string{"engine", "decoder"}}))
	s.MustScale(k, 1)
	s.MustScaleRole(k, service.RoleDecoder, 1)
	s.AwaitReady(k, 2)
	s.MustApply(h.Revision(k, Server{Roles: []string{"engine", "router"}}))
	s.Await(k, "the decoder gone, the engine of the new revision", func(rs []replica.Replica) bool {
		return AllReady(1)(rs) && rs[0].Role == service.RoleEngine
	})
	s.MustScaleRole(k, service.RoleRouter, 1)
	s.AwaitReady(k, 2)
}

func testRemove(t *testing.T, h Harness) {
	s := On(t, h.New(t))
	k := Key("removed")
	s.MustApply(h.Revision(k, Server{}))
	s.MustScale(k, 2)
	s.AwaitReady(k, 2)
	if err := s.Remove(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	if keys, err := s.Services(t.Context()); err != nil || slices.Contains(keys, k) {
		t.Errorf("Services = %v, %v after Remove", keys, err)
	}
	s.AwaitNone(k)
	if err := s.Scale(t.Context(), workload.Ref{Service: k, Role: service.RoleEngine}, 1, nil); err == nil {
		t.Error("scaling a removed service is no error")
	}
}

func testApplyAfterRemove(t *testing.T, h Harness) {
	s := On(t, h.New(t))
	k := Key("back")
	r := h.Revision(k, Server{})
	s.MustApply(r)
	s.MustScale(k, 1)
	old := s.AwaitReady(k, 1)[0]
	if err := s.Remove(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	s.MustApply(r)
	s.AwaitNone(k)
	s.MustScale(k, 1)
	if now := s.AwaitReady(k, 1)[0]; now.ID == old.ID {
		t.Errorf("a removed replica came back: %s", now.ID)
	}
}

func testIndependence(t *testing.T, h Harness) {
	s := On(t, h.New(t))
	slow := Key("slow")
	s.MustApply(h.Revision(slow, Server{NeverReady: true}))
	s.MustScale(slow, 2)
	var keys []service.Key
	for i := range 8 {
		k := Key(fmt.Sprintf("quick-%d", i))
		keys = append(keys, k)
		s.MustApply(h.Revision(k, Server{}))
		s.MustScale(k, 1)
	}
	for _, k := range keys {
		s.AwaitReady(k, 1)
	}
	if rs := s.See(slow); Count(rs, replica.Ready) != 0 {
		t.Errorf("never ready, yet %s", Describe(rs))
	}
}

func testReached(t *testing.T, h Harness) {
	s := On(t, h.New(t))
	k := Key("reached")
	s.MustApply(h.Revision(k, Server{}))
	s.MustScale(k, 2)
	answers := map[string]bool{}
	for _, r := range s.AwaitReady(k, 2) {
		answers[Get(t, r, "/")] = true
	}
	if len(answers) != 2 {
		t.Errorf("two replicas answered as %v", answers)
	}
}

// Get asks a replica and returns its answer, which must be 200.
func Get(t *testing.T, r replica.Replica, path string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.HTTP+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, %v", path, resp.Status, err)
	}
	return string(b)
}

func testRestarted(t *testing.T, h Harness) {
	s := On(t, h.New(t))
	k := Key("restarted")
	s.MustApply(h.Revision(k, Server{CrashAfter: h.crash(), CrashCode: 7}))
	s.MustScale(k, 1)
	id := s.AwaitReady(k, 1)[0].ID
	r := s.Await(k, "failed", func(rs []replica.Replica) bool { return Count(rs, replica.Failed) == 1 })[0]
	if r.ID != id || r.ExitCode != 7 || r.Reason == "" || !strings.Contains(r.Message, "7") || r.Restart.IsZero() {
		t.Errorf("a failed replica says too little: %+v", r)
	}
	r = s.AwaitReady(k, 1)[0]
	if r.ID != id || r.Restarts < 1 {
		t.Errorf("ready again as %+v", r)
	}
}
