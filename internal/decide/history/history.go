// Package history decides what there is to tell of a service: two of its states, one
// after the other, → what happened between them.
package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// ReplicaPrefix begins the Object of an event of a replica, before its id.
const ReplicaPrefix = "replica "

// Reasons of events that tell how something is now.
const (
	Ready          = "Ready"
	NotReady       = "NotReady"
	ReplicaReady   = "ReplicaReady"
	ReplicaStopped = "ReplicaStopped"
	ReplicaFailed  = "ReplicaFailed" // the message begins with the reason and a colon
	Scaled         = "Scaled"        // the message is as ReadScaled reads it
)

// Reasons of events of services and of routes.
const (
	Applied         = "Applied" // for the first time
	ManifestChanged = "ManifestChanged"
	Deleted         = "Deleted"
)

// Done is the reason of an event of what was done with an object: "created", "configured"
// or "deleted".
func Done(action string) string {
	switch action {
	case "created":
		return Applied
	case "deleted":
		return Deleted
	}
	return ManifestChanged
}

// Event is something that happened to a service, or to what serves it.
type Event struct {
	Time      time.Time `json:"time"`
	Namespace string    `json:"namespace,omitempty"`
	Service   string    `json:"service,omitempty"` // "" for what is of no service
	// Object is what of the service it happened to: "replica chat-engine-1", or
	// "engine" for a component; "" for all of it.
	Object string `json:"object,omitempty"`
	// Reason is one CamelCase word, Message one line.
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Warning: somebody may have to do something.
	Warning bool `json:"warning,omitempty"`
}

// Seen is what events tell of a service, at one time.
type Seen struct {
	// Identity tells a service from a later one of its name; "" where that is not
	// known.
	Identity string
	// Manifests counts the manifests that it has had; 0 where that is not known.
	Manifests int64
	Runtime   service.RuntimeChoice
	Revision  string
	Canary    service.CanaryStatus
	Counts    map[service.Role]int
	Ready     service.Condition
	// FailureReason and Failure are what is wrong with it, beyond its not being ready
	// yet.
	FailureReason, Failure string
	Replicas               map[string]replica.Replica // by id
}

// See returns what events tell of a service of this status. replicas is empty
// where others tell of them, as a cluster does of pods.
func See(identity string, manifests int64, st service.Status, replicas []replica.Replica) Seen {
	out := Seen{Identity: identity, Manifests: manifests, Runtime: st.Runtime, Revision: st.Revision, Counts: map[service.Role]int{}, Replicas: map[string]replica.Replica{}}
	for _, c := range st.Components {
		out.Counts[c.Role] = c.Desired
	}
	for _, c := range st.Conditions {
		if c.Type == service.ConditionReady {
			out.Ready = c
		}
	}
	if st.Canary != nil {
		out.Canary = *st.Canary
	}
	for _, r := range replicas {
		out.Replicas[r.ID] = r
	}
	out.FailureReason, out.Failure = Failing(st)
	return out
}

// Failing returns what is wrong with a service, beyond its not being ready yet; ""
// where nothing is.
func Failing(st service.Status) (reason, message string) {
	for _, c := range st.Conditions {
		if c.Type == service.ConditionPredictorReady && c.Status == "False" && c.Reason == "PlatformFailed" {
			return c.Reason, c.Message
		}
	}
	if f := st.Model.LastFailure; f != nil && f.Message != "" {
		return cmp.Or(f.Reason, "Failed"), f.Message
	}
	return "", ""
}

// scaledFormat is how the message of a Scaled event begins; why follows.
const scaledFormat = "%d to %d replicas: "

// ReadScaled reads the message of a Scaled event: the counts before and after, and why.
func ReadScaled(message string) (before, after int, why string, ok bool) {
	if _, err := fmt.Sscanf(message, scaledFormat, &before, &after); err != nil {
		return 0, 0, "", false
	}
	why, ok = strings.CutPrefix(message, fmt.Sprintf(scaledFormat, before, after))
	return before, after, why, ok
}

// Changes returns what happened between two states of a service: first what was
// decided, then what became of its replicas. why is, by role, why the count is what
// it is. The events have neither time nor service.
func Changes(before, after Seen, why map[service.Role]string) []Event {
	if before.Identity != after.Identity {
		before = Seen{}
	}
	out := decided(before, after, why)
	for _, id := range slices.Sorted(maps.Keys(after.Replicas)) {
		was, known := before.Replicas[id]
		out = append(out, became(was, after.Replicas[id], known)...)
	}
	for _, id := range slices.Sorted(maps.Keys(before.Replicas)) {
		if _, still := after.Replicas[id]; !still {
			out = append(out, Event{Object: ReplicaPrefix + id, Reason: ReplicaStopped, Message: "stopped"})
		}
	}
	return append(out, readiness(before, after)...)
}

