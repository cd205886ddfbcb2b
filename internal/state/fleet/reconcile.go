package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// snapshot is what is known of one service, or of its canary, at one time.
type snapshot struct {
	key    service.Key
	object Object
	record *Record
	// failure is why the present inputs cannot be run; nil when they can.
	failure  *service.Failure
	replicas []replica.Replica
	// unplaced is since when no place takes its replicas; zero while one does.
	unplaced time.Time
}

// work is one reconcile's copy of an entry: read under the lock at the start,
// stored under it at the end.
type work struct {
	snapshot
	generation int64
	stale      bool
	reselect   bool
	applied    bool
	wake       int
	asleep     bool
	files      string
	roles      map[service.Role]roleState
	// trouble is what the platform refused.
	trouble error
	// past is why a replica of this revision failed before, and later when
	// inputs that could not be resolved are looked at again; 0 for neither.
	past  *service.Failure
	later time.Duration
	// canary is the service's, as it was at the start, and what is wrong with
	// it; nil without one.
	canary        *service.CanaryStatus
	canaryFailure *service.Failure
}

// workOn copies e; Fleet.mu is held.
func (f *Fleet) workOn(k service.Key, e *entry) *work {
	w := &work{snapshot: snapshot{key: k, object: e.object, record: e.record, failure: e.failure, unplaced: e.unplaced},
		generation: e.generation, stale: e.stale, reselect: e.reselect, applied: e.applied,
		wake: e.wake, asleep: e.asleep, files: e.files, roles: map[service.Role]roleState{}}
	for r, s := range e.roles {
		w.roles[r] = *s
	}
	if past := e.status.Model.LastFailure; past != nil && past.Replica != "" && e.record != nil && e.record.Revision.Name == e.status.Revision {
		w.past = past
	}
	w.canary, w.canaryFailure = share(w, f.mu.services[k.Canary()])
	return w
}

// Reconcile makes the platform agree with what is desired of one service:
// resolve the revision if its inputs changed, apply it, tell the request path
// where its replicas are, and set their number. It says when to come again;
// 0 means when something changes. Only one Reconcile of a key may run at a
// time.
func (f *Fleet) Reconcile(ctx context.Context, k service.Key) (time.Duration, error) {
	w, wanted := f.begin(k)
	if !wanted {
		return 0, f.forget(ctx, k)
	}
	again, err := f.converge(ctx, w)
	w.trouble = err
	f.finish(w)
	if f.cfg.Report != nil && !k.IsCanary() {
		later, untold := f.report(ctx, k)
		again, err = sooner(again, later), errors.Join(err, untold)
	}
	return again, err
}

// report tells of a service as it is now, unless it went meanwhile.
func (f *Fleet) report(ctx context.Context, k service.Key) (again time.Duration, err error) {
	st, err := f.Get(ctx, k)
	var gone *NotFoundError
	if errors.As(err, &gone) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if again, err = f.cfg.Report(ctx, st); err != nil {
		return 0, fmt.Errorf("report %s: %w", k, err)
	}
	return again, nil
}

// converge does the work of a reconcile. After an error w holds how far it
// came.
func (f *Fleet) converge(ctx context.Context, w *work) (time.Duration, error) {
	again := w.later
	if w.stale {
		again = f.resolve(ctx, w)
	}
	if err := f.applyRevision(ctx, w); err != nil {
		return 0, err
	}
	if err := f.observe(ctx, w); err != nil {
		return 0, err
	}
	if !w.stale && w.later == 0 && w.refused() {
		again = sooner(again, f.resolve(ctx, w))
		if err := f.applyRevision(ctx, w); err != nil {
			return 0, err
		}
	}
	if err := f.settle(ctx, w); err != nil {
		return 0, err
	}
	if err := f.recordReady(w); err != nil {
		return 0, fmt.Errorf("store that %s has been ready: %w", w.key, err)
	}
	again = sooner(again, w.waitForPlace(w.unplaceable(), f.cfg.Now(), f.cfg.Cluster))
	f.cfg.Traffic.Publish(f.view(w))
	if w.record != nil {
		next, err := f.scale(ctx, w)
		if err != nil {
			return 0, err
		}
		again = sooner(again, next)
	}
	return again, nil
}

