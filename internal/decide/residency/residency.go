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
	// Lacks: a replica of it waits for room, which takes Need.
	Lacks bool
	Need  Need
	// Waiting are its requests that wait for a replica and whose client is still
	// there, Running those that are answered now. Since is when the oldest of
	// those that wait came; Deadline when the last of them gives up, zero for
	// never.
	Waiting, Running int
	Since, Deadline  time.Time
	// Minimum: it is to have replicas without requests (minReplicas).
	Minimum bool
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

// Plan names the services that stop, start, wait and are refused.
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

// Value is what a service is worth keeping: the seconds of waiting that its
// expected requests would spend on its start, per GPU or machine's memory that
// it holds.
func (m Machine) Value(s Service) float64 {
	held := 0.0
	for _, r := range s.Replicas {
		held += m.share(r.Need, r.GPUs)
	}
	if held == 0 {
		return 0
	}
	return s.Expected * s.Start.Seconds() / held
}

// Decide plans for the services that lack room, those of the highest priority
// and those that have waited longest first. Services are stopped whole: they are
// idle. It stops as few as possible of the most valuable ones.
func Decide(f Facts) Plan {
	d := decision{f: f, now: NewSpace(f.Machine), plan: Plan{Reserved: make([][]string, len(f.Machine.GPUs))}}
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
		if s.idle() {
			d.idle = append(d.idle, s)
		}
	}
	slices.SortFunc(d.idle, f.Machine.leastValuable)
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

// idle reports whether a service may be stopped for another.
func (s Service) idle() bool {
	return !s.Pinned && !s.Minimum && !s.Rolling && s.Waiting == 0 && s.Running == 0 && s.holds()
}

// holds reports whether a service has something that it is not giving back.
func (s Service) holds() bool {
	return slices.ContainsFunc(s.Replicas, func(r Replica) bool { return !r.Leaving && (len(r.GPUs) > 0 || r.Need.Memory > 0) })
}

// asks reports whether somebody wants the replica that a service lacks.
func (s Service) asks() bool { return s.Lacks && (s.Waiting > 0 || s.Minimum) }

func (m Machine) leastValuable(a, b Service) int {
	return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(m.Value(a), m.Value(b)),
		a.IdleSince.Compare(b.IdleSince), cmp.Compare(a.Name, b.Name))
}

