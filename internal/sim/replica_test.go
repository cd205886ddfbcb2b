package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/decide/residency"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/simulate"
)

// This file is the life of a replica.

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
	u.owner.failed = time.Now()
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

// failing reports whether a replica answers every request with a failure.
func (m *machine) failing(id string) (is bool) {
	m.locked(func() { is = m.units[id] != nil && m.units[id].mood.failing })
	return is
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
