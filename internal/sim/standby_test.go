package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// This file has replicas of a single machine sleep, as package process does.

var _ fleet.Sleeper = (*machine)(nil)

// sleeping is a replica's sleep.
type sleeping struct {
	level  int    // at which it is to sleep; 0: awake
	asleep int    // at which it does
	gpus   []int  // it had before
	turn   uint64 // of its last change: what belongs to an earlier one is void
	busy   bool   // it falls asleep, and gets nothing meanwhile
	cancel context.CancelFunc
}

// Sleep implements fleet.Sleeper.
func (m *machine) Sleep(_ context.Context, ref workload.Ref, level int) error {
	return m.scale(ref, 0, level, nil)
}

// Memory implements fleet.Sleeper: there is always enough.
func (m *machine) Memory() (available, total int64) { return 0, 0 }

// Swap implements fleet.Sleeper: there is none.
func (m *machine) Swap() (free, total int64, why string) { return 0, 0, "no swap is simulated" }

// doze has a replica put to sleep once it has answered its requests, if it can be. The
// lock is held, as in all of these.
func (m *machine) doze(u *unit, level int) bool {
	c := u.owner.revision.Component(u.view.Role)
	if level == 0 || m.drain == nil || u.view.Phase != replica.Ready || u.view.Revision != u.owner.revision.Hash || c.Process == nil || c.Process.Standby.Find(level) == nil {
		return false
	}
	m.trace("doze %s", u.view.ID)
	u.sleep.turn++
	u.sleep.level, u.sleep.busy, u.view.Phase = level, true, replica.Asleep
	u.drainToSleep()
	return true
}

func (u *unit) drainToSleep() {
	m, turn, drain, id := u.machine, u.sleep.turn, u.machine.drain, u.view.ID
	ctx, cancel := context.WithTimeout(context.Background(), grace+time.Duration(u.number)+time.Millisecond)
	u.sleep.cancel = cancel
	go func() {
		defer cancel()
		pause(250*time.Microsecond+time.Duration(u.number)*apart, ofSleepers) // after what the fleet does now
		err := drain(ctx, id)
		m.loop.post(1<<41+u.number, func() {
			m.locked(func() {
				if u.sleep.turn != turn || u.gone {
					return
				}
				switch {
				case u.sleep.level == 0: // it was woken meanwhile
					u.awake()
				case err != nil: // it has requests still
					u.drainToSleep()
				default:
					u.fallAsleep(turn)
				}
				m.converge(u.owner)
			})
		})
	}()
}

// fallAsleep is the call that puts the engine to sleep, which takes a while.
func (u *unit) fallAsleep(turn uint64) {
	m := u.machine
	u.sleep.asleep = u.sleep.level
	if n := len(u.calls); n > 0 {
		m.disturbs(u, fmt.Sprintf("it is put to sleep with %d requests", n))
	}
	m.sleeps.after(time.Duration(300+u.number*37%1500)*time.Millisecond, func() {
		m.locked(func() {
			if u.sleep.turn != turn || u.gone {
				return
			}
			m.trace("asleep %s", u.view.ID)
			u.sleep.busy, u.sleep.gpus = false, slices.Clone(u.view.GPUs)
			u.view.Standby, u.view.AsleepSince, u.view.ReadyAt, u.ready = u.sleep.asleep, m.now(), time.Time{}, time.Time{}
			u.release()
			m.converge(u.owner)
		})
	})
}

// rouse has a replica woken once it has its GPUs.
func (u *unit) rouse() {
	u.machine.trace("rouse %s", u.view.ID)
	u.sleep.level = 0
	u.view.Phase, u.view.Reason, u.view.Message = replica.Pending, replica.ReasonWaking, "is being woken"
	if u.sleep.asleep == 0 {
		u.sleep.cancel()
	}
}

// wake is the call that wakes the engine; one whose GPUs others have is started anew.
func (u *unit) wake() {
	had := u.sleep.gpus
	if u.sleep.asleep == 0 || !slices.Equal(had, u.view.GPUs) {
		u.stopEngine()
		u.rests()
		u.launch()
		return
	}
	u.view.Phase, u.view.Reason, u.view.Message = replica.Starting, replica.ReasonWaking, "is being woken"
	u.then(u.machine.startsIn(u.owner.key)/10, u.awake)
}

// awake has the replica take requests again.
func (u *unit) awake() {
	m := u.machine
	m.trace("awake %s", u.view.ID)
	if u.sleep.asleep > 0 {
		u.view.Woke = &replica.Woke{Level: u.sleep.asleep, Seconds: 1, At: m.now()}
	}
	u.rests()
	m.resume(u.view.ID)
	u.ready = time.Now()
	u.view.Phase, u.view.Reason, u.view.Message, u.view.ReadyAt = replica.Ready, "", "", m.now()
}

// rests ends what there is of a sleep.
func (u *unit) rests() {
	u.sleep = sleeping{turn: u.sleep.turn + 1}
	u.view.Standby, u.view.AsleepSince = 0, time.Time{}
}

// wakeSleepers wakes as many sleeping replicas of a role as are wanted, and ends those
// that are of no use.
func (m *machine) wakeSleepers(o *owner, role service.Role, want int) (woken int) {
	for _, u := range slices.Clone(o.units) {
		switch {
		case u.view.Role != role || u.view.Phase != replica.Asleep:
		case u.view.Revision != o.revision.Hash:
			m.end(u)
		case woken < want:
			u.rouse()
			woken++
		case o.rest[role] == 0:
			m.end(u)
		}
	}
	return woken
}

// recovered is a replica as its record says, for a new owner: asleep from before it
// falls asleep until it is awake.
func (u *unit) recovered() {
	if u.sleep.level == 0 && u.sleep.asleep == 0 {
		return
	}
	if u.sleep.turn++; u.next != nil {
		u.next()
		u.next = nil
	}
	if u.sleep.asleep == 0 {
		u.rests()
		u.view.Phase = replica.Ready
		return
	}
	if len(u.view.GPUs) > 0 {
		u.sleep.gpus = slices.Clone(u.view.GPUs)
		u.release()
	}
	u.sleep.level, u.sleep.busy = u.sleep.asleep, false
	u.view.Phase, u.view.Reason, u.view.Message, u.view.Standby = replica.Asleep, "", "", u.sleep.asleep
	if u.view.AsleepSince.IsZero() {
		u.view.AsleepSince = u.machine.now()
	}
}
