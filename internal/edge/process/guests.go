package process

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/process/keeper"
)

// newKeeper has one process hold the models of other services that its revision names.
func newKeeper(u *unit, r *running) *keeper.Keeper {
	c := u.p.cfg
	return keeper.New(keeper.Config{Dir: r.model, Layout: r.spec.Repository, Address: hostPort(c.Host, r.port), Wanted: u.guests,
		Fetch: func(ctx context.Context, g workload.Guest, progress func(replica.Progress)) (string, error) {
			return u.p.fetches.get(ctx, g.Model.Credentials.Of(g.Model.URI), progress)
		},
		Tell: u.tellGuest, Gone: u.dropGuest,
		LoadTimeout: func() time.Duration {
			return cmp.Or(u.component.Load().Limits.StartupTimeout, service.DefaultStartupTimeout)
		},
		RetryMin: c.Restart.Min, RetryMax: c.Restart.Max, Client: probeClient, Now: c.Now, Logger: c.Logger.With("replica", u.id)})
}

// lodge tells a process's keeper that there may be something to do.
func (u *unit) lodge() {
	if k := u.keeper.Load(); k != nil {
		k.Look()
	}
}

// guests are the models that the replica is to have loaded; false while it can load
// none.
func (u *unit) guests() ([]workload.Guest, bool) {
	u.o.mu.Lock()
	defer u.o.mu.Unlock()
	if u.o.revision == nil || u.view.Phase != replica.Ready {
		return nil, false
	}
	return slices.Clone(u.o.revision.Guests), true
}

// tellGuest publishes how far a guest is.
func (u *unit) tellGuest(name string, change func(g *replica.Guest)) {
	u.o.update(u, func(v *replica.Replica) {
		now := v.Guests[name]
		change(&now)
		v.Guests = maps.Clone(v.Guests)
		if v.Guests == nil {
			v.Guests = map[string]replica.Guest{}
		}
		v.Guests[name] = now
	})
}

// dropGuest publishes that a guest is gone.
func (u *unit) dropGuest(name string) {
	u.o.update(u, func(v *replica.Replica) {
		v.Guests = maps.Clone(v.Guests)
		delete(v.Guests, name)
	})
}

// tried reports whether the replica has loaded each model that one of the revision before
// has, or failed to, or has been ready for as long as a start may take: until then those
// of the revision before go on. The owner's lock is held.
func (u *unit) tried() bool {
	if c := u.component.Load(); c == nil || c.Process == nil || c.Process.Repository == "" {
		return true
	}
	limit := cmp.Or(u.component.Load().Limits.StartupTimeout, service.DefaultStartupTimeout)
	if at := u.view.ReadyAt; !at.IsZero() && u.p.cfg.Now().Sub(at) > limit {
		return true
	}
	for _, g := range u.o.revision.Guests {
		if now := u.view.Guests[g.Name]; !now.Loaded && now.Failures == 0 && u.olderHas(g.Name) {
			return false
		}
	}
	return true
}

// olderHas reports whether a replica of another revision, which serves in this one's
// place, has loaded a model. The owner's lock is held.
func (u *unit) olderHas(name string) bool {
	return slices.ContainsFunc(u.o.units, func(v *unit) bool {
		return v.role == u.role && v.revision != u.revision && v.view.Phase == replica.Ready && v.view.Guests[name].Loaded
	})
}
