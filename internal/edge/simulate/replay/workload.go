package replay

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/simulate"
)

// Workload makes traces.
type Workload struct {
	Name    string
	Summary string
	// Adapters is how many LoRA adapters its requests ask for.
	Adapters int
	// fill completes the n-th request.
	fill func(r *Request, n int, random *rand.Rand)
}

// Workloads are the synthetic ones.
func Workloads() []Workload {
	return []Workload{
		{Name: "shared-prefix", Summary: "64 long system prompts of 6,000 tokens, short questions behind them", fill: sharedPrefix},
		{Name: "chat", Summary: "conversations of several turns, each turn repeating those before it", fill: nil},
		{Name: "unique", Summary: "prompts that share nothing", fill: unique},
		{Name: "lora", Summary: "32 LoRA adapters, some asked for far more often than others", Adapters: 32, fill: multiLoRA},
		{Name: "identical", Summary: "one prompt of 2,000 tokens, again and again", fill: identical},
	}
}

// FindWorkload finds one by its name.
func FindWorkload(name string) (Workload, error) {
	all := Workloads()
	i := slices.IndexFunc(all, func(w Workload) bool { return w.Name == name })
	if i < 0 {
		var names []string
		for _, w := range all {
			names = append(names, w.Name)
		}
		return Workload{}, fmt.Errorf("there is no workload %q; there are %s", name, strings.Join(names, ", "))
	}
	return all[i], nil
}

// Generate makes a trace of n requests that come at rate a second, as many
// callers who know nothing of each other do (a Poisson process). A tenth is
// Critical, three tenths are Sheddable. Equal arguments give equal traces.
func (w Workload) Generate(n int, rate float64, seed uint64) (*Trace, error) {
	if n < 1 || n > maxRequests || !(rate > 0) {
		return nil, fmt.Errorf("%d requests at %v a second: want 1 to %d, at more than 0", n, rate, maxRequests)
	}
	random := rand.New(rand.NewPCG(seed, mix(uint64(len(w.Name)), 7)))
	t := &Trace{Requests: make([]Request, n)}
	at := 0.0
	for i := range t.Requests {
		r := &t.Requests[i]
		at += random.ExpFloat64() / rate
		r.At = time.Duration(at * float64(time.Second))
		switch random.IntN(10) {
		case 0:
			r.Priority = 1
		case 1, 2, 3:
			r.Priority = -1
		}
	}
	if w.fill == nil {
		chat(t, random)
		return t, nil
	}
	for i := range t.Requests {
		w.fill(&t.Requests[i], i, random)
	}
	return t, nil
}

// text appends the keys of n more tokens, all of one source: equal sources
// behind equal prefixes give equal keys.
func text(keys []uint64, tokens int, source uint64) []uint64 {
	last := uint64(0)
	if len(keys) > 0 {
		last = keys[len(keys)-1]
	}
	for i := range tokens / simulate.BlockTokens {
		last = mix(last, mix(source, uint64(i)))
		keys = append(keys, last)
	}
	return keys
}

// between draws from low to high.
func between(random *rand.Rand, low, high int) int { return low + random.IntN(high-low+1) }

const (
	systemPrompts = 64
	systemTokens  = 6000
)

func sharedPrefix(r *Request, n int, random *rand.Rand) {
	question := between(random, 64, 512)
	r.Prompt, r.Output = systemTokens+question, between(random, 32, 256)
	r.Keys = text(text(nil, systemTokens, uint64(random.IntN(systemPrompts))), question, 1<<32+uint64(n))
}

func unique(r *Request, n int, random *rand.Rand) {
	r.Prompt, r.Output = between(random, 256, 2048), between(random, 32, 256)
	r.Keys = text(nil, r.Prompt, 1<<32+uint64(n))
}

func multiLoRA(r *Request, n int, random *rand.Rand) {
	r.Prompt, r.Output = between(random, 128, 1024), between(random, 32, 256)
	r.Keys = text(nil, r.Prompt, 1<<32+uint64(n))
	// Zipf's law: the k-th adapter is asked for in proportion to 1/k.
	zipf := rand.NewZipf(random, 1.1, 1, 31)
	r.Adapter = fmt.Sprintf("adapter-%02d", zipf.Uint64())
}

func identical(r *Request, _ int, _ *rand.Rand) {
	r.Prompt, r.Output = 2000, 64
	r.Keys = text(nil, r.Prompt, 1)
}

// chat gives the arrivals to conversations: each goes on after a pause, with
// all that was said before in its prompt.
func chat(t *Trace, random *rand.Rand) {
	type conversation struct {
		keys   []uint64
		tokens int
		turns  int
		ready  time.Duration
	}
	var going []*conversation
	for n := range t.Requests {
		r := &t.Requests[n]
		at := slices.IndexFunc(going, func(c *conversation) bool { return c.ready <= r.At })
		var c *conversation
		if at >= 0 && random.IntN(4) > 0 {
			c = going[at]
			going = slices.Delete(going, at, at+1)
		} else {
			c = &conversation{keys: text(nil, 512, uint64(random.IntN(8))), tokens: 512}
		}
		question, answer := between(random, 32, 256), between(random, 64, 256)
		r.Prompt, r.Output = c.tokens+question, answer
		c.keys = text(c.keys, question+answer, 1<<32+uint64(n))
		r.Keys = slices.Clone(c.keys)
		c.tokens = len(c.keys) * simulate.BlockTokens
		if c.turns++; c.turns < 8 {
			c.ready = r.At + time.Duration(between(random, 10, 60))*time.Second
			going = append(going, c)
		}
	}
}
