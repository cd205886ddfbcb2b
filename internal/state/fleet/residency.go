package fleet

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/residency"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// SharedMachine is a Platform whose replicas share the GPUs and the memory of one
// machine. A service that lacks room has idle ones stopped for it.
type SharedMachine interface {
	Machine() residency.Machine
	// Reserve leaves what is free of each GPU to the services that the plan reserves
	// it for, and lets services that need a permit start if the plan starts them.
	Reserve(residency.Plan)
}

// residents decides who keeps the machine. It is safe for concurrent use.
type residents struct {
	cfg      *Config
	services *services
	machine  SharedMachine

	mu struct {
		sync.Mutex
		lacking  map[service.Key]*lack
		arrivals map[service.Key]arrivals
		last     time.Time // of the last plan
	}
}

// lack is a service that waits for room.
type lack struct {
	since     time.Time // its requests wait
	abandoned time.Time // nobody waits for it any more; zero while somebody does
	why       string    // what the last plan says
	refused   bool
}

// arrivals are those of a service's requests.
type arrivals struct {
	rate residency.Rate
	last time.Time
}

func newResidents(cfg *Config, s *services) *residents {
	m, ok := cfg.Platform.(SharedMachine)
	if !ok {
		return nil
	}
	r := &residents{cfg: cfg, services: s, machine: m}
	r.mu.lacking, r.mu.arrivals = map[service.Key]*lack{}, map[service.Key]arrivals{}
	return r
}

const (
	// planEvery is the least time between two plans for the same waiting services.
	planEvery = 50 * time.Millisecond
	// abandonedAfter is how long a replica waits for room although no request
	// waits for it any more.
	abandonedAfter = 2 * time.Second
	// unknownStart is how long a start takes that has not been seen yet.
	unknownStart = 30 * time.Second
	// median and late are of the startup times that the autoscaler learns.
	median, late = 0.5, 0.9
)

// settle makes a plan where replicas wait for room, w's or others', has it carried
// out, and notes in w's replicas what they wait for. It returns when to look
// again, 0 for at a change.
func (r *residents) settle(ctx context.Context, w *work) time.Duration {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now, again := r.cfg.Now(), time.Duration(0)
	news := r.noteLocked(w)
	r.sampleLocked(w.key, r.cfg.Traffic.Demand(w.key), now)
	if len(r.mu.lacking) > 0 || news {
		if news || now.Sub(r.mu.last) >= planEvery {
			r.planLocked(ctx, now)
		} else { // from now on, so that those that wait do not all come at one instant
			again = planEvery
		}
	}
	again = sooner(again, r.preloadLocked(ctx, w, now))
	l := r.mu.lacking[w.key]
	if l == nil {
		return again
	}
	for i := range w.replicas {
		if v := &w.replicas[i]; lacksRoom(*v) && l.why != "" {
			if v.Message += "; " + l.why; l.refused {
				v.Reason, v.Message = replica.ReasonNoRoom, l.why
			}
		}
	}
	if !l.abandoned.IsZero() {
		again = sooner(again, abandonedAfter)
	}
	return again
}

// sampleLocked takes in how many requests have come to a service.
func (r *residents) sampleLocked(k service.Key, demand autoscale.Demand, now time.Time) arrivals {
	a := r.mu.arrivals[k]
	if demand.Arrived != a.rate.Arrived {
		a.last = now
	}
	a.rate = a.rate.Seen(demand.Arrived, now)
	r.mu.arrivals[k] = a
	return a
}

// noteLocked notes whether w waits for room, and reports whether that is new.
func (r *residents) noteLocked(w *work) bool {
	before := r.mu.lacking[w.key]
	switch lacks := slices.ContainsFunc(w.replicas, lacksRoom); {
	case lacks && before == nil:
		r.mu.lacking[w.key] = &lack{since: r.cfg.Now()}
	case !lacks && before != nil:
		delete(r.mu.lacking, w.key)
	default:
		return false
	}
	return true
}

