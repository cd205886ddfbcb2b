package fleet

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/guests"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// work is one reconcile's copy of an entry: read under the lock at the start,
// stored under it at the end.
type work struct {
	snapshot
	generation int64
	stale      bool
	reselect   bool
	chosen     time.Time // as in entry
	applied    bool
	wake       int
	asleep     bool
	evicted    string // why it is stopped now; "" where it is not
	preload    preload
	files      string
	placed     placement
	roles      map[service.Role]roleState
	// platformErr is what the platform refused.
	platformErr error
	// past is why a replica of this revision failed before, and later when
	// inputs that could not be resolved are looked at again; 0 for neither.
	past  *service.Failure
	later time.Duration
	// canary is the service's, as it was at the start, and what is wrong with
	// it; nil without one.
	canary        *service.CanaryStatus
	canaryFailure *service.Failure
}

func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// reapply forgets what the platform was given, so that it is given again.
func (w *work) reapply() {
	w.applied = false
	for r, s := range w.roles {
		s.scaled = -1
		w.roles[r] = s
	}
}

// reconciler brings one service at a time from what is to what is desired: it
// resolves the revision, applies it and sets its counts.
type reconciler struct {
	cfg      *Config
	resolver *resolver
	services *services
	// residents is nil where replicas share no machine.
	residents *residents
}

// converge does the work of a reconcile. After an error w holds how far it
// came.
func (r *reconciler) converge(ctx context.Context, w *work) (time.Duration, error) {
	if w.object.Service.Parent != "" && !w.key.IsCanary() {
		f, err := r.settlePlace(ctx, w)
		if err != nil {
			return 0, err
		}
		if w.placed.place != guests.Own {
			return r.convergeGuest(ctx, w, f)
		}
	}
	again := w.later
	if w.stale {
		again = r.resolve(ctx, w)
	}
	if err := r.takeGuests(w); err != nil {
		return 0, err
	}
	if err := r.applyRevision(ctx, w); err != nil {
		return 0, err
	}
	if err := r.observe(ctx, w); err != nil {
		return 0, err
	}
	if !w.stale && w.later == 0 && w.refused() {
		again = sooner(again, r.resolve(ctx, w))
		if err := r.applyRevision(ctx, w); err != nil {
			return 0, err
		}
	}
	if err := r.settle(ctx, w); err != nil {
		return 0, err
	}
	if err := r.learnMemory(ctx, w); err != nil {
		return 0, err
	}
	if err := r.recordReady(w); err != nil {
		return 0, fmt.Errorf("store that %s has been ready: %w", w.key, err)
	}
	again = sooner(again, r.residents.settle(ctx, w))
	again = sooner(again, w.waitForNode(w.unplaceable(), r.cfg.Now(), r.cfg.Cluster))
	r.cfg.Traffic.Publish(w.view(r.cfg))
	if w.record != nil {
		next, err := r.scale(ctx, w)
		if err != nil {
			return 0, err
		}
		again = sooner(again, next)
	}
	return again, nil
}

// applyRevision hands the platform a revision that it does not have.
func (r *reconciler) applyRevision(ctx context.Context, w *work) error {
	if w.record == nil || w.applied {
		return nil
	}
	if err := r.cfg.Platform.Apply(ctx, w.record.Revision); err != nil {
		return fmt.Errorf("apply revision %s: %w", w.record.Revision.Name, err)
	}
	w.applied = true
	return nil
}

func (r *reconciler) observe(ctx context.Context, w *work) (err error) {
	if w.replicas, err = r.cfg.Platform.Observe(ctx, w.key); err != nil {
		return fmt.Errorf("observe %s: %w", w.key, err)
	}
	w.learnFiles()
	if scaler, ok := r.cfg.Platform.(ExternalScaler); ok {
		w.readExternalCounts(scaler)
	}
	return nil
}

// forget ends a deleted service. The entry goes last, so that a failure is
// tried again.
func (r *reconciler) forget(ctx context.Context, k service.Key) error {
	r.cfg.Traffic.Withdraw(k)
	if err := r.cfg.Platform.Remove(ctx, k); err != nil {
		return fmt.Errorf("remove %s: %w", k, err)
	}
	if err := r.cfg.Store.DeleteRecord(k); err != nil {
		return fmt.Errorf("forget %s: %w", k, err)
	}
	r.services.forget(k)
	r.cfg.Usage.Forget(k)
	r.cfg.Forgot(k)
	return nil
}

// failureReasons beyond selection's own.
const (
	reasonModelLoadFailed = "ModelLoadFailed"
	reasonInvalidSpec     = "InvalidPredictorSpec"
	reasonStore           = "StoreFailed"
)

