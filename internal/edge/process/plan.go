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
	before  bool // of the revision that serves until that one does
	waiting int  // accelerators it waits for and cannot have, 0 when none
	gpus    int  // accelerators it holds
	created time.Time
}

// needs are the accelerators that one replica of a role takes.
type needs struct {
	current int
	before  int // of the revision before; negative where none is to be started
	// apart: replicas of two revisions are never there together.
	apart bool
}

// steps are what takes a role nearer to what is wanted of it.
type steps struct {
	start    int
	previous int // of the revision before
	drain    []string
	yield    []string // to drain although they serve, to make room for a current one
}

// plan decides how a role gets from its members to want of the current
// revision. free is how many accelerators the role can have at once. Pure.
//
// Members of the current revision come up beside older ones; an older one that
// serves goes only when a current one has become ready in its place, or when
// nothing else can give a waiting current one its accelerators (yielding).
// Older ones that do not serve go at once, except those of the revision before,
// which come up as well while too few serve, on accelerators that current ones
// do not need. victims go first, then what does not serve, then the youngest.
// Where revisions are to stay apart, older ones all go at once, and current ones start
// when the last of them has ended.
func plan(want int, members []member, victims []string, free int, need needs) steps {
	var s steps
	var current, old, serving []member
	ready, stay := 0, 0
	for _, m := range members {
		switch {
		case m.phase == replica.Draining:
			free += m.gpus // on their way back
		case m.current:
			current = append(current, m)
		default:
			old = append(old, m)
		}
	}
	byWorth(current, victims)
	for len(current) > max(0, want) {
		last := len(current) - 1
		s.drain, free = append(s.drain, current[last].id), free+current[last].gpus
		current = current[:last]
	}
	for _, m := range current {
		if m.phase == replica.Ready {
			ready++
		}
	}
	if need.apart {
		for _, m := range old {
			s.drain = append(s.drain, m.id)
		}
		if !slices.ContainsFunc(members, func(m member) bool { return !m.current }) { // none ends either
			s.start = max(0, want-len(current))
		}
		return s
	}
	byWorth(old, victims)
	for _, m := range old {
		switch {
		case stay < want-ready && m.phase == replica.Ready:
			serving = append(serving, m)
			stay++
		case stay < want-ready && m.before && m.waiting == 0:
			stay++ // it comes up
		default:
			s.drain, free = append(s.drain, m.id), free+m.gpus
		}
	}
	s.start = max(0, want-len(current))
	s.yield = yielding(current, serving, free)
	if need.before >= 0 {
		s.previous = standIns(want-ready-stay, free-need.current*s.start, current, need)
	}
	return s
}

// standIns is how many of lacking replicas of the revision before can have
// their accelerators without taking any from current ones.
func standIns(lacking, free int, current []member, need needs) int {
	for _, m := range current {
		free -= max(0, need.current-m.gpus)
	}
	n := 0
	for ; n < lacking && (need.before == 0 || free >= need.before); n++ {
		free -= need.before
	}
	return n
}

// yielding chooses the older members to drain although they serve, so that a
// waiting current one can have their accelerators: as few as will do, the
// least worthy first. None yield while a current member is still coming up,
// since it takes the place of one when it is ready; none when what is free
// will do; and none when all of them together would not be enough.
func yielding(current, serving []member, free int) (yield []string) {
	least := 0
	for _, m := range current {
		switch {
		case m.waiting > 0:
			if least == 0 || m.waiting < least {
				least = m.waiting
			}
		case m.phase != replica.Ready:
			return nil
		}
	}
	for i := len(serving) - 1; i >= 0 && free < least; i-- {
		if m := serving[i]; m.gpus > 0 {
			yield, free = append(yield, m.id), free+m.gpus
		}
	}
	if free < least {
		return nil
	}
	return yield
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