// lacksRoom reports whether a replica waits for room on the machine.
func lacksRoom(v replica.Replica) bool {
	return v.Phase == replica.Pending &&
		slices.Contains([]string{replica.ReasonInsufficientGPUs, replica.ReasonInsufficientMemory, replica.ReasonNotTogether, replica.ReasonUnschedulable}, v.Reason)
}

// planLocked decides for all that wait, and carries it out: what is free is
// reserved, idle services are stopped, and those that wait hear why.
func (r *residents) planLocked(ctx context.Context, now time.Time) {
	r.mu.last = now
	facts, keys := r.factsLocked(ctx, now)
	plan := residency.Decide(facts)
	r.machine.Reserve(plan)
	for _, s := range plan.Stop {
		r.stop(keys[s.Service], "stopped to make room for "+s.For, s.Why)
	}
	told := map[service.Key]lack{}
	for _, v := range plan.Wait {
		told[keys[v.Service]] = lack{why: v.Why}
	}
	for _, v := range plan.Refuse {
		told[keys[v.Service]] = lack{why: v.Why, refused: true}
	}
	for _, k := range slices.SortedFunc(maps.Keys(r.mu.lacking), func(a, b service.Key) int { return cmp.Compare(a.String(), b.String()) }) {
		l := r.mu.lacking[k]
		if t := told[k]; l.why != t.why || l.refused != t.refused {
			l.why, l.refused = t.why, t.refused
			r.services.queue.add(k)
		}
		if !l.abandoned.IsZero() && now.Sub(l.abandoned) >= abandonedAfter {
			r.stop(k, "no request waits for it any more", "")
		}
	}
}

// stop has a service's replicas ended, unless a request comes first.
func (r *residents) stop(k service.Key, why, sum string) {
	r.services.change(k, func(e *entry) {
		if e.evicted == "" && sum != "" {
			r.cfg.Log.Info("an idle service makes room", "service", k.String(), "why", sum)
		}
		e.evicted, e.preload = why, preloadNone
	})
}

// resident is what a service's entry says for a plan.
type resident struct {
	key      service.Key
	name     string // key's
	revision workload.Revision
	spec     service.Residency
	rolling  bool
	stopped  bool
	minimum  bool // a component is to have a replica whatever the demand
	preload  preload
	learned  map[service.Role]autoscale.Learned
	measured map[service.Role]Measured
}

// residents copies what plans look at; those without a revision hold nothing.
func (s *services) residents() []*resident {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*resident, 0, len(s.mu.entries))
	for k, e := range s.mu.entries {
		if e.record == nil || e.record.Revision.Host != (service.Key{}) { // whose host holds all
			continue
		}
		x := &resident{key: k, name: k.String(), revision: e.record.Revision, spec: e.object.Service.Residency, stopped: e.object.Service.Stopped || e.asleep || e.deleted,
			rolling: e.record.Revision.Before != nil || k.IsCanary() || s.presentLocked(k.Canary()) != nil, preload: e.preload,
			learned: map[service.Role]autoscale.Learned{}, measured: e.record.Measured}
		for i := range e.record.Revision.Components {
			x.take(&e.record.Revision.Components[i], e)
		}
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b *resident) int { return cmp.Compare(a.name, b.name) })
	return out
}

// take takes in what an entry knows of one component.
func (x *resident) take(c *workload.Component, e *entry) {
	least, learned := c.Limits.Min, e.record.Learned[c.Role]
	if rs := e.roles[c.Role]; rs != nil && !rs.state.Last.IsZero() {
		least, learned = rs.decision.Least, rs.state.Learned // by its schedule
	}
	x.minimum, x.learned[c.Role] = x.minimum || least > 0 && !x.stopped, learned
}

// startup is how long the slowest of the service's roles takes to start, in q of
// its starts, and how many starts that was seen in; 0 for none.
func (x *resident) startup(q float64) (d time.Duration, seen int) {
	for _, l := range x.learned {
		if took, n := l.StartupQuantile(q); n > 0 && took >= d {
			d, seen = took, n
		}
	}
	return d, seen
}