// applyRevision hands the platform a revision that it does not have.
func (f *Fleet) applyRevision(ctx context.Context, w *work) error {
	if w.record == nil || w.applied {
		return nil
	}
	if err := f.cfg.Platform.Apply(ctx, w.record.Revision); err != nil {
		return fmt.Errorf("apply revision %s: %w", w.record.Revision.Name, err)
	}
	w.applied = true
	return nil
}

func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// begin copies what is known of a service; wanted is false when it is to go.
func (f *Fleet) begin(k service.Key) (w *work, wanted bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.mu.services[k]
	if e == nil || e.deleted {
		return nil, false
	}
	w = f.workOn(k, e)
	// What comes in from now on is for the next reconcile.
	e.wake = 0
	if e.drifted {
		e.drifted = false
		w.reapply()
	}
	if left := e.retry.at.Sub(f.cfg.Now()); w.stale && left > 0 {
		w.stale, w.later = false, left
		return w, true
	}
	e.stale, e.reselect = false, false
	return w, true
}

// forget ends a deleted service. The entry goes last, so that a failure is
// tried again.
func (f *Fleet) forget(ctx context.Context, k service.Key) error {
	f.cfg.Traffic.Withdraw(k)
	if err := f.cfg.Platform.Remove(ctx, k); err != nil {
		return fmt.Errorf("remove %s: %w", k, err)
	}
	if err := f.cfg.Store.DeleteRecord(k); err != nil {
		return fmt.Errorf("forget %s: %w", k, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.mu.services[k]; e != nil && e.deleted {
		delete(f.mu.services, k)
	}
	return nil
}

func (f *Fleet) observe(ctx context.Context, w *work) (err error) {
	if w.replicas, err = f.cfg.Platform.Observe(ctx, w.key); err != nil {
		return fmt.Errorf("observe %s: %w", w.key, err)
	}
	w.learnFiles()
	f.readExternalCounts(w)
	return nil
}

// finish stores what a reconcile found and how far it came, unless the service
// went meanwhile.
func (f *Fleet) finish(w *work) {
	status := f.statusOf(w)
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.mu.services[w.key]
	if e == nil || e.deleted {
		return
	}
	if c := w.canaryState(sleeping(w)); w.key.IsCanary() && (c != e.canary || e.record != w.record ||
		e.status.Generation != status.Generation || e.status.Model.Transition != status.Model.Transition) {
		e.canary = c
		f.queue.add(w.key.Stable())
	}
	e.record, e.applied, e.failure, e.files = w.record, w.applied, w.failure, w.files
	e.unplaced = w.unplaced
	if w.failure == nil {
		e.retry = retry{}
	}
	for r, s := range w.roles {
		e.roles[r] = &s
	}
	e.status = transitioned(e.status, status, f.cfg.Now())
	if w.trouble != nil {
		e.wake = max(e.wake, w.wake) // for the next try
		return
	}
	if n := len(w.replicas); n > 0 {
		e.lastReplica = w.replicas[n-1].ID
	}
	e.account(w, f.cfg.Now(), f.cfg.Traffic.InFlight)
}

// Drifted notes that somebody else changed what the platform made of a service.
// Its revision is applied and its counts are set again.
func (f *Fleet) Drifted(k service.Key) {
	f.mu.Lock()
	e := f.mu.services[k]
	if e != nil {
		e.drifted = true
	}
	f.mu.Unlock()
	if e != nil {
		f.queue.add(k)
	}
}

// reapply forgets what the platform was given, so that it is given again.
func (w *work) reapply() {
	w.applied = false
	for r, s := range w.roles {
		s.scaled = -1
		w.roles[r] = s
	}
}
