package process

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/residency"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// owner holds what is wanted of one service and its replicas. Nothing waits
// while it holds the lock: whatever takes time is a unit's.
type owner struct {
	p   *Platform
	key service.Key
	// snapshot is what Observe returns; replaced, never changed in place.
	snapshot atomic.Pointer[[]replica.Replica]

	mu       sync.Mutex
	removed  bool
	revision *workload.Revision // nil while only recovered replicas are known
	want     map[service.Role]int
	rest     map[service.Role]int // the level of the sleep of those that are not wanted; 0: they end
	victims  map[service.Role][]string
	units    []*unit // oldest first
	// peers is where the roles that a router calls are reached; replaced, never
	// changed in place.
	peers map[service.Role]string
}

func newOwner(p *Platform, k service.Key) *owner {
	o := &owner{p: p, key: k, want: map[service.Role]int{}, victims: map[service.Role][]string{}, rest: map[service.Role]int{}}
	o.snapshot.Store(&[]replica.Replica{})
	return o
}

// apply makes r the revision and moves the replicas towards it.
func (o *owner) apply(r workload.Revision) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	r.Components = slices.Clone(r.Components) // the caller may change its own
	peers, err := o.p.inner.settle(o.key, &r)
	if err != nil {
		return fmt.Errorf("process: apply %s: %w", o.key, err)
	}
	o.removed, o.peers = false, peers
	o.revision = &r
	adopted := map[service.Role]int{}
	before := map[service.Role]int{}
	for _, u := range o.units {
		c := r.Component(u.role)
		if u.view.Phase == replica.Draining {
			continue
		}
		switch {
		case u.revision == r.Hash && c != nil:
			if u.recovered() {
				if u.settle(c, r.ModelOf(u.role)); u.view.Phase == replica.Asleep {
					o.rest[u.role] = u.level
				} else {
					adopted[u.role]++
				}
			}
			u.component.Store(c) // limits may differ
		case !u.recovered():
		case c != nil && o.isBefore(u) && u.view.Phase != replica.Asleep:
			before[u.role]++
			u.settle(r.Before.Component(u.role), r.Before.ModelOf(u.role))
		default:
			u.end()
		}
	}
	for i := range r.Components {
		role := r.Components[i].Role
		if _, known := o.want[role]; !known {
			o.want[role] = max(adopted[role], before[role])
		}
	}
	maps.DeleteFunc(o.want, func(role service.Role, _ int) bool { return r.Component(role) == nil })
	o.converge()
	o.publish()
	for _, u := range o.units {
		u.lodge()
	}
	return nil
}

// isBefore reports whether a replica is of the revision before the present one.
// The lock is held.
func (o *owner) isBefore(u *unit) bool {
	b := o.revision.Before
	return b != nil && u.revision == b.Hash && b.Component(u.role) != nil
}

// scale sets a role's count, and the level at which those sleep that are too many; 0
// ends them.
func (o *owner) scale(role service.Role, n, rest int, victims []string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, known := o.want[role]; !known || o.removed {
		return fmt.Errorf("process: scale %s/%s: the applied revision has no such role", o.key, role)
	}
	o.want[role], o.rest[role], o.victims[role] = n, rest, slices.Clone(victims)
	o.converge()
	o.publish()
	return nil
}

// remove ends all replicas; the owner goes with the last of them. Removing it
// again while they end changes nothing, and so is no change to tell of: whoever
// is told removes what nobody wants.
func (o *owner) remove() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.removed {
		return
	}
	o.removed, o.revision = true, nil
	_, _ = o.p.inner.settle(o.key, nil) // closing fails for nobody
	clear(o.want)
	for _, u := range o.units {
		u.end()
	}
	o.publish()
	if len(o.units) == 0 {
		go o.p.forget(o) // needs the platform's lock, which the caller has
	}
}

// sweep ends recovered replicas, since their service was not applied.
func (o *owner) sweep() {
	o.mu.Lock()
	applied := o.revision != nil
	o.mu.Unlock()
	if !applied {
		o.remove()
	}
}

// converge starts and ends replicas as plan says, role by role. The lock is
// held.
func (o *owner) converge() {
	defer o.expects()
	if o.revision == nil {
		return
	}
	for _, u := range o.units { // of other revisions: they never serve again
		if u.view.Phase == replica.Asleep && !u.recovered() && u.revision != o.revision.Hash {
			u.end()
		}
	}
	roles, byID := o.members()
	for role, members := range roles {
		s := plan(o.want[role], members, o.victims[role], o.available(role), o.needs(role))
		for _, id := range slices.Concat(s.drain, s.yield) {
			if u := byID[id]; !u.sleep(o.rest[role]) {
				u.end()
			}
		}
		s.start -= o.wakeSleepers(role, s.start)
		if len(s.yield) > 0 {
			o.yields(members, byID, s.yield)
		}
		for range s.start {
			o.start(o.revision, role)
		}
		for range s.previous {
			o.start(o.revision.Before, role)
		}
	}
	o.endSleepers()
}

