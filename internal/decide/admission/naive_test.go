package admission

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// naive is the policy said once more: one list, searched from end to end.
type naive struct {
	c       Config
	waiting []*item // in the order of a flow's turns where they share one
	turns   []turn  // whose turn comes first
	passed  int
	seq     int
}

type item struct {
	w    *Waiter
	flow string
	seq  int
}

type turn struct {
	priority int32
	flow     string
}

func (n *naive) sum(which func(*item) bool) (count int, bytes int64) {
	for _, x := range n.waiting {
		if which(x) {
			count++
			bytes += x.w.Bytes
		}
	}
	return count, bytes
}

func (n *naive) arrive(w *Waiter, s State, now time.Time) (out string) {
	n.seq++
	switch {
	case !w.Deadline.IsZero() && !now.Before(w.Deadline):
		return "Shed Overdue"
	case w.Priority < 0 && !s.Starting && s.Saturation >= 1:
		return "Shed Saturated"
	case s.Late && w.Priority < 0:
		return "Shed Late"
	case s.Available && !s.Paced && !s.Late:
		n.went(w.Priority)
		return "Admit Available"
	}
	all, allBytes := n.sum(func(*item) bool { return true })
	stay, stayBytes := n.sum(func(x *item) bool { return x.w.Priority >= w.Priority })
	if all+1 > n.c.MaxQueue && stay+1 > n.c.MaxQueue {
		return "Shed QueueFull"
	}
	if allBytes+w.Bytes > n.c.MaxQueueBytes && stayBytes+w.Bytes > n.c.MaxQueueBytes {
		return "Shed BytesFull"
	}
	out = "Queue NoCapacity"
	if s.Starting {
		out = "Queue Starting"
	} else if s.Late {
		out = "Queue Deferred"
	} else if s.Available {
		out = "Queue Paced"
	}
	for {
		all, bytes := n.sum(func(*item) bool { return true })
		if all+1 <= n.c.MaxQueue && bytes+w.Bytes <= n.c.MaxQueueBytes {
			break
		}
		victim := slices.MinFunc(n.tails(), func(a, b *item) int {
			return cmp.Or(int(a.w.Priority)-int(b.w.Priority), b.seq-a.seq)
		})
		n.drop(victim)
		out += fmt.Sprint(" -", victim.w.Owner)
	}
	n.add(&item{w: w, seq: n.seq}, false)
	return out
}

// tails are the last of every flow.
func (n *naive) tails() (out []*item) {
	for i, x := range n.waiting {
		if !slices.ContainsFunc(n.waiting[i+1:], func(y *item) bool { return y.flow == x.flow && y.w.Priority == x.w.Priority }) {
			out = append(out, x)
		}
	}
	return out
}

func (n *naive) add(x *item, first bool) {
	x.flow = x.w.Fairness
	at := turn{x.w.Priority, x.flow}
	if !slices.Contains(n.turns, at) && len(n.turns) >= n.c.MaxFlows {
		x.flow = shared
		at.flow = shared
	}
	i := slices.Index(n.turns, at)
	if i < 0 {
		n.turns = append(n.turns, at)
	}
	if first {
		n.turns = slices.DeleteFunc(n.turns, func(t turn) bool { return t == at })
		n.turns = slices.Insert(n.turns, 0, at)
		n.waiting = slices.Insert(n.waiting, 0, x)
		return
	}
	n.waiting = append(n.waiting, x)
}

func (n *naive) drop(x *item) {
	n.waiting = slices.DeleteFunc(n.waiting, func(y *item) bool { return y == x })
	if !slices.ContainsFunc(n.waiting, func(y *item) bool { return y.flow == x.flow && y.w.Priority == x.w.Priority }) {
		n.turns = slices.DeleteFunc(n.turns, func(t turn) bool { return t == turn{x.w.Priority, x.flow} })
	}
}

func (n *naive) went(priority int32) {
	n.passed++
	if !slices.ContainsFunc(n.waiting, func(x *item) bool { return x.w.Priority < priority }) {
		n.passed = 0
	}
}

// order is who is asked, one after the other.
func (n *naive) order(able func(*Waiter) bool) (out []*item, relief bool) {
	turns := slices.Clone(n.turns)
	slices.SortStableFunc(turns, func(a, b turn) int { return int(b.priority) - int(a.priority) })
	var oldest *item
	for _, t := range turns {
		first := true
		for _, x := range n.waiting {
			if x.flow != t.flow || x.w.Priority != t.priority || !able(x.w) {
				continue
			}
			out = append(out, x)
			if first && t.priority < n.top() && (oldest == nil || x.seq < oldest.seq) {
				oldest = x
			}
			first = false
		}
	}
	if n.c.MaxPassed > 0 && n.passed >= n.c.MaxPassed && oldest != nil {
		return append([]*item{oldest}, out...), true
	}
	return out, false
}

// top is the highest priority that waits.
func (n *naive) top() int32 {
	return slices.MaxFunc(n.waiting, func(a, b *item) int { return int(a.w.Priority) - int(b.w.Priority) }).w.Priority
}

