package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
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
		w.doubt()
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
	f.leave(w)
	return nil
}

// scale steps the autoscaler of each role and hands changed counts on.
func (f *Fleet) scale(ctx context.Context, w *work) (time.Duration, error) {
	again := time.Duration(0)
	demand := f.cfg.Traffic.Demand(w.key)
	for i := range w.record.Revision.Components {
		c := &w.record.Revision.Components[i]
		rs, ok := w.roles[c.Role]
		if !ok {
			rs.scaled = -1
		}
		in := autoscale.Input{Demand: demand, Limits: f.limits(w, c.Role), Wake: w.wake, Stopped: w.object.Service.Stopped || w.asleep,
			Replicas: f.alive(w, c.Role)}
		rs.state, rs.decision = autoscale.Step(rs.state, in, f.cfg.Now())
		if rs.scaled != rs.decision.Count || len(rs.decision.Victims) > 0 {
			ref := ref(w.key, c.Role)
			if err := f.cfg.Platform.Scale(ctx, ref, rs.decision.Count, rs.decision.Victims); err != nil {
				return 0, fmt.Errorf("scale %s to %d: %w", ref, rs.decision.Count, err)
			}
			was := rs.scaled
			if was < 0 { // since the start: what runs already was not started now
				was = len(in.Replicas)
			}
			if rs.theirs == nil && was != rs.decision.Count {
				f.cfg.Log.Info("scaled", "service", w.key.String(), "role", c.Role, "replicas", rs.decision.Count, "was", was, "why", rs.decision.Reason(f.cfg.Now()))
			}
			rs.scaled = rs.decision.Count
		}
		w.roles[c.Role] = rs
		again = sooner(again, rs.decision.Again)
	}
	return again, nil
}

// limits are the present ones: a change of scaling alone makes no revision.
func (f *Fleet) limits(w *work, role service.Role) service.Limits {
	return w.record.Revision.Component(role).Limits
}

// alive are the replicas of a role that count against its number: those of the
// revision, else those of the one before, which serve until there are any.
func (f *Fleet) alive(w *work, role service.Role) []autoscale.Replica {
	rev := &w.record.Revision
	out := f.aliveOf(w, role, rev.Hash)
	if len(out) == 0 && rev.Before != nil {
		out = f.aliveOf(w, role, rev.Before.Hash)
	}
	return out
}

func (f *Fleet) aliveOf(w *work, role service.Role, hash string) []autoscale.Replica {
	var out []autoscale.Replica
	for _, r := range w.replicas {
		if r.Role != role || !r.Alive() || r.Revision != hash {
			continue
		}
		out = append(out, autoscale.Replica{ID: r.ID, Ready: r.Phase == replica.Ready, ReadyAt: r.ReadyAt,
			Starting: r.Phase == replica.Starting || r.Phase == replica.Fetching,
			Waiting:  r.Phase == replica.Pending && r.PID == 0, Failed: r.Restarts > 0, InFlight: f.cfg.Traffic.InFlight(r.ID)})
	}
	return out
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
