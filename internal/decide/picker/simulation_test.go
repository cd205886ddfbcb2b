package picker

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// engine is a replica in virtual time: it takes requests first come first
// served, at most maxRunning at once, computes the uncached part of one prompt
// at a time, and decodes all at once, the slower the more there are. Its cache
// is least recently used and bounded.
type engine struct {
	queue   []*simRequest
	running int
	free    float64 // when the prefill of those that run is through
	cache   map[uint64]int
	clock   int
}

const (
	maxRunning  = 32
	cacheBlocks = 6000
	prefillRate = 10_000.0 // tokens a second
	decodeStep  = 0.02     // seconds a token, doubled at maxRunning
)

type simRequest struct {
	at     float64
	blocks []uint64
	tokens int
	output int
	// What the gateway and the engine made of it.
	slot     int
	uncached int64
	first    float64
}

// hits counts and renews the leading blocks that are cached, and caches all.
func (e *engine) hits(blocks []uint64) int {
	n := 0
	for n < len(blocks) && e.cache[blocks[n]] != 0 {
		n++
	}
	for _, h := range slices.Backward(blocks) {
		e.clock++
		e.cache[h] = e.clock
	}
	if len(e.cache) > cacheBlocks {
		type entry struct {
			hash uint64
			used int
		}
		var all []entry
		for h, u := range e.cache {
			all = append(all, entry{h, u})
		}
		slices.SortFunc(all, func(a, b entry) int { return a.used - b.used })
		for _, x := range all[:len(all)-cacheBlocks*9/10] {
			delete(e.cache, x.hash)
		}
	}
	return n
}

type simEvent struct {
	at   float64
	kind int // 0 arrival, 1 first token, 2 done, 3 scrape
	r    *simRequest
	slot int
	seq  int
}

type simEvents []simEvent

func (s simEvents) Len() int { return len(s) }
func (s simEvents) Less(i, j int) bool {
	return s[i].at < s[j].at || s[i].at == s[j].at && s[i].seq < s[j].seq
}
func (s simEvents) Swap(i, j int) { s[i], s[j] = s[j], s[i] }
func (s *simEvents) Push(x any)   { *s = append(*s, x.(simEvent)) }
func (s *simEvents) Pop() any {
	old := *s
	x := old[len(old)-1]
	*s = old[:len(old)-1]
	return x
}

// simulation is a gateway, its engines, and what is to happen.
type simulation struct {
	policy  *Policy
	in      Input
	ix      *Index
	out     Choice
	engines []*engine
	events  simEvents
	seq     int
	uncached,
	tokens int
}

func (s *simulation) at(t float64, kind, slot int, r *simRequest) {
	s.seq++
	heap.Push(&s.events, simEvent{t, kind, r, slot, s.seq})
}

// run returns the times to the first token, sorted.
func (s *simulation) run(requests []*simRequest, scrape float64) []float64 {
	for _, r := range requests {
		s.at(r.at, 0, 0, r)
	}
	end := requests[len(requests)-1].at
	for t := 0.0; t < end; t += scrape {
		for slot := range s.engines {
			s.at(t+scrape*float64(slot)/float64(len(s.engines)), 3, slot, nil)
		}
	}
	for s.events.Len() > 0 {
		e := heap.Pop(&s.events).(simEvent)
		switch e.kind {
		case 0:
			s.arrive(e.r, e.at)
		case 1:
			s.in.Endpoints[e.r.slot].Tokens -= e.r.uncached
		case 2:
			s.in.Endpoints[e.r.slot].InFlight--
			s.engines[e.r.slot].running--
			s.start(e.r.slot, e.at)
		case 3:
			g, p := s.engines[e.slot], &s.in.Endpoints[e.slot]
			p.Load = &replica.Load{At: t0.Add(time.Duration(e.at * 1e9)), Waiting: len(g.queue), Running: g.running,
				KV: min(1, float64(g.running)/maxRunning)}
			p.AtLoad = p.InFlight
		}
	}
	var out []float64
	for _, r := range requests {
		out = append(out, r.first-r.at)
	}
	slices.Sort(out)
	return out
}

func (s *simulation) arrive(r *simRequest, now float64) {
	s.in.Now = t0.Add(time.Duration(now * 1e9))
	s.in.Blocks, s.in.Tokens = r.blocks, int64(r.tokens)
	s.policy.Pick(&s.in, s.ix, &s.out)
	s.in.Turn++
	r.slot, r.uncached = s.out.Slot, s.out.Uncached
	s.in.Endpoints[r.slot].InFlight++
	s.in.Endpoints[r.slot].Tokens += r.uncached
	s.ix.Sent(r.slot, r.blocks)
	s.engines[r.slot].queue = append(s.engines[r.slot].queue, r)
	s.start(r.slot, now)
}

// start lets what waits at an engine run.
func (s *simulation) start(slot int, now float64) {
	e := s.engines[slot]
	for len(e.queue) > 0 && e.running < maxRunning {
		r := e.queue[0]
		e.queue = e.queue[1:]
		e.running++
		missing := r.tokens - 64*e.hits(r.blocks)
		s.uncached += missing
		s.tokens += r.tokens
		e.free = max(e.free, now) + 0.01 + float64(missing)/prefillRate
		r.first = e.free
		s.at(r.first, 1, slot, r)
		s.at(r.first+float64(r.output)*decodeStep*(1+float64(e.running)/maxRunning), 2, slot, r)
	}
}

