package fleet

import (
	"context"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Decided is what another process decided of a service.
type Decided struct {
	// Record is nil before the first decision.
	Record *Record
	// Failure is why the service has no ready replica; nil when nothing is
	// wrong. Blocked says that waiting will not help.
	Failure *service.Failure
	Blocked bool
	// Starting says how far a start is, "" where there is none.
	Starting string
	// Canary is what the service's canary takes; nil where nobody says.
	Canary *service.CanaryStatus
}

// Followed tells a following fleet what was decided of a service or of its
// canary. It may come before the service itself.
func (f *Fleet) Followed(k service.Key, d Decided) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d == (Decided{}) {
		delete(f.mu.followed, k)
	} else {
		f.mu.followed[k] = d
	}
	for _, k := range []service.Key{k, k.Stable()} {
		if f.mu.services[k] != nil {
			f.queue.add(k)
		}
	}
}

// follow tells the request path of a service that another process keeps.
func (f *Fleet) follow(ctx context.Context, w *work) (again time.Duration, err error) {
	f.mu.Lock()
	known := f.mu.followed[w.key]
	f.mu.Unlock()
	w.record, w.failure = known.Record, known.Failure
	if w.canary != nil && known.Canary != nil {
		// Who decides sees why a replica is not ready.
		w.canary.Percent = min(max(known.Canary.Percent, 0), max(w.canary.Wanted, 0))
	}
	if err := f.observe(ctx, w); err != nil {
		return 0, err
	}
	f.followCanary(ctx, w)
	reason := "" // who decides sees the replicas that have no place yet
	if known.Failure != nil && !w.serves() {
		reason = known.Failure.Reason
	}
	again = f.placing(w, reason)
	v := f.view(w)
	if v.Reason == "" && known.Failure != nil {
		v.Reason, v.Cause, v.Blocked = known.Failure.Reason, known.Failure.Message, known.Blocked
		f.deny(w, &v)
	}
	v.Starting = known.Starting
	f.cfg.Traffic.Publish(v)
	f.finish(w)
	return again, nil
}
