package simulate

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// replay steps a scheduler through arrivals in virtual time until all is done,
// and returns every effect.
func replay(t *testing.T, s *Scheduler, at []time.Duration, events []Event, check func(now time.Duration)) []Effect {
	t.Helper()
	var all []Effect
	for i := 0; ; {
		next, busy := s.Next()
		var e Event = Tick{}
		switch {
		case i < len(events) && (!busy || at[i] <= next):
			e, next = events[i], at[i]
			i++
		case !busy:
			return all
		}
		all = append(all, s.Step(e, next)...)
		if check != nil {
			check(next)
		}
		if len(all) > 10_000_000 {
			t.Fatal("no end in sight")
		}
	}
}

// smallPhysics has round numbers: 1 ms per prompt token, 10 ms per output token.
func smallPhysics() Physics {
	p := DefaultPhysics()
	p.PrefillTokensPerSecond, p.DecodeTokensPerSecond, p.BatchSlowdown = 1000, 100, 0.1
	return p
}

func keys(prefix string, n int) []uint64 {
	var b []byte
	for i := range n {
		b = fmt.Appendf(b, "%-*s", BlockBytes, fmt.Sprintf("%s %d", prefix, i))
	}
	return BlockKeys("m", string(b))
}

func near(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	if d := got - want; d < -time.Microsecond || d > time.Microsecond {
		t.Errorf("%s at %v, want %v", what, got, want)
	}
}

func find(t *testing.T, effects []Effect, kind EffectKind, id uint64, tokens int) Effect {
	t.Helper()
	for _, e := range effects {
		if e.Kind == kind && e.ID == id && e.Tokens == tokens {
			return e
		}
	}
	t.Fatalf("no effect %d of %d with %d tokens in %v", kind, id, tokens, effects)
	return Effect{}
}

func TestTimesOfOneSequence(t *testing.T) {
	s := NewScheduler(smallPhysics())
	arrive := Arrive{Sequence{ID: 1, PromptTokens: 100, OutputTokens: 5}}
	all := replay(t, s, []time.Duration{time.Second}, []Event{arrive}, nil)
	near(t, "first token", find(t, all, Token, 1, 1).At, time.Second+100*time.Millisecond)
	near(t, "fifth token", find(t, all, Token, 1, 5).At, time.Second+140*time.Millisecond)
	near(t, "end", find(t, all, Finished, 1, 5).At, time.Second+140*time.Millisecond)
	if st := s.Stats(); st.BlocksUsed != 0 || st.Running != 0 || st.Totals.OutputTokens != 5 || st.Totals.PromptTokens != 100 {
		t.Errorf("left behind: %+v", st)
	}
}

