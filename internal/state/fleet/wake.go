package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/residency"
)

// WakePlan is what a request to a service would have done now, for people and
// programs.
type WakePlan struct {
	Service string `json:"service"`
	// State: "running", "fits", "makes room", "waits" or "refused".
	State string `json:"state"`
	Why   string `json:"why"`
	// Needs is what a replica of each role takes.
	Needs []RoleNeed `json:"needs,omitempty"`
	// Stops are the idle services that would be stopped, and why these. Keeps are
	// the others that hold something.
	Stops []residency.Stop `json:"stops,omitempty"`
	Keeps []Kept           `json:"keeps,omitempty"`
	// Startup is how long half of its starts took at most, and StartupLate nine of
	// ten. Starts is how many were seen; 0 for none, and the others are 0 then.
	Startup     time.Duration `json:"startupNanoseconds,omitempty"`
	StartupLate time.Duration `json:"startupLateNanoseconds,omitempty"`
	Starts      int           `json:"starts,omitempty"`
	// Sleeps is the level at which a replica of the role that takes requests sleeps,
	// and Wakes are how many seconds its last wakings from there took, oldest first;
	// 0 for none.
	Sleeps int       `json:"sleeps,omitempty"`
	Wakes  []float64 `json:"wakeSeconds,omitempty"`
}

// RoleNeed is what one replica of a role takes.
type RoleNeed struct {
	Role service.Role `json:"role"`
	residency.Need
	// Measured is the most memory that a replica was seen to use of one of its GPUs, in
	// bytes.
	Measured int64 `json:"measuredGPUMemory,omitempty"`
}

// Kept is a service that keeps what it holds, and why.
type Kept struct {
	Service string `json:"service"`
	Why     string `json:"why"`
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
	k = f.services.hostOf(k)
	all := f.services.residents()
	i := slices.IndexFunc(all, func(x *resident) bool { return x.key == k })
	if i < 0 {
		st, err := f.Get(ctx, k)
		if err != nil {
			return WakePlan{}, err
		}
		why := "it has no revision to run"
		for _, c := range st.Status.Conditions {
			if c.Type == service.ConditionReady && c.Message != "" {
				why += ": " + c.Message
			}
		}
		return WakePlan{Service: k.String(), State: "refused", Why: why}, nil
	}
	r.mu.Lock()
	facts, _ := r.factsLocked(ctx, r.cfg.Now())
	r.mu.Unlock()
	x := all[i]
	p := WakePlan{Service: k.String(), Needs: x.needs()}
	p.Startup, p.Starts = x.startup(median)
	p.StartupLate, _ = x.startup(late)
	p.Sleeps, p.Wakes = f.sleepOf(ctx, x)
	at := slices.IndexFunc(facts.Services, func(s residency.Service) bool { return s.Name == p.Service })
	if at < 0 {
		return p, fmt.Errorf("the replicas of %s cannot be seen now; try again", k)
	}
	s := &facts.Services[at]
	if slices.ContainsFunc(s.Replicas, func(r residency.Replica) bool { return !r.Leaving }) {
		p.State, p.Why = "running", "it has a replica"
		return p, nil
	}
	s.Lacks, s.Waiting = nil, max(s.Waiting, 1)
	for _, n := range p.Needs {
		if n.Need != (residency.Need{}) {
			s.Lacks = append(s.Lacks, n.Need)
		}
	}
	if len(s.Lacks) == 0 {
		p.State, p.Why = "fits", "it states no GPUs and no memory, and its model's size is not known"
		return p, nil
	}
	if s.Since.IsZero() {
		s.Since = facts.Now
	}
	p.judge(facts, residency.Decide(facts))
	return p, nil
}

// Standings are how the services that hold something of a machine would fare if
// another lacked room; none on a cluster.
func (f *Fleet) Standings(ctx context.Context) []residency.Standing {
	r := f.reconciler.residents
	if r == nil {
		return nil
	}
	r.mu.Lock()
	facts, _ := r.factsLocked(ctx, r.cfg.Now())
	r.mu.Unlock()
	return facts.Standings()
}

// sleepOf is the level at which a service's replica sleeps, and how long its last
// wakings from there took; 0 where none sleeps.
func (f *Fleet) sleepOf(ctx context.Context, x *resident) (level int, wakes []float64) {
	role := entrance(&x.revision)
	replicas, err := f.cfg.Platform.Observe(ctx, x.key)
	if err != nil {
		return 0, nil
	}
	for _, v := range replicas {
		if v.Role == role && v.Phase == replica.Asleep {
			level = v.Standby
		}
	}
	f.services.mu.Lock()
	defer f.services.mu.Unlock()
	if e := f.services.presentLocked(x.key); e != nil && e.roles[role] != nil {
		wakes = slices.Clone(e.roles[role].state.Learned.Wakes[level])
	}
	return level, wakes
}

