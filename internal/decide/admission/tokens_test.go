package admission

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// eater is a caller that always has requests waiting, each of about size tokens.
type eater struct {
	id     string
	size   int64
	served int64 // what its requests have cost
	last   int   // the round it was served in
	gap    int   // the longest time between two, in rounds
}

// feed has a machine serve one request a round, each settled some rounds later at what
// it cost, and calls check after every round.
func feed(r *rand.Rand, m *Machine, eaters []*eater, from, to int, wrong float64, check func(round int)) {
	type running struct {
		w    *Waiter
		cost int64
		e    *eater
	}
	var under []running
	now := time.Unix(0, 0)
	for range 4 {
		for _, e := range eaters {
			m.Arrive(&Waiter{Fairness: e.id, Tokens: e.size, Owner: e}, State{}, now)
		}
	}
	for round := from; round < to; round++ {
		w := m.Next(func(*Waiter) bool { return true }, func(*Waiter) Trial { return Done })
		e := w.Owner.(*eater)
		e.gap, e.last = max(e.gap, round-e.last), round
		cost := int64(float64(e.size) * (1 + wrong*(2*r.Float64()-1)))
		e.served += cost
		under = append(under, running{w, cost, e})
		m.Arrive(&Waiter{Fairness: e.id, Tokens: e.size, Owner: e}, State{}, now)
		if len(under) > 5 {
			i := r.IntN(len(under))
			m.Settle(under[i].w, under[i].cost)
			m.Settle(under[i].w, 1<<40) // twice counts once
			under = append(under[:i], under[i+1:]...)
		}
		check(round)
	}
	for _, x := range under {
		m.Settle(x.w, x.cost)
	}
}

// TestTokensAreShared: callers whose requests differ in size by ten get the same
// number of tokens, within what is under way, however wrong estimates are; none starves.
func TestTokensAreShared(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := DefaultConfig()
		c.ByTokens = true
		m := New(c)
		large := int64(1000 + r.IntN(100_000))
		wrong := r.Float64() * 0.9
		eaters := []*eater{{id: "large", size: large}, {id: "small", size: large / 10}}
		if seed%2 == 1 {
			eaters = append(eaters, &eater{id: "middle", size: large / 3})
		}
		// Six requests are under way or not settled yet, each off by at most its size.
		bound := 8 * large
		feed(r, m, eaters, 0, 3000, wrong, func(round int) {
			for _, a := range eaters[1:] {
				if d := a.served - eaters[0].served; d > bound || d < -bound {
					t.Fatalf("seed %d, round %d: %s has %d tokens, %s %d; bound %d", seed, round, a.id, a.served, eaters[0].id, eaters[0].served, bound)
				}
			}
		})
		for _, e := range eaters {
			if e.gap > 200 {
				t.Errorf("seed %d: %s waited %d rounds", seed, e.id, e.gap)
			}
		}
	}
}

// TestNobodySavesUpTurns: who comes late gets its share from then on, and no more.
func TestNobodySavesUpTurns(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	c := DefaultConfig()
	c.ByTokens = true
	m := New(c)
	early, late := &eater{id: "early", size: 500}, &eater{id: "late", size: 500, last: 1000}
	feed(r, m, []*eater{early}, 0, 1000, 0, func(int) {})
	begun := early.served
	feed(r, m, []*eater{late}, 1000, 2000, 0, func(round int) {
		if d := late.served - (early.served - begun); d > 8*500 || d < -8*500 {
			t.Fatalf("round %d: the late one has %d tokens, the early one %d since then", round, late.served, early.served-begun)
		}
	})
}

// TestTwin: of a request that was tried twice at a time, what each try cost counts, whichever
// of them gave the answer.
func TestTwin(t *testing.T) {
	for _, costs := range [][2]int64{{700, 0}, {0, 700}, {0, 0}} {
		c := DefaultConfig()
		c.ByTokens = true
		m := New(c)
		first, twin, free := &Waiter{Fairness: "a", Tokens: 50}, &Waiter{Fairness: "a"}, &Waiter{Fairness: "a"}
		for _, w := range []*Waiter{first, {Fairness: "a", Tokens: 50}} { // the second one waits
			m.Arrive(w, State{}, time.Unix(0, 0))
		}
		m.Next(func(w *Waiter) bool { return w == first }, func(*Waiter) Trial { return Done })
		a := first.account
		if a == nil || a.served != 50 {
			t.Fatalf("the first try is charged to %+v", a)
		}
		m.Twin(free, &Waiter{}) // a request that was not charged
		m.Twin(first, twin)
		if a.served != 100 {
			t.Errorf("two tries of 50 are %d", a.served)
		}
		m.Settle(first, costs[0])
		m.Settle(twin, costs[1])
		if want := costs[0] + costs[1]; a.served != want {
			t.Errorf("tries that cost %v count %d", costs, a.served)
		}
	}
}

// TestDebtIsBounded: a request that cost beyond measure does not shut its caller out.
func TestDebtIsBounded(t *testing.T) {
	c := DefaultConfig()
	c.ByTokens, c.MaxFlows = true, 4
	m := New(c)
	next := func() string {
		return m.Next(func(*Waiter) bool { return true }, func(*Waiter) Trial { return Done }).Fairness
	}
	now := time.Unix(0, 0)
	first := &Waiter{Fairness: "big", Tokens: 10}
	for _, w := range []*Waiter{first, {Fairness: "big", Tokens: 10}, {Fairness: "other", Tokens: 1 << 16}} {
		m.Arrive(w, State{}, now)
	}
	next()
	m.Settle(first, 1<<62)
	rounds := 0
	for ; next() != "big"; rounds++ {
		m.Arrive(&Waiter{Fairness: "other", Tokens: 1 << 16}, State{}, now)
		if rounds > 2*maxLead>>16 {
			t.Fatalf("shut out for %d requests of %d tokens", rounds, 1<<16)
		}
	}
	if rounds < 2 {
		t.Errorf("the cost counted for %d requests", rounds)
	}
	for i := range 100 { // accounts are as many as flows may be
		w := &Waiter{Fairness: fmt.Sprint(i), Tokens: 1}
		m.Arrive(w, State{}, now)
		m.Leave(w)
	}
	if n := len(m.ledger.accounts); n > 2*c.MaxFlows {
		t.Errorf("%d accounts", n)
	}
}

// TestFairnessMayChange while requests wait.
func TestFairnessMayChange(t *testing.T) {
	m := New(DefaultConfig())
	now := time.Unix(0, 0)
	for _, id := range []string{"a", "a", "b", "b"} {
		m.Arrive(&Waiter{Fairness: id, Tokens: 100}, State{}, now)
	}
	c := DefaultConfig()
	for _, by := range []bool{true, false, true} {
		c.ByTokens = by
		m.Configure(c)
		if m.Next(func(*Waiter) bool { return true }, func(*Waiter) Trial { return Done }) == nil {
			t.Fatal("nobody goes on")
		}
	}
	m.Drain()
	if m.Len() != 0 {
		t.Errorf("%d wait", m.Len())
	}
}
