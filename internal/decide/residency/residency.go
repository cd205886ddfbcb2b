// Package residency decides which services keep a machine's GPUs and memory,
// and which are stopped so that one that is asked for can start.
package residency

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Facts is all that a decision looks at.
type Facts struct {
	Machine  Machine
	Services []Service
	Now      time.Time
}

// Replica is a replica that holds something.
type Replica struct {
	Need Need
	GPUs []int
	// Leaving: it is being stopped, and gives back what it holds.
	Leaving bool
}

// Service is what a decision knows of one service.
type Service struct {
	Name     string
	Replicas []Replica
	// Lacks is what the replicas take that wait for room, one of each role.
	Lacks []Need
	// Sharing is which services it runs with.
	Sharing
	// Waiting are its requests that wait for a replica and whose client is still
	// there, Running those that are answered now. Since is when the oldest of
	// those that wait came; Deadline when the last of them gives up, zero for
	// never.
	Waiting, Running int
	Since, Deadline  time.Time
	// Minimum: it is to have replicas without requests (minReplicas). Preload: it is
	// being started without requests, where there is room.
	Minimum, Preload bool
	// Pinned: it is never stopped for another.
	Pinned bool
	// Rolling: a new revision of it takes the place of the present one, and what
	// that holds.
	Rolling bool
	// Priority puts it before others: where several wait it is served first, and
	// it is stopped after those of lower priority.
	Priority int
	// Expected is how many requests come to it, by its own past; Start is how long
	// its start takes.
	Expected float64
	Start    time.Duration
	// IdleSince is when its last request ended.
	IdleSince time.Time
}

// Plan names the services that stop, start, wait and are refused. To stop one is
// to take back all that it holds.
type Plan struct {
	Start  []Start
	Stop   []Stop
	Wait   []Verdict
	Refuse []Verdict
	// Reserved names, per GPU, the only services that may be given it; none leaves
	// it to anybody.
	Reserved [][]string
}

// Start is a service whose replica fits now.
type Start struct {
	Service string
	GPUs    []int
}

// Stop is a service that is stopped for another.
type Stop struct {
	Service string  `json:"service"`
	For     string  `json:"for"`
	Value   float64 `json:"value"`
	Why     string  `json:"why"`
}

// Verdict is a service that gets no room now, and why.
type Verdict struct{ Service, Why string }

// Decide plans for the services that lack room, those of the highest priority
// and those that have waited longest first. Services are stopped whole: they are
// idle. It stops as few as possible of the most valuable ones.
func Decide(f Facts) Plan {
	d := decision{f: f, now: NewSpace(f.Machine), plan: Plan{Reserved: make([][]string, len(f.Machine.GPUs))}, stopped: map[string]bool{}}
	for _, s := range f.Services {
		for _, r := range s.Replicas {
			d.now.Take(r.Need, r.GPUs)
		}
	}
	d.later = d.now.Clone()
	for _, s := range f.Services {
		if !s.Rolling { // else its successor gets what it gives back
			d.leave(s)
		}
	}
	d.idle = f.idle()
	for _, s := range f.line() {
		if s.Rolling {
			d.leave(s)
		}
		d.admit(s)
	}
	return d.plan
}

// decision is a plan in the making.
type decision struct {
	f     Facts
	now   *Space    // what is free at this moment
	later *Space    // once all that is stopping has stopped
	idle  []Service // that may be stopped, the least valuable first
	plan  Plan
	// admitted start now, or once what is being freed for them is free.
	admitted []Service
	stopped  map[string]bool
	// blocked: a service that waits for busy ones has reserved what it needs.
	blocked bool
}

// leave counts what a service is giving back.
func (d *decision) leave(s Service) {
	for _, r := range s.Replicas {
		if r.Leaving {
			d.later.Give(r.Need, r.GPUs)
		}
	}
}

// succeeds reports whether a service waits for what its own replicas give back.
func (s Service) succeeds() bool {
	return s.Rolling && slices.ContainsFunc(s.Replicas, func(r Replica) bool { return r.Leaving })
}

// asks reports whether somebody wants the replica that a service lacks.
func (s Service) asks() bool { return len(s.Lacks) > 0 && (s.Waiting > 0 || s.Minimum || s.Preload) }

