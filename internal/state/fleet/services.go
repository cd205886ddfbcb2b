package fleet

import (
	"bytes"
	"slices"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/rollout"
	"roundhouse.dev/roundhouse/internal/decide/route"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// services holds every service and canary: what is desired of it and what its
// last reconcile found. A change queues the services that it concerns. It is
// safe for concurrent use; methods that end in Locked are called with mu held.
type services struct {
	queue *queue
	now   func() time.Time

	mu struct {
		sync.Mutex
		entries map[service.Key]*entry
		parents map[service.Key]service.Key // of the services that name one
	}
}

func newServices(now func() time.Time) *services {
	s := &services{queue: newQueue(), now: now}
	s.mu.entries, s.mu.parents = map[service.Key]*entry{}, map[service.Key]service.Key{}
	return s
}

// entry is all that is known of one service. The lock of services guards it; a
// reconcile works on a copy (work) and stores what it found.
type entry struct {
	object     Object
	generation int64
	manifests  int64 // that it has had
	record     *Record
	// stale: the inputs changed since the record was made.
	stale, reselect bool
	// chosen is when this process chose the record's runtime; zero where one before
	// it did.
	chosen time.Time
	// applied: the platform has the record's revision. drifted: somebody else
	// changed what it made of it.
	applied, drifted bool
	// failure is why the present inputs cannot be run, nil when they can.
	failure *service.Failure
	roles   map[service.Role]*roleState
	wake    int
	asleep  bool   // put to sleep by hand until the next request
	evicted string // why its replicas are to be ended once, if no request comes before
	preload preload
	deleted bool
	placed  placement         // of its model, where it names a parent
	lent    []replica.Replica // its replicas as its guests were told of them
	status  service.Status
	retry   retry
	canary  rollout.Canary // how far it has come, if it is one
	files   string         // fingerprint of its model's as first seen, or as its replicas serve them
	// unplaced is since when no place takes its replicas; zero while one does.
	unplaced time.Time
	// lastReplica is the newest there has been, for its logs.
	lastReplica string
}

// retry is when inputs that could not be resolved are looked at again unless
// they change.
type retry struct {
	at    time.Time
	tries int // in a row that failed
}

// roleState carries the autoscaler from step to step.
type roleState struct {
	state    autoscale.State
	decision autoscale.Decision
	scaled   int           // last count given to the platform; -1 before the first
	startup  time.Duration // that the last start took; 0 where none was seen
	level    int           // of the sleep given with it; 0 for none
	// external is the count where somebody else sets it; nil where the fleet does.
	external *int
	// past are the last decisions, which finish adds made to; made is nil where the
	// reconcile made none.
	past []ScaleDecision
	made *ScaleDecision
}

func newEntry(o Object) *entry {
	e := &entry{object: o, generation: 1, manifests: 1, stale: true, roles: map[service.Role]*roleState{}}
	if o.Service.Residency.Preload {
		e.preload = preloadDue
	}
	return e
}

// renew has what is desired resolved anew, as a generation of its own: the
// status of the generation before does not describe it.
func (e *entry) renew() {
	e.stale, e.retry, e.generation = true, retry{}, e.generation+1
}

// putLocked takes in a service's manifest, and returns a copy to publish where
// the service is new.
func (s *services) putLocked(o Object, reselect bool) *work {
	var created *work
	e := s.mu.entries[o.Key]
	if e == nil || e.deleted {
		e = newEntry(o)
		s.mu.entries[o.Key] = e
		created = s.workLocked(o.Key, e)
	} else {
		if declaredMemory(e.object.Service) != declaredMemory(o.Service) {
			defer s.tellChildrenLocked(o.parentKey())
		}
		e.object, e.manifests = o, e.manifests+1
		e.renew()
	}
	e.reselect = e.reselect || reselect
	s.queue.fresh(o.Key)
	for _, p := range []service.Key{s.mu.parents[o.Key], o.parentKey()} { // what it was a guest of, and is
		if s.presentLocked(p) != nil {
			s.queue.add(p)
			s.tellChildrenLocked(p)
		}
	}
	s.bringUpLocked(o)
	s.tellChildrenLocked(o.Key)
	return created
}

// presentLocked returns a service or canary that is there and not deleted, else
// nil.
func (s *services) presentLocked(k service.Key) *entry {
	if e := s.mu.entries[k]; e != nil && !e.deleted {
		return e
	}
	return nil
}

// eachLocked calls f with each service that is there; canaries are left out.
func (s *services) eachLocked(f func(*entry)) {
	for k, e := range s.mu.entries {
		if !e.deleted && !k.IsCanary() {
			f(e)
		}
	}
}

// membersLocked are the services as pools select them.
func (s *services) membersLocked() (out []route.Member) {
	s.eachLocked(func(e *entry) { out = append(out, route.NewMember(e.object.Service)) })
	return out
}

// renewLocked has every service and canary that matches resolved anew, and
// reports whether there is one.
func (s *services) renewLocked(match func(*entry) bool) (found bool) {
	for k, e := range s.mu.entries {
		if match(e) {
			found = true
			e.renew()
			s.queue.fresh(k)
		}
	}
	return found
}

// change changes one service or canary and queues it; false where it is not
// there.
func (s *services) change(k service.Key, f func(*entry)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.mu.entries[k]
	if e != nil {
		f(e)
		s.queue.add(k)
	}
	return e != nil
}

// deleteLocked marks a service and its canary as deleted: a reconcile ends
// their replicas.
func (s *services) deleteLocked(k service.Key) {
	s.mu.entries[k].deleted = true
	s.queue.fresh(k)
	s.relateLocked(k)
	s.endCanaryLocked(k)
}

// files are a service's revision, and the fingerprint of its model's files as first seen
// or as replicas serve them.
type files struct {
	revision *workload.Revision
	known    string
}

// filesOf returns the files of the services that objects are, or are models of.
func (s *services) filesOf(objects []Object) map[service.Key]files {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[service.Key]files{}
	for k, e := range s.mu.entries {
		if e.record != nil && !e.deleted && slices.ContainsFunc(objects, func(o Object) bool { return o.concerns(e) }) {
			out[k] = files{&e.record.Revision, e.files}
		}
	}
	return out
}

// concerns reports whether o is e's service, or a model that it serves.
func (o Object) concerns(e *entry) bool {
	switch o.ID().Kind {
	case serviceKind:
		return e.object.Key == o.Key
	case "model":
		return modelRef(e.object) == o.Key.Name
	case weightKind:
		return slices.Contains(e.object.Service.AdapterNames(), o.Key.Name)
	}
	return false
}

// uses reports whether a change of the runtime of this name could matter to e:
// it runs on it, asks for it, or has none.
func uses(e *entry, name string) bool {
	s := e.object.Service
	return e.failure != nil || e.record == nil || e.record.Revision.Runtime.Name == name ||
		s.Runtime != nil && s.Runtime.Name == name
}

// choiceStands is for how long a choice is made again for a runtime that comes,
// unless a replica is ready before: manifests that are applied together are seen
// one after the other on a cluster.
const choiceStands = 30 * time.Second

// choosing reports whether e's runtime is being chosen, or was just now and has no
// ready replica yet.
func (e *entry) choosing(now time.Time) bool {
	switch {
	case e.record == nil:
		return true
	case e.status.Generation != e.generation && selectionHash(e.object) != e.record.Selection:
		return true
	case e.chosen.IsZero() || now.Sub(e.chosen).Abs() >= choiceStands:
		return false
	}
	return !slices.ContainsFunc(e.status.Components, func(c service.ComponentStatus) bool { return c.Ready > 0 })
}

func modelRef(o Object) string {
	if m := o.Service.Model; m != nil && m.Ref != nil {
		return m.Ref.Name
	}
	return ""
}

// workLocked copies e; mu is held.
func (s *services) workLocked(k service.Key, e *entry) *work {
	w := &work{snapshot: snapshot{key: k, object: e.object, record: e.record, failure: e.failure, unplaced: e.unplaced},
		generation: e.generation, stale: e.stale, reselect: e.reselect, chosen: e.chosen, applied: e.applied,
		wake: e.wake, asleep: e.asleep, evicted: e.evicted, preload: e.preload, files: e.files, placed: e.placed, roles: map[service.Role]roleState{}}
	for r, rs := range e.roles {
		w.roles[r] = *rs
	}
	if past := e.status.Model.LastFailure; past != nil && past.Replica != "" && e.record != nil && e.record.Revision.Name == e.status.Revision {
		w.past = past
	}
	w.canary, w.canaryFailure = share(w, s.mu.entries[k.Canary()])
	return w
}

// begin copies what is known of a service or canary for a reconcile; nil when it
// is to go.
func (s *services) begin(k service.Key) *work {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.presentLocked(k)
	if e == nil {
		return nil
	}
	w := s.workLocked(k, e)
	// What comes in from now on is for the next reconcile.
	e.wake, e.evicted = 0, ""
	if e.drifted {
		e.drifted = false
		w.reapply()
	}
	if wait := e.retry.at.Sub(s.now()); w.stale && wait > 0 {
		w.stale, w.later = false, wait
		return w
	}
	e.stale, e.reselect = false, false
	return w
}

// finish stores what a reconcile found and how far it came, unless the service
// was deleted meanwhile.
func (s *services) finish(w *work, status service.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.presentLocked(w.key)
	if e == nil {
		return
	}
	if c := w.canaryState(sleeping(w)); w.key.IsCanary() && (c != e.canary || e.record != w.record ||
		e.status.Generation != status.Generation || e.status.Model.Transition != status.Model.Transition) {
		e.canary = c
		s.queue.add(w.key.Stable())
	}
	if e.placed != w.placed || w.isGuest() && !sameGuest(e.record, w.record) {
		s.relateLocked(w.key)
	}
	if w.object.Service.Repository {
		s.tellGuestsLocked(w, e)
		e.lent = w.replicas
	}
	e.placed = w.placed
	e.record, e.chosen, e.applied, e.failure, e.files = w.record, w.chosen, w.applied, w.failure, w.files
	e.unplaced = w.unplaced
	if w.failure == nil {
		e.retry = retry{}
	}
	for r, rs := range w.roles {
		if rs.made != nil {
			rs.past, rs.made = remember(rs.past, *rs.made), nil
		}
		e.roles[r] = &rs
	}
	e.status = transitioned(e.status, status, s.now())
	if w.platformErr != nil {
		e.wake = max(e.wake, w.wake) // for the next try
		return
	}
	if n := len(w.replicas); n > 0 {
		e.lastReplica = w.replicas[n-1].ID
	}
	e.noteStarts(w.replicas)
}

// forget drops a deleted service.
func (s *services) forget(k service.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.mu.entries[k]; e != nil && e.deleted {
		p := e.object.parentKey()
		delete(s.mu.entries, k)
		delete(s.mu.parents, k)
		if s.presentLocked(p) != nil {
			s.queue.add(p)
		}
		s.tellChildrenLocked(p) // who may have its memory
		s.tellChildrenLocked(k)
	}
}

// retryLater has the inputs of w, which came to no revision, resolved again
// after a wait that doubles with each failure in a row; that of a failure that is
// shorter than retryAfter does not grow. 0 waits for a change. It returns the wait.
func (s *services) retryLater(w *work, wait time.Duration, failed bool, jitter func(time.Duration) time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.mu.entries[w.key]
	if e == nil {
		return wait
	}
	e.reselect = e.reselect || w.reselect // not done yet
	if wait == 0 || e.stale {             // stale again: the inputs changed meanwhile
		return wait
	}
	if !failed || wait >= retryAfter {
		wait = min(wait<<min(e.retry.tries, 8), maxRetryAfter)
	}
	if failed {
		wait = jitter(wait)
		e.retry.tries++
	}
	e.stale, e.retry.at = true, s.now().Add(wait)
	return wait
}

// startCanary has the canary of w take w's manifest.
func (s *services) startCanary(w *work) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.presentLocked(w.key) == nil {
		return
	}
	k := w.key.Canary()
	switch e := s.presentLocked(k); {
	case e == nil:
		s.mu.entries[k] = newEntry(w.object)
		s.queue.add(k)
	case !bytes.Equal(e.object.Original, w.object.Original) || w.reselect:
		e.object, e.reselect = w.object, e.reselect || w.reselect
		e.renew()
		s.queue.add(k)
	}
	w.canary, w.canaryFailure = share(w, s.mu.entries[k]) // of this manifest's, not of the one before's
}

