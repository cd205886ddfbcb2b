package sim

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// Invariants are what holds at every moment, whatever happens: a sentence for
// each, and the document that promises it.
var Invariants = []struct{ Name, Sentence, Doc string }{
	{"a request ends once", "A request ends exactly once, as soon as its user leaves, and is not sent again after its answer has begun.", "docs/design/dispatch.md"},
	{"reservations add up", "The dispatcher counts as waiting and as running those requests that wait and run, in all and on each replica.", "docs/design/dispatch.md"},
	{"counts keep to limits", "The count of a service lies within its minReplicas and maxReplicas.", "docs/limits.md"},
	{"idle services make room", "A service whose requests wait for GPUs gets them while idle services with minReplicas 0 hold enough.", "docs/limits.md"},
	{"an edit takes nothing", "A service that is edited is not stopped for another before its new revision is ready.", "docs/design/catalog-and-local.md"},
	{"a device has one holder", "No GPU is held by two replicas.", "docs/design/catalog-and-local.md"},
	{"a sleeper gets no request", "No request is sent to a replica that sleeps, and none is put to sleep while it has requests.", "docs/running-on-one-machine.md"},
	{"a sleeper frees its GPUs", "While replicas sleep, nobody waits for GPUs that nobody holds, nor holds one with another.", "docs/running-on-one-machine.md"},
	{"idle services reach zero", "A service with minReplicas 0 that nobody asks has no replica after scaleToZeroAfter.", "docs/limits.md"},
	{"idle services keep their time", "A service that nobody asks keeps a replica for scaleToZeroAfter, unless others may need its GPUs.", "docs/limits.md"},
	{"idle services stay at zero", "A service at zero that nobody asks or edits stays there.", "docs/limits.md"},
	{"no waiter starves", "No request waits while a replica that may take it has nothing to do.", "docs/design/dispatch.md"},
	{"priority goes first", "Of the requests that wait for a service, one in 20 at most goes before one of a higher priority.", "docs/design/dispatch.md"},
	{"no caller starves", "While a request waits, no other caller of its priority has more than a few turns with requests that came later.", "docs/design/dispatch.md"},
	{"a canary takes its share", "A canary gets no request before one of its replicas has been ready, and then the share that the manifest says.", "docs/manifests.md"},
	{"a replica that goes finishes", "A replica that is to go gets no more requests, and answers those that it has, unless that takes longer than 30 s.", "docs/design/dispatch.md"},
	{"a key keeps to its limits", "No more requests enter with a key than twice its limit in a minute, nor more at one time; and none is refused with a key that was not used for a minute.", "docs/limits.md"},
	{"waits are bounded", "No request waits for longer than the startup timeout.", "docs/limits.md"},
	{"supply follows demand", "While requests wait, a replica is wanted within seconds, and as many as they call for unless they are gone soon after a start.", "docs/design/count.md"},
	{"supply keeps to demand", "No more replicas are wanted than twice what the most requests call for that there were within two minutes and three starts.", "docs/design/count.md"},
	{"counts do not flap", "A count falls at most once in 30 s, unless the service is edited or idle.", "docs/limits.md"},
	{"failures attract nobody", "A replica that fails at once gets no more than a fifth of the requests while two others work.", "docs/design/dispatch.md"},
	{"a returning owner changes nothing", "A replica of the present revision does not end because its owner was started again.", "docs/design/adoption.md"},
	{"minReplicas are there", "A service that can be ready has minReplicas ready replicas once faults are over.", "docs/limits.md"},
	{"nothing spins", "No service is reconciled again and again without a pause.", "docs/design/count.md"},
	{"status tells the truth", "The status names the replicas that are ready, within seconds.", "docs/design/count.md"},
	{"records survive", "What was acknowledged is there after any crash, and nothing half written is read.", "docs/design/revisions.md"},
}