// line is the order in which services that lack room are served: first those that
// give back what their own new revision is to have. Those whose
// requests give up before they could have started come last.
func (f Facts) line() (out []Service) {
	late := func(s Service) int {
		if s.succeeds() {
			return -1
		}
		if s.Waiting == 0 && !s.Minimum { // a preload
			return 2
		}
		if s.Waiting > 0 && !s.Deadline.IsZero() && f.Now.Add(s.Start).After(s.Deadline) {
			return 1
		}
		return 0
	}
	for _, s := range f.Services {
		if s.asks() {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b Service) int {
		return cmp.Or(cmp.Compare(late(a), late(b)), cmp.Compare(b.Priority, a.Priority), a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// admit finds room for one service.
func (d *decision) admit(s Service) {
	if why := d.never(s); why != "" {
		d.plan.Refuse = append(d.plan.Refuse, Verdict{s.Name, why})
		return
	}
	s.Lacks = d.f.clamped(s)
	idle, leaving, busy := d.apart(s)
	if len(busy) > 0 {
		d.plan.Wait = append(d.plan.Wait, Verdict{s.Name, "it does not run with " + list(busy)})
		return
	}
	if len(idle)+len(leaving) == 0 {
		if gpus, ok := d.free(s); ok {
			d.take(s, gpus)
			d.plan.Start = append(d.plan.Start, Start{s.Name, flat(gpus)})
			return
		}
	}
	if gpus, ok := d.later.FitAll(s.Lacks, s.Name); ok && len(idle) == 0 {
		d.take(s, gpus)
		why := "room for it is being freed"
		if len(leaving) > 0 {
			why = "it does not run with " + list(leaving) + ", which is stopping"
		}
		d.plan.Wait = append(d.plan.Wait, Verdict{s.Name, why})
		return
	}
	if victims, ok := d.victims(s, idle); ok && (s.Waiting > 0 || s.Minimum) {
		d.stop(s, victims)
		return
	}
	d.wait(s)
}

// free chooses GPUs that are free now and that nobody before s waits for, and
// takes them from those that are free now.
func (d *decision) free(s Service) (out [][]int, ok bool) {
	now, later := d.now.Clone(), d.later.Clone()
	for _, n := range s.Lacks {
		then := later.Open(n, s.Name)
		open := slices.DeleteFunc(now.Open(n, s.Name), func(i int) bool { return !slices.Contains(then, i) })
		if len(open) < n.GPUs || !now.MemoryFits(n) || !later.MemoryFits(n) {
			return nil, false
		}
		now.Take(n, open[:n.GPUs])
		later.Take(n, open[:n.GPUs])
		out = append(out, open[:n.GPUs])
	}
	d.now = now
	return out, true
}

// take gives s room, now or once it is free.
func (d *decision) take(s Service, gpus [][]int) {
	for i, n := range s.Lacks {
		d.later.Take(n, gpus[i])
	}
	d.reserve(s, flat(gpus))
	d.admitted = append(d.admitted, s)
}

// flat lists each GPU once.
func flat(gpus [][]int) []int {
	out := slices.Concat(gpus...)
	slices.Sort(out)
	return slices.Compact(out)
}

func (d *decision) reserve(s Service, gpus []int) {
	for _, i := range gpus {
		d.plan.Reserved[i] = append(d.plan.Reserved[i], s.Name)
	}
}

// victims chooses whom to stop besides those that s does not run with: nobody
// whose stop would not be needed, and the most valuable are spared first.
func (d *decision) victims(s Service, apart []Service) (out []Service, ok bool) {
	base := d.later.Clone()
	for _, v := range apart {
		d.release(base, v)
	}
	candidates := slices.DeleteFunc(slices.Clone(d.idle), func(v Service) bool {
		return v.Name == s.Name || slices.ContainsFunc(apart, func(o Service) bool { return o.Name == v.Name })
	})
	fits := func(spared int) bool {
		space := base.Clone()
		for i, v := range candidates {
			if i != spared {
				d.release(space, v)
			}
		}
		_, ok := space.FitAll(s.Lacks, s.Name)
		return ok
	}
	if !fits(-1) {
		return nil, false
	}
	for i := len(candidates) - 1; i >= 0; i-- {
		if fits(i) {
			candidates = slices.Delete(candidates, i, i+1)
		}
	}
	return append(slices.Clone(apart), candidates...), true
}

// release gives back what a service would if it were stopped.
func (*decision) release(space *Space, v Service) {
	for _, r := range v.Replicas {
		if !r.Leaving {
			space.Give(r.Need, r.GPUs)
		}
	}
}

// stop makes room for s by stopping others.
func (d *decision) stop(s Service, victims []Service) {
	var names []string
	for _, v := range victims {
		d.release(d.later, v)
		why := s.excludes(v)
		if why == "" {
			why = fmt.Sprintf("%s needs %s; %s is idle and the least valuable: %s", s.Name, needs(s.Lacks), v.Name, d.f.Machine.Worth(v))
		}
		d.plan.Stop = append(d.plan.Stop, Stop{Service: v.Name, For: s.Name, Value: d.f.Machine.Value(v), Why: why})
		names, d.stopped[v.Name] = append(names, v.Name), true
		d.idle = slices.DeleteFunc(slices.Clone(d.idle), func(o Service) bool { return o.Name == v.Name })
	}
	if gpus, ok := d.later.FitAll(s.Lacks, s.Name); ok {
		d.take(s, gpus)
	}
	d.plan.Wait = append(d.plan.Wait, Verdict{s.Name, list(names) + " is stopped to make room for it"})
}

// wait leaves a service to wait for busy ones. The first that needs several GPUs
// reserves what is free of them: otherwise smaller ones would take each that
// comes free, for ever.
func (d *decision) wait(s Service) {
	if most := slices.MaxFunc(s.Lacks, func(a, b Need) int { return cmp.Compare(a.GPUs, b.GPUs) }); !d.blocked && total(s.Lacks).GPUs > 1 && s.Waiting > 0 {
		open := d.later.Open(most, s.Name)
		open = open[:min(len(open), total(s.Lacks).GPUs)]
		only := make([][]string, len(d.f.Machine.GPUs))
		for _, i := range open {
			only[i] = []string{s.Name}
		}
		d.reserve(s, open)
		d.now.Reserve(only)
		d.later.Reserve(only)
		d.blocked = true
	}
	var held []string
	for _, o := range d.f.Services {
		if why := o.stays(); why != "" && o.Name != s.Name && o.holds() {
			held = append(held, o.Name+" ("+why+")")
		}
	}
	why := "it needs " + needs(s.Lacks) + ", of " + d.f.Machine.String()
	if o := d.f.Machine.Others; o > 0 && slices.ContainsFunc(s.Lacks, func(n Need) bool { return n.MemoryFrom != "" }) {
		why += ", " + gibibytes(o) + " of it in use by other programs"
	}
	if len(held) > 0 {
		why += "; these hold the rest: " + list(held)
	}
	d.plan.Wait = append(d.plan.Wait, Verdict{s.Name, why})
}

// never returns why a service cannot get room however long it waits: the machine
// is too small, or what pinned services leave of it is. Memory that is not stated
// is no reason.
func (d *decision) never(s Service) string {
	if why := d.f.replaces(s); why != "" {
		return why
	}
	var stated []Need
	for _, n := range s.Lacks {
		stated = append(stated, n.stated())
	}
	space := NewSpace(d.f.Machine)
	if _, ok := space.FitAll(stated, s.Name); !ok {
		return "it needs " + needs(stated) + ", this machine has " + d.f.Machine.String()
	}
	var pinned []string
	for _, o := range d.f.Services {
		if !o.Pinned || o.Name == s.Name || !o.holds() {
			continue
		}
		for _, r := range o.Replicas {
			if !r.Leaving {
				space.Take(r.Need.stated(), r.GPUs)
			}
		}
		pinned = append(pinned, o.Name)
	}
	if _, ok := space.FitAll(stated, s.Name); !ok {
		return "it needs " + needs(stated) + ", this machine has " + d.f.Machine.String() + ", of which pinned services (" +
			list(pinned) + ") leave too little; remove residency.pin there, or stop one"
	}
	return ""
}

// clamped is what a service lacks, with memory that is not stated reduced to the
// most that it can be given: an estimate keeps nothing from running.
func (f Facts) clamped(s Service) []Need {
	most := f.Machine.Memory - f.Machine.Others
	for _, o := range f.Services {
		for _, r := range o.Replicas {
			if o.Pinned && o.Name != s.Name {
				most -= r.Need.Memory
			}
		}
	}
	for _, n := range s.Lacks {
		if n.MemoryFrom == "" {
			most -= n.Memory
		}
	}
	out := slices.Clone(s.Lacks)
	for i := range out {
		if n := &out[i]; n.MemoryFrom != "" && f.Machine.Memory > 0 {
			n.Memory = max(0, min(n.Memory, most))
			most -= n.Memory
		}
	}
	return out
}

// list joins at most four names.
func list(names []string) string {
	const few = 4
	if more := len(names) - few; more > 0 {
		return strings.Join(names[:few], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(names, ", ")
}