func (n *naive) next(able func(*Waiter) bool, place func(*Waiter) Trial) *Waiter {
	if len(n.waiting) == 0 {
		return nil
	}
	order, relief := n.order(able)
	for i, x := range order {
		switch place(x.w) {
		case Full:
			return nil
		case Blocked:
			continue
		}
		n.went(x.w.Priority)
		if relief && i == 0 {
			n.passed = 0
		}
		at := turn{x.w.Priority, x.flow}
		n.drop(x)
		if k := slices.Index(n.turns, at); k >= 0 {
			n.turns = append(slices.Delete(n.turns, k, k+1), at)
		}
		return x.w
	}
	return nil
}

func (n *naive) find(w *Waiter) *item {
	for _, x := range n.waiting {
		if x.w == w {
			return x
		}
	}
	return nil
}

func spell(v Verdict) string {
	s := string(v.Decision) + " " + string(v.Reason)
	for _, w := range v.Evicted {
		s += fmt.Sprint(" -", w.Owner)
	}
	return s
}

// FuzzMachine compares the machine with the naive one, event by event.
func FuzzMachine(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 40 {
		seed := make([]byte, 400)
		for i := range seed {
			seed[i] = byte(r.Uint32())
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		read := func() int {
			if len(data) == 0 {
				return 0
			}
			b := data[0]
			data = data[1:]
			return int(b)
		}
		c := DefaultConfig()
		c.MaxQueue, c.MaxQueueBytes, c.MaxFlows = 1+read()%20, int64(1+read()), 1+read()%6
		c.MaxPassed = read() % 4
		m, n := New(c), &naive{c: c}
		now := t0
		var all []*Waiter
		for len(data) > 0 {
			op := read()
			s := State{Available: op&1 == 0, Starting: op&6 == 6, Saturation: float64(read()%9) / 8}
			s.Paced = op&64 != 0 && !s.Starting
			s.Late = op&128 != 0 && op&32 != 0
			switch op >> 3 % 8 {
			case 0, 1, 2, 3:
				b := read()
				w := &Waiter{Priority: int32(b%4) - 1, Fairness: strings.Repeat("f", b>>2%4), Bytes: int64(read() % 64), Owner: len(all)}
				if b>>4%2 == 1 {
					w.Deadline = now.Add(time.Duration(b>>5) * time.Second)
				}
				all = append(all, w)
				want := n.arrive(w, s, now)
				if d, reason := m.Judge(w, s, now); !strings.HasPrefix(want, string(d)+" "+string(reason)) {
					t.Fatalf("judged %s %s, naively %q", d, reason, want)
				}
				if got := spell(m.Arrive(w, s, now)); got != want {
					t.Fatalf("arrive %v: %q, naively %q", w.Owner, got, want)
				}
			case 4, 5:
				odds := read()
				place := func(w *Waiter) Trial { return []Trial{Done, Done, Blocked, Full}[(odds+w.Owner.(int))%4] }
				able := func(w *Waiter) bool { return (odds>>2+w.Owner.(int))%3 > 0 }
				if got, want := m.Next(able, place), n.next(able, place); got != want {
					t.Fatalf("next: %v, naively %v", got, want)
				}
			case 6:
				if len(all) == 0 {
					continue
				}
				w := all[read()%len(all)]
				switch x := n.find(w); {
				case x != nil:
					m.Leave(w)
					n.drop(x)
				case op&1 == 1: // as if it had been admitted
					m.Leave(w)
					m.Return(w)
					n.add(&item{w: w, seq: int(w.seq)}, true)
				default:
					m.Leave(w)
				}
			default:
				now = now.Add(time.Duration(read()%3) * time.Second)
				for w := m.Due(now); w != nil; w = m.Due(now) {
					if x := n.find(w); x == nil || now.Before(w.Deadline) {
						t.Fatalf("%v is due", w.Owner)
					} else {
						n.drop(x)
					}
				}
				if i := slices.IndexFunc(n.waiting, func(x *item) bool { return !x.w.Deadline.IsZero() && !now.Before(x.w.Deadline) }); i >= 0 {
					t.Fatalf("%v is overdue", n.waiting[i].w.Owner)
				}
			}
			check(t, m)
			if m.Len() != len(n.waiting) {
				t.Fatalf("%d wait, naively %d", m.Len(), len(n.waiting))
			}
		}
		for w := m.Drain(); w != nil; w = m.Drain() {
			n.drop(n.find(w))
		}
		if check(t, m); len(n.waiting) > 0 {
			t.Fatalf("%d are lost", len(n.waiting))
		}
	})
}

func anyone(*Waiter) bool { return true }

// TestLowPrioritiesMove: with a full queue of higher priorities always there,
// the lowest get their share.
func TestLowPrioritiesMove(t *testing.T) {
	c := DefaultConfig()
	m := New(c)
	for i := range 10 {
		m.Arrive(&Waiter{Priority: -1, Owner: i}, State{Starting: true}, t0)
	}
	m.Arrive(&Waiter{Priority: 1, Owner: -1}, State{}, t0)
	low := 0
	for range 10 * (c.MaxPassed + 1) {
		m.Arrive(&Waiter{Priority: 1, Owner: -1}, State{}, t0)
		if w := m.Next(anyone, func(*Waiter) Trial { return Done }); w.Priority < 0 {
			if w.Owner != low {
				t.Fatalf("%v goes before %d", w.Owner, low)
			}
			low++
		}
	}
	if low != 10 {
		t.Errorf("%d of 10 went", low)
	}
}