// watch checks the invariants.
type watch struct {
	world *world
	next  time.Time
	keys  []service.Key // of all services
	// mu guards what ending reads, which the fleet's goroutine calls too: the
	// map, restart, and what is desired of a service.
	mu       sync.Mutex
	services map[service.Key]*watched
	restart  time.Time
	allowed  map[*UserPlan]*allowance
	lacking  service.Key // waits for GPUs that idle services have, since
	lacks    time.Time
	crowded  time.Time // since when requests wait for GPUs at all
	denied   time.Time // since when a replica waits for GPUs that nobody holds, while others sleep
}

// watched is what the invariants need to remember of a service.
type watched struct {
	touched  atomic.Bool // something has happened to it since the last look
	looks    int
	due      time.Time // of a look although nothing has
	waiting  int       // requests, at this look
	running  int
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
	atZero   time.Time // since when; zero while not
	starved  time.Time // since when one waits beside an idle endpoint
	short    time.Time // since when too few are wanted
	untrue   time.Time // since when the status is wrong
	failing  int       // of the answers below, how many were failures of one that always fails
	answers  int
	failSeen time.Time
	peaks    []peak    // the most requests at a time, of the last while
	fell     time.Time // when its count did last, but to zero
}

func (w *watch) init(world *world) {
	w.world, w.services, w.restart, w.allowed = world, map[service.Key]*watched{}, world.begun, map[*UserPlan]*allowance{}
	for i := range world.plan.Services {
		w.keys = append(w.keys, world.plan.Services[i].key())
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

func (w *watch) applied(p *ServicePlan) {
	s := w.of(p.key())
	w.mu.Lock()
	defer w.mu.Unlock()
	s.changed = time.Now()
	s.touched.Store(true)
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
		s.atZero, s.starved, s.short, s.untrue = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	}
}

func (s *watched) asked() {
	s.open++
	s.lastUse = time.Now()
	s.peaks = append(slices.DeleteFunc(s.peaks, func(p peak) bool { return p.open <= s.open }), peak{time.Now(), s.open})
}

// peak is how many requests there were at a time; a list of them falls.
type peak struct {
	at   time.Time
	open int
}

// peak is the most requests that there were at a time within a while.
func (s *watched) peak(within time.Duration) int {
	for len(s.peaks) > 0 && time.Since(s.peaks[0].at) > within {
		s.peaks = s.peaks[1:]
	}
	if len(s.peaks) > 0 {
		return max(s.open, s.peaks[0].open)
	}
	return s.open
}

// ending is told of each replica that is to go; the machine's lock is held.
func (w *watch) ending(u *unit) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, o := w.services[u.owner.key], u.owner
	if s == nil || s.deleted || o.revision == nil || w.restart.Equal(w.world.begun) || time.Since(w.restart) > 20*time.Second || s.applied.After(w.restart) {
		return
	}
	if u.view.Phase == replica.Ready && u.view.Revision == o.revision.Hash && s.changed.Before(w.restart.Add(-2*startupTimeout)) {
		w.violate("a returning owner changes nothing", o.key, "replica %s ends %v after the restart", u.view.ID, time.Since(w.restart))
	}
}

func (s *watched) ended() {
	s.touched.Store(true)
	s.peaks = append(slices.DeleteFunc(s.peaks, func(p peak) bool { return p.open <= s.open }), peak{time.Now(), s.open})
	s.open--
	s.lastUse = time.Now()
}

