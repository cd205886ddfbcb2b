package process

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// members reads "new:Ready old:Starting new:Pending!2 old:Ready/1": revision,
// phase, accelerators waited for (!) and held (/). Their ids are a, b, c, …
func members(s string) []member {
	var out []member
	for i, f := range strings.Fields(s) {
		rev, rest, _ := strings.Cut(f, ":")
		m := member{id: string(rune('a' + i)), current: rev == "new", before: rev == "before", created: time.Unix(int64(i), 0)}
		if ph, n, ok := strings.Cut(rest, "!"); ok {
			rest, m.waiting = ph, int(n[0]-'0')
		}
		if ph, n, ok := strings.Cut(rest, "/"); ok {
			rest, m.gpus = ph, int(n[0]-'0')
		}
		m.phase = replica.Phase(rest)
		out = append(out, m)
	}
	return out
}

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name    string
		want    int
		members string
		victims string
		free    int
		start   int
		drain   string
		yield   string
	}{
		{"nothing", 0, "", "", 0, 0, "", ""},
		{"up", 3, "new:Ready", "", 0, 2, "", ""},
		{"down: the youngest", 1, "new:Ready new:Ready", "", 0, 0, "b", ""},
		{"down: victims", 1, "new:Ready new:Ready", "a", 0, 0, "a", ""},
		{"down: what does not serve", 1, "new:Pending new:Ready", "", 0, 0, "a", ""},
		{"down: failed before starting", 1, "new:Failed new:Starting", "", 0, 0, "a", ""},
		{"down: victims before what does not serve", 1, "new:Ready new:Pending", "a", 0, 0, "a", ""},
		{"zero", 0, "new:Ready old:Ready new:Failed", "", 0, 0, "cab", ""},
		{"draining counts as gone", 1, "new:Draining", "", 0, 1, "", ""},
		{"new revision", 2, "old:Ready old:Ready", "", 0, 2, "", ""},
		{"old stays until new is ready", 2, "old:Ready old:Ready new:Starting new:Starting", "", 0, 0, "", ""},
		{"one for one", 2, "old:Ready old:Ready new:Ready new:Starting", "", 0, 0, "b", ""},
		{"replaced", 2, "old:Ready old:Ready new:Ready new:Ready", "", 0, 0, "ab", ""},
		{"old that does not serve goes", 2, "old:Starting old:Ready new:Starting new:Starting", "", 0, 0, "a", ""},
		{"failing new keeps old", 1, "old:Ready new:Failed", "", 0, 0, "", ""},
		{"resources are made", 2, "old:Ready/1 old:Ready/1 new:Pending!1 new:Pending!1", "", 0, 0, "", "b"},
		{"some resources are made", 1, "old:Ready/2 new:Pending!1", "", 0, 0, "", "a"},
		{"resources are on the way", 1, "old:Draining/1 old:Ready/1 new:Pending!1", "", 0, 0, "", ""},
		{"resources held by no old one", 1, "old:Ready new:Pending!1", "", 0, 0, "", ""},
		{"what an ended one held is free now", 2, "old:Ready/1 new:Starting/1 new:Pending!1", "", 1, 0, "", ""},
		{"one that comes up takes the place of one", 2, "old:Ready/1 old:Ready/1 new:Starting/1 new:Pending!1", "", 0, 0, "", ""},
		{"its files come first", 1, "old:Ready/1 new:Fetching", "", 0, 0, "", ""},
		{"a failing one keeps the others", 2, "old:Ready/1 new:Failed new:Pending!1", "", 0, 0, "", ""},
		{"each in its turn", 2, "old:Ready/1 new:Ready/1 new:Pending!1", "", 0, 0, "", "a"},
		{"as many as one needs", 2, "old:Ready/1 old:Ready/1 new:Pending!2 new:Pending!2", "", 0, 0, "", "ab"},
		{"with what is free", 2, "old:Ready/1 old:Ready/1 new:Pending!2 new:Pending!2", "", 1, 0, "", "b"},
		{"all would not be enough", 1, "old:Ready/1 new:Pending!2", "", 0, 0, "", ""},
		{"the victim yields", 2, "old:Ready/1 old:Ready/1 new:Pending!1 new:Pending!1", "a", 0, 0, "", "a"},
		{"back to the old", 1, "new:Ready old:Failed", "", 0, 0, "b", ""},
	} {
		s := plan(c.want, members(c.members), strings.Split(c.victims, ""), c.free, needs{before: -1})
		if s.start != c.start || sorted(s.drain...) != sorted(strings.Split(c.drain, "")...) || sorted(s.yield...) != sorted(strings.Split(c.yield, "")...) {
			t.Errorf("%s: start %d, drain %v, yield %v; want %d, %q, %q", c.name, s.start, s.drain, s.yield, c.start, c.drain, c.yield)
		}
	}
}

