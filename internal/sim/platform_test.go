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
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/residency"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/simulate"
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
	instant   time.Time                         // of the first call of a second, and how many there were since
	turns     map[service.Key]int
	spins     func(service.Key)                 // is told of too many
	disturbs  func(u *unit, what string)        // is told of a replica that is to sleep and has requests
	cuts      func(u *unit, n int)              // is told of a replica that ends while it answers
	scaling   func(k service.Key, from, to int) // is told of each change of a count
	dead      bool                              // nobody listens: the owner's process is dead
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
	lifted   bool // a gateway raised the count, and the fleet has not observed it since
	hearing  bool // the fleet has been told
}

// scaling is a count as the fleet set it.
type scaling struct {
	at       time.Time
	from, to int
	rolling  bool // a revision was taking the place of another
	ready    bool // a replica was
}

// unit is one replica.
type unit struct {
	machine *machine
	owner   *owner
	number  uint64
	view    replica.Replica
	gpus    int // it needs
	engine  *simulate.Scheduler
	begun   time.Time // of the engine
	tick    func() bool
	calls   map[uint64]*call
	backoff time.Duration
	next    func() bool // the next step of its life
	gone    bool
	drained time.Time // since when it is to go; zero while it is not
	ready   time.Time // since when; zero while not
	mood    mood
	sleep   sleeping
}

// mood is what is wrong with a replica.
type mood struct {
	hung    bool // takes requests and answers none
	failing bool // answers 500 at once
	lying   bool // says that it has nothing to do
	silent  bool // its metrics cannot be read
}

