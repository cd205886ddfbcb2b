package sim

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// FaultPlan is something that goes wrong, or that somebody does.
type FaultPlan struct {
	Seed    uint64
	Kind    string
	Service string // "" for none
	At      time.Duration
	For     time.Duration // how long it lasts, where it does
	Left    bool          // out of the plan
}

// kinds are the faults there are. Those that last are over after FaultPlan.For.
var kinds = map[string]func(f *FaultPlan, w *world, rng *rand.Rand){
	"kill": func(f *FaultPlan, w *world, rng *rand.Rand) { f.unit(w, rng, func(u *unit) { u.die() }) },
	"hang": func(f *FaultPlan, w *world, rng *rand.Rand) { f.mood(w, rng, func(m *mood, on bool) { m.hung = on }) },
	"fail": func(f *FaultPlan, w *world, rng *rand.Rand) {
		f.mood(w, rng, func(m *mood, on bool) { m.failing = on })
	},
	"lie":    func(f *FaultPlan, w *world, rng *rand.Rand) { f.mood(w, rng, func(m *mood, on bool) { m.lying = on }) },
	"silent": func(f *FaultPlan, w *world, rng *rand.Rand) { f.mood(w, rng, func(m *mood, on bool) { m.silent = on }) },
	"slow start": func(f *FaultPlan, w *world, rng *rand.Rand) {
		f.lasting(w, func(on bool) { w.machine.locked(func() { w.slow[f.key()] = on }) })
	},
	"crash loop": func(f *FaultPlan, w *world, _ *rand.Rand) {
		f.lasting(w, func(on bool) { w.machine.locked(func() { w.looping[f.key()] = on }) })
	},
	"crash": func(_ *FaultPlan, w *world, rng *rand.Rand) {
		w.crash(time.Duration(rng.Int64N(int64(5 * time.Second))))
	},
	"torn": (*FaultPlan).torn,
	"power": func(f *FaultPlan, w *world, rng *rand.Rand) {
		if rng.IntN(2) == 0 {
			f.torn(w, rng)
		} else if !w.process.dead.Load() {
			w.finish(w.process, time.Duration(rng.Int64N(int64(time.Minute))), true)
		}
	},
	"clock ahead": func(_ *FaultPlan, w *world, rng *rand.Rand) { w.clock.Add(1 + rng.Int64N(8*3600)) },
	"clock back":  func(_ *FaultPlan, w *world, rng *rand.Rand) { w.clock.Add(-1 - rng.Int64N(1800)) },
	"full": func(f *FaultPlan, w *world, _ *rand.Rand) {
		f.lasting(w, func(on bool) { w.full, w.emptied = on, time.Now(); w.process.disk.setFull(on) })
	},
	"refusals": func(f *FaultPlan, w *world, _ *rand.Rand) { f.lasting(w, w.machine.refuse) },
	"scale": func(f *FaultPlan, w *world, rng *rand.Rand) {
		f.edit(w, func(s *ServicePlan) { s.Min = rng.IntN(2); s.Max = max(1, s.Min) + rng.IntN(4) })
	},
	"edit": func(f *FaultPlan, w *world, rng *rand.Rand) {
		f.edit(w, func(s *ServicePlan) { s.Model = rng.IntN(1000) })
	},
	"canary": (*FaultPlan).canary,
	"names":  (*FaultPlan).flap,
	"server": (*FaultPlan).away,
	"partition": func(f *FaultPlan, w *world, rng *rand.Rand) {
		c, pair := w.cluster, fmt.Sprintf("%dcontroller-%d", rng.IntN(len(w.gateways)), rng.IntN(2))
		c.uncalm(f.For)
		f.lasting(w, func(on bool) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.partition[pair] = on
		})
	},
	"liar": func(f *FaultPlan, w *world, rng *rand.Rand) {
		g, says := w.gateways[rng.IntN(len(w.gateways))], rng.IntN(2)*200
		w.cluster.uncalm(f.For + 2*time.Second)
		f.lasting(w, func(on bool) {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.lie = nil; on {
				g.lie = &says
				return
			}
			// What it said before stands until it sends a full report, as it does to a
			// controller that was not among its targets for a moment.
			w.loop.after(0, func() { g.client.SetTargets(nil) })
			w.loop.after(2*time.Second, func() {
				if !g.dead.Load() {
					g.client.SetTargets([]string{"controller-0"})
					synctest.Wait()
					g.client.SetTargets([]string{"controller-0", "controller-1"})
				}
			})
		})
	},
	"watch late": func(f *FaultPlan, w *world, rng *rand.Rand) {
		g, by := w.gateways[rng.IntN(len(w.gateways))], time.Second+time.Duration(rng.Int64N(int64(30*time.Second)))
		w.cluster.uncalm(f.For + by)
		f.lasting(w, func(on bool) {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.lag = 0; on {
				g.lag = by
			}
		})
	},
	"conflicts": func(f *FaultPlan, w *world, rng *rand.Rand) {
		w.cluster.uncalm(f.For)
		w.machine.clash(rng)
		w.loop.after(f.For, func() { w.machine.clash(nil) })
	},
	"node": (*FaultPlan).node,
	"watch cut": func(f *FaultPlan, w *world, rng *rand.Rand) {
		g := w.gateways[rng.IntN(len(w.gateways))]
		w.cluster.uncalm(f.For)
		f.lasting(w, func(on bool) {
			if g.cut = on; !on && !g.dead.Load() {
				g.restore(w.cluster)
			}
		})
	},
	"gateway": func(_ *FaultPlan, w *world, rng *rand.Rand) {
		i := rng.IntN(len(w.gateways))
		if old := w.gateways[i]; !old.dead.Load() {
			old.crash()
			w.calls.abandon(old)
			w.cluster.uncalm(0)
			w.cluster.alive()
			w.loop.after(time.Duration(rng.Int64N(int64(10*time.Second))), func() { w.cluster.replace(w, i) })
		}
	},
	"edit when asleep": func(f *FaultPlan, w *world, rng *rand.Rand) {
		f.when(w, rng, 10*time.Minute, func(_, to int) bool { return to == 0 })
	},
	"edit when woken": func(f *FaultPlan, w *world, rng *rand.Rand) {
		f.when(w, rng, 10*time.Second, func(from, to int) bool { return from == 0 && to > 0 })
	},
	"edit when stopped": func(f *FaultPlan, w *world, rng *rand.Rand) {
		f.when(w, rng, 10*time.Millisecond, func(from, to int) bool { return from > 0 && to == 0 })
	},
	"storm": func(f *FaultPlan, w *world, rng *rand.Rand) {
		for range 10 {
			w.loop.after(time.Duration(rng.Int64N(int64(10*time.Second))), func() { f.edit(w, func(s *ServicePlan) { s.Model = rng.IntN(4) }) })
		}
	},
	"recreate": func(f *FaultPlan, w *world, rng *rand.Rand) {
		f.recreate(w, time.Duration(rng.Int64N(int64(20*time.Second))))
	},
	"power and delete": func(f *FaultPlan, w *world, rng *rand.Rand) {
		f.recreate(w, time.Minute)
		w.loop.after(time.Duration(rng.Int64N(int64(2*time.Millisecond))), func() {
			if !w.process.dead.Load() {
				w.finish(w.process, time.Second, true)
			}
		})
	},
}