// TestPlanBringsBackTheRevisionBefore: until the present revision is ready, the
// one before has as many replicas as are wanted, but takes no accelerator that
// the present one needs.
func TestPlanBringsBackTheRevisionBefore(t *testing.T) {
	for _, c := range []struct {
		name    string
		want    int
		members string
		free    int
		need    needs
		start   int
		again   int
		drain   string
	}{
		{"after a restart", 2, "", 0, needs{}, 2, 2, ""},
		{"it comes up", 1, "before:Starting new:Failed", 0, needs{}, 0, 0, ""},
		{"it failed and is tried again", 1, "before:Failed new:Failed", 0, needs{}, 0, 0, ""},
		{"one of two ended", 2, "before:Ready new:Failed new:Failed", 0, needs{}, 0, 1, ""},
		{"the present one is ready", 1, "before:Starting new:Ready", 0, needs{}, 0, 0, "a"},
		{"none is wanted", 0, "before:Ready new:Failed", 0, needs{}, 0, 0, "ab"},
		{"one older still", 1, "old:Starting new:Failed", 0, needs{}, 0, 1, "a"},
		{"accelerators for both", 1, "", 2, needs{current: 1, before: 1}, 1, 1, ""},
		{"accelerators for one", 1, "", 1, needs{current: 1, before: 1}, 1, 0, ""},
		{"the present one holds its own", 1, "new:Starting/1", 1, needs{current: 1, before: 1}, 0, 1, ""},
		{"the present one will want its own again", 1, "new:Failed", 1, needs{current: 1, before: 1}, 0, 0, ""},
		{"it waits in vain", 1, "before:Pending!1 new:Starting/1", 0, needs{current: 1, before: 1}, 0, 0, "a"},
		{"it needs fewer", 2, "new:Starting/2 new:Starting/2", 1, needs{current: 2, before: 1}, 0, 1, ""},
	} {
		s := plan(c.want, members(c.members), nil, c.free, c.need)
		if s.start != c.start || s.previous != c.again || sorted(s.drain...) != sorted(strings.Split(c.drain, "")...) || len(s.yield) > 0 {
			t.Errorf("%s: %+v; want start %d, again %d, drain %q", c.name, s, c.start, c.again, c.drain)
		}
	}
}

// TestPlanKeepsRevisionsApart: none of the present revision starts before the last of
// any other has ended, and none of the revision before comes back.
func TestPlanKeepsRevisionsApart(t *testing.T) {
	for _, c := range []struct {
		name    string
		want    int
		members string
		start   int
		drain   string
	}{
		{"they end first", 2, "old:Ready old:Starting", 0, "ab"},
		{"one still ends", 2, "old:Draining", 0, ""},
		{"all have ended", 2, "", 2, ""},
		{"its own end apart from it", 1, "new:Draining", 1, ""},
		{"the one before serves no more", 1, "before:Ready new:Failed", 0, "a"},
		{"no accelerators are waited for", 1, "old:Ready/1 new:Pending!1", 0, "a"},
		{"down", 1, "new:Ready new:Ready", 0, "b"},
		{"to none", 0, "old:Ready", 0, "a"},
	} {
		s := plan(c.want, members(c.members), nil, 0, needs{before: 0, apart: true})
		if s.start != c.start || s.previous != 0 || len(s.yield) > 0 || sorted(s.drain...) != sorted(strings.Split(c.drain, "")...) {
			t.Errorf("%s: %+v; want start %d, drain %q", c.name, s, c.start, c.drain)
		}
	}
}

// TestPlanConverges plays random worlds forward, in which what was planned
// happens, and holds plan to its promises on the way.
func TestPlanConverges(t *testing.T) {
	phases := []replica.Phase{replica.Pending, replica.Fetching, replica.Starting, replica.Ready, replica.Failed}
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		want, next := rnd.IntN(4), byte('a')
		var ms []member
		add := func(m member) {
			m.id, m.created = string(next), time.Unix(int64(next), 0)
			next++
			ms = append(ms, m)
		}
		for range rnd.IntN(6) {
			add(member{phase: phases[rnd.IntN(len(phases))], current: rnd.IntN(2) == 0})
		}
		for step := 0; ; step++ {
			serving := ready(ms)
			s := plan(want, ms, nil, 0, needs{before: -1})
			start, drain := s.start, s.drain
			if start == 0 && len(drain) == 0 && allReady(ms) {
				break
			}
			if step > 20 {
				t.Fatalf("seed %d: does not converge: want %d of %+v", seed, want, ms)
			}
			ms = slices.DeleteFunc(ms, func(m member) bool { return slices.Contains(drain, m.id) })
			if now := ready(ms); now < min(want, serving) {
				t.Fatalf("seed %d: %d of %d serving left, want %d", seed, now, serving, want)
			}
			for range start {
				add(member{phase: replica.Pending, current: true})
			}
			var late []int
			for i := range ms {
				if ms[i].phase != replica.Ready {
					late = append(late, i)
				}
			}
			if len(late) > 0 {
				ms[late[rnd.IntN(len(late))]].phase = replica.Ready
			}
		}
		if len(ms) != want || slices.ContainsFunc(ms, func(m member) bool { return !m.current }) {
			t.Fatalf("seed %d: settled on %+v, want %d", seed, ms, want)
		}
	}
}