// TestLateStepLosesNoTime steps once, long after everything is over: the
// effects must carry the same times as when stepped in time.
func TestLateStepLosesNoTime(t *testing.T) {
	arrive := Arrive{Sequence{ID: 1, PromptTokens: 100, OutputTokens: 5}}
	want := replay(t, NewScheduler(smallPhysics()), []time.Duration{0}, []Event{arrive}, nil)
	s := NewScheduler(smallPhysics())
	got := slices.Clone(s.Step(arrive, 0))
	got = append(got, s.Step(Tick{}, time.Hour)...)
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestBatchSlowsDown(t *testing.T) {
	var last time.Duration
	for _, n := range []int{1, 2, 8} {
		s := NewScheduler(smallPhysics())
		var events []Event
		for i := range n {
			events = append(events, Arrive{Sequence{ID: uint64(i + 1), PromptTokens: 1, OutputTokens: 11}})
		}
		all := replay(t, s, make([]time.Duration, n), events, nil)
		took := find(t, all, Token, 1, 11).At - find(t, all, Token, 1, 10).At
		near(t, "a token of the batch", took, time.Duration(float64(10*time.Millisecond)*s.physics.LoadFactor(n)))
		if took <= last {
			t.Errorf("%d sequences: %v per token, %v with fewer", n, took, last)
		}
		last = took
	}
	for n := range 4 {
		if f := (Physics{}).LoadFactor(n); f < 1 {
			t.Errorf("load factor of %d is %v", n, f)
		}
	}
}

func TestPrefixCacheShortensPrefill(t *testing.T) {
	s := NewScheduler(smallPhysics())
	seq := Sequence{PromptTokens: 160, OutputTokens: 2, Keys: keys("p", 10)}
	ttft := func(id uint64, at time.Duration) (time.Duration, int) {
		q := seq
		q.ID = id
		all := replay(t, s, []time.Duration{at}, []Event{Arrive{q}}, nil)
		return find(t, all, Token, id, 1).At - at, find(t, all, Admitted, id, 0).Cached
	}
	cold, hits := ttft(1, 0)
	if hits != 0 {
		t.Errorf("%d tokens cached at first", hits)
	}
	warm, hits := ttft(2, time.Minute)
	if hits != 144 { // the last block is computed again: it yields the token
		t.Errorf("%d tokens cached", hits)
	}
	near(t, "cold first token", cold, 160*time.Millisecond)
	near(t, "warm first token", warm, 16*time.Millisecond)
	if st := s.Stats(); st.Totals.PrefixHits != 144 || st.Totals.PrefixQueries != 320 {
		t.Errorf("totals %+v", st.Totals)
	}
}

func TestPrefixCacheEvictsTheOldest(t *testing.T) {
	p := smallPhysics()
	p.KVBlocks = 20
	s := NewScheduler(p)
	now := time.Duration(0)
	ask := func(id uint64, prefix string) int {
		now += time.Minute
		q := Sequence{ID: id, PromptTokens: 129, OutputTokens: 1, Keys: keys(prefix, 8)}
		return find(t, replay(t, s, []time.Duration{now}, []Event{Arrive{q}}, nil), Admitted, id, 0).Cached
	}
	ask(1, "a")
	ask(2, "b")
	ask(3, "a") // a is now the newer
	ask(4, "c") // needs 9 blocks: evicts b's
	if got := ask(5, "a"); got != 128 {
		t.Errorf("a: %d tokens cached", got)
	}
	if got := ask(6, "b"); got == 128 {
		t.Errorf("b was not evicted")
	}
}

func TestPreemption(t *testing.T) {
	p := smallPhysics()
	p.KVBlocks = 8
	s := NewScheduler(p)
	events := []Event{
		Arrive{Sequence{ID: 1, PromptTokens: 48, OutputTokens: 60}},
		Arrive{Sequence{ID: 2, PromptTokens: 48, OutputTokens: 60}},
	}
	all := replay(t, s, make([]time.Duration, 2), events, nil)
	preempted := slices.IndexFunc(all, func(e Effect) bool { return e.Kind == Preempted })
	if preempted < 0 || all[preempted].ID != 2 {
		t.Fatalf("want sequence 2 preempted: %v", all)
	}
	find(t, all, Finished, 1, 60)
	find(t, all, Finished, 2, 60)
}

func TestRejections(t *testing.T) {
	p := smallPhysics()
	p.KVBlocks, p.MaxSequences, p.MaxWaiting, p.MaxBatchedTokens = 4, 1, 1, 64
	s := NewScheduler(p)
	if e := s.Step(Arrive{Sequence{ID: 1, PromptTokens: 60, OutputTokens: 5}}, 0); e[0].Kind != RejectedTooLong {
		t.Errorf("got %v", e)
	}
	for id, want := range []EffectKind{Admitted, -1, RejectedFull} {
		e := s.Step(Arrive{Sequence{ID: uint64(id + 2), PromptTokens: 30, OutputTokens: 5}}, 0)
		if want < 0 && len(e) != 0 || want >= 0 && (len(e) != 1 || e[0].Kind != want) {
			t.Errorf("arrival %d: %v", id, e)
		}
	}
}

func TestAdapterSlots(t *testing.T) {
	p := smallPhysics()
	p.MaxAdapters, p.AdapterLoadTime = 1, time.Second
	s := NewScheduler(p)
	seq := func(id uint64, adapter string) Event {
		return Arrive{Sequence{ID: id, PromptTokens: 10, OutputTokens: 2, Adapter: adapter}}
	}
	all := replay(t, s, []time.Duration{0, 0, 0, 0},
		[]Event{seq(1, "a"), seq(2, "b"), seq(3, "a"), seq(4, "")}, func(time.Duration) {
			if st := s.Stats(); len(st.RunningAdapters) > 1 {
				t.Errorf("adapters running: %v", st.RunningAdapters)
			}
		})
	near(t, "a's first token, after the load", find(t, all, Token, 1, 1).At, time.Second+10*time.Millisecond)
	b, a2, base := find(t, all, Admitted, 2, 0).At, find(t, all, Admitted, 3, 0).At, find(t, all, Admitted, 4, 0).At
	if b <= a2 || b <= base {
		t.Errorf("b admitted at %v, the second a at %v, the base model at %v", b, a2, base)
	}
	if n := s.Stats().Totals.AdapterLoads; n != 2 {
		t.Errorf("%d loads", n)
	}
}

func TestRemotePrefill(t *testing.T) {
	p := smallPhysics()
	p.TransferTokensPerSecond = 10_000
	s := NewScheduler(p)
	all := replay(t, s, []time.Duration{0},
		[]Event{Arrive{Sequence{ID: 1, PromptTokens: 1001, OutputTokens: 2, RemotePrefill: true}}}, nil)
	near(t, "first token", find(t, all, Token, 1, 1).At, 101*time.Millisecond) // the pull, and one token computed
}

// TestPreemptedPullIsComputedHere: the prefiller need not keep what was pulled
// once, so the prompt is not pulled again.
func TestPreemptedPullIsComputedHere(t *testing.T) {
	p := smallPhysics()
	p.KVBlocks, p.TransferTokensPerSecond = 8, 10
	s := NewScheduler(p)
	all := replay(t, s, make([]time.Duration, 2), []Event{
		Arrive{Sequence{ID: 1, PromptTokens: 48, OutputTokens: 60}},
		Arrive{Sequence{ID: 2, PromptTokens: 48, OutputTokens: 60, RemotePrefill: true}},
	}, nil)
	find(t, all, Preempted, 2, 0)
	freed := find(t, all, Finished, 1, 60).At
	near(t, "first token", find(t, all, Token, 2, 1).At, freed+48*time.Millisecond)
}

// TestSchedulerProperties throws random loads at small engines.
func TestSchedulerProperties(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 7))
		p := smallPhysics()
		p.KVBlocks = 8 + rng.IntN(60)
		p.MaxSequences = 1 + rng.IntN(6)
		p.MaxBatchedTokens = p.MaxSequences + rng.IntN(100)
		p.MaxWaiting = 5 + rng.IntN(100)
		p.MaxAdapters = 1 + rng.IntN(2)
		at, events, asked := randomLoad(rng)
		s := NewScheduler(p)
		all := replay(t, s, at, events, func(now time.Duration) { checkInvariants(t, seed, s, now) })
		checkLives(t, seed, all, asked)
		if st := s.Stats(); st.BlocksUsed != 0 || st.Waiting+st.Running != 0 || len(s.byID) != 0 || len(st.RunningAdapters) != 0 {
			t.Fatalf("seed %d: left behind %+v", seed, st)
		}
		again := replay(t, NewScheduler(p), at, events, nil)
		if !slices.Equal(all, again) {
			t.Fatalf("seed %d: two runs differ", seed)
		}
	}
}