// factsLocked gathers what a plan looks at.
func (r *residents) factsLocked(ctx context.Context, now time.Time) (residency.Facts, map[string]service.Key) {
	f := residency.Facts{Machine: r.machine.Machine(), Now: now}
	all := r.services.residents()
	keys := make(map[string]service.Key, len(all))
	f.Services = make([]residency.Service, 0, len(all))
	for _, x := range all {
		replicas, err := r.cfg.Platform.Observe(ctx, x.key)
		if err != nil {
			continue
		}
		demand := r.cfg.Traffic.Demand(x.key)
		s := x.facts(replicas, demand)
		a := r.sampleLocked(x.key, demand, now)
		if s.Expected = a.rate.Hourly; s.Waiting > 0 {
			s.Deadline = a.last.Add(x.revision.Component(entrance(&x.revision)).Limits.StartupTimeout)
		}
		if l := r.mu.lacking[x.key]; l != nil {
			s.Since = l.since
			l.look(s, now)
		}
		keys[s.Name] = x.key
		f.Services = append(f.Services, s)
	}
	maps.DeleteFunc(r.mu.arrivals, func(k service.Key, _ arrivals) bool { return keys[k.String()] != k })
	maps.DeleteFunc(r.mu.lacking, func(k service.Key, _ *lack) bool { return keys[k.String()] != k })
	return f, keys
}

// look notes whether anybody still waits for a service. One that is rolling out has
// an older revision that serves, which would be stopped with it.
func (l *lack) look(s residency.Service, now time.Time) {
	switch wanted := s.Waiting+s.Running > 0 || s.Minimum || s.Rolling; {
	case wanted:
		l.abandoned = time.Time{}
	case l.abandoned.IsZero():
		l.abandoned = now
	}
}

// facts are what a plan knows of the service, but for its past.
func (x *resident) facts(replicas []replica.Replica, demand autoscale.Demand) residency.Service {
	startup, _ := x.startup(median)
	s := residency.Service{Name: x.name, Waiting: demand.Queued, Running: demand.Running, Rolling: x.rolling, Preload: x.preload == preloadBegun,
		Pinned: x.spec.Pin, Priority: x.spec.Priority, Start: cmp.Or(startup, unknownStart), IdleSince: demand.LastDone, Minimum: x.minimum,
		Sharing: residency.Sharing{Group: x.spec.Group, Exclusive: x.spec.Exclusive, OneOf: x.spec.OneOf, Stable: x.key.Stable().String()}}
	memory := false
	var lacks map[service.Role]residency.Need // most lack nothing
	for _, v := range replicas {
		need, known := x.need(v)
		switch {
		case lacksRoom(v) && known && v.Revision == x.revision.Hash:
			if lacks == nil {
				lacks = map[service.Role]residency.Need{}
			}
			lacks[v.Role] = need
		case v.Alive() && v.Revision != x.revision.Hash:
			s.Rolling = true
			fallthrough
		default:
			if len(v.GPUs) == 0 && (v.PID == 0 || v.Phase == replica.Asleep) {
				continue
			}
			if memory { // counted once for a service
				need.Memory = 0
			}
			memory = true
			s.Replicas = append(s.Replicas, residency.Replica{Need: need, GPUs: v.GPUs, Leaving: !v.Alive()})
		}
	}
	for _, role := range service.Roles {
		if need, ok := lacks[role]; ok {
			if memory {
				need.Memory = 0
			}
			memory = true
			s.Lacks = append(s.Lacks, need)
		}
	}
	return s
}

// need is what a replica takes, by its revision; one of an unknown revision holds
// its GPUs whole.
func (x *resident) need(v replica.Replica) (residency.Need, bool) {
	for _, rev := range []*workload.Revision{&x.revision, x.revision.Before} {
		if rev == nil || rev.Hash != v.Revision {
			continue
		}
		if c := rev.Component(v.Role); c != nil && c.Process != nil {
			return c.Process.Need(), true
		}
	}
	return residency.Need{GPUs: len(v.GPUs)}, false
}

// madeRoom reports whether a service is stopped for another, and no request has come
// since.
func (w *work) madeRoom(demand autoscale.Demand) bool {
	return w.evicted != "" && demand.Queued+demand.Running == 0
}