// resolve turns changed inputs into a revision: model, runtime, rendering. On
// failure the present record stays and serves; the failure is what is missing.
// It returns when to try again, 0 when only a change can help.
func (r *reconciler) resolve(ctx context.Context, w *work) time.Duration {
	if w.forCanary() {
		w.failure = nil
		r.services.startCanary(w)
		return 0
	}
	next, again, failure := r.resolver.resolved(ctx, w)
	if failure != nil {
		return r.fail(w, failure, again)
	}
	if next == nil {
		return r.services.retryLater(w, again, false, nil)
	}
	w.failure = nil
	if w.key.IsCanary() && r.services.endRedundant(w.key, next.Revision.Hash) {
		return 0
	}
	if r.cfg.Cluster && w.record != nil && w.record.Revision.Hash == next.Revision.Hash {
		next.Revision = w.record.Revision.Scaled(next.Revision) // pods stay as they are
	}
	next.Revision.Before = r.before(ctx, w, next.Revision.Hash)
	if !w.runsAs(next) {
		w.applied = false
	}
	if !w.key.IsCanary() {
		defer r.services.endCanary(w.key) // the service runs its manifest itself now
	}
	if w.record != nil && w.applied && (r.cfg.Cluster || !w.inputsChanged(next)) {
		return 0
	}
	if err := r.cfg.Store.PutRecord(*next); err != nil {
		w.applied = w.record != nil
		return r.fail(w, &service.Failure{Reason: reasonStore, Message: err.Error()}, retryAfter)
	}
	w.record = next
	return 0
}

// inputsChanged reports whether a record is to be written again although the
// revision stays, for what it was made from. On a cluster that is not worth a
// write: the service is resolved anew after a restart, to the same revision.
func (w *work) inputsChanged(next *Record) bool {
	return w.record.Inputs != nil && !maps.Equal(w.record.Inputs, next.Inputs)
}

// fail notes why w cannot be run, and has its inputs resolved again although
// they have not changed. It returns when; 0 when only a change can help.
func (r *reconciler) fail(w *work, failure *service.Failure, again time.Duration) time.Duration {
	failure.Time = r.cfg.Now()
	if old := w.failure; old != nil && old.Message == failure.Message {
		failure.Time = old.Time
	} else {
		r.cfg.Log.Warn("cannot be run", "service", w.key.String(), "reason", failure.Reason, "message", failure.Message)
	}
	w.failure = failure
	return r.services.retryLater(w, again, true, r.cfg.Jitter)
}

// runsAs reports whether next has the platform run what it runs: the same
// revision, reached, scheduled and replaced in the same ways, with the same counts, needs and
// names of adapters.
func (w *work) runsAs(next *Record) bool {
	return w.record != nil && w.record.Revision.Hash == next.Revision.Hash && w.record.Selection == next.Selection &&
		w.record.Revision.Access.Equal(next.Revision.Access) &&
		reflect.DeepEqual(w.record.Revision.Scheduling, next.Revision.Scheduling) &&
		w.record.Revision.Model.Credentials.Equal(next.Revision.Model.Credentials) &&
		slices.Equal(w.record.Revision.Model.Adapters, next.Revision.Model.Adapters) &&
		slices.EqualFunc(w.record.Revision.Components, next.Revision.Components, func(x, y workload.Component) bool {
			return x.Role == y.Role && x.Limits.Equal(y.Limits) && x.Process.Need() == y.Process.Need() && sameGrant(x.Files, y.Files) &&
				reflect.DeepEqual(x.Strategy, y.Strategy) && reflect.DeepEqual(x.Budget, y.Budget)
		})
}

// sameGrant reports whether two components' own files are fetched with the same.
func sameGrant(x, y *workload.Model) bool {
	return x == nil && y == nil || x != nil && y != nil && x.Credentials.Equal(y.Credentials)
}

// before is the revision that serves until the one of hash is ready: the present
// one if it has a ready replica, else its own predecessor; nil for none, and on
// a cluster.
func (r *reconciler) before(ctx context.Context, w *work, hash string) *workload.Revision {
	if w.record == nil || r.cfg.Cluster {
		return nil
	}
	now := w.record.Revision
	serving := now.Before
	if now.Hash != hash {
		rs, err := r.cfg.Platform.Observe(ctx, w.key)
		if err == nil && slices.ContainsFunc(rs, func(x replica.Replica) bool { return x.Revision == now.Hash && x.Phase == replica.Ready }) {
			serving = &now
			serving.Before = nil
		}
	}
	if serving != nil && serving.Hash == hash {
		return nil
	}
	return serving
}

// settle forgets the revision before once each role of the present one has a
// replica that is ready.
func (r *reconciler) settle(ctx context.Context, w *work) error {
	if w.record == nil || w.record.Revision.Before == nil {
		return nil
	}
	for _, c := range w.record.Revision.Components {
		if !slices.ContainsFunc(w.replicas, func(x replica.Replica) bool {
			return x.Role == c.Role && x.Revision == w.record.Revision.Hash && x.Phase == replica.Ready
		}) {
			return nil
		}
	}
	settled := *w.record
	settled.Revision.Before = nil
	if err := r.cfg.Store.PutRecord(settled); err != nil {
		return fmt.Errorf("store that revision %s of %s has been ready: %w", settled.Revision.Name, w.key, err)
	}
	w.record, w.applied = &settled, false
	return r.applyRevision(ctx, w)
}

// recordReady stores that a canary has been ready once, for good.
func (r *reconciler) recordReady(w *work) error {
	if !w.key.IsCanary() || w.record == nil || w.record.WasReady || w.canaryState(sleeping(w)).Ready == 0 {
		return nil
	}
	ready := *w.record
	ready.WasReady = true
	w.record = &ready
	return r.cfg.Store.PutRecord(ready)
}
