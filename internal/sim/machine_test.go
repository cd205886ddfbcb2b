package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/residency"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// machine is a fleet.Platform without processes: one machine with GPUs, whose
// replicas are simulated engines. It keeps to the contract of fleet.Platform as
// package process does. It outlives the fleets that own it.
type machine struct {
	loop  lane
	rng   *rand.Rand
	trace func(format string, args ...any)
	// drain gives a replica no more requests and waits for those it has.
	drain func(ctx context.Context, id string) error
	// resume gives requests again to one that was drained to sleep.
	resume func(id string)
	sleeps lane // of replicas that fall asleep
	// lost is told of an engine that ended with requests on it.
	ended func(u *unit)
	// ending is told of one that is to go, told of each service that has changed.
	ending func(u *unit)
	told   func(k service.Key)
	now    func() time.Time // by the machine's clock
	// changed is told of what gateways of a cluster watch, raised of a count that one
	// of them raised; nil on a single machine.
	changed func(k service.Key)
	raised  func(k service.Key)

	mu        sync.Mutex
	gpus      []string // who holds each; "" for nobody
	space     *residency.Space
	reserved  [][]string    // services, by GPU
	kept      []service.Key // for whom a GPU that is free is kept
	owners    map[service.Key]*owner
	changes   chan service.Key
	pending   map[service.Key]bool // changed, and not told yet
	units     map[string]*unit     // alive ones, by ID
	number    uint64
	loops     func(k service.Key) bool          // whether replicas end as soon as they are ready
	startsIn  func(k service.Key) time.Duration // how long the next start takes; mu is held
	refuses   error                             // what Apply and Scale answer; nil for nothing
	refusedAt time.Time                         // when that was last changed
	clashes   *rand.Rand                        // every other call meets a change of somebody else; nil for none
	instant   time.Time                         // of the first call of a second, and how many there were since
	turns     map[service.Key]int
	spins     func(service.Key)                 // is told of too many
	disturbs  func(u *unit, what string)        // is told of a replica that is to sleep and has requests
	cuts      func(u *unit, n int)              // is told of a replica that ends while it answers
	scaling   func(k service.Key, from, to int) // is told of each change of a count
	dead      bool                              // nobody listens: the owner's process is dead
	watched   atomic.Bool                       // who observes is the watch, which takes no time and changes nothing
}

// Without it, services would not make room for each other.
var _ fleet.SharedMachine = (*machine)(nil)

// owner is what is wanted of a service.
type owner struct {
	key      service.Key
	revision *workload.Revision
	removed  bool
	want     map[service.Role]int
	victims  map[service.Role][]string
	rest     map[service.Role]int // the level at which those sleep that are not wanted; 0: they end
	units    []*unit              // oldest first
	scaled   []scaling
	lifted   bool      // a gateway raised the count, and the fleet has not observed it since
	hearing  bool      // the fleet has been told
	failed   time.Time // when a replica last did
}

// scaling is a count as the fleet set it.
type scaling struct {
	at       time.Time
	from, to int
	rolling  bool // a revision was taking the place of another
	ready    bool // a replica was
}

func newMachine(l *loop, gpus int, seed uint64) *machine {
	return &machine{loop: l.lane(2), sleeps: l.lane(5), rng: rand.New(rand.NewPCG(seed, 0x6d616368)), gpus: make([]string, gpus), space: residency.NewSpace(residency.Machine{GPUs: make([]int64, gpus)}), kept: make([]service.Key, gpus),
		owners: map[service.Key]*owner{}, units: map[string]*unit{}, changes: make(chan service.Key, 1<<12), pending: map[service.Key]bool{}, turns: map[service.Key]int{}}
}

// adopted gives the machine to the next owner, as a platform does that is opened
// again: counts are forgotten, replicas go on.
func (m *machine) adopted() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changes, m.dead = make(chan service.Key, 1<<12), false
	for _, o := range m.owners {
		o.revision, o.want, o.victims, o.rest = nil, map[service.Role]int{}, map[service.Role][]string{}, map[service.Role]int{}
		for _, u := range o.units { // times come from files, and probes are made anew
			u.view.Created, u.view.Started = u.view.Created.Round(0), u.view.Started.Round(0)
			if !u.view.ReadyAt.IsZero() {
				u.view.ReadyAt = m.now()
			}
			u.recovered()
		}
	}
}

