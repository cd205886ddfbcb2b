package sim

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// Invariants are what holds at every moment, whatever happens: a sentence for
// each, and the document that promises it.
var Invariants = []struct{ Name, Sentence, Doc string }{
	{"a request ends once", "A request ends exactly once, as soon as its user leaves, and is not sent again after its answer has begun.", "docs/design/dispatch.md"},
	{"reservations add up", "The dispatcher counts as waiting and as running those requests that wait and run, in all and on each replica.", "docs/design/dispatch.md"},
	{"counts keep to limits", "The count of a service lies within its minReplicas and maxReplicas.", "docs/limits.md"},
	{"idle services make room", "A service whose requests wait for GPUs gets them while idle services with minReplicas 0 hold enough.", "docs/limits.md"},
	{"a start serves", "A service is not stopped while requests wait for it or run.", "docs/design/residency.md"},
	{"an edit takes nothing", "A service that is edited keeps its count and its ready replicas, and is not stopped for another, until those of its new revision are ready.", "docs/design/catalog-and-local.md"},
	{"a device has one holder", "No GPU is held by two replicas.", "docs/design/catalog-and-local.md"},
	{"a sleeper gets no request", "No request is sent to a replica that sleeps, and none is put to sleep while it has requests.", "docs/running-on-one-machine.md"},
	{"a sleeper frees its GPUs", "While replicas sleep, nobody waits for GPUs that nobody holds, nor holds one with another.", "docs/running-on-one-machine.md"},
	{"idle services reach zero", "A service with minReplicas 0 that nobody asks has no replica after scaleToZeroAfter.", "docs/limits.md"},
	{"idle services keep their time", "A service that nobody asks keeps a replica for scaleToZeroAfter, unless others may need its GPUs.", "docs/limits.md"},
	{"idle services stay at zero", "A service at zero that nobody asks or edits stays there.", "docs/limits.md"},
	{"no waiter starves", "No request waits while a replica that may take it has nothing to do.", "docs/design/dispatch.md"},
	{"priority goes first", "Of the requests that wait for a service, one in 20 at most goes before one of a higher priority.", "docs/design/dispatch.md"},
	{"no caller starves", "While a request waits, no other caller of its priority has more than a few turns with requests that came later.", "docs/design/dispatch.md"},
	{"callers share tokens", "Where fairness counts tokens, callers of one priority who go on waiting are given as many, but for those of a few requests and of what is under way.", "docs/gateway.md"},
	{"a canary takes its share", "A canary gets no request before one of its replicas has been ready, and then the share that the manifest says.", "docs/manifests.md"},
	{"a route splits by weight", "Of the requests of a route each target gets the share that its weight says.", "docs/gateway.md"},
	{"names keep their servers", "The servers of a pool are those of the last answer for its name, which is asked for at least every 40 s.", "docs/gateway.md"},
	{"a replica keeps to its limit", "No gateway has more requests at a replica than its maxConcurrency.", "docs/limits.md"},
	{"a replica that goes finishes", "A replica that is to go gets no more requests, and answers those that it has, unless that takes longer than 30 s.", "docs/design/dispatch.md"},
	{"a key keeps to its limits", "No more requests enter with a key than twice its limit in a minute, nor more at one time; and none is refused with a key that was not used for a minute.", "docs/limits.md"},
	{"waits are bounded", "No request waits for longer than the startup timeout.", "docs/limits.md"},
	{"supply follows demand", "While requests wait, a replica is wanted within seconds, and as many as they call for unless they are gone soon after a start.", "docs/design/count.md"},
	{"supply keeps to demand", "No more replicas are wanted than twice what the most requests call for that there were within three minutes and four starts.", "docs/design/count.md"},
	{"counts do not flap", "A count falls at most once in 30 s, unless the service is edited or idle.", "docs/limits.md"},
	{"failures attract nobody", "A replica that fails at once gets no more than a fifth of the requests while two others work.", "docs/design/dispatch.md"},
	{"a returning owner changes nothing", "A replica of the present revision does not end because its owner was started again.", "docs/design/adoption.md"},
	{"minReplicas are there", "A service that can be ready has minReplicas ready replicas once faults are over.", "docs/limits.md"},
	{"tables keep to their bounds", "Of requests that wait, endpoints, blocks of prompts, decisions and what is learned no more is kept than the limit says.", "docs/limits.md"},
	{"nothing spins", "No service is reconciled again and again without a pause.", "docs/design/count.md"},
	{"status tells the truth", "The status names the replicas that are ready, within seconds.", "docs/design/count.md"},
	{"records survive", "What was acknowledged is there after any crash, and nothing half written is read.", "docs/design/revisions.md"},
}