func sorted(ids ...string) string {
	slices.Sort(ids)
	return strings.Join(ids, "")
}

// world is one role's replicas and the machine's accelerators, as the platform
// has them: what ends holds its own until it is gone.
type world struct {
	rnd     *rand.Rand
	want    int
	each    int // accelerators of one replica
	free    int
	members []member
	next    byte
}

func (w *world) add(m member) {
	m.id, m.created = string(w.next), time.Unix(int64(w.next), 0)
	w.next++
	w.members = append(w.members, m)
}

// plan does what the plan says.
func (w *world) plan() (yielded bool) {
	s := plan(w.want, w.members, nil, w.free, needs{before: -1})
	for i := range w.members {
		if m := &w.members[i]; slices.Contains(s.drain, m.id) || slices.Contains(s.yield, m.id) {
			m.phase, m.waiting = replica.Draining, 0
		}
	}
	for range s.start {
		w.add(member{phase: replica.Pending, current: true})
	}
	return len(s.yield) > 0
}

// happen lets one thing happen, of those that can; false when none can.
func (w *world) happen(fails bool) bool {
	var can []func()
	for i := range w.members {
		m := &w.members[i]
		switch {
		case m.phase == replica.Draining:
			can = append(can, func() {
				w.free += m.gpus
				w.members = slices.Delete(w.members, i, i+1)
			})
		case m.phase == replica.Pending && w.free >= w.each:
			can = append(can, func() { m.phase, m.waiting, m.gpus, w.free = replica.Starting, 0, w.each, w.free-w.each })
		case m.phase == replica.Pending && m.waiting == 0:
			can = append(can, func() { m.waiting = w.each })
		case m.phase == replica.Starting && fails:
			can = append(can, func() { m.phase, m.gpus, w.free = replica.Failed, 0, w.free+m.gpus })
		case m.phase == replica.Starting:
			can = append(can, func() { m.phase = replica.Ready })
		case m.phase == replica.Failed:
			can = append(can, func() { m.phase = replica.Pending })
		}
	}
	if len(can) == 0 {
		return false
	}
	can[w.rnd.IntN(len(can))]()
	return true
}

// TestRolloutKeepsServing: a new revision takes the place of the one that
// serves, whatever comes when. With accelerators for one replica more, all that
// serve go on serving; with none to spare, all but one; and a revision whose
// replicas fail costs no more than that.
func TestRolloutKeepsServing(t *testing.T) {
	for seed := range uint64(4000) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		w := &world{rnd: rnd, want: 1 + rnd.IntN(4), each: 1 + rnd.IntN(3), next: 'a'}
		spare := rnd.IntN(2 * w.each)
		w.free = spare
		for range w.want {
			w.add(member{phase: replica.Ready, gpus: w.each})
		}
		least := w.want - 1
		if spare >= w.each {
			least = w.want
		}
		fails := rnd.IntN(3) == 0
		for step := 0; ; step++ {
			yielded := w.plan()
			if now := ready(w.members); now < least {
				t.Fatalf("seed %d: %d of %d serve, want %d, %d spare: %+v", seed, now, w.want, least, spare, w.members)
			}
			if yielded && spare >= w.each {
				t.Fatalf("seed %d: one that serves stopped early with %d spare of %d each: %+v", seed, spare, w.each, w.members)
			}
			if step == 200 && fails || !w.happen(fails) {
				break
			}
			if step > 400 {
				t.Fatalf("seed %d: does not settle: %+v", seed, w.members)
			}
		}
		if current := slices.IndexFunc(w.members, func(m member) bool { return !m.current }) < 0; !fails && (!current || ready(w.members) != w.want) {
			t.Fatalf("seed %d: settled on %+v, want %d", seed, w.members, w.want)
		}
	}
}

func ready(ms []member) int {
	n := 0
	for _, m := range ms {
		if m.phase == replica.Ready {
			n++
		}
	}
	return n
}

func allReady(ms []member) bool { return ready(ms) == len(ms) }
