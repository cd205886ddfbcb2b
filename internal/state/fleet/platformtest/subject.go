package platformtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Subject is a platform and what a test does with it, failing the test at
// every error. It owns the platform's Changed channel.
type Subject struct {
	fleet.Platform
	t *testing.T
}

// On wraps a platform for a test.
func On(t *testing.T, p fleet.Platform) Subject { return Subject{p, t} }

// Key is a service of the suite's namespace.
func Key(name string) service.Key { return service.Key{Namespace: "suite", Name: name} }

// MustApply applies r.
func (s Subject) MustApply(r workload.Revision) {
	s.t.Helper()
	if err := s.Apply(s.t.Context(), r); err != nil {
		s.t.Fatalf("Apply: %v", err)
	}
}

// MustScale scales the service's engine.
func (s Subject) MustScale(k service.Key, n int, victims ...string) {
	s.t.Helper()
	s.MustScaleRole(k, service.RoleEngine, n, victims...)
}

// MustScaleRole scales a role.
func (s Subject) MustScaleRole(k service.Key, role service.Role, n int, victims ...string) {
	s.t.Helper()
	if err := s.Scale(s.t.Context(), workload.Ref{Service: k, Role: role}, n, victims); err != nil {
		s.t.Fatalf("Scale: %v", err)
	}
}

// MustSleep puts the one replica of the service's engine to sleep, and waits until it
// sleeps.
func (s Subject) MustSleep(k service.Key, level int) replica.Replica {
	s.t.Helper()
	if err := s.Platform.(fleet.Sleeper).Sleep(s.t.Context(), workload.Ref{Service: k, Role: service.RoleEngine}, level); err != nil {
		s.t.Fatalf("Sleep: %v", err)
	}
	return s.AwaitAsleep(k, level)
}

// AwaitAsleep waits until the one replica of the service sleeps.
func (s Subject) AwaitAsleep(k service.Key, level int) replica.Replica {
	s.t.Helper()
	return s.Await(k, fmt.Sprintf("asleep at level %d", level), func(rs []replica.Replica) bool {
		return len(rs) == 1 && rs[0].Phase == replica.Asleep && rs[0].Standby == level
	})[0]
}

// See observes the service.
func (s Subject) See(k service.Key) []replica.Replica {
	s.t.Helper()
	rs, err := s.Observe(s.t.Context(), k)
	if err != nil {
		s.t.Fatalf("Observe: %v", err)
	}
	return rs
}

// Await waits until the service's replicas are as wanted. It looks only when
// the platform announces a change, so a change that is not announced is a
// failure.
func (s Subject) Await(k service.Key, what string, ok func([]replica.Replica) bool) []replica.Replica {
	s.t.Helper()
	deadline := time.After(patience)
	for {
		rs := s.See(k)
		if ok(rs) {
			return rs
		}
		for changed := false; !changed; {
			select {
			case c := <-s.Changed():
				changed = c == k
			case <-deadline:
				rs = s.See(k)
				s.t.Fatalf("%s: %s: not within %s (now: %v): %s", k, what, patience, ok(rs), Describe(rs))
			}
		}
	}
}

// AwaitReady waits for exactly n replicas, all ready.
func (s Subject) AwaitReady(k service.Key, n int) []replica.Replica {
	s.t.Helper()
	return s.Await(k, fmt.Sprintf("%d ready", n), AllReady(n))
}

// settled waits until n replicas are ready and have stayed so for as long as
// one that has just turned ready may be taken back.
func (s Subject) settled(k service.Key, n int, settles time.Duration) []replica.Replica {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		rs := s.AwaitReady(k, n)
		stays := time.After(settles)
		for ready := settles > 0; ready; {
			select {
			case <-s.Changed():
				ready = AllReady(n)(s.See(k))
			case <-stays:
				ready, settles = false, 0
			}
		}
		if settles == 0 {
			return rs
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: no %d replicas stay ready: %s", k, n, Describe(s.See(k)))
		}
	}
}

// AwaitNone waits until no replica is left.
func (s Subject) AwaitNone(k service.Key) {
	s.t.Helper()
	s.Await(k, "none left", func(rs []replica.Replica) bool { return len(rs) == 0 })
}

// AllReady wants exactly n replicas, all ready.
func AllReady(n int) func([]replica.Replica) bool {
	return func(rs []replica.Replica) bool { return len(rs) == n && Count(rs, replica.Ready) == n }
}

// Count counts the replicas in a phase.
func Count(rs []replica.Replica, ph replica.Phase) int {
	n := 0
	for _, r := range rs {
		if r.Phase == ph {
			n++
		}
	}
	return n
}

// Describe prints replicas for a failure.
func Describe(rs []replica.Replica) string {
	var out []string
	for _, r := range rs {
		out = append(out, fmt.Sprintf("{%s %s %s %s %q restarts=%d}", r.ID, r.Revision, r.Phase, r.Reason, r.Message, r.Restarts))
	}
	return "[" + strings.Join(out, " ") + "]"
}

// IDs are the replicas' ids in order.
func IDs(rs []replica.Replica) []string {
	var out []string
	for _, r := range rs {
		out = append(out, r.ID)
	}
	return out
}
