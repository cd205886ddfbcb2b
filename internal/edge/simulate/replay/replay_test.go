package replay

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/picker"
)

// replayed runs a workload and sums it up.
func replayed(t *testing.T, cfg Config, workload string, n int, rate float64, seed uint64) Summary {
	t.Helper()
	w, err := FindWorkload(workload)
	if err != nil {
		t.Fatal(err)
	}
	trace, err := w.Generate(n, rate, seed)
	if err != nil {
		t.Fatal(err)
	}
	if w.Adapters > 0 {
		cfg.Physics.MaxAdapters = 4
	}
	cfg.Seed = seed
	r, err := Run(cfg, trace)
	if err != nil {
		t.Fatal(err)
	}
	return r.Summarize(2 * time.Second)
}

// medianP90 is the median over three seeds of the p90 of the time to the first
// token.
func medianP90(t *testing.T, policy, workload string, n int, rate float64) float64 {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Policy = policy
	var all []float64
	for seed := range uint64(3) {
		s := replayed(t, cfg, workload, n, rate, seed+1)
		all = append(all, s.First.P90)
	}
	slices.Sort(all)
	return all[1]
}

// TestDefaultAgainstLeastRequest are the goals of the default policy: time is
// virtual and every draw is seeded, so they hold or do not, everywhere alike.
func TestDefaultAgainstLeastRequest(t *testing.T) {
	for _, c := range []struct {
		workload string
		rates    []float64
		most     float64 // default's p90 ÷ least-request's
	}{{"shared-prefix", []float64{8, 24}, 1.0 / 3}, {"unique", []float64{20, 60}, 1.05}} {
		for _, rate := range c.rates {
			least, ours := medianP90(t, "least-request", c.workload, 1000, rate), medianP90(t, picker.Default, c.workload, 1000, rate)
			t.Logf("%s at %g/s: p90 %.3f s against %.3f s", c.workload, rate, ours, least)
			if ours > c.most*least {
				t.Errorf("%s at %g/s: p90 %.3f s, least-request's is %.3f s: %.2f times, want at most %.2f", c.workload, rate, ours, least, ours/least, c.most)
			}
		}
	}
}

// TestPredictedLatencyAgainstLLMD are the goals of the policy that predicts: at least
// as many answers in time as llm-d's mix of scorers has, and never much fewer than the
// default has.
func TestPredictedLatencyAgainstLLMD(t *testing.T) {
	for _, c := range []struct {
		workload string
		rate     float64
		blocks   int
	}{{"shared-prefix", 24, 0}, {"unique", 60, 0}, {"chat", 24, 0}, {"shared-prefix", 12, 2048}} {
		inTime := map[string]float64{}
		for _, policy := range []string{"llm-d", picker.Default, picker.PredictedLatency} {
			cfg := DefaultConfig()
			cfg.Policy, cfg.Target = policy, 2*time.Second
			if c.blocks > 0 {
				cfg.Physics.KVBlocks = c.blocks
			}
			var all []float64
			for seed := range uint64(3) {
				all = append(all, replayed(t, cfg, c.workload, 1000, c.rate, seed+1).InTime)
			}
			slices.Sort(all)
			inTime[policy] = all[1]
		}
		t.Logf("%s at %g/s, %d blocks: %v", c.workload, c.rate, c.blocks, inTime)
		if ours := inTime[picker.PredictedLatency]; ours < inTime["llm-d"] || ours < inTime[picker.Default]-0.02 {
			t.Errorf("%s at %g/s: in time %v", c.workload, c.rate, inTime)
		}
	}
}

// longPrompts are replayed on engines of little memory: their prompts are of up to
// 20,000 tokens, and share the first 512 where shared says so.
func longPrompts(t *testing.T, policy picker.Config, rate float64, shared bool) Quantiles {
	t.Helper()
	const beginning = 512
	random := rand.New(rand.NewPCG(1, 9))
	trace := &Trace{}
	at := 0.0
	for n := range uint64(1500) {
		at += random.ExpFloat64() / rate
		r := Request{At: time.Duration(at * 1e9), Prompt: beginning + int(1000*math.Exp(3*random.Float64())), Output: between(random, 32, 512)}
		source := n
		if shared {
			source = 0
		}
		r.Keys = text(text(nil, beginning, source), r.Prompt-beginning, 1<<32+n)
		trace.Requests = append(trace.Requests, r)
	}
	cfg := DefaultConfig()
	cfg.Engines, cfg.Picker, cfg.Physics.KVBlocks = 32, &policy, 2048
	result, err := Run(cfg, trace)
	if err != nil {
		t.Fatal(err)
	}
	return result.Summarize(2 * time.Second).First
}