// needs is what one replica of each role takes.
func (x *resident) needs() (out []RoleNeed) {
	for i := range x.revision.Components {
		c := &x.revision.Components[i]
		out = append(out, RoleNeed{c.Role, c.Process.Need(), x.measured[c.Role].GPUMemory})
	}
	return out
}

// judge reads what a plan has for the service.
func (p *WakePlan) judge(f residency.Facts, plan residency.Plan) {
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
	stops := map[string]bool{}
	for _, s := range plan.Stop {
		if s.For == p.Service {
			p.State, p.Stops, stops[s.Service] = "makes room", append(p.Stops, s), true
		}
	}
	kept := slices.Clone(f.Services)
	slices.SortStableFunc(kept, func(a, b residency.Service) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(f.Machine.Value(a), f.Machine.Value(b)))
	})
	for _, s := range kept {
		if why := f.Machine.Keeps(s); why != "" && s.Name != p.Service && !stops[s.Name] {
			p.Keeps = append(p.Keeps, Kept{s.Name, why})
		}
	}
}

// shownKept is how many services that keep what they hold are written for people.
const shownKept = 5

// String is the plan for people.
func (p WakePlan) String() string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say("A request to %s now:", p.Service)
	for _, n := range p.Needs {
		role := ""
		if len(p.Needs) > 1 {
			role = string(n.Role) + ": "
		}
		seen := ""
		if n.Measured > 0 && n.GPUMemoryFrom == "" {
			seen = fmt.Sprintf("; at most %.4g GiB of a GPU were measured", float64(n.Measured)/(1<<30))
		}
		say("  needs    %s%s%s", role, n.Need, seen)
	}
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
	for _, k := range p.Keeps[:min(len(p.Keeps), shownKept)] {
		say("  keeps    %s: %s", k.Service, k.Why)
	}
	if more := len(p.Keeps) - shownKept; more > 0 {
		say("  keeps    %d more (-o json lists them)", more)
	}
	once := ""
	if len(p.Stops) > 0 {
		once = " once that has stopped"
	}
	if p.Sleeps > 0 {
		say("%s", p.waking())
		return b.String()
	}
	switch seconds := func(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }; p.Starts {
	case 0:
		say("  starts   in a time that is not known: no start of it has been seen")
	case 1:
		say("  starts   in about %s%s, as long as its only start took", seconds(p.Startup), once)
	default:
		say("  starts   in about %s%s, and in %s in 9 of 10 cases, by its last %d starts", seconds(p.Startup), once, seconds(p.StartupLate), p.Starts)
	}
	return b.String()
}

// learnMemory takes in what replicas of the present revision use, where that is more
// than was known by a twentieth, or is the first that is known of the revision. It
// takes the place of an estimate.
func (r *reconciler) learnMemory(ctx context.Context, w *work) error {
	if w.record == nil {
		return nil
	}
	next, news := *w.record, false
	next.Measured = maps.Clone(next.Measured)
	for _, v := range w.replicas {
		known := next.Measured[v.Role]
		if known.Revision != next.Revision.Hash {
			known = Measured{Revision: next.Revision.Hash}
		}
		if v.Phase == replica.Asleep || v.Revision != next.Revision.Hash || v.Memory <= known.Memory+known.Memory/20 && v.GPUMemory <= known.GPUMemory+known.GPUMemory/20 {
			continue
		}
		if next.Measured == nil {
			next.Measured = map[service.Role]Measured{}
		}
		known.Memory, known.GPUMemory, news = max(known.Memory, v.Memory), max(known.GPUMemory, v.GPUMemory), true
		next.Measured[v.Role] = known
		next.Revision = next.Revision.Measured(v.Role, known.Memory, known.GPUMemory)
	}
	if !news {
		return nil
	}
	if err := r.cfg.Store.PutRecord(next); err != nil {
		return fmt.Errorf("store what %s uses: %w", w.key, err)
	}
	w.record, w.applied = &next, false
	return r.applyRevision(ctx, w)
}

