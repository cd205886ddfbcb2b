package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
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
	// Reserve leaves what is free of each GPU to the services listed for it, by
	// name; where none is listed, to anybody.
	Reserve(services [][]string)
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
		if again = planEvery - now.Sub(r.mu.last); news || again <= 0 {
			again = 0
			r.planLocked(ctx, now)
		}
	}
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
		(v.Reason == replica.ReasonInsufficientGPUs || v.Reason == replica.ReasonInsufficientMemory || v.Reason == replica.ReasonUnschedulable)
}

// planLocked decides for all that wait, and carries it out: what is free is
// reserved, idle services are stopped, and those that wait hear why.
func (r *residents) planLocked(ctx context.Context, now time.Time) {
	r.mu.last = now
	facts, keys := r.factsLocked(ctx, now)
	plan := residency.Decide(facts)
	r.machine.Reserve(plan.Reserved)
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
	for k, l := range r.mu.lacking {
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
		e.evicted = why
	})
}

// resident is what a service's entry says for a plan.
type resident struct {
	key      service.Key
	revision workload.Revision
	spec     service.Residency
	rolling  bool
	stopped  bool
	minimum  bool // a component is to have a replica whatever the demand
	startup  time.Duration
}

// residents copies what plans look at; those without a revision hold nothing.
func (s *services) residents() (out []resident) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, e := range s.mu.entries {
		if e.record == nil {
			continue
		}
		x := resident{key: k, revision: e.record.Revision, spec: e.object.Service.Residency, stopped: e.object.Service.Stopped || e.asleep || e.deleted,
			rolling: e.record.Revision.Before != nil || k.IsCanary() || s.presentLocked(k.Canary()) != nil}
		for i := range e.record.Revision.Components {
			c := &e.record.Revision.Components[i]
			least := c.Limits.Min
			if rs := e.roles[c.Role]; rs != nil && !rs.state.Last.IsZero() {
				least = rs.decision.Least // by its schedule
			}
			x.minimum = x.minimum || least > 0 && !x.stopped
		}
		for _, rs := range e.roles {
			x.startup = max(x.startup, rs.startup)
		}
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b resident) int { return cmp.Compare(a.key.String(), b.key.String()) })
	return out
}