// watch checks the invariants.
type watch struct {
	world *world
	next  time.Time
	keys  []service.Key // of all services
	all   []*watched    // the same services
	// mu guards what ending reads, which the fleet's goroutine calls too: the
	// map, restart, and what is desired of a service.
	mu       sync.Mutex
	services map[service.Key]*watched
	restart  time.Time
	allowed  map[*UserPlan]*allowance
	lacking  service.Key // waits for GPUs that idle services have, since
	lacks    time.Time
	crowded  time.Time                 // since when requests wait for GPUs at all
	shares   map[string]map[string]int // the requests of each route, by target
	idles    map[string]time.Time      // since when a replica of a pool does nothing beside those that wait for it
	tabled   time.Time                 // when tables are looked at next
	denied   time.Time                 // since when a replica waits for GPUs that nobody holds, while others sleep
	// What each look fills anew: requests by replica, and by gateway and replica; who
	// holds each GPU.
	on      map[string]int
	at      map[place]int
	holders []string
}

// watched is what the invariants need to remember of a service.
type watched struct {
	touched  atomic.Bool // something has happened to it since the last look
	moved    atomic.Bool // to its replicas or its manifest, since the last look at its status
	due      time.Time   // of a look although nothing has
	told     time.Time   // when its status was looked at
	waiting  int         // requests, at this look
	running  int
	before   [2]int   // the two at the last look that found something to look at
	free     int      // of those that wait may go anywhere
	limited  []string // addresses that others may go to
	plan     *ServicePlan
	canary   canaryShare
	attempts []*ServicePlan // that were not acknowledged since, and may have been stored all the same
	applied  time.Time      // or deleted
	changed  time.Time      // the same
	made     time.Time      // anew, after it was deleted
	deleted  bool
	deleting bool      // a delete was not acknowledged
	lastUse  time.Time // since when nobody asks
	open     int       // requests
	arrived  uint64    // of them, where they come by routes
	atZero   time.Time // since when; zero while not
	starved  time.Time // since when one waits beside an idle endpoint
	short    time.Time // since when too few are wanted
	untrue   time.Time // since when the status is wrong
	failing  int       // of the answers below, how many were failures of one that always fails
	answers  int
	failSeen time.Time
	peaks    []peak               // the most requests at a time, of the last while
	had      int                  // replicas that were ready before an edit, or as many as are still wanted
	fell     time.Time            // when its count did last, but to zero
	leads    map[[2]*UserPlan]int // tokens that the first was given more than the second, since both wait
}

func (w *watch) init(world *world) {
	w.world, w.services, w.restart, w.allowed = world, map[service.Key]*watched{}, world.begun, map[*UserPlan]*allowance{}
	w.shares, w.idles = map[string]map[string]int{}, map[string]time.Time{}
	w.on, w.at, w.holders = map[string]int{}, map[place]int{}, make([]string, world.plan.GPUs)
	for i := range world.plan.Services {
		k := world.plan.Services[i].key()
		w.keys, w.all = append(w.keys, k), append(w.all, w.of(k))
	}
}

func (w *watch) of(k service.Key) *watched {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.services[k]
	if s == nil {
		s = &watched{lastUse: time.Now()}
		s.touched.Store(true)
		w.services[k] = s
	}
	return s
}

// moved is told of each change of a service's replicas, and of what is wanted of it.
func (w *watch) moved(k service.Key) {
	s := w.of(k.Stable())
	s.touched.Store(true)
	s.moved.Store(true)
}

func (w *watch) applied(p *ServicePlan) {
	s := w.of(p.key())
	w.mu.Lock()
	defer w.mu.Unlock()
	s.changed = time.Now()
	s.touched.Store(true)
	s.moved.Store(true)
	if p.Canary > 0 || s.plan != nil && s.plan.Canary > 0 {
		s.canary = canaryShare{at: time.Now(), percent: p.Canary}
	}
	s.plan, s.applied, s.deleted, s.deleting, s.attempts = p, time.Now(), false, false, nil
}

