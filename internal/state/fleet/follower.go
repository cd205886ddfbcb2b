package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/guests"
	"roundhouse.dev/roundhouse/internal/decide/rollout"
	"roundhouse.dev/roundhouse/internal/decide/route"
)

// FollowerConfig is what a follower needs to know. Replicas, Traffic and URL are
// required.
type FollowerConfig struct {
	Replicas Replicas
	Traffic  Publisher
	// Routing is told of routing objects; nil is not told.
	Routing Routing
	// URL is the address people reach a service at.
	URL func(service.Key) string
	// Now is the clock; nil is the system's.
	Now func() time.Time
	Log *slog.Logger
}

// Replicas are those that other processes start and stop. Their methods are as
// those of a Platform.
type Replicas interface {
	Observe(ctx context.Context, k service.Key) ([]replica.Replica, error)
	Changed() <-chan service.Key
}

// Decision is what another process decided of a service.
type Decision struct {
	// Record is nil before the first decision.
	Record *Record
	// Failure is why the service has no ready replica; nil when nothing is
	// wrong. Blocked reports whether waiting will not help.
	Failure *service.Failure
	Blocked bool
	// Starting is how far a start is, "" where there is none.
	Starting string
	// Canary is what the service's canary takes; nil where it is unknown.
	Canary *service.CanaryStatus
}

// Follower is a gateway's copy of the services of which another process decides.
// It tells the request path of them, and resolves, stores, applies and scales
// nothing. It is safe for concurrent use.
type Follower struct {
	cfg    FollowerConfig
	queue  *queue
	routes *Routes

	mu struct {
		sync.Mutex
		services  map[service.Key]*followed
		decisions map[service.Key]Decision
	}
}

// followed is what a follower keeps of one service, or of its canary.
// Follower.mu guards it.
type followed struct {
	object   Object
	deleted  bool
	record   *Record        // that it was last published with
	canary   rollout.Canary // how far it has come, if it is one
	unplaced time.Time
	guests   map[service.Key]bool // whose models its replicas were last to load
}

// NewFollower makes a follower of nothing yet. Call Restore before Run.
func NewFollower(cfg FollowerConfig) (*Follower, error) {
	if cfg.Replicas == nil || cfg.Traffic == nil || cfg.URL == nil {
		return nil, errors.New("fleet: Replicas, Traffic and URL are required")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	f := &Follower{cfg: cfg, queue: newQueue(), routes: NewRoutes(cfg.Routing, cfg.Now)}
	f.mu.services = map[service.Key]*followed{}
	f.mu.decisions = map[service.Key]Decision{}
	return f, nil
}

// Restore takes in the manifests that there are at the start.
func (f *Follower) Restore(objects []Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range objects {
		f.putLocked(o)
	}
	f.publishRoutes()
}

// Apply takes in manifests: all of them or, when any is refused, none. Runtimes
// and models are left to the process that decides.
func (f *Follower) Apply(_ context.Context, objects []Object, _ ApplyOptions) ([]Change, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.routes.admit(objects); err != nil {
		return nil, err
	}
	out, changed := make([]Change, 0, len(objects)), false
	for _, o := range objects {
		before, known := f.object(o.ID())
		change := compare(&o, before, known, f.cfg.Now())
		if change.Action != actionUnchanged {
			f.putLocked(o)
			changed = true
		}
		out = append(out, change)
	}
	if changed {
		f.publishRoutes()
	}
	return out, nil
}

// Delete makes an object no longer desired.
func (f *Follower) Delete(_ context.Context, id ID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.object(id); !ok {
		return &NotFoundError{ID: id}
	}
	if id.Kind == serviceKind {
		f.mu.services[id.Key].deleted = true
		f.queue.fresh(id.Key)
		f.endCanary(id.Key)
	} else {
		f.routes.remove(id)
	}
	f.publishRoutes()
	return nil
}

// Demanded has a service looked at again.
func (f *Follower) Demanded(k service.Key) { f.queue.add(k) }

// SetDecision takes in what was decided of a service or of its canary. It may
// come before the service itself.
func (f *Follower) SetDecision(k service.Key, d Decision) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d == (Decision{}) {
		delete(f.mu.decisions, k)
	} else {
		f.mu.decisions[k] = d
	}
	for _, k := range []service.Key{k, k.Stable()} {
		if f.mu.services[k] != nil {
			f.queue.add(k)
		}
	}
}