// reboot is the end of all processes on the machine.
func (m *machine) reboot() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, u := range m.units {
		if u.gone = true; u.next != nil {
			u.next()
		}
		u.stopEngine()
		u.release()
	}
	clear(m.units)
	clear(m.owners)
	clear(m.kept)
}

// crash is the end of the owner's process: what it calls from now on happens no
// more.
func (m *machine) crash() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = true
}

var errDead = errors.New("the process is dead")

// pause is the time that a call takes. It sets what several callers do apart in
// time, too, which one run must do as another does.
func (m *machine) pause(rng *rand.Rand, source int64) {
	var takes time.Duration
	m.locked(func() { takes = time.Duration(20_000 + rng.IntN(180_000)) })
	pause(takes, source)
}

func (m *machine) Host(context.Context, ...selection.Check) (selection.Host, error) {
	return selection.Host{Programs: map[string]bool{"roundhouse": true, "engine": true}, Accelerators: len(m.gpus)}, nil
}

// Machine and Reserve implement fleet.SharedMachine.
func (m *machine) Machine() residency.Machine {
	return residency.Machine{GPUs: make([]int64, len(m.gpus))}
}

func (m *machine) Reserve(plan residency.Plan) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return
	}
	m.space.Reserve(plan.Reserved)
	m.reserved = plan.Reserved
	m.loop.after(0, func() { m.locked(m.place) })
}

func (m *machine) Apply(_ context.Context, r workload.Revision) error {
	m.pause(m.rng, ofFleet) // whoever applied the manifest comes first
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.refused(); err != nil {
		return err
	}
	o := m.owners[r.Service]
	if o == nil {
		o = &owner{key: r.Service, want: map[service.Role]int{}, victims: map[service.Role][]string{}, rest: map[service.Role]int{}}
		m.owners[r.Service] = o
	}
	o.removed, o.revision = false, &r
	adopted := map[service.Role]int{}
	for _, u := range o.units {
		c := r.Component(u.view.Role)
		switch {
		case u.view.Phase == replica.Draining:
		case c == nil:
			m.end(u)
		case u.view.Phase == replica.Asleep && u.view.Revision == r.Hash:
			o.rest[u.view.Role] = u.sleep.level
		case u.view.Phase == replica.Asleep:
			m.end(u)
		case u.view.Revision == r.Hash || r.Before != nil && u.view.Revision == r.Before.Hash:
			adopted[u.view.Role]++
		}
	}
	for i := range r.Components {
		role := r.Components[i].Role
		if _, known := o.want[role]; !known {
			o.want[role] = adopted[role]
		}
	}
	maps.DeleteFunc(o.want, func(role service.Role, _ int) bool { return r.Component(role) == nil })
	m.trace("apply %s %s", r.Service, r.Hash[:6])
	m.converge(o)
	return nil
}

// raise sets a count of zero to one, as a gateway of a cluster does.
func (m *machine) raise(k service.Key) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.owners[k]
	if o == nil || o.revision == nil {
		return fmt.Errorf("raise %s: it is not there", k)
	}
	for role, n := range o.want {
		if c := o.revision.Component(role); n == 0 && c != nil && c.Limits.Max > 0 {
			m.trace("raise %s", k)
			o.want[role], o.lifted = 1, true
			m.converge(o)
			m.loop.after(5*time.Millisecond, func() {
				m.locked(func() { o.hearing = true })
				if !m.dead {
					m.raised(k)
				}
			})
		}
	}
	return nil
}

func (m *machine) refused() error {
	switch {
	case m.dead:
		return errDead
	case m.clashes != nil && m.clashes.IntN(2) == 0:
		return errConflict
	}
	return m.refuses
}

// clash has calls meet changes of somebody else, or no longer.
func (m *machine) clash(rng *rand.Rand) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clashes, m.refusedAt = rng, time.Now()
}