func randomLoad(rng *rand.Rand) (at []time.Duration, events []Event, asked map[uint64]Sequence) {
	type timed struct {
		at time.Duration
		e  Event
	}
	var load []timed
	asked = map[uint64]Sequence{}
	for id := range uint64(60) {
		prompt, output := 1+rng.IntN(200), rng.IntN(60)
		q := Sequence{
			ID: id + 1, PromptTokens: prompt, OutputTokens: output,
			Keys:          keys(fmt.Sprint(rng.IntN(4)), (prompt+output)/BlockTokens),
			Adapter:       []string{"", "a", "b", "c"}[rng.IntN(4)],
			RemotePrefill: rng.IntN(5) == 0,
		}
		asked[q.ID] = q
		when := time.Duration(rng.Int64N(int64(5 * time.Second)))
		load = append(load, timed{when, Arrive{q}})
		if rng.IntN(6) == 0 {
			load = append(load, timed{when + time.Duration(rng.Int64N(int64(time.Second))), Cancel{q.ID}})
		}
	}
	slices.SortStableFunc(load, func(a, b timed) int { return cmp.Compare(a.at, b.at) })
	for _, l := range load {
		at, events = append(at, l.at), append(events, l.e)
	}
	return at, events, asked
}

func checkInvariants(t *testing.T, seed uint64, s *Scheduler, now time.Duration) {
	t.Helper()
	st := s.Stats()
	if st.Running > s.physics.MaxSequences || st.BlocksUsed > s.physics.KVBlocks || len(st.RunningAdapters) > s.physics.MaxAdapters {
		t.Fatalf("seed %d: over a bound: %+v", seed, st)
	}
	held := map[int32]int32{}
	for _, q := range s.running {
		if q.computed+q.chunk > len(q.blocks)*BlockTokens {
			t.Fatalf("seed %d: sequence %d has %d tokens in %d blocks", seed, q.ID, q.computed+q.chunk, len(q.blocks))
		}
		for _, id := range q.blocks {
			held[id]++
		}
	}
	cached := 0
	for id, b := range s.pool.blocks {
		if b.refs != held[int32(id)] {
			t.Fatalf("seed %d: block %d counts %d holders of %d", seed, id, b.refs, held[int32(id)])
		}
		if b.keyed && s.pool.byKey[b.key] != int32(id) {
			t.Fatalf("seed %d: block %d is lost to the cache", seed, id)
		}
		if b.keyed && b.refs == 0 {
			cached++
		}
	}
	if len(held) != st.BlocksUsed || cached != st.BlocksCached {
		t.Fatalf("seed %d: %d held, %d cached; stats %+v", seed, len(held), cached, st)
	}
	checkWorkConserving(t, seed, s, now)
}

