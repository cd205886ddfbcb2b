package sim

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// This file looks at services: their counts, replicas, GPUs, records and status.

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

// keptAtLeast is for how long a replica is kept that is not needed, at the least: the
// shortest pause that is one, and 30 % more, less what a restart takes.
const keptAtLeast = 12 * time.Second

// ending is told of each replica that is to go; the machine's lock is held.
func (w *watch) ending(u *unit) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, o := w.services[u.owner.key], u.owner
	if s == nil || s.deleted || o.revision == nil || w.restart.Equal(w.world.begun) || time.Since(w.restart) > keptAtLeast || s.applied.After(w.restart) {
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

// hoards looks for a service that nobody asks and that keeps GPUs while requests for
// others wait for no more than those.
func (w *watch) hoards(now time.Time) {
	idle, held, free, most := service.Key{}, 0, 0, 0
	w.world.machine.locked(func() {
		free = w.world.machine.free()
		for i, k := range w.keys {
			s, o := w.all[i], w.world.machine.owners[k]
			if s.plan == nil || o == nil {
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
		for i, k := range w.keys {
			s, o := w.all[i], w.world.machine.owners[k]
			if s.plan == nil || o == nil {
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

// places looks at who has GPUs, and who waits for some.
func (w *watch) places(now time.Time) {
	clear(w.holders)
	waits, lacking, asleep := (*unit)(nil), 0, 0
	pending := false
	w.world.machine.locked(func() {
		for _, u := range w.world.machine.units {
			for _, g := range u.view.GPUs {
				if other := w.holders[g]; other != "" {
					w.violate("a device has one holder", u.owner.key, "GPU %d is held by %s and %s", g, other, u.view.ID)
				}
				w.holders[g] = u.view.ID
			}
			switch {
			case u.view.Phase == replica.Asleep && !u.sleep.busy:
				asleep++
				if len(u.view.GPUs) > 0 {
					w.violate("a sleeper frees its GPUs", u.owner.key, "replica %s sleeps and holds %v", u.view.ID, u.view.GPUs)
				}
			case u.view.Phase == replica.Pending:
				pending = true
				if u.gpus > 0 && !u.sleep.busy {
					lacking++
					waits = u
				}
			}
		}
	})
	if !pending {
		w.lacks, w.crowded, w.denied = time.Time{}, time.Time{}, time.Time{}
		return
	}
	w.room(now)
	w.hoards(now)
	if lacking != 1 || asleep == 0 {
		waits = nil
	}
	w.sleepers(now, waits, asleep)
}

// sleepers looks at the one replica that waits for GPUs, while others sleep; nil
// for none.
func (w *watch) sleepers(now time.Time, waits *unit, asleep int) {
	free := 0
	w.world.machine.locked(func() { free = w.world.machine.free() })
	if waits == nil || free < waits.gpus || w.world.trouble() || now.Sub(w.restart) < time.Minute {
		w.denied = time.Time{}
	} else if w.denied.IsZero() {
		w.denied = now
	}
	if d := now.Sub(w.denied); !w.denied.IsZero() && d > 10*time.Second {
		w.violate("a sleeper frees its GPUs", waits.owner.key, "a replica has waited for %d GPUs for %v, nobody holds %d, and %d replicas sleep", waits.gpus, d, free, asleep)
	}
}

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
	w.edited(k, s, scaled)
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
	// What the load does not need is kept for 120 s and three starts at most, then while
	// requests wait for 30 s and a start, and then until 30 s after the last fall.
	kept := 180*time.Second + 4*p.Startup + settled
	if most := max(p.Min, 1, 2*int(math.Ceil(float64(s.peak(kept))/p.Target))); want > most && now.Sub(edited) > kept {
		w.violate("supply keeps to demand", k, "%d replicas are wanted, and %d would have done for %v; %s", want, most, kept, w.state(k))
	}
	w.idle(k, s, want, alive, edited)
}

// get is a service as users see it, at this instant.
func (w *watch) get(k service.Key) (fleet.ServiceState, error) {
	w.world.machine.watched.Store(true)
	defer w.world.machine.watched.Store(false)
	return w.world.process.fleet.Get(context.Background(), k)
}

// state is what the product knows of a service, for a trace.
func (w *watch) state(k service.Key) string {
	st, err := w.get(k)
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
		w.violate("idle services stay at zero", k, "nobody has asked it for %v, it went to zero %v ago, and %d replicas are wanted; %s", now.Sub(since), now.Sub(s.atZero), want, w.state(k))
	case want > 0:
		s.atZero = time.Time{}
	case s.atZero.IsZero():
		s.atZero = now
	}
}

// stopped looks for requests that a service had for a while when it was stopped.
func (w *watch) stopped(k service.Key, s *watched, c scaling) {
	if w.world.trouble() || c.at.Sub(s.changed) < settled || c.at.Sub(w.restart) < time.Minute || s.canary.around() {
		return
	}
	for _, x := range w.world.calls.open {
		if x.key == k && !x.gateway.dead.Load() && x.began.Before(c.at.Add(-settled)) {
			w.violate("a start serves", k, "it is stopped, and request %d has waited or run for %v", x.id, c.at.Sub(x.began))
		}
	}
}

// edited looks at how many replicas an edit leaves to a service. One with GPUs may have
// to give those of the revision before to the new one.
func (w *watch) edited(k service.Key, s *watched, scaled []scaling) {
	rolling, ready, failed := false, 0, time.Time{}
	w.world.machine.locked(func() {
		if o := w.world.machine.owners[k]; o != nil && o.revision != nil {
			rolling, ready, failed = o.rolling(), w.world.machine.ready(k), o.failed
		}
	})
	now := time.Now()
	if !rolling || s.plan.GPUs > 0 || s.canary.around() || w.world.trouble() || now.Sub(w.restart) < time.Minute || now.Sub(failed) < startupTimeout {
		s.had = ready
		return
	}
	s.had = min(s.had, s.plan.Max)
	for _, c := range scaled {
		if need := min(int(math.Ceil(float64(s.running)/s.plan.Target)), s.plan.Max); c.to < c.from && c.to < need && c.at.Sub(s.changed) < settled {
			w.violate("an edit takes nothing", k, "the count falls from %d to %d, %v after an edit, and %d requests run", c.from, c.to, c.at.Sub(s.changed), s.running)
		}
		s.had = min(s.had, c.to)
	}
	if ready < s.had {
		w.violate("an edit takes nothing", k, "%d replicas are ready, and there were %d before the edit", ready, s.had)
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
		if c.to == 0 && c.from > 0 {
			w.stopped(k, s, c)
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

// stays looks at a service that was deleted.
func (w *watch) stays(k service.Key, s *watched, now time.Time) {
	if len(s.attempts) > 0 || now.Before(s.due) {
		return
	}
	s.due = now.Add(idleEvery)
	if _, err := w.get(k); err == nil {
		w.violate("records survive", k, "it is there %v after it was deleted", now.Sub(s.applied))
	}
}

// status looks at what users are told.
func (w *watch) status(k service.Key, s *watched) {
	st, err := w.get(k)
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