// line is the order in which services that lack room are served: first those that
// give back what their own new revision is to have. Those whose
// requests give up before they could have started come last.
func (f Facts) line() (out []Service) {
	late := func(s Service) int {
		if s.succeeds() {
			return -1
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
	if gpus, ok := d.free(s); ok {
		d.now.Take(s.Need, gpus)
		d.take(s, gpus)
		d.plan.Start = append(d.plan.Start, Start{s.Name, gpus})
		return
	}
	if gpus, ok := d.later.Fit(s.Need, s.Name); ok {
		d.take(s, gpus)
		d.plan.Wait = append(d.plan.Wait, Verdict{s.Name, "room for it is being freed"})
		return
	}
	if victims, ok := d.victims(s); ok {
		d.stop(s, victims)
		return
	}
	d.wait(s)
}

// free chooses GPUs that are free now and that nobody before s waits for.
func (d *decision) free(s Service) ([]int, bool) {
	later := d.later.Open(s.Need, s.Name)
	open := slices.DeleteFunc(d.now.Open(s.Need, s.Name), func(i int) bool { return !slices.Contains(later, i) })
	if len(open) < s.Need.GPUs || !d.now.MemoryFits(s.Need) || !d.later.MemoryFits(s.Need) {
		return nil, false
	}
	return open[:s.Need.GPUs], true
}

// take gives s room, now or once it is free.
func (d *decision) take(s Service, gpus []int) {
	d.later.Take(s.Need, gpus)
	d.reserve(s, gpus)
}

func (d *decision) reserve(s Service, gpus []int) {
	for _, i := range gpus {
		d.plan.Reserved[i] = append(d.plan.Reserved[i], s.Name)
	}
}

// victims chooses whom to stop: nobody whose stop would not be needed, and the
// most valuable are spared first.
func (d *decision) victims(s Service) (out []Service, ok bool) {
	without := func(keep int) bool {
		space := d.later.Clone()
		for i, v := range d.idle {
			if i != keep && v.Name != s.Name {
				d.release(space, v)
			}
		}
		_, ok := space.Fit(s.Need, s.Name)
		return ok
	}
	if !without(-1) {
		return nil, false
	}
	all := d.idle
	defer func() { d.idle = all }()
	for i := len(d.idle) - 1; i >= 0; i-- {
		if without(i) {
			d.idle = slices.Delete(slices.Clone(d.idle), i, i+1)
		}
	}
	return slices.DeleteFunc(slices.Clone(d.idle), func(v Service) bool { return v.Name == s.Name }), true
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
		value := d.f.Machine.Value(v)
		d.plan.Stop = append(d.plan.Stop, Stop{Service: v.Name, For: s.Name, Value: value, Why: fmt.Sprintf(
			"%s needs %s; %s is idle and the least valuable: %.3g requests expected × %s to start, over what it holds = %.3g",
			s.Name, s.Need, v.Name, v.Expected, v.Start.Round(time.Millisecond), value)})
		names = append(names, v.Name)
		d.idle = slices.DeleteFunc(slices.Clone(d.idle), func(o Service) bool { return o.Name == v.Name })
	}
	if gpus, ok := d.later.Fit(s.Need, s.Name); ok {
		d.take(s, gpus)
	}
	d.plan.Wait = append(d.plan.Wait, Verdict{s.Name, list(names) + " is stopped to make room for it"})
}

// wait leaves a service to wait for busy ones. The first that needs several GPUs
// reserves what is free of them: otherwise smaller ones would take each that
// comes free, for ever.
func (d *decision) wait(s Service) {
	if !d.blocked && s.Need.GPUs > 1 && s.Waiting > 0 {
		open := d.later.Open(s.Need, s.Name)
		open = open[:min(len(open), s.Need.GPUs)]
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
	why := "it needs " + s.Need.String() + ", of " + d.f.Machine.String()
	if len(held) > 0 {
		why += "; these hold the rest: " + list(held)
	}
	d.plan.Wait = append(d.plan.Wait, Verdict{s.Name, why})
}

// stays is why a service that holds something is not stopped now.
func (s Service) stays() string {
	switch {
	case s.Pinned:
		return "pinned"
	case s.Minimum:
		return "minReplicas"
	case s.Running+s.Waiting > 0:
		return fmt.Sprintf("busy: %d running, %d waiting", s.Running, s.Waiting)
	case s.Rolling:
		return "rolling out"
	}
	return ""
}

// never returns why a service cannot get room however long it waits: the machine
// is too small, or what pinned services leave of it is.
func (d *decision) never(s Service) string {
	space := NewSpace(d.f.Machine)
	if _, ok := space.Fit(s.Need, s.Name); !ok {
		return "it needs " + s.Need.String() + ", this machine has " + d.f.Machine.String()
	}
	var pinned []string
	for _, o := range d.f.Services {
		if !o.Pinned || o.Name == s.Name || !o.holds() {
			continue
		}
		for _, r := range o.Replicas {
			if !r.Leaving {
				space.Take(r.Need, r.GPUs)
			}
		}
		pinned = append(pinned, o.Name)
	}
	if _, ok := space.Fit(s.Need, s.Name); !ok {
		return "it needs " + s.Need.String() + ", this machine has " + d.f.Machine.String() + ", and what is left beside the pinned " +
			list(pinned) + " is too little; remove residency.pin there, or stop it"
	}
	return ""
}

// list joins at most four names.
func list(names []string) string {
	const few = 4
	if more := len(names) - few; more > 0 {
		return strings.Join(names[:few], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(names, ", ")
}

// String is a need in words, such as "2 GPUs with 8 GiB each, 16 GiB of memory".
func (n Need) String() string {
	var parts []string
	if n.GPUs > 0 {
		p := gpus(n.GPUs)
		if n.GPUMemory > 0 && n.GPUs > 1 {
			p += " with " + gibibytes(n.GPUMemory) + " free each"
		} else if n.GPUMemory > 0 {
			p += " with " + gibibytes(n.GPUMemory) + " free"
		}
		parts = append(parts, p)
	}
	if n.Memory > 0 {
		parts = append(parts, gibibytes(n.Memory)+" of memory")
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

// String is a machine in words, such as "2 GPUs (24 GiB, 24 GiB), 64 GiB of memory".
func (m Machine) String() string {
	out := gpus(len(m.GPUs))
	var sizes []string
	for _, g := range m.GPUs {
		if g > 0 {
			sizes = append(sizes, gibibytes(g))
		}
	}
	if len(sizes) > 0 {
		out += " (" + list(sizes) + ")"
	}
	if m.Memory > 0 {
		out += ", " + gibibytes(m.Memory) + " of memory"
	}
	return out
}

func gpus(n int) string {
	if n == 1 {
		return "1 GPU"
	}
	return fmt.Sprintf("%d GPUs", n)
}

func gibibytes(n int64) string { return fmt.Sprintf("%.4g GiB", float64(n)/(1<<30)) }