// decided is what was decided about a service.
func decided(before, after Seen, why map[service.Role]string) (out []Event) {
	tell := func(warning bool, object, reason, format string, args ...any) {
		out = append(out, Event{Object: object, Reason: reason, Message: fmt.Sprintf(format, args...), Warning: warning})
	}
	if was := before.Manifests; was > 0 && after.Manifests > was {
		tell(false, "", ManifestChanged, "the manifest was changed")
	}
	if r, was := after.Runtime, before.Runtime; r.Name != "" && (r.Name != was.Name || r.Namespace != was.Namespace || r.Scope != was.Scope) {
		tell(false, "", "RuntimeSelected", "%s (%s): %s", r.Name, r.Scope, r.Why)
	}
	if after.Revision != "" && after.Revision != before.Revision {
		tell(false, "", "RevisionMade", "%s", after.Revision)
	}
	switch c, was := after.Canary, before.Canary; {
	case c.Revision != "" && c.Revision != was.Revision:
		tell(false, "", "CanaryMade", "%s", c.Revision)
	case c.Revision != "" && c.Percent != was.Percent:
		tell(false, "", "CanaryShare", "%s gets %d %% of the requests, %d %% before: %s", c.Revision, c.Percent, was.Percent, c.Why)
	}
	for _, role := range service.Roles {
		if n, was := after.Counts[role], before.Counts[role]; n != was {
			tell(false, string(role), Scaled, scaledFormat+"%s", was, n, why[role])
		}
	}
	if after.Failure != "" && after.Failure != before.Failure {
		tell(true, "", after.FailureReason, "%s", after.Failure)
	}
	return out
}

// readiness is whether requests began or ceased to be answered.
func readiness(before, after Seen) []Event {
	is := after.Ready
	switch was := before.Ready.Status; {
	case is.Status == was || is.Status == "":
		return nil
	case is.Status == "True":
		return []Event{{Reason: Ready, Message: cmp.Or(is.Message, "requests are answered")}}
	case was == "True" && !asleep(before):
		return []Event{{Reason: NotReady, Message: cmp.Or(is.Message, is.Reason), Warning: is.Status == "False"}}
	}
	return nil
}

// asleep reports whether no replica was wanted: a service that wakes is not ready for
// a moment, which is no news.
func asleep(s Seen) bool {
	for _, n := range s.Counts {
		if n > 0 {
			return false
		}
	}
	return true
}

// became is what happened to a replica; known: was is what it was.
func became(was, is replica.Replica, known bool) (out []Event) {
	tell := func(warning bool, reason, format string, args ...any) {
		out = append(out, Event{Object: ReplicaPrefix + is.ID, Reason: reason, Message: fmt.Sprintf(format, args...), Warning: warning})
	}
	if !known {
		tell(false, "ReplicaCreated", "%s of revision %s", is.Role, is.Revision)
	}
	if is.Restarts > was.Restarts && known {
		tell(true, "ReplicaRestarted", "restarted %s", times(is.Restarts)) // in all, as tables count
	}
	switch {
	case is.Standby > 0 && (was.Standby == 0 || is.Phase != was.Phase) && is.Phase == replica.Asleep:
		tell(false, "ReplicaAsleep", "asleep at level %d", is.Standby)
	case is.Phase == replica.Ready && (was.Phase != replica.Ready || is.ReadyAt.After(was.ReadyAt)):
		tell(false, ReplicaReady, "%s", readyAfter(was, is))
	case is.Phase == replica.Failed && (was.Phase != replica.Failed || is.Message != was.Message):
		tell(true, ReplicaFailed, "%s: %s", is.Reason, is.Message)
	}
	return out
}

// readyAfter tells how long a replica took to become ready.
func readyAfter(was, is replica.Replica) string {
	switch {
	case is.Woke != nil && (was.Woke == nil || is.Woke.At.After(was.Woke.At)):
		return fmt.Sprintf("awake after %.1f s, from level %d", is.Woke.Seconds, is.Woke.Level)
	case !is.Started.IsZero() && is.ReadyAt.After(is.Started):
		return fmt.Sprintf("ready %.1f s after its process began", is.ReadyAt.Sub(is.Started).Seconds())
	}
	return "ready"
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times so far", n)
}

// Tally counts what happened to the replicas of a component.
type Tally struct {
	Restarts int
	Failures map[string]int // by reason
	// Starts and Wakes are how long replicas took that became ready, from their
	// process' start and from sleep.
	Starts, Wakes []time.Duration
}

// Tallies counts what happened to the replicas between two states of a service, by
// role. What is already so in the first state of a service is not counted: nothing
// is known of when it came to be.
func Tallies(before, after Seen) map[service.Role]Tally {
	out := map[service.Role]Tally{}
	if before.Identity != after.Identity {
		return out
	}
	for id, is := range after.Replicas {
		was, known := before.Replicas[id]
		t := out[is.Role]
		if known {
			t.Restarts += max(0, is.Restarts-was.Restarts)
		}
		for _, e := range became(was, is, known) {
			switch {
			case e.Reason == ReplicaFailed:
				if t.Failures == nil {
					t.Failures = map[string]int{}
				}
				t.Failures[is.Reason]++
			case e.Reason != ReplicaReady:
			case is.Woke != nil && (was.Woke == nil || is.Woke.At.After(was.Woke.At)):
				t.Wakes = append(t.Wakes, time.Duration(is.Woke.Seconds*float64(time.Second)))
			case !is.Started.IsZero() && is.ReadyAt.After(is.Started):
				t.Starts = append(t.Starts, is.ReadyAt.Sub(is.Started))
			}
		}
		if t.Restarts > 0 || t.Failures != nil || t.Starts != nil || t.Wakes != nil {
			out[is.Role] = t
		}
	}
	return out
}