// TestBoundBlockNobody: however many wait for what is busy, the next that can
// go on goes, in its turn and of whatever priority.
func TestBoundBlockNobody(t *testing.T) {
	m := New(DefaultConfig())
	bound := map[*Waiter]bool{}
	for i := range 400 {
		for _, priority := range []int32{1, 0} {
			w := &Waiter{Priority: priority, Fairness: string(rune('a' + i%3))}
			bound[w] = true
			m.Arrive(w, State{}, t0)
		}
	}
	able := func(w *Waiter) bool { return !bound[w] }
	place := func(w *Waiter) Trial { return Done }
	for i := range int32(60) { // more than are passed over
		low := &Waiter{Priority: i%2 - 1}
		m.Arrive(low, State{}, t0)
		if got := m.Next(able, place); got != low {
			t.Fatalf("round %d: %v goes on", i, got)
		}
	}
	if m.Len() != 800 || m.Next(able, place) != nil {
		t.Errorf("%d wait", m.Len())
	}
}

func TestSaturation(t *testing.T) {
	c := DefaultConfig()
	said := func(age time.Duration, waiting int, kv float64) *replica.Load {
		return &replica.Load{At: t0.Add(-age), Waiting: waiting, Running: 1, KV: kv}
	}
	for _, x := range []struct {
		name       string
		e          Endpoint
		want, pace float64
	}{
		{"unknown", Endpoint{InFlight: 100}, 0, 0},
		{"places", Endpoint{InFlight: 3, Limit: 4}, 0.75, 0.75},
		{"queue", Endpoint{Load: said(0, 10, 0.4)}, 2, 2},
		{"queue that is gathered into batches", Endpoint{Load: &replica.Load{At: t0, Waiting: 50, Batches: true}, InFlight: 50}, 0, 0},
		{"kv", Endpoint{Load: said(time.Second, 1, 0.6)}, 0.75, 0.75},
		{"kv of one with nothing to do", Endpoint{Load: &replica.Load{At: t0, KV: 1}}, 0, 0},
		{"the worse of load and places", Endpoint{Load: said(0, 1, 0), InFlight: 4, AtLoad: 4, Limit: 4}, 1, 1},
		{"more sent since", Endpoint{Load: said(0, 1, 0), InFlight: 9, AtLoad: 2}, 1.6, 1.6},
		{"some done since", Endpoint{Load: said(0, 6, 0), InFlight: 2, AtLoad: 4}, 0.8, 0.8},
		{"more sent since, and none waited", Endpoint{Load: said(0, 0, 0), InFlight: 9, AtLoad: 2}, 0, 1.4},
		{"old", Endpoint{Load: said(15*time.Second/2, 5, 0)}, 0.5, 0.5},
		{"too old", Endpoint{Load: said(10*time.Second, 50, 1), InFlight: 1, Limit: 2}, 0.5, 0.5},
		{"from the future", Endpoint{Load: said(-15*time.Second/2, 5, 0)}, 0.5, 0.5},
	} {
		if got := c.Saturation(&x.e, t0); got < x.want-1e-9 || got > x.want+1e-9 {
			t.Errorf("%s: %v, want %v", x.name, got, x.want)
		}
		if got := c.Pace(&x.e, t0); got < x.pace-1e-9 || got > x.pace+1e-9 {
			t.Errorf("%s: pace %v, want %v", x.name, got, x.pace)
		}
	}
}

func TestBudget(t *testing.T) {
	b := Budget{Ratio: 0.2, Rate: 1}
	now := t0
	take := func() (n int) {
		for b.Take(now) {
			n++
		}
		return n
	}
	if n := take(); n != 10 {
		t.Errorf("%d retries without requests, want 10", n)
	}
	for range 100 {
		b.Request(now)
	}
	if n := take(); n != 20 {
		t.Errorf("%d retries for 100 requests, want 20 more", n)
	}
	now = now.Add(7 * time.Second)
	if n := take(); n != 0 {
		t.Errorf("%d retries after 7 s, want 0", n)
	}
	now = now.Add(-time.Hour)
	if n := take(); n != 0 {
		t.Errorf("%d retries after the clock went back, want 0", n)
	}
	now = now.Add(2 * time.Hour)
	if n := take(); n != 10 {
		t.Errorf("%d retries after an hour, want 10", n)
	}
	if (&Budget{}).Take(now) {
		t.Error("the zero Budget allows a retry")
	}
}

func TestConfigValidate(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	err := Config{MaxPassed: -1, HoldAt: -1}.Validate()
	for _, field := range []string{"MaxQueue", "MaxQueueBytes", "MaxFlows", "MaxPassed", "HoldAt", "QueueDepth", "KVUsage", "LoadStale"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v lacks %s", err, field)
		}
	}
}