func (f *FaultPlan) key() service.Key { return service.Key{Namespace: "default", Name: f.Service} }

func (f *FaultPlan) begin(w *world) {
	w.trace("fault %s %s %v", f.Kind, f.Service, f.For)
	kinds[f.Kind](f, w, rand.New(rand.NewPCG(f.Seed, 0x6661756c)))
}

// unit does something to a replica of the service that is ready.
func (f *FaultPlan) unit(w *world, rng *rand.Rand, do func(*unit)) {
	w.machine.locked(func() {
		var ready []*unit
		if o := w.machine.owners[f.key()]; o != nil {
			for _, u := range o.units {
				if u.view.Phase == replica.Ready || u.view.Phase == replica.Starting {
					ready = append(ready, u)
				}
			}
		}
		if len(ready) > 0 {
			do(ready[rng.IntN(len(ready))])
		}
	})
}

func (f *FaultPlan) mood(w *world, rng *rand.Rand, set func(m *mood, on bool)) {
	f.unit(w, rng, func(u *unit) {
		begun := u.begun
		w.trace("%s %s", f.Kind, u.view.ID)
		set(&u.mood, true)
		w.loop.after(f.For, func() {
			w.machine.locked(func() {
				if u.begun != begun {
					return
				}
				if u.mood.hung { // it does not come back: somebody restarts it
					u.die()
				}
				set(&u.mood, false)
			})
		})
	})
}

func (f *FaultPlan) lasting(w *world, set func(on bool)) {
	set(true)
	w.loop.after(f.For, func() { set(false) })
}

// nodes is how many nodes a cluster's replicas are on, and goneAfter how long it takes
// until a node that is lost is known to be.
const (
	nodes     = 3
	goneAfter = 40 * time.Second
)

// node is the loss of a node: its replicas answer nothing, and are gone when that is
// known.
func (f *FaultPlan) node(w *world, rng *rand.Rand) {
	lost := rng.Uint64N(nodes)
	w.cluster.uncalm(goneAfter)
	begun := map[*unit]time.Time{}
	w.machine.locked(func() {
		for _, u := range w.machine.units {
			if u.number%nodes == lost {
				u.mood.hung, begun[u] = true, u.begun
			}
		}
	})
	w.loop.after(goneAfter, func() {
		w.machine.locked(func() {
			for _, u := range slices.SortedFunc(maps.Keys(begun), func(a, b *unit) int { return cmp.Compare(a.number, b.number) }) {
				if u.begun.Equal(begun[u]) {
					w.machine.lose(u)
				}
			}
		})
	})
}

