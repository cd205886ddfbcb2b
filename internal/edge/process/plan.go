package process

import (
	"cmp"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// member is what plan needs to know of one replica of a role.
type member struct {
	id      string
	phase   replica.Phase
	current bool // of the revision that is wanted
	waiting int  // accelerators it waits for and cannot have, 0 when none
	gpus    int  // accelerators it holds
	created time.Time
}

// plan says how a role gets from its members to want of the current revision:
// how many to start and which to drain. Pure.
//
// Members of the current revision come up beside older ones; an older one that
// serves goes only when a current one has become ready in its place, or when a
// current one waits for the accelerators it holds. Older ones that do not
// serve go at once. victims go first, then what does not serve, then the
// youngest.
func plan(want int, members []member, victims []string) (start int, drain []string) {
	var current, old []member
	releasing, lacking, ready := 0, 0, 0
	for _, m := range members {
		switch {
		case m.phase == replica.Draining:
			releasing += m.gpus
		case m.current:
			current = append(current, m)
		default:
			old = append(old, m)
		}
	}
	byWorth(current, victims)
	for len(current) > max(0, want) {
		last := len(current) - 1
		drain, releasing = append(drain, current[last].id), releasing+current[last].gpus
		current = current[:last]
	}
	for _, m := range current {
		lacking += m.waiting
		if m.phase == replica.Ready {
			ready++
		}
	}
	byWorth(old, victims)
	for i, m := range old {
		if i >= want-ready || m.phase != replica.Ready {
			drain, releasing = append(drain, m.id), releasing+m.gpus
		}
	}
	for i := min(len(old), max(0, want-ready)) - 1; i >= 0 && lacking > releasing; i-- {
		if m := old[i]; m.gpus > 0 && m.phase == replica.Ready {
			drain, releasing = append(drain, m.id), releasing+m.gpus
		}
	}
	return max(0, want-len(current)), drain
}

// byWorth sorts the members to keep to the front.
func byWorth(ms []member, victims []string) {
	slices.SortStableFunc(ms, func(a, b member) int {
		return cmp.Or(
			order(!slices.Contains(victims, a.id), !slices.Contains(victims, b.id)),
			order(a.phase == replica.Ready, b.phase == replica.Ready),
			order(a.phase == replica.Starting, b.phase == replica.Starting),
			a.created.Compare(b.created))
	})
}

// order puts true before false.
func order(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
