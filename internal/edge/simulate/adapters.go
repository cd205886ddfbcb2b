package simulate

import (
	"slices"
	"time"
)

// adapterSlots are the slots of GPU memory that hold LoRA adapters. The base
// model, the empty name, needs none. Invariant: len(slots) <= max.
type adapterSlots struct {
	max   int
	slots []adapterSlot
}

type adapterSlot struct {
	name    string
	running int           // sequences that use it now; a slot in use is not evicted
	used    time.Duration // when it was last taken or let go
}

// find returns the slot of an adapter, or -1.
func (a *adapterSlots) find(name string) int {
	return slices.IndexFunc(a.slots, func(s adapterSlot) bool { return s.name == name })
}

// idle returns the slot that has been idle longest, or -1.
func (a *adapterSlots) idle() int {
	oldest := -1
	for i, s := range a.slots {
		if s.running == 0 && (oldest < 0 || s.used < a.slots[oldest].used) {
			oldest = i
		}
	}
	return oldest
}

// fits reports whether a sequence of the adapter can run now.
func (a *adapterSlots) fits(name string) bool {
	return name == "" || a.find(name) >= 0 || len(a.slots) < a.max || a.idle() >= 0
}

// acquire counts a sequence in; the adapter must fit. It reports whether the
// adapter had to be loaded.
func (a *adapterSlots) acquire(name string, now time.Duration) (loaded bool) {
	if name == "" {
		return false
	}
	i := a.find(name)
	switch {
	case i >= 0:
	case len(a.slots) < a.max:
		i = len(a.slots)
		a.slots = append(a.slots, adapterSlot{name: name})
		loaded = true
	default:
		i = a.idle()
		a.slots[i] = adapterSlot{name: name}
		loaded = true
	}
	a.slots[i].running++
	a.slots[i].used = now
	return loaded
}

// release counts a sequence out.
func (a *adapterSlots) release(name string, now time.Duration) {
	if i := a.find(name); i >= 0 {
		a.slots[i].running--
		a.slots[i].used = now
	}
}

// forget empties the adapter's slot unless a sequence uses it.
func (a *adapterSlots) forget(name string) {
	if i := a.find(name); i >= 0 && a.slots[i].running == 0 {
		a.slots = slices.Delete(a.slots, i, i+1)
	}
}

// running lists the adapters in use, in the order of their slots.
func (a *adapterSlots) running() []string {
	var names []string
	for _, s := range a.slots {
		if s.running > 0 {
			names = append(names, s.name)
		}
	}
	return names
}
