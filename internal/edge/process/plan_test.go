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
		m := member{id: string(rune('a' + i)), current: rev == "new", created: time.Unix(int64(i), 0)}
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
		start   int
		drain   string
	}{
		{"nothing", 0, "", "", 0, ""},
		{"up", 3, "new:Ready", "", 2, ""},
		{"down: the youngest", 1, "new:Ready new:Ready", "", 0, "b"},
		{"down: victims", 1, "new:Ready new:Ready", "a", 0, "a"},
		{"down: what does not serve", 1, "new:Pending new:Ready", "", 0, "a"},
		{"down: failed before starting", 1, "new:Failed new:Starting", "", 0, "a"},
		{"down: victims before what does not serve", 1, "new:Ready new:Pending", "a", 0, "a"},
		{"zero", 0, "new:Ready old:Ready new:Failed", "", 0, "cab"},
		{"draining counts as gone", 1, "new:Draining", "", 1, ""},
		{"new revision", 2, "old:Ready old:Ready", "", 2, ""},
		{"old stays until new is ready", 2, "old:Ready old:Ready new:Starting new:Starting", "", 0, ""},
		{"one for one", 2, "old:Ready old:Ready new:Ready new:Starting", "", 0, "b"},
		{"replaced", 2, "old:Ready old:Ready new:Ready new:Ready", "", 0, "ab"},
		{"old that does not serve goes", 2, "old:Starting old:Ready new:Starting new:Starting", "", 0, "a"},
		{"failing new keeps old", 1, "old:Ready new:Failed", "", 0, ""},
		{"resources are made", 2, "old:Ready/1 old:Ready/1 new:Pending!1 new:Pending!1", "", 0, "ba"},
		{"some resources are made", 1, "old:Ready/2 new:Pending!1", "", 0, "a"},
		{"resources are on the way", 1, "old:Draining/1 old:Ready/1 new:Pending!1", "", 0, ""},
		{"resources held by no old one", 1, "old:Ready new:Pending!1", "", 0, ""},
		{"back to the old", 1, "new:Ready old:Failed", "", 0, "b"},
	} {
		start, drain := plan(c.want, members(c.members), strings.Split(c.victims, ""))
		slices.Sort(drain)
		want := strings.Split(c.drain, "")
		slices.Sort(want)
		if start != c.start || strings.Join(drain, "") != strings.Join(want, "") {
			t.Errorf("%s: start %d, drain %v; want %d, %q", c.name, start, drain, c.start, c.drain)
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
			start, drain := plan(want, ms, nil)
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