// attempted is told of a manifest that was not acknowledged.
func (w *watch) attempted(p *ServicePlan) {
	s := w.of(p.key())
	s.attempts = append(s.attempts, p)
}

func (w *watch) deleted(k service.Key) {
	s := w.of(k)
	w.mu.Lock()
	defer w.mu.Unlock()
	s.applied, s.made, s.deleted, s.deleting = time.Now(), time.Now(), true, false
}

func (w *watch) restarted() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.restart = time.Now()
	for _, s := range w.services {
		s.atZero, s.starved, s.short, s.untrue, s.leads = time.Time{}, time.Time{}, time.Time{}, time.Time{}, nil
		s.touched.Store(true)
		s.moved.Store(true)
	}
}

func (w *watch) violate(name string, k service.Key, format string, args ...any) {
	if !slices.ContainsFunc(Invariants, func(i struct{ Name, Sentence, Doc string }) bool { return i.Name == name }) {
		panic("no such invariant: " + name)
	}
	w.world.violate(name, k, fmt.Sprintf(format, args...))
}

// checkEvery is the least time between two looks at everything.
const checkEvery = 250 * time.Millisecond

// idleEvery is the time between two looks at a service to which nothing happens, and
// soonEvery at one where something may be wrong, or whose requests wait; a status is
// looked at no more often.
const (
	idleEvery = 30 * time.Second
	soonEvery = time.Second
)

// check looks at all services to which something has happened.
func (w *watch) check() {
	now := time.Now()
	if now.Before(w.next) || w.world.process.dead.Load() {
		return
	}
	w.next = now.Add(checkEvery)
	w.calls(now)
	if len(w.world.plan.Routes) > 0 {
		w.attribute(now)
		w.routes(now, w.on)
	}
	w.places(now)
	w.tables(now)
	for i, s := range w.all {
		if s.plan != nil && !w.world.loop.stopped {
			w.look(w.keys[i], s, now)
		}
	}
}

// look looks at a service if something has happened to it.
func (w *watch) look(k service.Key, s *watched, now time.Time) {
	if s.deleted {
		w.stays(k, s, now)
		return
	}
	requests := [2]int{s.waiting, s.running}
	touched := s.touched.Swap(false)
	if !touched && requests == s.before && now.Before(s.due) {
		return
	}
	rested := !now.Before(s.due)
	w.reservations(k, s.waiting, s.running, w.on)
	w.counts(k, s, s.waiting, s.running)
	w.starving(k, s, s.waiting)
	w.canaries(k, s)
	if s.before, s.due = requests, now.Add(idleEvery); s.waiting > 0 || s.suspect() || s.moved.Load() {
		s.due = now.Add(soonEvery)
	}
	if now.Sub(s.told) >= soonEvery && (s.moved.Load() || rested) {
		s.moved.Store(false)
		s.told = now
		w.status(k, s)
	}
}

// suspect reports that something is wrong with the service that may not last.
func (s *watched) suspect() bool {
	return !s.starved.IsZero() || !s.short.IsZero() || !s.untrue.IsZero()
}

// settled is how long the fleet may take for anything it does at once.
const settled = 3 * time.Second

// end looks at what is left when all is over.
func (w *watch) end() {
	w.files()
	for i := range w.world.plan.Services {
		k := w.world.plan.Services[i].key()
		s := w.services[k]
		if s == nil || s.plan == nil || s.deleted {
			continue
		}
		ready, free := 0, 0
		w.world.machine.locked(func() {
			free = w.world.machine.free()
			if o := w.world.machine.owners[k]; o != nil {
				for _, u := range o.units {
					if u.view.Phase == replica.Ready {
						ready++
					}
				}
			}
		})
		if ready < s.plan.Min && free >= s.plan.GPUs {
			w.violate("minReplicas are there", k, "%d replicas are ready, of %d at least, and %d GPUs are free", ready, s.plan.Min, free)
		}
	}
	for _, c := range w.world.calls.open {
		if time.Since(c.began) > c.user.Patience+time.Second {
			w.violate("a request ends once", c.key, "request %d has not ended", c.id)
		}
	}
}