// lose is the end of a replica whose node is lost: nobody tells it to go.
func (m *machine) lose(u *unit) {
	if u.gone {
		return
	}
	if u.next != nil {
		u.next()
		u.next = nil
	}
	u.owner.failed = time.Now()
	m.vanish(u)
}

func (m *machine) Scale(_ context.Context, ref workload.Ref, n int, victims []string) error {
	return m.scale(ref, n, 0, victims)
}

func (m *machine) scale(ref workload.Ref, n, rest int, victims []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.refused(); err != nil {
		return err
	}
	o := m.owners[ref.Service]
	if o == nil || o.removed {
		return fmt.Errorf("scale %s: the service was not applied", ref)
	}
	was, known := o.want[ref.Role]
	if !known {
		return fmt.Errorf("scale %s: the revision has no such role", ref)
	}
	if o.lifted && n < was {
		return nil
	}
	if was != n || len(victims) > 0 {
		m.trace("scale %s %d -> %d", ref, was, n)
		m.scaling(ref.Service, was, n)
		o.scaled = append(o.scaled, scaling{at: time.Now(), from: was, to: n, rolling: o.rolling(), ready: m.ready(ref.Service) > 0})
		o.scaled = o.scaled[max(0, len(o.scaled)-64):]
	}
	o.want[ref.Role], o.rest[ref.Role], o.victims[ref.Role] = n, rest, slices.Clone(victims)
	m.converge(o)
	return nil
}

func (m *machine) Remove(_ context.Context, k service.Key) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.refused(); err != nil {
		return err
	}
	m.turn(k)
	if o := m.owners[k]; o != nil && !o.removed {
		m.trace("remove %s", k)
		o.removed, o.revision = true, nil
		clear(o.want)
		for _, u := range o.units {
			m.end(u)
		}
		m.forget(o)
	}
	return nil
}

// mostTurns is how often a service may be looked at within a second, besides
// once for each of its requests that comes or ends.
const mostTurns = 200

// asked is told of a request that comes or ends.
func (m *machine) asked(k service.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turns[k]--
}

// turn counts the calls for a service within a second.
func (m *machine) turn(k service.Key) {
	if now := time.Now(); now.Sub(m.instant) >= time.Second {
		m.instant = now
		clear(m.turns)
	}
	if m.turns[k]++; m.turns[k] == mostTurns {
		m.spins(k)
	}
	if m.turns[k] >= 5*mostTurns { // virtual time may stand still
		m.dead = true
		m.mu.Unlock()
		time.Sleep(time.Hour)
		m.mu.Lock()
	}
}

func (m *machine) forget(o *owner) {
	if o.removed && len(o.units) == 0 && m.owners[o.key] == o {
		delete(m.owners, o.key)
	}
	m.tell(o.key)
}

func (m *machine) Observe(_ context.Context, k service.Key) (out []replica.Replica, _ error) {
	watched := m.watched.Load()
	if !watched {
		m.pause(m.rng, ofFleet)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !watched {
		m.turn(k)
	}
	if o := m.owners[k]; o != nil {
		if o.hearing && !watched {
			o.lifted, o.hearing = false, false
		}
		for _, u := range o.units {
			out = append(out, u.view)
		}
	}
	return out, nil
}

func (m *machine) Services(context.Context) ([]service.Key, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Keys(m.owners), func(a, b service.Key) int { return cmp.Compare(a.String(), b.String()) }), nil
}

func (m *machine) Logs(context.Context, string, fleet.LogOptions) (io.ReadCloser, error) {
	return nil, errors.ErrUnsupported
}

func (m *machine) Changed() <-chan service.Key {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changes
}

// tell says soon that a service has changed, once for all changes until then. The
// lock is held.
func (m *machine) tell(k service.Key) {
	if m.pending[k] {
		return
	}
	m.pending[k] = true
	m.told(k)
	if m.changed != nil {
		m.changed(k)
	}
	m.loop.after(100*time.Microsecond, func() {
		m.locked(func() { delete(m.pending, k) })
		m.changes <- k
	})
}

// locked calls f with the lock held.
func (m *machine) locked(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}