// SetDegradation records what is wrong with the addresses of a pool.
func (f *Follower) SetDegradation(pool service.Key, now routing.Degradation) {
	f.routes.SetDegradation(pool, now)
}

// Run tells the request path of what changes until ctx ends. workers run at
// once; one service is never looked at twice at a time.
func (f *Follower) Run(ctx context.Context, workers int) {
	loop{queue: f.queue, changed: f.cfg.Replicas.Changed(), reconcile: f.Reconcile, jitter: spread, log: f.cfg.Log}.run(ctx, workers)
}

// Reconcile tells the request path of one service as it is now. It returns when
// to come again; 0 means when something changes. Only one Reconcile of a key may
// run at a time.
func (f *Follower) Reconcile(ctx context.Context, k service.Key) (time.Duration, error) {
	s, decided, percent, host, wanted := f.begin(k)
	if !wanted {
		f.cfg.Traffic.Withdraw(k)
		f.drop(k)
		return 0, nil
	}
	var err error
	of := k
	if host != nil {
		of = host.Key
	}
	if s.replicas, err = f.cfg.Replicas.Observe(ctx, of); err != nil {
		return 0, fmt.Errorf("observe %s: %w", of, err)
	}
	if host != nil {
		s.replicas = guests.Replicas(s.replicas, k.Name)
	}
	f.updateCanary(s)
	reason := "" // who decides sees the replicas that have no place yet
	if decided.Failure != nil && !s.serves() {
		reason = decided.Failure.Reason
	}
	now := f.cfg.Now()
	again := s.waitForNode(reason, now, true)
	v := s.view(f.cfg.URL(k), now, true)
	if v.Reason == "" && decided.Failure != nil {
		v.Reason, v.Cause, v.Blocked = decided.Failure.Reason, decided.Failure.Message, decided.Blocked
		s.blockUnplaced(&v, now, true)
	}
	v.CanaryPercent, v.Starting = percent, decided.Starting
	if host != nil {
		v.lend(host.Key, host.Service)
	}
	f.cfg.Traffic.Publish(v)
	f.finish(s)
	return again, nil
}

// begin copies what is known of a service; wanted is false when it is to go.
// percent is its canary's share, and host what loads its model, if another does.
func (f *Follower) begin(k service.Key) (s *snapshot, decided Decision, percent int, host *Object, wanted bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.mu.services[k]
	if e == nil || e.deleted {
		return nil, decided, 0, nil, false
	}
	decided = f.mu.decisions[k]
	if lent, by := f.lentLocked(e.object); lent != nil {
		decided.Record, decided.Blocked, host = lent, false, by
	}
	f.tellGuestsLocked(k, decided.Record)
	s = &snapshot{key: k, object: e.object, record: decided.Record, failure: decided.Failure, unplaced: e.unplaced}
	c := f.mu.services[k.Canary()]
	if !s.forCanary() || c == nil || c.deleted {
		return s, decided, 0, host, true
	}
	asked := s.object.Service.CanaryPercent
	percent = rollout.Step(rollout.Input{Percent: asked, Serving: true, Canary: c.canary}).Percent
	if decided.Canary != nil {
		// Who decides sees why a replica is not ready.
		percent = min(max(decided.Canary.Percent, 0), max(*asked, 0))
	}
	return s, decided, percent, host, true
}

