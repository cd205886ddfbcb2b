package fleet

import (
	"bytes"
	"context"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/rollout"
)

// A service whose manifest asks for a canary keeps its record while the
// manifest is resolved, applied and scaled under a key of its own, as if it
// were another service; package rollout decides what share of the traffic goes
// there. Without the percentage, or with 100, the service resolves the manifest
// itself and the canary ends.

// beside says whether w's manifest is for a canary and not for w.
func beside(w *work) bool {
	return !w.key.IsCanary() && rollout.Beside(w.object.Service.CanaryPercent, w.record != nil)
}

// branch has the canary of w take w's manifest.
func (f *Fleet) branch(w *work) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.services[w.key] == nil || f.mu.services[w.key].deleted {
		return
	}
	k := w.key.Canary()
	switch e := f.mu.services[k]; {
	case e == nil || e.deleted:
		f.mu.services[k] = newEntry(w.object)
		f.queue.add(k)
	case !bytes.Equal(e.object.Original, w.object.Original) || w.reselect:
		e.object, e.reselect = w.object, e.reselect || w.reselect
		e.renew()
		f.queue.add(k)
	}
	if !f.cfg.Follow { // of this manifest's, not of the one before's
		w.canary, w.canaryFailure = share(w, f.mu.services[k])
	}
}

// prune ends the canary of k, if there is one.
func (f *Fleet) prune(k service.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pruneLocked(k)
}

// pruneLocked is prune with Fleet.mu held.
func (f *Fleet) pruneLocked(k service.Key) {
	if e := f.mu.services[k.Canary()]; e != nil && !e.deleted {
		e.deleted = true
		f.queue.add(k.Canary())
	}
}

// redundant says that a canary would run what its service runs.
func (f *Fleet) redundant(canary service.Key, hash string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.mu.services[canary.Stable()]
	if e == nil || e.record == nil || e.record.Revision.Hash != hash {
		return false
	}
	f.pruneLocked(canary.Stable())
	f.queue.add(canary.Stable()) // which has no canary now
	return true
}

// prove notes that a canary has been ready once, for good.
func (f *Fleet) prove(w *work) error {
	if !w.key.IsCanary() || w.record == nil || w.record.Proven || canaryOf(w).Ready == 0 {
		return nil
	}
	proven := *w.record
	proven.Proven = true
	w.record = &proven
	return f.cfg.Store.PutRecord(proven)
}

// canaryOf is how far w, a canary, has come.
func canaryOf(w *work) rollout.Canary {
	var c rollout.Canary
	if w.failure != nil {
		c.Refused = w.failure.Message
	}
	if w.record == nil {
		return c
	}
	c.Proven, c.Asleep = w.record.Proven, sleeping(w)
	var own []replica.Replica
	for _, r := range w.replicas {
		if r.Revision != w.record.Revision.Hash {
			continue
		}
		own = append(own, r)
		if r.Phase == replica.Ready && r.Role == entrance(&w.record.Revision) {
			c.Ready++
		}
	}
	if bad := worst(own); bad != nil {
		c.Failing = bad.Message
	}
	return c
}

// share is what a service's canary, e, takes now, and what is to be said of it;
// nil without one. Fleet.mu is held.
func share(w *work, e *entry) (*service.CanaryStatus, *service.Failure) {
	if !beside(w) || e == nil || e.deleted {
		return nil, nil
	}
	d := rollout.Step(rollout.Input{Percent: w.object.Service.CanaryPercent, Serving: true, Canary: e.canary})
	st := &service.CanaryStatus{Wanted: *w.object.Service.CanaryPercent, Percent: d.Percent, Ready: e.canary.Ready, Why: d.Why,
		Transition: service.InProgress}
	if e.status.Generation == e.generation {
		st.Transition = e.status.Model.Transition
	}
	if e.record != nil {
		st.Revision = e.record.Revision.Name
	}
	return st, e.status.Model.LastFailure
}

// restoreCanaries brings back the canaries that the manifests ask for, and
// forgets the records of others; Fleet.mu is held.
func (f *Fleet) restoreCanaries(pinned map[service.Key]*Record) (forgotten []service.Key) {
	for k, e := range f.mu.services {
		if rollout.Beside(e.object.Service.CanaryPercent, e.record != nil) {
			c := newEntry(e.object)
			c.record = pinned[k.Canary()]
			f.mu.services[k.Canary()] = c
		}
	}
	for k := range pinned {
		if k.IsCanary() && f.mu.services[k] == nil {
			forgotten = append(forgotten, k)
		}
	}
	return forgotten
}

// followCanary lets the request path know of a canary that another process
// keeps.
func (f *Fleet) followCanary(_ context.Context, w *work) {
	f.mu.Lock()
	known := f.mu.followed[w.key.Canary()].Record != nil
	f.mu.Unlock()
	switch {
	case w.key.IsCanary():
	case beside(w) && known:
		f.branch(w)
	default:
		f.prune(w.key)
	}
}
