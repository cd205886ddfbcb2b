package fleet

import (
	"bytes"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/rollout"
)

// A service whose manifest asks for a canary keeps its record while the
// manifest is resolved, applied and scaled under a key of its own, as if it
// were another service; package rollout decides what share of the traffic goes
// there. Without the percentage, or with 100, the service resolves the manifest
// itself and the canary ends.

// forCanary reports whether the manifest is for the service's canary and not for
// the service.
func (s *snapshot) forCanary() bool {
	return !s.key.IsCanary() && rollout.Beside(s.object.Service.CanaryPercent, s.record != nil)
}

// startCanary has the canary of w take w's manifest.
func (f *Fleet) startCanary(w *work) {
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
	w.canary, w.canaryFailure = share(w, f.mu.services[k]) // of this manifest's, not of the one before's
}

// endCanary ends the canary of k, if there is one.
func (f *Fleet) endCanary(k service.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endCanaryLocked(k)
}

// endCanaryLocked is endCanary with Fleet.mu held.
func (f *Fleet) endCanaryLocked(k service.Key) {
	if e := f.mu.services[k.Canary()]; e != nil && !e.deleted {
		e.deleted = true
		f.queue.add(k.Canary())
	}
}

// redundant reports whether a canary would run what its service runs, and then
// ends it.
func (f *Fleet) redundant(canary service.Key, hash string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.mu.services[canary.Stable()]
	if e == nil || e.record == nil || e.record.Revision.Hash != hash {
		return false
	}
	f.endCanaryLocked(canary.Stable())
	f.queue.add(canary.Stable()) // which has no canary now
	return true
}

// recordReady stores that a canary has been ready once, for good.
func (f *Fleet) recordReady(w *work) error {
	if !w.key.IsCanary() || w.record == nil || w.record.Proven || w.canaryState(sleeping(w)).Ready == 0 {
		return nil
	}
	proven := *w.record
	proven.Proven = true
	w.record = &proven
	return f.cfg.Store.PutRecord(proven)
}

// canaryState is how far s, a canary, has come; asleep says that none of its
// replicas is wanted.
func (s *snapshot) canaryState(asleep bool) rollout.Canary {
	var c rollout.Canary
	if s.failure != nil {
		c.Refused = s.failure.Message
	}
	if s.record == nil {
		return c
	}
	c.Proven, c.Asleep = s.record.Proven, asleep
	var own []replica.Replica
	for _, r := range s.replicas {
		if r.Revision != s.record.Revision.Hash {
			continue
		}
		own = append(own, r)
		if r.Phase == replica.Ready && r.Role == entrance(&s.record.Revision) {
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
	if !w.forCanary() || e == nil || e.deleted {
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