// checkWorkConserving: an engine with work that could be done is doing some.
func checkWorkConserving(t *testing.T, seed uint64, s *Scheduler, now time.Duration) {
	t.Helper()
	if s.inFlight {
		return
	}
	pulling := 0
	for _, q := range s.running {
		if q.readyAt <= now {
			t.Fatalf("seed %d: sequence %d is idle", seed, q.ID)
		}
		pulling++
	}
	if len(s.waiting) > 0 && pulling == 0 {
		t.Fatalf("seed %d: %d wait for an idle engine", seed, len(s.waiting))
	}
}

// checkLives: every sequence ends exactly once, tokens come one by one and in
// time order, and a finished sequence has all its tokens.
func checkLives(t *testing.T, seed uint64, all []Effect, asked map[uint64]Sequence) {
	t.Helper()
	ends, tokens := map[uint64]int{}, map[uint64]int{}
	var last time.Duration
	for _, e := range all {
		if e.At < last {
			t.Fatalf("seed %d: time goes back at %+v", seed, e)
		}
		last = e.At
		if ends[e.ID] > 0 {
			t.Fatalf("seed %d: after its end: %+v", seed, e)
		}
		switch e.Kind {
		case Token:
			tokens[e.ID]++
			if e.Tokens != tokens[e.ID] {
				t.Fatalf("seed %d: token %d: %+v", seed, tokens[e.ID], e)
			}
		case Finished:
			if e.Tokens != asked[e.ID].OutputTokens || tokens[e.ID] != e.Tokens {
				t.Fatalf("seed %d: finished early: %+v", seed, e)
			}
			ends[e.ID]++
		case Cancelled, RejectedFull, RejectedTooLong:
			ends[e.ID]++
		}
	}
	if len(ends) != len(asked) {
		t.Fatalf("seed %d: %d of %d sequences ended", seed, len(ends), len(asked))
	}
}

func BenchmarkReplay(b *testing.B) {
	for b.Loop() {
		s := NewScheduler(DefaultPhysics())
		for id := range uint64(200) {
			s.Step(Arrive{Sequence{ID: id + 1, PromptTokens: 1155, OutputTokens: 211}}, time.Duration(id)*180*time.Millisecond)
		}
		for at, ok := s.Next(); ok; at, ok = s.Next() {
			s.Step(Tick{}, at)
		}
	}
}
