package picker

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/decide/latency"
)

// taught is a model of endpoints that compute 10,000 tokens a second.
func taught(r *rand.Rand) *latency.Model {
	var b latency.Book
	m := &latency.Model{}
	for range 200 {
		w := latency.Work{Uncached: r.Int64N(8000), Ahead: r.Int64N(20_000)}
		l := b.First(latency.Place{}, &w, latency.Quantiles{}, float64(w.Uncached+w.Ahead)/10_000)
		m.Take(&l)
	}
	return m
}

// TestInTime: with a target the picker chooses an endpoint that is predicted to meet
// it, or one that holds more of the prompt than any such: never one that misses it
// and would compute as much.
func TestInTime(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	model := taught(r)
	var blocks []uint64 // 4,096 tokens
	for n := range uint64(64) {
		blocks = append(blocks, n+1)
	}
	var met, held, late int
	for n := range 2000 {
		ix, err := NewIndex(DefaultIndexConfig())
		if err != nil {
			t.Fatal(err)
		}
		in := Input{Blocks: blocks, Tokens: int64(len(blocks) * ix.config.BlockBytes / bytesPerToken), Latency: model,
			Target: latency.Target{First: 0.1 + r.Float64()}}
		for slot := range 2 + r.IntN(6) {
			in.Endpoints = append(in.Endpoints, Endpoint{Name: string(rune('a' + slot)), Open: true, Tokens: r.Int64N(10_000)})
			ix.Sent(slot, blocks[:r.IntN(len(blocks)+1)])
		}
		policy, err := New(Config{Scorers: []Scorer{{Name: "prefix", Weight: float64(1 + n%2)}, {Name: "tokens", Weight: 1.5}}})
		if err != nil {
			t.Fatal(err)
		}
		var out Choice
		policy.Pick(&in, ix, &out)

		// The naive one: who may be chosen.
		var matches Matches
		ix.Match(blocks, &matches)
		var want []int
		least, some := int64(1<<62), false
		computes, meets := make([]int64, len(in.Endpoints)), make([]bool, len(in.Endpoints))
		for slot := range in.Endpoints {
			cached := int64(matches.At(slot) * ix.config.BlockBytes / bytesPerToken)
			computes[slot] = in.Tokens - cached
			p, ok := model.Predict(slot, &latency.Work{Uncached: computes[slot], Cached: cached, Ahead: in.Endpoints[slot].Tokens})
			if !ok {
				t.Fatal("the model predicts nothing")
			}
			if meets[slot] = p.Meets(in.Target); meets[slot] {
				some, least = true, min(least, computes[slot])
			}
		}
		for slot := range in.Endpoints {
			if !some || meets[slot] || computes[slot] < least {
				want = append(want, slot)
			}
		}
		if !slices.Contains(want, out.Slot) || out.Left != len(want) {
			t.Fatalf("%d: chose %d of %d, want one of %v: computes %v, meets %v", n, out.Slot, out.Left, want, computes, meets)
		}
		switch {
		case !some:
			late++
		case meets[out.Slot]:
			met++
		default:
			held++
		}
	}
	if met < 50 || held < 50 || late < 50 {
		t.Errorf("%d met the target, %d hold more of the prompt, %d of none that meets it: the cases are one-sided", met, held, late)
	}
}

// TestRoom: the filter keeps the endpoints with room for what they would compute of the
// prompt, and those that would compute less, or all.
func TestRoom(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var blocks []uint64 // 4,096 tokens
	for n := range uint64(64) {
		blocks = append(blocks, n+1)
	}
	policy, err := New(Config{Filters: []Step{{Filter: "room"}}, Scorers: []Scorer{{Name: "prefix", Weight: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	var some, all, less int
	for n := range 2000 {
		ix, err := NewIndex(DefaultIndexConfig())
		if err != nil {
			t.Fatal(err)
		}
		in := Input{Now: t0, Blocks: blocks, Tokens: 4096}
		for slot := range 2 + r.IntN(6) {
			e := Endpoint{Name: string(rune('a' + slot)), Open: true, InFlight: r.IntN(2), Tokens: r.Int64N(3000)}
			if r.IntN(4) > 0 {
				e.Load = &replica.Load{At: t0, KV: float64(r.IntN(101)) / 100, Running: r.IntN(2), Waiting: r.IntN(2), Blocks: r.IntN(3) * 500, BlockTokens: 16}
			}
			in.Endpoints = append(in.Endpoints, e)
			ix.Sent(slot, blocks[:r.IntN(len(blocks)+1)])
		}
		var out Choice
		policy.Pick(&in, ix, &out)

		// The naive one.
		var matches Matches
		ix.Match(blocks, &matches)
		least := int64(math.MaxInt64)
		fits, computes := make([]bool, len(in.Endpoints)), make([]int64, len(in.Endpoints))
		for slot, e := range in.Endpoints {
			computes[slot] = 4096 - int64(64*matches.At(slot))
			fits[slot] = true
			if l := e.Load; l != nil && l.Blocks > 0 && e.InFlight+l.Running+l.Waiting > 0 {
				used := int64(math.Ceil(l.KV * float64(l.Blocks*l.BlockTokens)))
				fits[slot] = used+e.Tokens+computes[slot] <= int64(l.Blocks*l.BlockTokens)
			}
			if fits[slot] {
				least = min(least, computes[slot])
			}
		}
		var want []int
		for slot := range in.Endpoints {
			if fits[slot] || computes[slot] < least {
				want = append(want, slot)
			}
		}
		if !slices.Contains(want, out.Slot) || out.Left != len(want) {
			t.Fatalf("%d: chose %d of %d, want one of %v: computes %v, has room %v", n, out.Slot, out.Left, want, computes, fits)
		}
		switch {
		case least == math.MaxInt64:
			all++
		case !fits[out.Slot]:
			less++
		case len(want) < len(in.Endpoints):
			some++
		}
	}
	if some < 100 || less < 50 || all < 5 {
		t.Errorf("%d times some had room, %d times one was chosen that computes less, %d times none had room", some, less, all)
	}
}
