package picker

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// t0 has a monotonic clock, as times in use do.
var t0 = time.Now()

func dice(seed uint64) func(uint32) uint32 { return rand.New(rand.NewPCG(seed, 1)).Uint32N }

// pool is n endpoints with different loads, the adapters among them. One in 20
// has said nothing for a while.
func pool(n int, r *rand.Rand) []Endpoint {
	out := make([]Endpoint, n)
	for i := range out {
		age := time.Duration(r.IntN(1000)) * time.Millisecond
		if i%20 == 7 {
			age *= 10
		}
		out[i] = Endpoint{Name: fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250), Open: true,
			InFlight: r.IntN(9), AtLoad: r.IntN(9), Tokens: int64(r.IntN(9000)),
			Load: &replica.Load{At: t0.Add(-age),
				Waiting: r.IntN(4), Running: r.IntN(20), KV: r.Float64(), Blocks: 4096, BlockTokens: 16,
				Adapters: &replica.Adapters{Running: []string{"a", fmt.Sprint(i % 7)}, Max: 4}},
			Resident: &Residency{}}
		out[i].Resident.Observe(out[i].Load.Adapters)
	}
	return out
}

// prompt is n random bytes.
func prompt(n int, r *rand.Rand) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// scene is a pool, an index in which the prompts are spread, and a request
// whose prompt is 32 KB.
func scene(t testing.TB, n int, cached func(slot, prompt int) bool) (*Input, *Index, []byte) {
	t.Helper()
	r := rand.New(rand.NewPCG(3, 4))
	c := DefaultIndexConfig()
	ix, err := NewIndex(c)
	if err != nil {
		t.Fatal(err)
	}
	in := &Input{Now: t0, Endpoints: pool(n, r), Random: dice(1), Tokens: 8192}
	text := prompt(32<<10, r)
	in.Blocks = c.AppendBlocks(nil, Seed("m", ""), [][]byte{text})
	for p := range 50 {
		other := c.AppendBlocks(nil, Seed("m", ""), [][]byte{text[:p*600], prompt(8<<10, r)})
		for slot := range n {
			if cached(slot, p) {
				ix.Sent(slot, other)
			}
		}
	}
	return in, ix, text
}

func some(slot, prompt int) bool { return slot%50 == prompt }
func many(slot, prompt int) bool { return slot*31%50 < prompt }

func BenchmarkPick(b *testing.B) {
	for _, n := range []int{4, 100, 1000} {
		for name, cached := range map[string]func(int, int) bool{"some": some, "many": many} {
			in, ix, text := scene(b, n, cached)
			for _, preset := range []string{Default, "seed-50", "v0.3-128", "least-request", "round-robin"} {
				b.Run(fmt.Sprintf("%s/endpoints=%d/cached=%s", preset, n, name), func(b *testing.B) {
					p := mustPolicy(b, preset)
					var out Choice
					var blocks []uint64
					parts := [][]byte{text}
					seed := Seed("m", "")
					b.ReportAllocs()
					for b.Loop() {
						blocks = ix.Config().AppendBlocks(blocks[:0], seed, parts)
						in.Blocks = blocks
						p.Pick(in, ix, &out)
					}
				})
			}
		}
	}
}

func BenchmarkBlocks(b *testing.B) {
	text := prompt(32<<10, rand.New(rand.NewPCG(3, 4)))
	c := DefaultIndexConfig()
	var blocks []uint64
	parts := [][]byte{text[:1000], text[1000:20000], text[20000:]}
	b.SetBytes(32 << 10)
	b.ReportAllocs()
	for b.Loop() {
		blocks = c.AppendBlocks(blocks[:0], 1, parts)
	}
}

func BenchmarkMatch(b *testing.B) {
	for name, cached := range map[string]func(int, int) bool{"some": some, "many": many} {
		b.Run("endpoints=1000/cached="+name, func(b *testing.B) {
			in, ix, _ := scene(b, 1000, cached)
			var m Matches
			for b.Loop() {
				ix.Match(in.Blocks, &m)
			}
		})
	}
}

// BenchmarkConcurrent is how an owner with a lock of many readers uses it:
// one prompt in ten is noted.
func BenchmarkConcurrent(b *testing.B) {
	in, ix, _ := scene(b, 100, many)
	p := mustPolicy(b, Default)
	var mu sync.RWMutex
	b.RunParallel(func(pb *testing.PB) {
		mine := *in
		mine.Random = dice(2)
		var out Choice
		for i := 0; pb.Next(); i++ {
			mu.RLock()
			p.Pick(&mine, ix, &out)
			mu.RUnlock()
			if i%10 == 0 {
				mu.Lock()
				ix.Sent(out.Slot, mine.Blocks)
				mu.Unlock()
			}
		}
	})
}

// BenchmarkShared is a prefix of 256 blocks that 1,000 endpoints know.
func BenchmarkShared(b *testing.B) {
	c := DefaultIndexConfig()
	blocks := c.AppendBlocks(nil, 1, [][]byte{prompt(256*c.BlockBytes, rand.New(rand.NewPCG(1, 1)))})
	ix, err := NewIndex(c)
	if err != nil {
		b.Fatal(err)
	}
	for slot := range 1000 {
		ix.Sent(slot, blocks)
	}
	b.Run("match", func(b *testing.B) {
		var m Matches
		for b.Loop() {
			ix.Match(blocks, &m)
		}
		if m.Longest != 256 || m.At(999) != 256 {
			b.Fatal("no match")
		}
	})
	b.Run("sent", func(b *testing.B) {
		i := 0
		for b.Loop() {
			ix.Sent(i%1000, blocks)
			i++
		}
	})
	b.Logf("%d bytes", ix.Bytes())
}