// endCanary ends the canary of k, if there is one.
func (s *services) endCanary(k service.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endCanaryLocked(k)
}

func (s *services) endCanaryLocked(k service.Key) {
	if e := s.presentLocked(k.Canary()); e != nil {
		e.deleted = true
		s.queue.add(k.Canary())
	}
}

// endRedundant ends a canary whose revision its service runs already, and
// reports whether it ended one.
func (s *services) endRedundant(canary service.Key, hash string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.mu.entries[canary.Stable()]
	if e == nil || e.record == nil || e.record.Revision.Hash != hash {
		return false
	}
	s.endCanaryLocked(canary.Stable())
	s.queue.add(canary.Stable()) // which has no canary now
	return true
}

// restoreCanariesLocked brings back the canaries that the manifests ask for, and
// returns the keys of other canaries' records.
func (s *services) restoreCanariesLocked(pinned map[service.Key]*Record) (unwanted []service.Key) {
	for k, e := range s.mu.entries {
		if rollout.Gradual(e.object.Service.CanaryPercent, e.record != nil) {
			c := newEntry(e.object)
			c.record = pinned[k.Canary()]
			s.mu.entries[k.Canary()] = c
		}
	}
	for k := range pinned {
		if k.IsCanary() && s.mu.entries[k] == nil {
			unwanted = append(unwanted, k)
		}
	}
	return unwanted
}