// answered is told of each answer that begins, and whether it is one of a replica
// that always fails. A replica that is full and says so does not.
func (w *watch) answered(c *call, fails bool) {
	s := c.watched
	healthy, failing := 0, 0
	w.world.machine.locked(func() {
		if o := w.world.machine.owners[c.key]; o != nil {
			for _, x := range o.units {
				switch {
				case x.view.Phase != replica.Ready || x.mood.hung:
				case x.mood.failing:
					failing++
				default:
					healthy++
				}
			}
		}
	})
	if s.canary.around() { // which has replicas of its own
		healthy = 0
	}
	if failing != 1 || healthy < 2 || time.Since(s.failSeen) > time.Minute {
		s.failing, s.answers = 0, 0
	}
	if failing != 1 || healthy < 2 {
		return
	}
	s.failSeen = time.Now()
	s.answers++
	if fails {
		s.failing++
	}
	if s.answers >= 50 && s.failing > s.answers/5+3 {
		w.violate("failures attract nobody", c.key, "%d of %d answers were those of a replica that fails, beside %d that work", s.failing, s.answers, healthy)
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

// idleEvery is the time between two looks at a service to which nothing happens.
const idleEvery = 10 * time.Second

// check looks at all services to which something has happened.
func (w *watch) check() {
	now := time.Now()
	if now.Before(w.next) || w.world.process.dead {
		return
	}
	w.next = now.Add(checkEvery)
	w.devices()
	on := w.calls(now)
	var told []service.Key
	w.room(now)
	w.hoards(now)
	w.sleepers(now)
	for _, k := range w.keys {
		s := w.services[k]
		if s == nil || s.plan == nil || w.world.loop.stopped {
			continue
		}
		if s.deleted {
			told = append(told, k)
			continue
		}
		touched := s.touched.Swap(false)
		if !touched && s.open == 0 && !s.suspect() && now.Before(s.due) {
			continue
		}
		s.due = now.Add(idleEvery)
		s.looks++
		w.reservations(k, s.waiting, s.running, on)
		w.counts(k, s, s.waiting, s.running)
		w.starving(k, s, s.waiting)
		w.canaries(k, s)
		if !touched || s.looks%8 == 0 {
			told = append(told, k)
		}
	}
	for _, k := range told { // at the end: it takes time
		switch s := w.services[k]; {
		case w.world.loop.stopped:
		case s.deleted:
			w.stays(k, s, now)
		default:
			w.status(k, s)
		}
	}
}

// suspect reports that something is wrong with the service that may not last.
func (s *watched) suspect() bool {
	return !s.starved.IsZero() || !s.short.IsZero() || !s.untrue.IsZero()
}

// calls counts the requests of each service, and returns those on each replica.
func (w *watch) calls(now time.Time) map[string]int {
	on := map[string]int{}
	for _, k := range w.keys {
		if s := w.services[k]; s != nil {
			s.waiting, s.running, s.free, s.limited = 0, 0, 0, s.limited[:0]
		}
	}
	for _, c := range w.world.calls.asking {
		if c.over != "" && now.Sub(c.left) > settled {
			w.violate("a request ends once", c.key, "request %d ended as %q %v ago, and is still in the dispatcher", c.id, c.over, now.Sub(c.left))
		}
	}
	for _, c := range w.world.calls.open {
		switch {
		case c.gateway.dead:
		case c.grant == nil:
			if c.watched.waiting++; c.subset == nil {
				c.watched.free++
			} else {
				c.watched.limited = append(c.watched.limited, c.subset[0])
			}
			if d := now.Sub(c.waits); d > startupTimeout+time.Second {
				w.violate("waits are bounded", c.key, "request %d has waited for %v", c.id, d)
			}
		default:
			if c.since.Equal(c.watched.made) { // those of a deleted service count for none
				c.watched.running++
			}
			on[c.grant.Replica()]++
		}
	}
	return on
}

// hoards looks for a service that nobody asks and that keeps GPUs while requests for
// others wait for no more than those.
func (w *watch) hoards(now time.Time) {
	idle, held, free, most := service.Key{}, 0, 0, 0
	w.world.machine.locked(func() {
		free = w.world.machine.free()
		for _, k := range w.keys {
			s, o := w.services[k], w.world.machine.owners[k]
			if s == nil || s.plan == nil || o == nil {
				continue
			}
			n, pending := 0, 0
			for _, u := range o.units {
				if n += len(u.view.GPUs); u.view.Phase == replica.Pending {
					pending++
				}
			}
			switch {
			case pending > 0 && s.waiting > 0:
				most = max(most, s.plan.GPUs)
			case pending == 0 && n > held && s.open == 0 && s.plan.Min == 0 && now.Sub(s.lastUse) > 15*time.Second && now.Sub(s.applied) > startupTimeout && !s.canary.around():
				idle, held = k, n
			}
		}
	})
	if most == 0 || held == 0 || w.world.trouble() || now.Sub(w.restart) < time.Minute || held+free < most {
		w.crowded = time.Time{}
	} else if w.crowded.IsZero() {
		w.crowded = now
	}
	if d := now.Sub(w.crowded); !w.crowded.IsZero() && d > 15*time.Second {
		w.violate("idle services make room", idle, "it has had no request for %v and holds %d GPUs, and for %v requests for others have waited for %d at most, of which %d are free", now.Sub(w.services[idle].lastUse), held, d, most, free)
	}
}

// room looks at a service that waits for GPUs, if it is the only one.
func (w *watch) room(now time.Time) {
	var waits *watched
	var key service.Key
	need, open, lacking := 0, 0, 0
	w.world.machine.locked(func() {
		open = w.world.machine.free()
		for _, k := range w.keys {
			s, o := w.services[k], w.world.machine.owners[k]
			if s == nil || s.plan == nil || o == nil {
				continue
			}
			held, pending := 0, 0
			for _, u := range o.units {
				if held += len(u.view.GPUs); u.view.Phase == replica.Pending {
					pending++
				}
			}
			switch {
			case pending > 0:
				if lacking++; pending == len(o.units) && s.waiting > 0 && s.plan.GPUs > 0 {
					waits, key, need = s, k, s.plan.GPUs
				} else {
					lacking++
				}
			case s.open == 0 && s.plan.Min == 0 && now.Sub(s.lastUse) > settled && now.Sub(s.applied) > startupTimeout && !s.canary.around():
				open += held
			}
		}
	})
	if lacking != 1 || open < need || w.world.trouble() || now.Sub(w.restart) < time.Minute {
		w.lacks = time.Time{}
		return
	}
	if w.lacks.IsZero() || w.lacking != key {
		w.lacks, w.lacking = now, key
	}
	if d := now.Sub(w.lacks); d > 10*time.Second {
		w.violate("idle services make room", key, "%d requests have waited for %d GPUs for %v, and %d are free or held by idle services", waits.waiting, need, d, open)
	}
}

// sleepers looks at the GPUs that replicas had before they fell asleep.
func (w *watch) sleepers(now time.Time) {
	key, waits, asleep, need, free := service.Key{}, 0, 0, 0, 0
	w.world.machine.locked(func() {
		free = w.world.machine.free()
		for _, u := range w.world.machine.units {
			switch {
			case u.view.Phase == replica.Asleep && !u.sleep.busy:
				asleep++
				if len(u.view.GPUs) > 0 {
					w.violate("a sleeper frees its GPUs", u.owner.key, "replica %s sleeps and holds %v", u.view.ID, u.view.GPUs)
				}
			case u.view.Phase == replica.Pending && u.gpus > 0 && !u.sleep.busy:
				waits++
				key, need = u.owner.key, u.gpus
			}
		}
	})
	if waits != 1 || asleep == 0 || free < need || w.world.trouble() || now.Sub(w.restart) < time.Minute {
		w.denied = time.Time{}
	} else if w.denied.IsZero() {
		w.denied = now
	}
	if d := now.Sub(w.denied); !w.denied.IsZero() && d > 10*time.Second {
		w.violate("a sleeper frees its GPUs", key, "a replica has waited for %d GPUs for %v, nobody holds %d, and %d replicas sleep", need, d, free, asleep)
	}
}

func (w *watch) devices() {
	holders := map[int]string{}
	w.world.machine.locked(func() {
		for _, u := range w.world.machine.units {
			for _, g := range u.view.GPUs {
				if other := holders[g]; other != "" {
					w.violate("a device has one holder", u.owner.key, "GPU %d is held by %s and %s", g, other, u.view.ID)
				}
				holders[g] = u.view.ID
			}
		}
	})
}

// canaryShare counts the requests since a service was given a canary, or lost it.
type canaryShare struct {
	at           time.Time // zero for never
	percent      int       // 0 for none now
	ready        time.Time // since when the canary has been, for the first time
	all, canarys int       // requests since then that did not wait
}

// around reports whether there is a canary, or was until a moment ago.
func (s *canaryShare) around() bool {
	return !s.at.IsZero() && (s.percent > 0 || time.Since(s.at) < 2*startupTimeout)
}

// admitted counts a request.
func (s *canaryShare) admitted(c *call, g *dispatch.Grant) {
	if s.percent == 0 || s.ready.IsZero() || c.retries > 0 || c.subset != nil {
		return
	}
	if g.Waited() > 0 { // one of the two is full, and who goes on is no sample
		s.all, s.canarys = 0, 0
		return
	}
	if s.all++; g.Pool().Key.IsCanary() {
		s.canarys++
	}
}

// canaries looks at who gets the requests of a service with a canary.
func (w *watch) canaries(k service.Key, s *watched) {
	c, now := &s.canary, time.Now()
	if c.percent == 0 || len(s.attempts) > 0 || w.restart.After(c.at) || w.world.trouble() {
		c.all, c.canarys = 0, 0
		return
	}
	ready, stable := 0, 0
	w.world.machine.locked(func() { ready, stable = w.world.machine.ready(k.Canary()), w.world.machine.ready(k) })
	if demand := w.world.demand(k.Canary()); c.ready.IsZero() && ready == 0 && now.Sub(c.at) > settled && demand.Arrived > 0 && demand.Queued > 0 {
		w.violate("a canary takes its share", k, "%d requests wait for a canary that was never ready", demand.Queued)
	}
	switch {
	case ready == 0 || stable == 0:
		c.all, c.canarys = 0, 0
		if ready == 0 && !c.ready.IsZero() {
			c.ready = now
		}
	case c.ready.IsZero():
		c.ready = now.Add(time.Microsecond)
	case now.Sub(c.ready) < settled:
		c.all, c.canarys = 0, 0
	}
	p := float64(c.percent) / 100
	if n := float64(c.all); c.all >= 200 && math.Abs(float64(c.canarys)-n*p) > 6*math.Sqrt(n*p*(1-p))+1 {
		w.violate("a canary takes its share", k, "its canary got %d of %d requests, and is to get %d %%", c.canarys, c.all, c.percent)
	}
}

func (w *watch) reservations(k service.Key, waiting, running int, on map[string]int) {
	demand := w.world.demand(k)
	if c := w.world.demand(k.Canary()); c.Arrived > 0 {
		demand.Queued, demand.Running, demand.Arrived, demand.Done = demand.Queued+c.Queued, demand.Running+c.Running, demand.Arrived+c.Arrived, demand.Done+c.Done
	}
	ended := w.of(k).canary // those that a canary had when it ended count for none
	if gone := ended.percent == 0 && ended.around(); !gone && (demand.Queued != waiting || demand.Running != running || demand.Arrived != demand.Done+uint64(demand.Queued+demand.Running)) {
		w.violate("reservations add up", k, "%d wait and %d run, and the dispatcher counts %d and %d (%d arrived, %d done)",
			waiting, running, demand.Queued, demand.Running, demand.Arrived, demand.Done)
	}
	var ids []string
	w.world.machine.locked(func() {
		for _, k := range []service.Key{k, k.Canary()} {
			if o := w.world.machine.owners[k]; o != nil {
				for _, u := range o.units {
					ids = append(ids, u.view.ID)
				}
			}
		}
	})
	for _, id := range ids {
		if n := w.world.inFlight(id); n != on[id] {
			w.violate("reservations add up", k, "replica %s has %d requests, and the dispatcher counts %d", id, on[id], n)
		}
	}
}

// settled is how long the fleet may take for anything it does at once.
const settled = 3 * time.Second

// counts looks at what is wanted of a service.
func (w *watch) counts(k service.Key, s *watched, waiting, running int) {
	now, want, alive := time.Now(), 0, 0
	var scaled []scaling
	known := false
	w.world.machine.locked(func() {
		if o := w.world.machine.owners[k]; o != nil && o.revision != nil {
			want, known = o.want[service.RoleEngine]
			for _, u := range o.units {
				if u.view.Alive() {
					alive++
				}
			}
			scaled, o.scaled = o.scaled, nil
		}
		if c := w.world.machine.owners[k.Canary()]; c != nil {
			alive += len(c.units)
		}
	})
	w.flaps(k, s, scaled)
	if !known || w.world.trouble() {
		s.short = time.Time{}
		return
	}
	edited := w.restart
	if eased := w.world.eased(); eased.After(edited) {
		edited = eased
	}
	if s.applied.After(edited) {
		edited = s.applied
	}
	p := s.plan
	if now.Sub(edited) > settled && (want > p.Max || want < p.Min) {
		w.violate("counts keep to limits", k, "%d replicas are wanted, of %d to %d", want, p.Min, p.Max)
	}
	// A request that may go to one replica calls for that one alone.
	need, soon := min(max(min(waiting, 1), int(math.Ceil(float64(s.free+running)/p.Target))), p.Max), settled
	if want > 0 {
		soon = 30*time.Second + 4*p.Startup // the present ones and those that start may do
	}
	switch {
	case s.canary.around():
		s.short = time.Time{}
	case want >= need:
		s.short = time.Time{}
	case s.short.IsZero():
		s.short = now
	case now.Sub(s.short) > soon:
		w.violate("supply follows demand", k, "%d requests wait and %d run, and %d replicas are wanted, of %d needed for %v; %s", waiting, running, want, need, soon, w.state(k))
	}
	kept := 125*time.Second + 3*p.Startup
	if most := max(p.Min, 1, 2*int(math.Ceil(float64(s.peak(kept))/p.Target))); want > most && now.Sub(edited) > kept {
		w.violate("supply keeps to demand", k, "%d replicas are wanted, and %d would have done for %v; %s", want, most, kept, w.state(k))
	}
	w.idle(k, s, want, alive, edited)
}

// state is what the product knows of a service, for a trace.
func (w *watch) state(k service.Key) string {
	st, err := w.world.process.fleet.Get(context.Background(), k)
	out := fmt.Sprintf("demand %+v, status %+v (%v)", w.world.demand(k), st.Status, err)
	if h, err := w.world.process.fleet.ScaleHistory(k); err == nil && len(h) > 0 {
		for _, d := range h[0].Decisions[max(0, len(h[0].Decisions)-5):] {
			out += fmt.Sprintf("; %+v", d)
		}
	}
	return out
}

// idle looks at a service that nobody asks.
func (w *watch) idle(k service.Key, s *watched, want, alive int, edited time.Time) {
	now := time.Now()
	since := s.lastUse
	if edited.After(since) {
		since = edited
	}
	if s.open > 0 || s.plan.Min > 0 {
		s.atZero = time.Time{}
		return
	}
	if limit := s.plan.ToZero + startupTimeout + 10*time.Second; now.Sub(since) > limit && (want > 0 || alive > 0) {
		w.violate("idle services reach zero", k, "nobody has asked it for %v, and %d replicas are wanted, %d there; %s", now.Sub(since), want, alive, w.state(k))
	}
	switch {
	case want > 0 && !s.atZero.IsZero() && s.atZero.After(since):
		w.violate("idle services stay at zero", k, "nobody has asked it for %v, it went to zero %v ago, and %d replicas are wanted", now.Sub(since), now.Sub(s.atZero), want)
	case want > 0:
		s.atZero = time.Time{}
	case s.atZero.IsZero():
		s.atZero = now
	}
}

// flaps looks at how often a count fell.
func (w *watch) flaps(k service.Key, s *watched, scaled []scaling) {
	for _, c := range scaled {
		if idle := c.at.Sub(s.lastUse); c.to == 0 && c.ready && s.open == 0 && s.plan.GPUs == 0 && s.plan.ToZero-idle > settled && c.at.Sub(s.changed) > startupTimeout {
			w.violate("idle services keep their time", k, "it is stopped %v after its last request, and scaleToZeroAfter is %v", idle, s.plan.ToZero)
		}
		if idle := c.at.Sub(s.lastUse); c.rolling && c.to == 0 && s.open == 0 && idle < s.plan.ToZero {
			w.violate("an edit takes nothing", k, "it is stopped %v after its last request, while a new revision takes the place of the one before", idle)
		}
		if c.to >= c.from || c.to == 0 {
			continue
		}
		if d := c.at.Sub(s.fell); !s.fell.IsZero() && d < 29*time.Second && s.fell.After(s.applied) && s.fell.After(w.restart) {
			w.violate("counts do not flap", k, "the count fell from %d to %d, %v after it fell before", c.from, c.to, d)
		}
		s.fell = c.at
	}
}

// starving looks for requests that wait beside a replica that does nothing.
func (w *watch) starving(k service.Key, s *watched, waiting int) {
	idle := ""
	if waiting > 0 && !s.canary.around() {
		idle = w.idleBeside(k, s)
	}
	switch now := time.Now(); {
	case idle == "":
		s.starved = time.Time{}
	case s.starved.IsZero():
		s.starved = now
	case now.Sub(s.starved) > settled:
		w.violate("no waiter starves", k, "%d requests wait beside %s, which has none, for %v", waiting, idle, now.Sub(s.starved))
	}
}

// idleBeside is a replica that has nothing to do, and that a request may go to which
// waits at a gateway that knows of it.
func (w *watch) idleBeside(k service.Key, s *watched) (idle string) {
	for _, g := range w.world.gateways {
		if g.dead || len(w.world.gateways) > 1 && !w.waitsAt(k, g) {
			continue
		}
		for _, e := range g.dispatcher.Endpoints(routing.Service(k)) {
			if e.Phase == replica.Ready && e.Open && e.Ejected == "" && w.world.inFlight(e.ID) == 0 && (s.free > 0 || slices.Contains(s.limited, w.world.machine.address(e.ID))) {
				idle = e.ID
			}
		}
	}
	return idle
}

// waitsAt reports whether a request that may go anywhere waits at a gateway.
func (w *watch) waitsAt(k service.Key, g *gateway) bool {
	for _, c := range w.world.calls.open {
		if c.key == k && c.gateway == g && c.grant == nil && c.subset == nil {
			return true
		}
	}
	return false
}

// allowance is what a user's key was used for.
type allowance struct {
	entries []time.Time // within the last minute
	last    time.Time
	running int
}

func (w *watch) allowance(u *UserPlan) *allowance {
	a := w.allowed[u]
	if a == nil {
		a = &allowance{}
		w.allowed[u] = a
	}
	return a
}

// entered is told of a request that entered with a key, limited of one that was
// refused.
func (w *watch) entered(c *call) {
	a, now, l := w.allowance(c.user), time.Now(), c.user.Limits
	a.entries = append(slices.DeleteFunc(a.entries, func(t time.Time) bool { return now.Sub(t) > time.Minute }), now)
	a.last = now
	a.running++
	if n := int64(len(a.entries)); l.RequestsPerMinute > 0 && n > 2*l.RequestsPerMinute+1 || l.Concurrent > 0 && int64(a.running) > l.Concurrent {
		w.violate("a key keeps to its limits", c.key, "%d requests have entered within a minute, and %d run: the limits are %+v", n, a.running, l)
	}
}

func (w *watch) limited(c *call, why error) {
	if a := w.allowance(c.user); a.running == 0 && time.Since(a.last) > time.Minute+time.Second && c.user.Limits.TokensPerMinute == 0 {
		w.violate("a key keeps to its limits", c.key, "a request is refused %v after the last one: %v", time.Since(a.last), why)
	}
}

// overtakes looks at the requests that go on waiting after c went on, and came
// before it.
func (w *watch) overtakes(c *call) {
	for _, x := range w.world.calls.open {
		if x.key != c.key || x.grant != nil || x.subset != nil || x.gateway != c.gateway || !x.waits.Before(c.waits) && x.user != c.user || x.retries > 0 || c.subset != nil {
			continue
		}
		mine, its := rank(c), rank(x)
		switch {
		case its > mine:
			if x.lower++; x.lower > 3+x.passed/10 {
				w.violate("priority goes first", c.key, "%d requests of lower priority have gone before request %d, which came first", x.lower, x.id)
			}
		case x.user == c.user:
			clear(x.turns)
		case its == mine:
			if x.turns == nil {
				x.turns = map[*UserPlan]int{}
			}
			if x.turns[c.user]++; x.turns[c.user] > 5 {
				w.violate("no caller starves", c.key, "%d later requests of one caller have gone before request %d of another", x.turns[c.user], x.id)
			}
		}
		x.passed++
	}
}

func rank(c *call) int { return priorities[c.user.Priority] }

// priorities are those of the routes to each service.
var priorities = map[string]int{"vip": 1, "": 0, "spot": -1}

// stays looks at a service that was deleted.
func (w *watch) stays(k service.Key, s *watched, now time.Time) {
	if len(s.attempts) > 0 || now.Before(s.due) {
		return
	}
	s.due = now.Add(idleEvery)
	if _, err := w.world.process.fleet.Get(context.Background(), k); err == nil {
		w.violate("records survive", k, "it is there %v after it was deleted", now.Sub(s.applied))
	}
}

// status looks at what users are told.
func (w *watch) status(k service.Key, s *watched) {
	st, err := w.world.process.fleet.Get(context.Background(), k)
	if err != nil && s.deleting {
		w.deleted(k)
		return
	}
	if err != nil {
		w.violate("records survive", k, "the service was applied: %v", err)
		return
	}
	s.deleting = false
	stored := st.Object.Service.Model.URI
	if stored != s.plan.model() && !slices.ContainsFunc(s.attempts, func(p *ServicePlan) bool { return stored == p.model() }) {
		w.violate("records survive", k, "the model is %s, and %s was acknowledged", stored, s.plan.model())
	}
	ready := 0
	w.world.machine.locked(func() {
		if o := w.world.machine.owners[k]; o != nil {
			for _, u := range o.units {
				if u.view.Phase == replica.Ready {
					ready++
				}
			}
		}
	})
	told := false
	for _, c := range st.Status.Conditions {
		told = told || c.Type == service.ConditionReady && c.Status == "True"
	}
	switch now := time.Now(); {
	case ready == 0 || told || w.world.trouble():
		s.untrue = time.Time{}
	case s.untrue.IsZero():
		s.untrue = now
	case now.Sub(s.untrue) > settled && now.Sub(s.applied) > settled && now.Sub(w.restart) > settled:
		w.violate("status tells the truth", k, "%d replicas have been ready for %v, and the service is said not to be", ready, now.Sub(s.untrue))
	}
}

// end looks at what is left when all is over.
func (w *watch) end() {
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