// lentLocked is the record of a service whose model another loads, and that one; nil
// where none does. mu is held.
func (f *Follower) lentLocked(o Object) (*Record, *Object) {
	p := o.parentKey()
	host, decided := f.mu.services[p], f.mu.decisions[p].Record
	if p == (service.Key{}) || o.Key.IsCanary() || host == nil || host.deleted || host.object.Service.Stopped || decided == nil || decided.Revision.Repository() == "" {
		return nil, nil
	}
	for _, g := range decided.Revision.Guests {
		if g.Name == o.Key.Name {
			return guestRecord(decided, o.Service, g.Model, ""), &host.object
		}
	}
	return nil, nil
}

// tellGuestsLocked queues the services to which matters what k and its replicas are; mu
// is held.
func (f *Follower) tellGuestsLocked(k service.Key, r *Record) {
	now := map[service.Key]bool{}
	if r != nil && r.Revision.Host == (service.Key{}) {
		for _, g := range r.Revision.Guests {
			now[service.Key{Namespace: k.Namespace, Name: g.Name}] = true
		}
	}
	for _, all := range []map[service.Key]bool{now, f.mu.services[k].guests} { // those that left, too
		for guest := range all {
			if e := f.mu.services[guest]; e != nil && guest != k {
				f.queue.add(guest)
			}
		}
	}
	f.mu.services[k].guests = now
}

// updateCanary lets the request path know of the canary of s once there is a
// decision about it, and no longer than the manifest asks for it.
func (f *Follower) updateCanary(s *snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.mu.services[s.key]; s.key.IsCanary() || e == nil || e.deleted {
		return
	}
	k := s.key.Canary()
	if !s.forCanary() || f.mu.decisions[k].Record == nil {
		f.endCanary(s.key)
		return
	}
	switch e := f.mu.services[k]; {
	case e == nil || e.deleted:
		f.mu.services[k] = &followed{object: s.object}
	case !bytes.Equal(e.object.Original, s.object.Original):
		e.object = s.object
	default:
		return
	}
	f.queue.add(k)
}

// endCanary ends the canary of k, if there is one; mu is held.
func (f *Follower) endCanary(k service.Key) {
	if e := f.mu.services[k.Canary()]; e != nil && !e.deleted {
		e.deleted = true
		f.queue.add(k.Canary())
	}
}

// drop forgets a deleted service.
func (f *Follower) drop(k service.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.mu.services[k]; e != nil && e.deleted {
		delete(f.mu.services, k)
		for guest := range e.guests {
			if f.mu.services[guest] != nil {
				f.queue.add(guest)
			}
		}
	}
}

// finish stores what the request path was told, unless the service went
// meanwhile.
func (f *Follower) finish(s *snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.mu.services[s.key]
	if e == nil || e.deleted {
		return
	}
	// How many replicas are wanted is not known here: none is, while none is ready.
	if c := s.canaryState(true); s.key.IsCanary() && (c != e.canary || e.record != s.record) {
		e.canary = c
		f.queue.add(s.key.Stable())
	}
	e.record, e.unplaced = s.record, s.unplaced
}

// object returns what is known by an ID; mu is held.
func (f *Follower) object(id ID) (Object, bool) {
	if id.Kind != serviceKind {
		return f.routes.object(id)
	}
	if e := f.mu.services[id.Key]; e != nil && !e.deleted {
		return e.object, true
	}
	return Object{}, false
}

// putLocked is called with mu held.
func (f *Follower) putLocked(o Object) {
	switch {
	case o.Routing != nil:
		f.routes.put(o)
	case o.Service != nil:
		if e := f.mu.services[o.Key]; e != nil && !e.deleted {
			e.object = o
		} else {
			f.mu.services[o.Key] = &followed{object: o}
			s := snapshot{key: o.Key, object: o}
			f.cfg.Traffic.Publish(s.view(f.cfg.URL(o.Key), f.cfg.Now(), true)) // requests wait from now on
		}
		f.queue.fresh(o.Key)
	}
}

// publishRoutes tells the routing objects which services there are; mu is held.
func (f *Follower) publishRoutes() {
	var members []route.Member
	for k, e := range f.mu.services {
		if !e.deleted && !k.IsCanary() {
			members = append(members, route.NewMember(e.object.Service))
		}
	}
	f.routes.publish(members)
}
