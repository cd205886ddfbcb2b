package fleet

import (
	"cmp"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// usage integrates what a role's replicas have cost since this process
// started.
type usage struct {
	last          time.Time
	running, idle int // at last
	replicaSecs   float64
	idleSecs      float64
	startup       float64 // seconds that the last start took
}

// add closes the interval since the last look.
func (u *usage) add(now time.Time) {
	if !u.last.IsZero() {
		dt := now.Sub(u.last).Seconds()
		u.replicaSecs += dt * float64(u.running)
		u.idleSecs += dt * float64(u.idle)
	}
	u.last = now
}

// account notes what runs now. Reconciles come at every change of a replica,
// so between two of them the counts hold; idleness may change unseen within a
// tick of the autoscaler.
func (e *entry) account(w *work, now time.Time, inFlight func(string) int) {
	counts := map[service.Role]*usage{}
	for _, r := range w.replicas {
		u := counts[r.Role]
		if u == nil {
			u = &usage{}
			counts[r.Role] = u
		}
		if r.Started.IsZero() || r.Phase == replica.Failed || r.Phase == replica.Pending {
			continue
		}
		u.running++
		if d := r.ReadyAt.Sub(r.Started).Seconds(); r.Phase == replica.Ready && d > 0 {
			u.startup = d
		}
		if r.Phase == replica.Ready && inFlight(r.ID) == 0 {
			u.idle++
		}
	}
	for _, role := range service.Roles {
		u, c := e.usage[role], counts[role]
		if u == nil {
			if c == nil {
				continue
			}
			u = &usage{}
			e.usage[role] = u
		}
		u.add(now)
		u.running, u.idle = 0, 0
		if c != nil {
			u.running, u.idle = c.running, c.idle
			u.startup = cmp.Or(c.startup, u.startup)
		}
	}
}

// priced fills a status with the cost up to now.
func (e *entry) priced(now time.Time) service.Status {
	st := e.status
	st.Components = append([]service.ComponentStatus(nil), st.Components...)
	for i := range st.Components {
		c := &st.Components[i]
		if u := e.usage[c.Role]; u != nil {
			open := *u
			open.add(now)
			c.ReplicaSeconds, c.IdleSeconds, c.StartupSeconds = open.replicaSecs, open.idleSecs, u.startup
		}
	}
	return st
}
