package fleet

import (
	"context"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// followed is what another process decided of a service.
type followed struct {
	record  *Record
	failure *service.Failure
	blocked bool
}

// Followed tells a following fleet what was decided of a service: the record,
// nil before the first one, and why the service has no ready replica, nil when
// nothing is wrong. Blocked says that waiting will not help. It may come before
// the service itself.
func (f *Fleet) Followed(k service.Key, record *Record, failure *service.Failure, blocked bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if record == nil && failure == nil {
		delete(f.mu.followed, k)
	} else {
		f.mu.followed[k] = followed{record, failure, blocked}
	}
	for _, k := range []service.Key{k, k.Stable()} {
		if f.mu.services[k] != nil {
			f.queue.add(k)
		}
	}
}

// follow tells the request path of a service that another process keeps.
func (f *Fleet) follow(ctx context.Context, w *work) error {
	f.mu.Lock()
	known := f.mu.followed[w.key]
	f.mu.Unlock()
	w.record, w.failure = known.record, known.failure
	if err := f.observe(ctx, w); err != nil {
		return err
	}
	f.followCanary(ctx, w)
	v := f.view(w)
	if v.Reason == "" && known.failure != nil {
		v.Reason, v.Cause, v.Blocked = known.failure.Reason, known.failure.Message, known.blocked
	}
	f.cfg.Traffic.Publish(v)
	f.finish(w)
	return nil
}