// factsLocked gathers what a plan looks at.
func (r *residents) factsLocked(ctx context.Context, now time.Time) (residency.Facts, map[string]service.Key) {
	f := residency.Facts{Machine: r.machine.Machine(), Now: now}
	keys := map[string]service.Key{}
	for _, x := range r.services.residents() {
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
func (x resident) facts(replicas []replica.Replica, demand autoscale.Demand) residency.Service {
	s := residency.Service{Name: x.key.String(), Waiting: demand.Queued, Running: demand.Running, Rolling: x.rolling,
		Pinned: x.spec.Pin, Priority: x.spec.Priority, Start: cmp.Or(x.startup, unknownStart), IdleSince: demand.LastDone, Minimum: x.minimum}
	memory := false
	for _, v := range replicas {
		need, known := x.need(v)
		switch {
		case lacksRoom(v) && known && v.Revision == x.revision.Hash:
			s.Lacks, s.Need = true, need
		case v.Alive() && v.Revision != x.revision.Hash:
			s.Rolling = true
			fallthrough
		default:
			if len(v.GPUs) == 0 && v.PID == 0 {
				continue
			}
			if memory { // counted once for a service
				need.Memory = 0
			}
			memory = true
			s.Replicas = append(s.Replicas, residency.Replica{Need: need, GPUs: v.GPUs, Leaving: !v.Alive()})
		}
	}
	if s.Lacks && memory {
		s.Need.Memory = 0
	}
	return s
}

// need is what a replica takes, by its revision; one of an unknown revision holds
// its GPUs whole.
func (x resident) need(v replica.Replica) (residency.Need, bool) {
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

// madeRoom is how the decision of a service that is stopped for another reads;
// false where a request has come since.
func (w *work) madeRoom(demand autoscale.Demand) bool {
	return w.evicted != "" && demand.Queued+demand.Running == 0
}

// WakePlan is what a request to a service would have done now, for people and
// programs.
type WakePlan struct {
	Service string `json:"service"`
	// State: "running", "fits", "makes room", "waits" or "refused".
	State string `json:"state"`
	Why   string `json:"why"`
	// Stops are the idle services that would be stopped, and why these.
	Stops []residency.Stop `json:"stops,omitempty"`
	Need  residency.Need   `json:"need"`
	// Startup is how long its last start took; 0 where none has been seen.
	Startup time.Duration `json:"startupNanoseconds,omitempty"`
}

// ErrNotShared is why there is no WakePlan on a cluster.
var ErrNotShared = errors.New("a cluster places replicas itself: `kubectl describe pod` shows what a pod waits for")

// ExplainWake returns what a request to a service would have done now. Nothing is
// started or stopped.
func (f *Fleet) ExplainWake(ctx context.Context, k service.Key) (WakePlan, error) {
	r := f.reconciler.residents
	if r == nil {
		return WakePlan{}, ErrNotShared
	}
	all := f.services.residents()
	i := slices.IndexFunc(all, func(x resident) bool { return x.key == k })
	if i < 0 {
		if _, err := f.Get(ctx, k); err != nil {
			return WakePlan{}, err
		}
		return WakePlan{Service: k.String(), State: "refused", Why: "it has no revision to run: `roundhouse describe " + k.Name + "` shows what is missing"}, nil
	}
	r.mu.Lock()
	facts, _ := r.factsLocked(ctx, r.cfg.Now())
	r.mu.Unlock()
	x := all[i]
	p := WakePlan{Service: k.String(), Need: x.total(), Startup: x.startup}
	at := slices.IndexFunc(facts.Services, func(s residency.Service) bool { return s.Name == p.Service })
	if at < 0 {
		return p, fmt.Errorf("the replicas of %s cannot be seen now; try again", k)
	}
	s := &facts.Services[at]
	if slices.ContainsFunc(s.Replicas, func(r residency.Replica) bool { return !r.Leaving }) {
		p.State, p.Why = "running", "it has a replica"
		return p, nil
	}
	if p.Need == (residency.Need{}) {
		p.State, p.Why = "fits", "it states no GPUs and no memory"
		return p, nil
	}
	s.Lacks, s.Need, s.Waiting = true, p.Need, max(s.Waiting, 1)
	if s.Since.IsZero() {
		s.Since = facts.Now
	}
	p.judge(residency.Decide(facts))
	return p, nil
}

// total is what one replica of each role takes together.
func (x resident) total() (n residency.Need) {
	for i := range x.revision.Components {
		if p := x.revision.Components[i].Process; p != nil {
			n.GPUs, n.Memory = n.GPUs+p.GPUs, n.Memory+p.ReservedMemory
			n.GPUMemory = max(n.GPUMemory, p.GPUMemory)
		}
	}
	return n
}

// judge reads what a plan has for the service.
func (p *WakePlan) judge(plan residency.Plan) {
	p.State, p.Why = "fits", "what it needs is free"
	for _, v := range plan.Wait {
		if v.Service == p.Service {
			p.State, p.Why = "waits", v.Why
		}
	}
	for _, v := range plan.Refuse {
		if v.Service == p.Service {
			p.State, p.Why = "refused", v.Why
		}
	}
	for _, s := range plan.Stop {
		if s.For == p.Service {
			p.State, p.Stops = "makes room", append(p.Stops, s)
		}
	}
}

// String is the plan for people.
func (p WakePlan) String() string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say("A request to %s now:", p.Service)
	say("  needs    %s", p.Need)
	switch p.State {
	case "running":
		say("  starts   nothing: %s", p.Why)
		return b.String()
	case "refused":
		say("  refused  %s", p.Why)
		return b.String()
	case "waits":
		say("  waits    %s", p.Why)
	case "fits":
		say("  stops    nothing: %s", p.Why)
	}
	for _, s := range p.Stops {
		say("  stops    %s: %s", s.Service, s.Why)
	}
	if p.Startup > 0 {
		say("  starts   in about %s, as long as its last start took", p.Startup.Round(100*time.Millisecond))
	} else {
		say("  starts   in a time that is not known: no start of it has been seen")
	}
	return b.String()
}
