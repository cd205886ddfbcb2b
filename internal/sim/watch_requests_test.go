package sim

import (
	"math"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// This file looks at requests: who gets them, and who waits.

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
	if failing == 1 && healthy >= 2 { // no more than half of them are ejected, the one that fails with those that did
		for _, e := range c.gateway.dispatcher.Endpoints(routing.Service(c.key)) {
			if e.Ejected != "" && !w.world.machine.failing(e.ID) {
				healthy--
			}
		}
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

// place is a replica at a gateway.
type place struct {
	gateway *gateway
	replica string
}

// maxWait is how long a request waits that may go to any of several services.
const maxWait = 10 * time.Minute

// calls counts the requests of each service and those on each replica.
func (w *watch) calls(now time.Time) {
	clear(w.on)
	clear(w.at)
	for _, s := range w.all {
		s.waiting, s.running, s.free, s.limited = 0, 0, 0, s.limited[:0]
	}
	for _, c := range w.world.calls.asking {
		if c.over != "" && now.Sub(c.left) > settled {
			w.violate("a request ends once", c.key, "request %d ended as %q %v ago, and is still in the dispatcher", c.id, c.over, now.Sub(c.left))
		}
	}
	for _, c := range w.world.calls.open {
		s, longest := c.watched, startupTimeout
		if c.user.Route != "" {
			if longest = maxWait; c.grant != nil {
				s = w.of(c.grant.Pool().Key.Stable())
			}
		}
		switch {
		case c.gateway.dead.Load():
		case c.grant == nil:
			if c.watched.waiting++; c.subset == nil {
				c.watched.free++
			} else {
				c.watched.limited = append(c.watched.limited, c.subset[0])
			}
			if d := now.Sub(c.waits); d > longest+time.Second {
				w.violate("waits are bounded", c.key, "request %d has waited for %v", c.id, d)
			}
		default:
			if c.since.Equal(s.made) || c.user.Route != "" { // those of a deleted service count for none
				s.running++
			}
			id := c.grant.Replica()
			w.on[id]++
			if s.plan != nil && s.plan.MaxConcurrency > 0 {
				here := place{c.gateway, id}
				if w.at[here]++; w.at[here] > s.plan.MaxConcurrency {
					w.violate("a replica keeps to its limit", c.key, "%s has %d requests at replica %s, whose maxConcurrency is %d", c.gateway.name, w.at[here], id, s.plan.MaxConcurrency)
				}
			}
		}
	}
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
		if g.dead.Load() || len(w.world.gateways) > 1 && !w.waitsAt(k, g) {
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
		if (c.key == k || c.pool == k) && c.gateway == g && c.grant == nil && c.subset == nil {
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
		if x.key != c.key || x.pool != c.pool || x.grant != nil || x.subset != nil || x.gateway != c.gateway || !x.waits.Before(c.waits) && x.user != c.user || x.retries > 0 || c.subset != nil {
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
		case its == mine && !c.watched.byTokens():
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

func (s *watched) byTokens() bool { return s.plan != nil && s.plan.ByTokens }

// promptTokens are those of each prompt.
const promptTokens = 192

// cost is how many tokens the request is charged for, once it has ended.
func (c *call) cost() int {
	switch {
	case c.over == "answered":
		return promptTokens + c.tokens
	case c.first:
		return promptTokens
	}
	return 0
}

// given counts what a request that has ended was given, where callers share tokens, and
// compares its caller with the others that wait as it does. It is told, too, whenever one
// of the caller's requests waits no longer: who has none left begins anew.
func (w *watch) given(c *call) {
	s := c.watched
	if !s.byTokens() {
		return
	}
	waiting := map[*UserPlan]bool{}
	for _, x := range w.world.calls.open {
		waiting[x.user] = waiting[x.user] || x.key == c.key && x.grant == nil
	}
	if s.leads == nil {
		s.leads = map[[2]*UserPlan]int{}
	}
	largest := 0
	for i := range w.world.plan.Users {
		largest = max(largest, promptTokens+2*w.world.plan.Users[i].Tokens)
	}
	// What is under way is counted at its end: of one who is ahead now, of one who was
	// when both began to wait, and what had begun before.
	bound := 3 * (s.plan.Max*s.plan.MaxConcurrency + 1) * largest
	for i := range w.world.plan.Users {
		other := &w.world.plan.Users[i]
		ahead, behind := [2]*UserPlan{c.user, other}, [2]*UserPlan{other, c.user}
		switch {
		case other == c.user || other.Priority != c.user.Priority:
		case !waiting[c.user] || !waiting[other]:
			delete(s.leads, ahead)
			delete(s.leads, behind)
		default:
			s.leads[ahead] += c.cost()
			s.leads[behind] -= c.cost()
			if lead := s.leads[ahead]; lead > bound {
				w.violate("callers share tokens", c.key, "a caller was given %d tokens more than another while both waited, and %d may be", lead, bound)
			}
		}
	}
}

func rank(c *call) int { return priorities[c.user.Priority] }

// priorities are those of the routes to each service.
var priorities = map[string]int{"vip": 1, "": 0, "spot": -1}
