package selection

import (
	"cmp"
	"strconv"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// standing is what places a runtime in the total order: its fields are the
// criteria, the weightiest first.
type standing struct {
	scope    int   // 0 namespace, 1 cluster, 2 catalog
	how      int   // 0 as a process or on a cluster, 1 as a container of this machine
	fit      int   // 0 a bounded size range, 1 one open above, 2 none; all 0 when the model's size is unknown
	distance int64 // |min-size| + |max-size|; open above: size-min
	priority int   // of the matched entry; 0 unprioritised
	met      int   // attributes of the matched entry that the model states and meets
	protocol int   // rank of the best protocol listed; none ranks last
	created  time.Time
	name     string
}

func scopeRank(s service.Scope) int {
	switch s {
	case service.ScopeNamespace:
		return 0
	case service.ScopeCluster:
		return 1
	}
	return 2
}

func (s *subject) standing(rt *service.Runtime, m match) standing {
	st := standing{scope: scopeRank(rt.Scope), priority: m.priority, met: m.met,
		protocol: best(rt.Protocols).Rank(), created: rt.Created, name: rt.Name}
	if len(Contained(rt.Components, s.svc.Components, s.host, s.model)) > 0 {
		st.how = 1
	}
	st.fit, st.distance = fit(rt.Size, s.model.Parameters)
	return st
}

// fit measures how closely a range that contains n lies around it. A side left
// open below ends at 0, since no count is smaller; one open above has no end,
// so such a range comes after every bounded one. With n inside,
// |min-n| + |max-n| is the range's width.
func fit(r *service.SizeRange, n int64) (class int, distance int64) {
	switch {
	case n <= 0:
		return 0, 0
	case unbounded(r):
		return 2, 0
	case !r.Contains(n):
		return 3, 0
	case r.Max == 0:
		return 1, n - max(r.Min, 0)
	}
	return 0, r.Max - max(r.Min, 0)
}

func unbounded(r *service.SizeRange) bool { return r == nil || *r == service.SizeRange{} }

// best is the protocol of the best rank, "" of none.
func best(ps []service.Protocol) service.Protocol {
	var out service.Protocol
	for _, p := range ps {
		if p.Rank() < out.Rank() {
			out = p
		}
	}
	return out
}

// compare is the total order: negative when a comes first.
func compare(a, b *standing) int {
	_, c := decide(a, b)
	return c
}

// criterion names what decided between two standings.
type criterion int

const (
	byScope criterion = iota
	byHow
	bySize
	byPriority
	bySpecificity
	byProtocol
	byAge
	byName
)

// decide compares two standings and returns the criterion that decided.
func decide(a, b *standing) (criterion, int) {
	if c := cmp.Compare(a.scope, b.scope); c != 0 {
		return byScope, c
	}
	if c := cmp.Compare(a.how, b.how); c != 0 {
		return byHow, c
	}
	if c := cmp.Or(cmp.Compare(a.fit, b.fit), cmp.Compare(a.distance, b.distance)); c != 0 {
		return bySize, c
	}
	if c := cmp.Compare(b.priority, a.priority); c != 0 {
		return byPriority, c
	}
	if c := cmp.Compare(b.met, a.met); c != 0 {
		return bySpecificity, c
	}
	if c := cmp.Compare(a.protocol, b.protocol); c != 0 {
		return byProtocol, c
	}
	if c := b.created.Compare(a.created); c != 0 {
		return byAge, c
	}
	return byName, cmp.Compare(a.name, b.name)
}

// reason returns what put ranked[i] in its place: for the first what sets it
// above the second, for the others what the one before has over it.
func (s *subject) reason(ranked []*assessed, i int) string {
	switch {
	case s.named:
		return "named by the service"
	case len(ranked) == 1:
		return "the only runtime that can serve it"
	case i == 0:
		return s.over(ranked[0], ranked[1], "its", ranked[1].Name+"'s")
	}
	return "after " + ranked[i-1].Name + ", " + s.over(ranked[i-1], ranked[i], "whose", "its own")
}

// over describes what the winner, called its, has over the loser, called other:
// "its priority 3 is higher than b's 2".
func (s *subject) over(winner, loser *assessed, its, other string) string {
	w, l := &winner.standing, &loser.standing
	by, _ := decide(w, l)
	switch by {
	case byScope:
		return its + " scope " + string(winner.Scope) + " comes before " + other + " " + string(loser.Scope)
	case byHow:
		return its + " program is on this machine, which comes before " + other + " container"
	case bySize:
		return its + " size range, " + sizeWords(winner.Runtime.Size) + ", fits " +
			service.FormatParameters(s.model.Parameters) + " closer than " + other + ", " + sizeWords(loser.Runtime.Size)
	case byPriority:
		return its + " priority " + number(w.priority) + " is higher than " + other + " " + number(l.priority)
	case bySpecificity:
		return its + " attributes met, " + number(w.met) + ", are more than " + other + " " + number(l.met)
	case byProtocol:
		return its + " protocol " + protocolWords(best(winner.Runtime.Protocols)) + " is preferred to " + other + " " + protocolWords(best(loser.Runtime.Protocols))
	case byAge:
		return its + " creation, " + age(w.created) + ", is later than " + other + ", " + age(l.created)
	}
	return its + " name comes before " + other + ", all else being equal"
}

func number(n int) string {
	if n == 0 {
		return "(none)"
	}
	return strconv.Itoa(n)
}

func age(t time.Time) string {
	if t.IsZero() {
		return "unknown"
	}
	return t.UTC().Format(time.RFC3339)
}

func protocolWords(p service.Protocol) string {
	if p == "" {
		return "none listed"
	}
	return string(p)
}

// sizeWords prints a range ("5B–9B", "up to 9B", "from 70B").
func sizeWords(r *service.SizeRange) string {
	switch {
	case unbounded(r):
		return "no range"
	case r.Min == 0:
		return "up to " + service.FormatParameters(r.Max)
	case r.Max == 0:
		return "from " + service.FormatParameters(r.Min)
	}
	return service.FormatParameters(r.Min) + "–" + service.FormatParameters(r.Max)
}