// keepMeasured keeps what replicas of the record before were seen to use, for as
// long as the model is the same.
func (next *Record) keepMeasured(was *Record) {
	if was.Revision.Model.URI != next.Revision.Model.URI {
		return
	}
	next.Measured = was.Measured
	for role, m := range was.Measured {
		next.Revision = next.Revision.Measured(role, m.Memory, m.GPUMemory)
	}
}

// waking is what a service costs to wake that sleeps, for people.
func (p WakePlan) waking() string {
	from := fmt.Sprintf("level %d", p.Sleeps)
	out := fmt.Sprintf("  sleeps   at %s, and is woken if it gets the same accelerators, else started", from)
	if p.Sleeps == service.LevelSuspended {
		from = "suspension"
		out = "  sleeps   suspended: its processes are stopped, and their memory is in swap"
	}
	if len(p.Wakes) == 0 {
		return out + "\n  wakes    in a time that is not known: no waking from " + from + " has been seen"
	}
	var took []string
	for _, s := range p.Wakes[max(0, len(p.Wakes)-shownKept):] {
		took = append(took, time.Duration(s*float64(time.Second)).Round(10*time.Millisecond).String())
	}
	usual := autoscale.Learned{Wakes: map[int][]float64{p.Sleeps: p.Wakes}}.Wake(p.Sleeps)
	return fmt.Sprintf("%s\n  wakes    in about %s; the last wakings from %s took %s", out, usual.Round(10*time.Millisecond), from, strings.Join(took, ", "))
}

// preload is how far the start of a service is that is to run before anybody asks
// for it.
type preload int

const (
	preloadNone  preload = iota // not wanted, or done
	preloadDue                  // wanted
	preloadBegun                // its first replica is on its way
)

// preloads lists the services that are to be preloaded and can be now; none while
// one of a higher priority has no revision yet.
func (s *services) preloads() (due []service.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pending, wait := 0, false
	for k, e := range s.mu.entries {
		if e.preload != preloadDue || e.deleted || k.IsCanary() || e.object.Service.Stopped {
			continue
		}
		if e.record != nil {
			due = append(due, k)
		} else if p := e.object.Service.Residency.Priority; e.failure == nil && (!wait || p > pending) {
			pending, wait = p, true
		}
	}
	return slices.DeleteFunc(due, func(k service.Key) bool {
		return wait && s.mu.entries[k].object.Service.Residency.Priority <= pending
	})
}

// preloadLocked starts the services that are to be preloaded and fit. Each is
// tried once; w is done where it has a replica that is ready. It returns when to
// look again, 0 for at a change.
func (r *residents) preloadLocked(ctx context.Context, w *work, now time.Time) (again time.Duration) {
	if slices.ContainsFunc(w.replicas, replica.Replica.Serving) {
		r.services.preloaded(w.key, preloadNone)
	}
	due := r.services.preloads()
	if !slices.Contains(due, w.key) && w.preload == preloadDue && w.record != nil {
		again = preloadEvery // its revision is stored by then
	}
	if len(due) == 0 {
		return again
	}
	facts, keys := r.factsLocked(ctx, now)
	var names []string
	for _, x := range r.services.residents() {
		at := slices.IndexFunc(facts.Services, func(s residency.Service) bool { return s.Name == x.key.String() })
		if at < 0 {
			continue
		}
		s := &facts.Services[at]
		if len(s.Replicas) == 0 && x.preload != preloadNone {
			s.Lacks = nil
			for _, n := range x.needs() {
				s.Lacks = append(s.Lacks, n.Need)
			}
		}
		if slices.Contains(due, x.key) {
			names = append(names, s.Name)
		}
	}
	start, not := facts.Preload(names)
	for _, name := range names {
		if !slices.Contains(start, name) {
			r.services.preloaded(keys[name], preloadNone)
		}
	}
	for _, name := range start {
		r.cfg.Log.Info("a service is preloaded", "service", name)
		r.services.preloaded(keys[name], preloadBegun)
	}
	for _, v := range not {
		r.cfg.Log.Warn("a service is not preloaded: it starts at its first request", "service", v.Service, "why", v.Why)
	}
	return again
}

// preloadEvery is how often a service that is to be preloaded looks whether it can
// be.
const preloadEvery = 100 * time.Millisecond

// preloaded notes how far a preload is; one that has begun is woken.
func (s *services) preloaded(k service.Key, p preload) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.presentLocked(k)
	if e == nil || e.preload == p {
		return
	}
	if e.preload = p; p == preloadBegun {
		e.wake = max(e.wake, 1)
		s.queue.add(k)
	}
}