// workload makes n requests that come at a rate per second.
type workload func(r *rand.Rand, n int, rate float64) []*simRequest

func chain(blocks []uint64, n int, r *rand.Rand) []uint64 {
	blocks = slices.Clone(blocks)
	for range n {
		blocks = append(blocks, r.Uint64())
	}
	return blocks
}

func arrivals(r *rand.Rand, n int, rate float64, next func(i int) *simRequest) []*simRequest {
	var out []*simRequest
	now := 0.0
	for i := range n {
		now += r.ExpFloat64() / rate
		q := next(i)
		q.at, q.tokens, q.output = now, len(q.blocks)*64+r.IntN(64), 20+int(r.ExpFloat64()*80)
		out = append(out, q)
	}
	return out
}

var workloads = map[string]workload{
	// Conversations: each turn brings back all that was said before.
	"conversations": func(r *rand.Rand, n int, rate float64) []*simRequest {
		histories := make([][]uint64, 120)
		return arrivals(r, n, rate, func(int) *simRequest {
			i := r.IntN(len(histories))
			if len(histories[i]) > 100 || histories[i] == nil {
				histories[i] = chain(nil, 10, r)
			}
			histories[i] = chain(histories[i], 3+r.IntN(6), r)
			return &simRequest{blocks: histories[i]}
		})
	},
	// A few system prompts, one of them in half of all requests.
	"shared prompts": func(r *rand.Rand, n int, rate float64) []*simRequest {
		systems := make([][]uint64, 12)
		for i := range systems {
			systems[i] = chain(nil, 60, r)
		}
		return arrivals(r, n, rate, func(int) *simRequest {
			i := min(int(r.ExpFloat64()*1.5), len(systems)-1)
			return &simRequest{blocks: chain(systems[i], 1+r.IntN(10), r)}
		})
	},
	// Nothing in common, lengths over three orders of magnitude.
	"nothing shared": func(r *rand.Rand, n int, rate float64) []*simRequest {
		return arrivals(r, n, rate, func(int) *simRequest {
			return &simRequest{blocks: chain(nil, int(math.Exp(r.Float64()*5.5)), r)}
		})
	},
}

// usual is the composition that is usual elsewhere: it bounds no affinity and
// counts no tokens on the way.
func usual() Config {
	return Config{Scorers: []Scorer{{Name: "queue", Weight: 2}, {Name: "kv", Weight: 2}, {Name: "prefix", Weight: 3}}, Balance: 1e6, Sole: 1e6}
}

// TestDefaultIsBetter compares policies over engines with true physics. The
// rates are such that engines are busy, and beyond what they can do without
// their caches.
func TestDefaultIsBetter(t *testing.T) {
	const n, engines = 2000, 8
	for _, c := range []struct {
		workload string
		rate     float64
		ratio    float64 // of default's mean to least-request's, at most
	}{
		{"conversations", 10, 0.4}, {"shared prompts", 10, 1}, {"nothing shared", 10, 0.9},
		{"conversations", 22, 0.4}, {"shared prompts", 22, 1}, {"nothing shared", 22, 0.7},
	} {
		mean := map[string]float64{}
		for _, name := range []string{"round-robin", "least-request", "queue+kv+prefix", "seed-50", Default} {
			p := (*Policy)(nil)
			if name == "queue+kv+prefix" {
				var err error
				if p, err = New(usual()); err != nil {
					t.Fatal(err)
				}
			} else {
				p = mustPolicy(t, name)
			}
			ix, err := NewIndex(DefaultIndexConfig())
			if err != nil {
				t.Fatal(err)
			}
			s := &simulation{policy: p, ix: ix, in: Input{Random: dice(11), Critical: true}}
			for i := range engines {
				s.engines = append(s.engines, &engine{cache: map[uint64]int{}})
				s.in.Endpoints = append(s.in.Endpoints, Endpoint{Name: fmt.Sprint(i), Open: true})
			}
			times := s.run(workloads[c.workload](rand.New(rand.NewPCG(1, 2)), n, c.rate), 0.5)
			for _, v := range times {
				mean[name] += v / n
			}
			t.Logf("%-14s %2.0f/s %-15s time to first token: mean %6.3f s, p50 %6.3f, p99 %6.3f; %2.0f %% of tokens cached",
				c.workload, c.rate, name, mean[name], times[n/2], times[n*99/100], 100-100*float64(s.uncached)/float64(s.tokens))
		}
		for name, m := range mean {
			if mean[Default] > m*1.05 {
				t.Errorf("%s at %v/s: %s has a mean of %.3f s, default %.3f s", c.workload, c.rate, name, m, mean[Default])
			}
		}
		if r := mean[Default] / mean["least-request"]; r > c.ratio {
			t.Errorf("%s at %v/s: %.2f of least-request's mean", c.workload, c.rate, r)
		}
	}
}