const (
	restartMin     = 500 * time.Millisecond
	restartMax     = time.Minute
	restartSettled = time.Minute
	grace          = 30 * time.Second
)

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
func (m *machine) pause(rng *rand.Rand) {
	var takes time.Duration
	m.locked(func() { takes = time.Duration(20_000 + rng.IntN(180_000)) })
	time.Sleep(takes)
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
	m.pause(m.rng) // whoever applied the manifest comes first
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
	if m.dead {
		return errDead
	}
	return m.refuses
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

// rolling reports whether a revision takes the place of another.
func (o *owner) rolling() bool {
	return o.revision != nil && (o.revision.Before != nil || slices.ContainsFunc(o.units, func(u *unit) bool {
		return u.view.Phase != replica.Draining && u.view.Revision != o.revision.Hash
	}))
}

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
	m.pause(m.rng)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turn(k)
	if o := m.owners[k]; o != nil {
		if o.hearing {
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

// converge starts and ends replicas towards what is wanted. The lock is held, as
// in everything below.
func (m *machine) converge(o *owner) {
	if o.revision == nil {
		return
	}
	for i := range o.revision.Components {
		m.convergeRole(o, &o.revision.Components[i])
	}
	m.place()
	m.tell(o.key)
}

func (m *machine) convergeRole(o *owner, c *workload.Component) {
	var current, old []*unit
	ready := 0
	for _, u := range o.units {
		switch {
		case u.view.Role != c.Role || !u.view.Alive():
		case u.view.Revision == o.revision.Hash:
			current = append(current, u)
		default:
			old = append(old, u)
		}
	}
	worth := func(a, b *unit) int {
		return cmp.Or(first(!slices.Contains(o.victims[c.Role], a.view.ID), !slices.Contains(o.victims[c.Role], b.view.ID)),
			first(a.view.Phase == replica.Ready, b.view.Phase == replica.Ready),
			first(a.view.Phase == replica.Starting, b.view.Phase == replica.Starting), cmp.Compare(a.number, b.number))
	}
	slices.SortStableFunc(current, worth)
	slices.SortStableFunc(old, worth)
	want := o.want[c.Role]
	for len(current) > want {
		if u := current[len(current)-1]; !m.doze(u, o.rest[c.Role]) {
			m.end(u)
		}
		current = current[:len(current)-1]
	}
	for range want - len(current) - m.wakeSleepers(o, c.Role, want-len(current)) {
		m.start(o, c)
	}
	waits := false
	for _, u := range current {
		if u.view.Phase == replica.Ready {
			ready++
		}
		waits = waits || u.view.Phase == replica.Pending && len(m.open(o.key)) < u.gpus
	}
	for _, u := range old {
		if u.view.Phase == replica.Ready && ready < want && !waits {
			ready++
			continue
		}
		waits = waits && u.gpus == 0
		m.end(u)
	}
}

func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func (m *machine) start(o *owner, c *workload.Component) {
	m.number++
	gpus := 0
	if c.Process != nil {
		gpus = c.Process.GPUs
	}
	u := &unit{machine: m, owner: o, number: m.number, gpus: gpus, backoff: restartMin, calls: map[uint64]*call{},
		view: replica.Replica{ID: fmt.Sprintf("%s-%d", o.key.WorkloadName(), m.number), Service: o.key, Role: c.Role, Revision: o.revision.Hash,
			Phase: replica.Pending, Created: m.now()}}
	o.units = append(o.units, u)
	m.units[u.view.ID] = u
}

// open lists the GPUs that a service may have: those that nobody holds and that
// are not reserved, nor kept for another's next replica.
func (m *machine) open(k service.Key) []int {
	return slices.DeleteFunc(m.space.Open(residency.Need{GPUs: 1}, k.String()), func(i int) bool { return m.kept[i] != k && m.kept[i] != service.Key{} })
}

// free is how many GPUs nobody holds.
func (m *machine) free() (n int) {
	for _, g := range m.gpus {
		if g == "" {
			n++
		}
	}
	return n
}

// ready is how many replicas of a service are.
func (m *machine) ready(k service.Key) (n int) {
	if o := m.owners[k]; o != nil {
		for _, u := range o.units {
			if u.view.Phase == replica.Ready {
				n++
			}
		}
	}
	return n
}

// place gives waiting replicas what they wait for, the oldest first.
func (m *machine) place() {
	var waiting []*unit
	for _, u := range m.units {
		if u.view.Phase == replica.Pending && u.next == nil && !u.sleep.busy {
			waiting = append(waiting, u)
		}
	}
	slices.SortFunc(waiting, func(a, b *unit) int { return cmp.Compare(a.number, b.number) })
	for _, u := range waiting {
		open := m.open(u.owner.key)
		if len(open) < u.gpus {
			if u.view.Reason == "" { // an older one may have to make room for it
				m.tell(u.owner.key)
				m.loop.after(0, func() { m.locked(func() { m.converge(u.owner) }) })
			}
			u.view.Reason, u.view.Message = replica.ReasonInsufficientGPUs, fmt.Sprintf("waits for %d GPUs", u.gpus)
			continue
		}
		if u.view.GPUs = slices.Clone(open[:u.gpus]); !slices.ContainsFunc(u.sleep.gpus, func(i int) bool { return !slices.Contains(open, i) }) && len(u.sleep.gpus) == u.gpus {
			u.view.GPUs = slices.Clone(u.sleep.gpus)
		}
		m.space.Take(residency.Need{GPUs: u.gpus}, u.view.GPUs)
		for _, i := range u.view.GPUs {
			m.gpus[i], m.kept[i] = u.view.ID, service.Key{}
		}
		if u.sleep.asleep > 0 {
			u.wake()
		} else {
			u.launch()
		}
		m.tell(u.owner.key)
	}
	for i, k := range m.kept {
		if (k != service.Key{}) && !m.awaits(k) {
			m.kept[i] = service.Key{}
		}
	}
}

// awaits reports whether a replica of a service waits for GPUs.
func (m *machine) awaits(k service.Key) bool {
	o := m.owners[k]
	return o != nil && slices.ContainsFunc(o.units, func(u *unit) bool { return u.view.Phase == replica.Pending && u.gpus > 0 })
}

// launch starts a process.
func (u *unit) launch() {
	m, now := u.machine, time.Now()
	u.view.Phase, u.view.Reason, u.view.Message, u.view.Restart = replica.Starting, "", "", time.Time{}
	u.view.PID, u.view.Started = int(u.number), m.now()
	u.view.HTTP = fmt.Sprintf("10.0.%d.%d:8080", u.number/250, 1+u.number%250)
	u.begun, u.mood = now, mood{}
	u.engine = simulate.NewScheduler(physics())
	takes := m.startsIn(u.owner.key)
	limit := u.owner.revision.Component(u.view.Role).Limits.StartupTimeout
	m.trace("launch %s", u.view.ID)
	if takes >= limit {
		u.then(limit, func() { u.fail(replica.ReasonStartupTimeout) })
		return
	}
	u.then(takes, func() {
		u.ready = time.Now()
		u.view.Phase, u.view.ReadyAt = replica.Ready, m.now()
		m.trace("ready %s", u.view.ID)
		if m.loops(u.owner.key) {
			u.then(time.Second, func() { u.fail("Exited") })
		}
	})
}

// then is the next step of the replica's life.
func (u *unit) then(d time.Duration, f func()) {
	if u.next != nil {
		u.next()
	}
	u.next = u.machine.loop.after(d, func() {
		u.machine.locked(func() {
			if u.next = nil; !u.gone {
				f()
				u.machine.converge(u.owner)
			}
		})
	})
}

// fail is the end of its process, which is started again.
func (u *unit) fail(reason string) {
	if u.gone || u.view.Phase == replica.Draining {
		return
	}
	m := u.machine
	if u.view.Phase == replica.Asleep { // nobody misses it
		m.end(u)
		return
	}
	m.trace("failed %s %s", u.view.ID, reason)
	u.rests()
	if !u.ready.IsZero() && time.Since(u.ready) >= restartSettled {
		u.backoff = restartMin
	}
	if u.view.FailedStarts++; !u.ready.IsZero() {
		u.view.FailedStarts = 0
	}
	u.stopEngine()
	u.release()
	u.view.Phase, u.view.Reason, u.view.Message, u.view.ExitCode = replica.Failed, reason, "it ended", 1
	u.view.ReadyAt, u.view.Restart, u.view.PID, u.view.HTTP = time.Time{}, m.now().Add(u.backoff), 0, ""
	u.then(u.backoff, func() {
		u.view.Restart, u.view.Phase = time.Time{}, replica.Pending
		u.view.Restarts++
	})
	u.backoff = min(2*u.backoff, restartMax)
}

func (u *unit) stopEngine() {
	if u.tick != nil {
		u.tick()
		u.tick = nil
	}
	u.engine, u.ready = nil, time.Time{}
	if len(u.calls) > 0 {
		u.machine.ended(u)
	}
}

func (u *unit) release() {
	m := u.machine
	m.space.Give(residency.Need{GPUs: u.gpus}, u.view.GPUs)
	for _, i := range u.view.GPUs {
		promised := i < len(m.reserved) && len(m.reserved[i]) > 0 && !slices.Contains(m.reserved[i], u.owner.key.String())
		if m.gpus[i] = ""; m.awaits(u.owner.key) && !promised {
			m.kept[i] = u.owner.key
		}
	}
	u.view.GPUs = nil
}

// end has a replica take no more requests, and go when it has answered those it
// has.
func (m *machine) end(u *unit) {
	if u.view.Phase == replica.Draining {
		return
	}
	m.trace("drain %s", u.view.ID)
	m.ending(u)
	if u.drained = time.Now(); u.sleep.cancel != nil {
		u.sleep.cancel()
	}
	u.rests()
	u.view.Phase, u.view.Restart = replica.Draining, time.Time{}
	if u.next != nil {
		u.next()
		u.next = nil
	}
	drain := m.drain
	if drain == nil {
		m.linger(u, time.Now().Add(grace))
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), grace+time.Duration(u.number))
		defer cancel()
		_ = drain(ctx, u.view.ID)
		m.loop.post(1<<40+u.number, func() { m.locked(func() { m.vanish(u) }) })
	}()
}

// lingers is how long a pod that goes still takes requests.
const lingers = 3 * time.Second

// linger waits for a pod's requests to end, and then takes it out.
func (m *machine) linger(u *unit, until time.Time) {
	wait := lingers
	if time.Until(until) < grace {
		wait = 250 * time.Millisecond
	}
	m.loop.after(wait, func() {
		m.locked(func() {
			if len(u.calls) == 0 || !time.Now().Before(until) {
				m.vanish(u)
				return
			}
			m.linger(u, until)
		})
	})
}

// vanish takes a replica out that is gone.
func (m *machine) vanish(u *unit) {
	if u.gone { // it ended with the machine
		return
	}
	m.trace("gone %s", u.view.ID)
	if n := len(u.calls); n > 0 && time.Since(u.drained) < grace {
		m.cuts(u, n)
	}
	u.gone = true
	u.stopEngine()
	u.release()
	delete(m.units, u.view.ID)
	o := u.owner
	o.units = slices.DeleteFunc(o.units, func(v *unit) bool { return v == u })
	m.place()
	m.converge(o)
	m.forget(o)
}

// physics is that of an engine: small, so that few requests load it.
func physics() simulate.Physics {
	p := simulate.DefaultPhysics()
	p.DecodeTokensPerSecond, p.PrefillTokensPerSecond, p.BatchSlowdown = 2, 2000, 0.05
	p.MaxSequences, p.MaxWaiting, p.KVBlocks = 16, 64, 1024
	return p
}

// step has the engine live up to now through something that happens to it. It is
// the loop's alone; the lock is not held.
func (u *unit) step(e simulate.Event) {
	var effects []simulate.Effect
	u.machine.locked(func() {
		if u.engine == nil {
			return
		}
		effects = slices.Clone(u.engine.Step(e, time.Since(u.begun)))
		if u.tick != nil {
			u.tick()
			u.tick = nil
		}
		if at, ok := u.engine.Next(); ok && !u.mood.hung {
			u.tick = u.machine.loop.after(at-time.Since(u.begun), func() { u.step(simulate.Tick{}) })
		}
	})
	for _, x := range effects {
		if c := u.calls[x.ID]; c != nil {
			c.effect(u, x)
		}
	}
}
