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
func (w *work) unplaceable() string {
	reasons := map[service.Role]string{}
	for _, r := range w.replicas {
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

func (w *work) serves() bool {
	return slices.ContainsFunc(w.replicas, replica.Replica.Serving)
}

// placing notes since when no place takes the service's replicas, for reason,
// and returns when requests have waited for one for long enough; 0 for never.
func (f *Fleet) placing(w *work, reason string) time.Duration {
	now := f.cfg.Now()
	switch {
	case !lasting(reason):
		w.unplaced = time.Time{}
		return 0
	case w.unplaced.IsZero():
		w.unplaced = now
	}
	return max(0, w.unplaced.Add(f.within(reason)).Sub(now))
}

func (f *Fleet) within(reason string) time.Duration {
	if reason == replica.ReasonUnschedulable && (f.cfg.Cluster || f.cfg.Follow) {
		return nodeWithin
	}
	return placeWithin
}

// deny has requests told why no place takes the service's replicas, once they
// have waited for one for long enough.
func (f *Fleet) deny(w *work, v *View) {
	if w.unplaced.IsZero() || !lasting(v.Reason) || f.cfg.Now().Sub(w.unplaced) < f.within(v.Reason) {
		return
	}
	v.Blocked, v.RetryAfter = true, placeWithin
}