// recreate has somebody delete the service, and create it again after a while.
func (f *FaultPlan) recreate(w *world, again time.Duration) {
	s := w.wanted[f.key()]
	if s == nil || w.process.dead.Load() {
		return
	}
	if err := w.process.remove(f.key()); err != nil {
		w.watch.of(f.key()).deleting = true // it is gone, or not
		return
	}
	w.watch.deleted(f.key())
	w.loop.after(again, func() { w.apply(s) })
}

// canary has somebody try a new model with a part of the requests, and then take
// it or go back.
func (f *FaultPlan) canary(w *world, rng *rand.Rand) {
	before := w.wanted[f.key()]
	if before == nil || before.Canary > 0 {
		return
	}
	f.edit(w, func(s *ServicePlan) { s.Model, s.Canary = 1000+rng.IntN(1000), 1+rng.IntN(99) })
	w.loop.after(f.For+time.Duration(rng.Int64N(int64(10*time.Minute))), func() {
		back := rng.IntN(2) == 0
		f.edit(w, func(s *ServicePlan) {
			if s.Canary = 0; back {
				s.Model = before.Model
			}
		})
	})
}

// when has somebody change the model soon after a change of the count. The machine's
// lock is held there.
func (f *FaultPlan) when(w *world, rng *rand.Rand, within time.Duration, is func(from, to int) bool) {
	edit := func() { f.edit(w, func(s *ServicePlan) { s.Model = rng.IntN(1000) }) }
	w.machine.locked(func() {
		w.moments[f.key()] = func(from, to int) {
			if is(from, to) {
				delete(w.moments, f.key())
				w.loop.after(time.Duration(rng.Int64N(int64(within))), edit)
			}
		}
	})
}

// edit has somebody change the manifest.
func (f *FaultPlan) edit(w *world, change func(s *ServicePlan)) {
	if old := w.wanted[f.key()]; old != nil && !w.process.dead.Load() && !w.watch.of(f.key()).deleted {
		s := *old
		change(&s)
		w.apply(&s)
	}
}

// torn kills the process at its next write, before it, within it or after it.
func (f *FaultPlan) torn(w *world, rng *rand.Rand) {
	if w.process.dead.Load() {
		return
	}
	p, again := w.process, time.Duration(rng.Int64N(int64(5*time.Second)))
	power := f.Kind == "power"
	p.disk.killAt(rng.IntN(8), func() {
		p.dead.Store(true)
		w.machine.crash()
		w.loop.after(0, func() { w.finish(p, again, power) })
	})
	w.loop.after(time.Second, func() { f.edit(w, func(s *ServicePlan) { s.Model = rng.IntN(1000) }) })
}

// crash kills the process, and starts it again after a while.
func (w *world) crash(again time.Duration) {
	if !w.process.dead.Load() {
		w.finish(w.process, again, false)
	}
}

// finish ends a process, with all others of the machine where its power fails.
func (w *world) finish(p *process, again time.Duration, power bool) {
	w.trace("crash")
	p.crash()
	if w.cluster == nil {
		w.calls.abandon(w.gateways[0])
	} else {
		w.cluster.failover()
	}
	if power {
		w.machine.reboot()
		w.disk.lose()
	}
	w.loop.after(again, func() {
		w.lives++
		next, err := newProcess(w, w.lives)
		if err != nil {
			w.violate("records survive", service.Key{}, "the process cannot be started again: "+strings.ReplaceAll(err.Error(), "\n", "; "))
			return
		}
		w.trace("restarted")
		w.process = next
		next.disk.setFull(w.full)
		w.watch.restarted()
	})
}

// trouble reports that something is wrong by which the fleet cannot do its work.
func (w *world) trouble() bool {
	refused := false
	w.machine.locked(func() {
		refused = w.machine.refuses != nil || w.machine.clashes != nil || time.Since(w.machine.refusedAt) < 6*time.Minute
	})
	if c := w.cluster; c != nil && time.Now().Before(c.calm) {
		return true
	}
	return refused || w.full || time.Since(w.emptied) < 90*time.Second && !w.emptied.IsZero()
}

var (
	errRefused  = errors.New("the platform refuses")
	errConflict = errors.New("the object has been modified")
)

// eased is until when trouble that is over may have delayed the fleet.
func (w *world) eased() (at time.Time) {
	w.machine.locked(func() { at = w.machine.refusedAt })
	if !at.IsZero() {
		at = at.Add(6 * time.Minute)
	}
	if c := w.cluster; c != nil && c.calm.After(at) {
		at = c.calm
	}
	return at
}

func (m *machine) refuse(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refuses = nil; on {
		m.refuses = errRefused
	}
	m.refusedAt = time.Now()
}

// die ends a replica's process.
func (u *unit) die() {
	if u.engine != nil {
		u.fail("Exited")
		u.machine.converge(u.owner)
	}
}

// drawn are the kinds in the order in which machines, clusters and crowds draw
// them. A new one goes into a plan of its own: here it would change every seed.
var drawn = []string{"canary", "crash", "edit", "fail", "full", "hang", "kill", "lie", "recreate", "refusals", "scale", "silent", "slow start", "storm", "torn"}

// rare are the kinds that are drawn besides, in half of the plans.
var rare = []string{"clock ahead", "clock back", "power"}