func preset(t *testing.T, name string) picker.Config {
	t.Helper()
	c, err := picker.Preset(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestSharedBeginning: prompts that share their first 512 tokens, as those of one
// application do, and are long and different from there on, wait no longer than if
// they shared nothing. What they share must not lead them to the same engines.
func TestSharedBeginning(t *testing.T) {
	for _, name := range []string{picker.Default, picker.PredictedLatency} {
		policy := preset(t, name)
		alone, ours := longPrompts(t, policy, 12, false), longPrompts(t, policy, 12, true)
		t.Logf("%s: p90 %.3f s, %.3f s where nothing is shared", name, ours.P90, alone.P90)
		if ours.P90 > 1.05*alone.P90 {
			t.Errorf("%s: p90 %.3f s, %.3f s where nothing is shared", name, ours.P90, alone.P90)
		}
	}
}

// TestRoomForLongPrompts: a long prompt goes to an engine whose memory has room for it.
func TestRoomForLongPrompts(t *testing.T) {
	for _, name := range []string{picker.Default, picker.PredictedLatency} {
		policy := preset(t, name)
		ours := longPrompts(t, policy, 16, true)
		policy.Filters = nil
		without := longPrompts(t, policy, 16, true)
		t.Logf("%s: p90 %.3f s, %.3f s without the filter", name, ours.P90, without.P90)
		if ours.P90 > 0.7*without.P90 || ours.P99 > without.P99 {
			t.Errorf("%s: %+v, without the filter %+v", name, ours, without)
		}
	}
}

// TestIdenticalPromptsSpread: a burst of one prompt must not herd onto the
// endpoint that had it first.
func TestIdenticalPromptsSpread(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Engines, cfg.Concurrency = 4, 8
	s := replayed(t, cfg, "identical", 1000, 1, 1)
	if s.Answered != 1000 || s.Most > 0.4 {
		t.Errorf("%d answered, the busiest of 4 engines had %.0f %%: %+v", s.Answered, 100*s.Most, s)
	}
}

// TestEveryRequestEndsOnce counts over all presets and workloads.
func TestEveryRequestEndsOnce(t *testing.T) {
	for _, policy := range picker.Presets() {
		for _, w := range Workloads() {
			t.Run(policy+"/"+w.Name, func(t *testing.T) {
				cfg := DefaultConfig()
				cfg.Policy, cfg.Engines = policy, 3
				s := replayed(t, cfg, w.Name, 300, 30, 3)
				if s.Answered+s.Shed != 300 || s.Answered == 0 {
					t.Errorf("%d answered and %d shed of 300", s.Answered, s.Shed)
				}
				if again := replayed(t, cfg, w.Name, 300, 30, 3); !reflect.DeepEqual(again, s) {
					t.Errorf("the same again gives %+v, was %+v", again, s)
				}
			})
		}
	}
}

func TestReadMooncake(t *testing.T) {
	text := `{"timestamp": 0, "input_length": 1030, "output_length": 4, "hash_ids": [46, 47, 48]}

{"timestamp": 1500, "input_length": 520, "output_length": 0, "hash_ids": [46, 50]}
`
	trace, err := ReadMooncake("t.jsonl", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	a, b := trace.Requests[0], trace.Requests[1]
	if len(trace.Requests) != 2 || b.At != 1500*time.Millisecond || a.Prompt != 1030 || b.Output != 1 || len(a.Keys) != 64 || len(b.Keys) != 32 {
		t.Fatalf("read %+v", trace.Requests)
	}
	if !slices.Equal(a.Keys[:32], b.Keys) || a.Keys[32] == a.Keys[0] {
		t.Error("equal hash ids do not share keys, or different ones do")
	}
	trace.Scale(3)
	if trace.Requests[1].At != 500*time.Millisecond {
		t.Errorf("scaled to %v", trace.Requests[1].At)
	}
	for _, bad := range []struct{ text, want string }{
		{"", "0 requests"},
		{`{"timestamp":1,"input_length":0,"output_length":1}`, "t.jsonl:1: want"},
		{text + "{", "t.jsonl:4: unexpected end"},
		{`{"timestamp":-1,"input_length":1,"output_length":1}`, "t.jsonl:1: want"},
		{`{"timestamp":5,"input_length":1,"output_length":1}` + "\n" + `{"timestamp":4,"input_length":1,"output_length":1}`, "before the one ahead"},
		{strings.Repeat("x", maxLine+1), "longer than"},
	} {
		if _, err := ReadMooncake("t.jsonl", strings.NewReader(bad.text)); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%.60q: error %v, want %q", bad.text, err, bad.want)
		}
	}
}

// TestGatewaysThatAlternate: gateways that know nothing of each other agree
// where prompts belong, so that most of each is found in a cache.
func TestGatewaysThatAlternate(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Gateways = 4
	s := replayed(t, cfg, "chat", 2000, 16, 1)
	t.Logf("%.3f in a cache, p50 %.3f s, p90 %.3f s", s.HitRate, s.First.P50, s.First.P90)
	if s.HitRate < 0.74 { // 0.82 with one gateway, 0.66 by chance
		t.Errorf("%.3f in a cache, want at least 0.74", s.HitRate)
	}
}

// TestSmallMemory: what an engine forgets is not counted on. Its memory holds
// five of 64 system prompts.
func TestSmallMemory(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Physics.KVBlocks = 2048
	if s := replayed(t, cfg, "shared-prefix", 2000, 8, 1); s.First.P90 > 1 {
		t.Errorf("p90 %.3f s, hit rate %.3f", s.First.P90, s.HitRate)
	}
}

func TestConfigErrors(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Engines, cfg.Scrape, cfg.Policy, cfg.Concurrency, cfg.Gateways = 0, 0, "lest-request", -1, 0
	_, err := Run(cfg, &Trace{})
	for _, want := range []string{"engines is 0", "scrape is 0s", "least-request", "concurrency is -1", "gateways is 0", "0 requests"} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}

// TestGatewaysShare are the goals of sharing: two gateways that hear within a second what
// the other sent keep at least 95 % of the follow-up turns that one gateway keeps, four
// 90 %.
func TestGatewaysShare(t *testing.T) {
	kept := func(gateways int, share bool) float64 {
		cfg := DefaultConfig()
		cfg.Gateways, cfg.Share = gateways, share
		var all []float64
		for seed := range uint64(3) {
			all = append(all, replayed(t, cfg, "chat", 2000, 16, seed+1).Kept)
		}
		slices.Sort(all)
		return all[1]
	}
	one := kept(1, false)
	for n, least := range map[int]float64{2: 0.95, 4: 0.9} {
		alone, told := kept(n, false), kept(n, true)
		t.Logf("%d gateways keep %.1f %%, %.1f %% when they share; one keeps %.1f %%", n, 100*alone, 100*told, 100*one)
		if told < least*one {
			t.Errorf("%d gateways keep %.1f %% of the follow-up turns, one keeps %.1f %%", n, 100*told, 100*one)
		}
		if told < alone {
			t.Errorf("%d gateways keep more without sharing: %.1f %%", n, 100*alone)
		}
	}
}

// TestEventsOfSeveralGateways: to know what engines computed for another gateway is
// never worse than not to know it. Where memory is ample, prompts that two engines
// hold must not for that alone be spread to more, which compute them again.
func TestEventsOfSeveralGateways(t *testing.T) {
	for _, rate := range []float64{8, 12} {
		p90 := func(events bool) float64 {
			cfg := DefaultConfig()
			cfg.Gateways, cfg.Events, cfg.Physics.KVBlocks = 2, events, 8192
			var all []float64
			for seed := range uint64(3) {
				all = append(all, replayed(t, cfg, "shared-prefix", 2000, rate, seed+1).First.P90)
			}
			slices.Sort(all)
			return all[1]
		}
		without, with := p90(false), p90(true)
		t.Logf("%g requests a second: 90 %% begin within %.3f s, with events within %.3f s", rate, without, with)
		if with > without*1.1 {
			t.Errorf("%g requests a second: with events 90 %% begin within %.3f s, without within %.3f s", rate, with, without)
		}
	}
}
