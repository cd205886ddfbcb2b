package fleet

import (
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
)

const (
	// placeWithin is for how long requests wait for replicas that no place takes
	// and none will of itself.
	placeWithin = 30 * time.Second
	// nodeWithin is the same where a cluster may add a node for them.
	nodeWithin = 2 * time.Minute
)

// unplaceable is why no place takes the replicas of a role that has no other,
// in a word; "" where one may be on its way.
func (s *snapshot) unplaceable() string {
	reasons := map[service.Role]string{}
	for _, r := range s.replicas {
		before, known := reasons[r.Role]
		switch {
		case !r.Alive():
		case r.Phase != replica.Pending || !lasting(r.Reason):
			reasons[r.Role] = ""
		case !known || before != "":
			reasons[r.Role] = r.Reason
		}
	}
	for _, role := range service.Roles {
		if reason := reasons[role]; reason != "" {
			return reason
		}
	}
	return ""
}

// lasting reports whether what a Pending replica waits for does not come by
// waiting alone.
func lasting(reason string) bool {
	return slices.Contains([]string{replica.ReasonUnschedulable, replica.ReasonQuotaExceeded, replica.ReasonPodRefused}, reason)
}

func (s *snapshot) serves() bool {
	return slices.ContainsFunc(s.replicas, replica.Replica.Serving)
}

// waitForPlace notes since when no place takes the service's replicas, for
// reason, and returns when requests have waited for one for long enough; 0 for
// never.
func (s *snapshot) waitForPlace(reason string, now time.Time, cluster bool) time.Duration {
	switch {
	case !lasting(reason):
		s.unplaced = time.Time{}
		return 0
	case s.unplaced.IsZero():
		s.unplaced = now
	}
	return max(0, s.unplaced.Add(placeLimit(reason, cluster)).Sub(now))
}

func placeLimit(reason string, cluster bool) time.Duration {
	if reason == replica.ReasonUnschedulable && cluster {
		return nodeWithin
	}
	return placeWithin
}

// deny has requests told why no place takes the service's replicas, once they
// have waited for one for long enough.
func (s *snapshot) deny(v *View, now time.Time, cluster bool) {
	if s.unplaced.IsZero() || !lasting(v.Reason) || now.Sub(s.unplaced) < placeLimit(v.Reason, cluster) {
		return
	}
	v.Blocked, v.RetryAfter = true, placeWithin
}
