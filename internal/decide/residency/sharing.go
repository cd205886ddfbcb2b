package residency

import (
	"cmp"
	"fmt"
	"slices"
)

// Sharing is which services run at once, as people say it.
type Sharing struct {
	// Group names services that an exclusive one of them leaves alone.
	Group string
	// Exclusive: it starts once no service outside of its group runs, but those
	// that are never stopped.
	Exclusive bool
	// OneOf names alternatives, of which one runs at a time.
	OneOf string
	// Stable is the service that a canary belongs to: they run together.
	Stable string
}

// Permit reports whether a service may have to wait until others have stopped,
// although there is room.
func (s Sharing) Permit() bool { return s.Exclusive || s.OneOf != "" }

// excludes is why another service cannot run when s starts; "" where it can.
func (s Service) excludes(o Service) string {
	switch {
	case s.Name == o.Name, s.Stable != "" && s.Stable == o.Stable:
		return ""
	case s.OneOf != "" && s.OneOf == o.OneOf:
		return fmt.Sprintf("%s and %s are alternatives (residency.oneOf: %s)", s.Name, o.Name, s.OneOf)
	case s.Exclusive && (s.Group == "" || s.Group != o.Group) && !o.Pinned && !o.Minimum:
		if s.Group == "" {
			return s.Name + " runs alone (residency.exclusive)"
		}
		return fmt.Sprintf("%s runs with services of its group alone (residency.group: %s, exclusive)", s.Name, s.Group)
	}
	return ""
}

// replaces is why a service never takes the place of one of its alternatives; ""
// where it can.
func (f Facts) replaces(s Service) string {
	for _, o := range f.Services {
		if s.OneOf == "" || s.excludes(o) == "" || len(o.Replicas) == 0 {
			continue
		}
		switch {
		case o.Pinned:
			return s.excludes(o) + ", and " + o.Name + " is pinned; remove residency.pin there, or stop it"
		case o.Minimum:
			return s.excludes(o) + ", and " + o.Name + " has minReplicas; set that to 0 there, or stop it"
		}
	}
	return ""
}

// apart lists the services that run and do not run with s: those that can be
// stopped now, those that are stopping, and those that are busy or about to start,
// with why they stay.
func (d *decision) apart(s Service) (idle []Service, leaving, busy []string) {
	for _, o := range d.f.Services {
		if s.excludes(o) == "" || len(o.Replicas) == 0 {
			continue
		}
		switch why := o.stays(); {
		case d.stopped[o.Name] || !o.stands():
			leaving = append(leaving, o.Name)
		case why != "":
			busy = append(busy, o.Name+" ("+why+")")
		default:
			idle = append(idle, o)
		}
	}
	for _, o := range d.admitted {
		if s.excludes(o) != "" || o.excludes(s) != "" && len(s.Replicas) == 0 {
			busy = append(busy, o.Name+" (it is about to start)")
		}
	}
	return idle, leaving, busy
}

// stands reports whether a service has a replica that is not being stopped.
func (s Service) stands() bool {
	for _, r := range s.Replicas {
		if !r.Leaving {
			return true
		}
	}
	return false
}

// Preload chooses which of the services named are started although nobody asks:
// those that fit beside what runs and what is being preloaded, of the highest
// priority first. Nobody is stopped for them. Those that are not chosen are
// returned with the reason.
func (f Facts) Preload(names []string) (start []string, not []Verdict) {
	space, standing := NewSpace(f.Machine), []Service(nil)
	hold := func(s Service) bool {
		gpus, ok := space.FitAll(f.clamped(s), s.Name)
		for i := range gpus {
			space.Take(s.Lacks[i], gpus[i])
		}
		return ok
	}
	for _, s := range f.Services { // before anything is placed beside them
		for _, r := range s.Replicas {
			space.Take(r.Need, r.GPUs)
		}
	}
	var asked []Service
	for _, s := range f.Services {
		switch {
		case len(s.Replicas) > 0:
			standing = append(standing, s)
		case slices.Contains(names, s.Name):
			asked = append(asked, s)
		case s.Preload:
			hold(s)
			standing = append(standing, s)
		}
	}
	slices.SortFunc(asked, func(a, b Service) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Name, b.Name))
	})
	for _, s := range asked {
		at := slices.IndexFunc(standing, func(o Service) bool { return s.excludes(o) != "" || o.excludes(s) != "" })
		switch {
		case at >= 0:
			not = append(not, Verdict{s.Name, cmp.Or(s.excludes(standing[at]), standing[at].excludes(s))})
		case !hold(s):
			not = append(not, Verdict{s.Name, "it needs " + needs(s.Lacks) + ", which is not free of " + f.Machine.String()})
		default:
			start, standing = append(start, s.Name), append(standing, s)
		}
	}
	return start, not
}