// members are the replicas that plan decides on, by role and by id. A current one that
// has yet to try its guests counts as starting while an older one serves. The lock is
// held.
func (o *owner) members() (roles map[service.Role][]member, byID map[string]*unit) {
	roles, byID = map[service.Role][]member{}, map[string]*unit{}
	for role := range o.want {
		roles[role] = nil
	}
	for _, u := range o.units {
		// One that was found running and is no longer wanted, as one asleep of a
		// revision before, is there until it has ended.
		if u.recovered() && u.view.Phase != replica.Draining || u.view.Phase == replica.Asleep {
			continue
		}
		byID[u.id] = u
		phase, current := u.view.Phase, u.revision == o.revision.Hash
		if current && phase == replica.Ready && !u.tried() && o.olderServes(u) {
			phase = replica.Starting
		}
		roles[u.role] = append(roles[u.role], member{id: u.id, phase: phase, created: u.view.Created,
			current: current, before: o.isBefore(u), waiting: u.waiting, gpus: len(u.view.GPUs)})
	}
	return roles, byID
}

// olderServes reports whether a replica of u's role and of another revision is ready. The
// lock is held.
func (o *owner) olderServes(u *unit) bool {
	return slices.ContainsFunc(o.units, func(v *unit) bool {
		return v.role == u.role && v.revision != o.revision.Hash && v.view.Phase == replica.Ready
	})
}

// available is how many accelerators a replica of a role could be given. The lock
// is held.
func (o *owner) available(role service.Role) int {
	need := residency.Need{}
	if c := o.revision.Component(role); c != nil && c.Process != nil {
		need = c.Process.Need()
	}
	return o.p.gpus.available(o.key, need)
}

// expects tells whether replicas are on their way that will want accelerators:
// what one that ends gives back is theirs. The lock is held.
func (o *owner) expects() {
	expected := slices.ContainsFunc(o.units, func(u *unit) bool {
		c, v := u.component.Load(), u.view
		return c != nil && c.Process != nil && len(v.GPUs) < c.Process.GPUs &&
			(v.Phase == replica.Fetching || v.Phase == replica.Pending && v.Reason != replica.ReasonProgramMissing && v.Reason != replica.ReasonUnschedulable)
	})
	o.p.gpus.expect(o.key, expected)
}

// needs are the accelerators that a replica of a role takes. The lock is held.
func (o *owner) needs(role service.Role) needs {
	gpus := func(r *workload.Revision) int {
		if r == nil {
			return -1
		}
		if c := r.Component(role); c != nil && c.Process != nil {
			return c.Process.GPUs
		}
		return -1
	}
	c := o.revision.Component(role)
	return needs{current: max(0, gpus(o.revision)), before: gpus(o.revision.Before),
		apart: c != nil && c.Strategy != nil && c.Strategy.Recreate}
}

// yields tells those that wait for accelerators who makes room for them. The
// lock is held.
func (o *owner) yields(members []member, byID map[string]*unit, yield []string) {
	for _, m := range members {
		if u := byID[m.id]; m.current && m.waiting > 0 && u.yielding == "" {
			u.yielding = "; too few GPUs for both revisions, so " + strings.Join(yield, " and ") + " stops first"
			u.view.Message += u.yielding
		}
	}
	o.p.cfg.Logger.Warn("replicas stop before those that replace them start, since there are too few GPUs for both",
		"service", o.key.String(), "replicas", yield)
}

// start adds a replica of r. The lock is held.
func (o *owner) start(r *workload.Revision, role service.Role) {
	select {
	case <-o.p.closing:
		return
	default:
	}
	id := newID(o.key.WorkloadName(), role)
	u := newUnit(o, replica.Replica{ID: id, Service: o.key, Role: role, Revision: r.Hash,
		Phase: replica.Pending, Created: o.p.cfg.Now()})
	u.settle(r.Component(role), r.ModelOf(role))
	o.add(u)
}

// add takes a unit in and lets it run.
func (o *owner) add(u *unit) {
	o.units = append(o.units, u)
	o.p.units.Add(1)
	go u.run()
}

// update changes what is known of a replica and acts on it. A replica that is
// going stays so, whatever is still reported of it.
func (o *owner) update(u *unit, change func(v *replica.Replica)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := u.view.Phase
	change(&u.view)
	if before == replica.Draining {
		u.view.Phase = before
	}
	o.converge()
	o.publish()
}

// gone takes a replica out whose goroutine ends.
func (o *owner) gone(u *unit) {
	o.mu.Lock()
	o.units = slices.DeleteFunc(o.units, func(v *unit) bool { return v == u })
	o.converge()
	o.publish()
	last := o.removed && len(o.units) == 0
	o.mu.Unlock()
	if last {
		o.p.forget(o)
	}
}

// publish makes the replicas' state seen. The lock is held.
func (o *owner) publish() {
	views := make([]replica.Replica, len(o.units))
	for i, u := range o.units {
		views[i] = u.view
	}
	o.snapshot.Store(&views)
	o.p.changes.Add(o.key)
}

func (o *owner) isRemoved() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.removed
}

// empty reports whether nothing is left of a removed service.
func (o *owner) empty() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.removed && len(o.units) == 0
}

func (o *owner) list() []*unit {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.units)
}

func (o *owner) unit(id string) *unit {
	for _, u := range o.list() {
		if u.id == id {
			return u
		}
	}
	return nil
}
