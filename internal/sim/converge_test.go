package sim

import (
	"cmp"
	"fmt"
	"slices"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/residency"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// This file decides which replicas start and end, and who gets GPUs.

// rolling reports whether a revision takes the place of another.
func (o *owner) rolling() bool {
	return o.revision != nil && (o.revision.Before != nil || slices.ContainsFunc(o.units, func(u *unit) bool {
		return u.view.Phase != replica.Draining && u.view.Revision != o.revision.Hash
	}))
}

// converge starts and ends replicas towards what is wanted. The lock is held, as
// in everything below.
func (m *machine) converge(o *owner) {
	if o.revision == nil {
		return
	}
	for i := range o.revision.Components {
		m.convergeRole(o, &o.revision.Components[i])
	}
	m.place()
	m.tell(o.key)
}

func (m *machine) convergeRole(o *owner, c *workload.Component) {
	var current, old []*unit
	ready := 0
	for _, u := range o.units {
		switch {
		case u.view.Role != c.Role || !u.view.Alive():
		case u.view.Revision == o.revision.Hash:
			current = append(current, u)
		default:
			old = append(old, u)
		}
	}
	worth := func(a, b *unit) int {
		return cmp.Or(first(!slices.Contains(o.victims[c.Role], a.view.ID), !slices.Contains(o.victims[c.Role], b.view.ID)),
			first(a.view.Phase == replica.Ready, b.view.Phase == replica.Ready),
			first(a.view.Phase == replica.Starting, b.view.Phase == replica.Starting), cmp.Compare(a.number, b.number))
	}
	slices.SortStableFunc(current, worth)
	slices.SortStableFunc(old, worth)
	want := o.want[c.Role]
	for len(current) > want {
		if u := current[len(current)-1]; !m.doze(u, o.rest[c.Role]) {
			m.end(u)
		}
		current = current[:len(current)-1]
	}
	for range want - len(current) - m.wakeSleepers(o, c.Role, want-len(current)) {
		m.start(o, c)
	}
	waits := false
	for _, u := range current {
		if u.view.Phase == replica.Ready {
			ready++
		}
		waits = waits || u.view.Phase == replica.Pending && len(m.open(o.key)) < u.gpus
	}
	for _, u := range old {
		if u.view.Phase == replica.Ready && ready < want && !waits {
			ready++
			continue
		}
		waits = waits && u.gpus == 0
		m.end(u)
	}
}

func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// open lists the GPUs that a service may have: those that nobody holds and that
// are not reserved, nor kept for another's next replica.
func (m *machine) open(k service.Key) []int {
	return slices.DeleteFunc(m.space.Open(residency.Need{GPUs: 1}, k.String()), func(i int) bool { return m.kept[i] != k && m.kept[i] != service.Key{} })
}

// free is how many GPUs nobody holds.
func (m *machine) free() (n int) {
	for _, g := range m.gpus {
		if g == "" {
			n++
		}
	}
	return n
}

// ready is how many replicas of a service are.
func (m *machine) ready(k service.Key) (n int) {
	if o := m.owners[k]; o != nil {
		for _, u := range o.units {
			if u.view.Phase == replica.Ready {
				n++
			}
		}
	}
	return n
}

// place gives waiting replicas what they wait for, the oldest first.
func (m *machine) place() {
	var waiting []*unit
	for _, u := range m.units {
		if u.view.Phase == replica.Pending && u.next == nil && !u.sleep.busy {
			waiting = append(waiting, u)
		}
	}
	slices.SortFunc(waiting, func(a, b *unit) int { return cmp.Compare(a.number, b.number) })
	for _, u := range waiting {
		open := m.open(u.owner.key)
		if len(open) < u.gpus {
			if u.view.Reason == "" { // an older one may have to make room for it
				m.tell(u.owner.key)
				m.loop.after(0, func() { m.locked(func() { m.converge(u.owner) }) })
			}
			u.view.Reason, u.view.Message = replica.ReasonInsufficientGPUs, fmt.Sprintf("waits for %d GPUs", u.gpus)
			continue
		}
		if u.view.GPUs = slices.Clone(open[:u.gpus]); !slices.ContainsFunc(u.sleep.gpus, func(i int) bool { return !slices.Contains(open, i) }) && len(u.sleep.gpus) == u.gpus {
			u.view.GPUs = slices.Clone(u.sleep.gpus)
		}
		m.space.Take(residency.Need{GPUs: u.gpus}, u.view.GPUs)
		for _, i := range u.view.GPUs {
			m.gpus[i], m.kept[i] = u.view.ID, service.Key{}
		}
		if u.sleep.asleep > 0 {
			u.wake()
		} else {
			u.launch()
		}
		m.tell(u.owner.key)
	}
	for i, k := range m.kept {
		if (k != service.Key{}) && !m.awaits(k) {
			m.kept[i] = service.Key{}
		}
	}
}

// awaits reports whether a replica of a service waits for GPUs.
func (m *machine) awaits(k service.Key) bool {
	o := m.owners[k]
	return o != nil && slices.ContainsFunc(o.units, func(u *unit) bool { return u.view.Phase == replica.Pending && u.gpus > 0 })
}
