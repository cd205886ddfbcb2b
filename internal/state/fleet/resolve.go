package fleet

import (
	"context"
	"maps"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// failureReasons beyond selection's own.
const (
	reasonModelLoadFailed = "ModelLoadFailed"
	reasonInvalidSpec     = "InvalidPredictorSpec"
	reasonStore           = "StoreFailed"
)

// resolve turns changed inputs into a revision: model, runtime, rendering. On
// failure the record before stays and goes on serving; the failure says what
// is lacking. It returns when to try again, 0 when only a change can help.
func (f *Fleet) resolve(ctx context.Context, w *work) time.Duration {
	if w.forCanary() {
		w.failure = nil
		f.startCanary(w)
		return 0
	}
	next, again, failure := f.resolver.resolved(ctx, w)
	if failure != nil {
		return f.fail(w, failure, again)
	}
	if next == nil {
		return f.postpone(w, again)
	}
	w.failure = nil
	if w.key.IsCanary() && f.redundant(w.key, next.Revision.Hash) {
		return 0
	}
	if f.cfg.Cluster && w.record != nil && w.record.Revision.Hash == next.Revision.Hash {
		next.Revision = w.record.Revision.Scaled(next.Revision) // pods stay as they are
	}
	next.Revision.Before = f.before(ctx, w, next.Revision.Hash)
	if w.record != nil && w.record.Revision.Hash == next.Revision.Hash && w.record.Selection == next.Selection {
		// The same to run: only counts may differ, which live in the limits, and
		// the names that replicas know adapters by.
		if !sameLimits(w.record.Revision, next.Revision) || !slices.Equal(w.record.Revision.Model.Adapters, next.Revision.Model.Adapters) {
			w.applied = false
		}
	} else {
		w.applied = false
	}
	if !w.key.IsCanary() {
		defer f.endCanary(w.key) // the service runs its manifest itself now
	}
	if w.record != nil && w.applied && !f.renote(w, next) {
		return 0
	}
	if err := f.cfg.Store.PutRecord(*next); err != nil {
		w.applied = w.record != nil
		return f.fail(w, &service.Failure{Reason: reasonStore, Message: err.Error()}, retryAfter)
	}
	w.record = next
	return 0
}

// renote reports whether a record is to be written again although the revision
// stays, for what it was made from. On a cluster that is not worth a write: the
// service is looked at anew after a restart, and comes to the same.
func (f *Fleet) renote(w *work, next *Record) bool {
	return !f.cfg.Cluster && w.record.Inputs != nil && !maps.Equal(w.record.Inputs, next.Inputs)
}

// fail notes why w cannot be run, and has its inputs resolved again after
// again although they stay; 0 when only a change can help. It returns when.
func (f *Fleet) fail(w *work, failure *service.Failure, again time.Duration) time.Duration {
	failure.Time = f.cfg.Now()
	if old := w.failure; old != nil && old.Message == failure.Message {
		failure.Time = old.Time
	} else {
		f.cfg.Log.Warn("cannot be run", "service", w.key.String(), "reason", failure.Reason, "message", failure.Message)
	}
	w.failure = failure
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.mu.services[w.key]
	if e != nil {
		e.reselect = e.reselect || w.reselect // not done yet
	}
	if again == 0 || e == nil || e.stale { // stale again: they changed meanwhile
		return again
	}
	again = f.cfg.Jitter(min(again<<min(e.retry.tries, 8), maxRetryAfter))
	e.retry.tries++
	e.stale, e.retry.at = true, f.cfg.Now().Add(again)
	return again
}

// postpone has w's inputs resolved after again, and says nothing of it. One
// that has failed before gives way to others.
func (f *Fleet) postpone(w *work, again time.Duration) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.mu.services[w.key]; e != nil {
		e.reselect = e.reselect || w.reselect
		if again = min(again<<min(e.retry.tries, 8), maxRetryAfter); !e.stale {
			e.stale, e.retry.at = true, f.cfg.Now().Add(again)
		}
	}
	return again
}

func sameLimits(a, b workload.Revision) bool {
	return slices.EqualFunc(a.Components, b.Components, func(x, y workload.Component) bool {
		return x.Role == y.Role && x.Limits == y.Limits
	})
}
