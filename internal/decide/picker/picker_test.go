package picker

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

func mustPolicy(t testing.TB, preset string) *Policy {
	t.Helper()
	c, err := Preset(preset)
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestEveryPresetPicks(t *testing.T) {
	for _, name := range Presets() {
		p := mustPolicy(t, name)
		for _, explain := range []bool{false, true} {
			out := Choice{Explain: explain}
			p.Pick(&Input{}, nil, &out)
			if out.Outcome != None || out.Slot != -1 || out.String() == "" {
				t.Errorf("%s: picks from nothing: %+v", name, out)
			}
			p.Pick(&Input{Endpoints: []Endpoint{{}, {Name: "b", Open: true}}}, nil, &out)
			if out.Outcome != Picked || out.Slot != 1 || out.Open != 1 || out.Left != 1 {
				t.Errorf("%s: %s", name, out.Reason())
			}
			if explain != strings.Contains(out.String(), `"b"`) {
				t.Errorf("%s: explain=%v prints %q", name, explain, out.String())
			}
		}
	}
}

func TestConfigsThatAreWrong(t *testing.T) {
	score := func(s Scorer) Config { return Config{Scorers: []Scorer{s}} }
	step := func(s Step) Config { return Config{Filters: []Step{s}} }
	deep := Step{Filter: "critical"}
	for range 10 {
		deep = Step{Filter: "critical", Then: []Step{deep}}
	}
	for _, c := range []struct {
		config Config
		want   string
	}{
		{score(Scorer{Name: "prefixx", Weight: 1}), `scorers[0].name: there is no "prefixx"; did you mean "prefix"?`},
		{score(Scorer{Name: "KV"}), `did you mean "kv"?`},
		{score(Scorer{Name: "zzzzzz"}), `write one of kv, latency, llm-d-kv, llm-d-prefix, llm-d-queue, lora, prefix, queue, running, session, tokens`},
		{score(Scorer{Name: strings.Repeat("x", 1e6)}), `…"; write one of`},
		{score(Scorer{Name: "kv", Weight: -1}), `scorers[0].weight is -1`},
		{score(Scorer{Name: "kv", Weight: math.NaN()}), `scorers[0].weight is NaN`},
		{score(Scorer{Name: "kv", Weight: math.Inf(1)}), `scorers[0].weight is +Inf`},
		{score(Scorer{Name: "queue", Weight: 1, Scale: math.Inf(1)}), `scorers[0].scale is +Inf`},
		{Config{Scorers: make([]Scorer, 17)}, `at most 16`},
		{step(Step{Filter: "least_queue"}), `filters[0].filter: there is no "least_queue"; did you mean "least-queue"?`},
		{step(Step{Filter: "critical", Else: []Step{{Filter: "dropp"}}}), `filters[0].else[0].filter: there is no "dropp"; did you mean "drop"?`},
		{step(Step{Filter: "drop", Waiting: 3}), `filters[0]: drop takes no waiting`},
		{step(Step{Filter: "least-kv", KV: 0.3}), `least-kv takes no kv`},
		{step(Step{Filter: "least-kv", Probability: 0.3}), `least-kv takes no probability`},
		{step(Step{Filter: "lora-soft", Probability: 1.5}), `probability is 1.5`},
		{step(Step{Filter: "capacity-below", KV: 80}), `kv is 80`},
		{step(Step{Filter: "capacity-below", Waiting: -1}), `waiting is -1`},
		{step(deep), `nest deeper than 8 levels`},
		{Config{Filters: slicesOf(65, Step{Filter: "critical"})}, `more than 64 filters`},
		{Config{Choice: "roundrobin"}, `did you mean "round-robin"?`},
		{Config{Balance: 0.5}, `balance is 0.5`},
		{Config{Balance: math.NaN()}, `balance is NaN`},
		{Config{Sole: 1}, `sole is 1`},
		{Config{Slack: -1}, `slack is -1`},
		{Config{Fresh: -time.Second}, `fresh is -1s`},
		{Config{Fresh: time.Minute}, `stale is 20s: write more than fresh, which is 1m0s`},
	} {
		p, err := New(c.config)
		if err == nil || p != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		} else if len(err.Error()) > 500 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	}
	if _, err := Preset("seed50"); err == nil || !strings.Contains(err.Error(), `did you mean "seed-50"?`) {
		t.Errorf("got %v", err)
	}
	if _, err := Preset("best"); err == nil || !strings.Contains(err.Error(), "default, predicted-latency, shared-prefixes, least-request, llm-d") {
		t.Errorf("got %v", err)
	}
	for _, c := range []IndexConfig{{}, {BlockBytes: 15, PromptBlocks: 1, EndpointBlocks: 1, MaxBlocks: 1},
		{BlockBytes: 16, EndpointBlocks: 1, MaxBlocks: 1}, {BlockBytes: 16, PromptBlocks: 1, MaxBlocks: 1},
		{BlockBytes: 16, PromptBlocks: 1, EndpointBlocks: 1}} {
		if ix, err := NewIndex(c); err == nil || ix != nil {
			t.Errorf("%+v is taken", c)
		}
	}
}

func slicesOf[T any](n int, v T) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = v
	}
	return out
}

// TestConfigIsData sends every preset through JSON.
func TestConfigIsData(t *testing.T) {
	for _, name := range Presets() {
		c, err := Preset(name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		var back Config
		if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(back, c) {
			t.Errorf("%s comes back as %+v, %v", name, back, err)
		}
		if len(name) > 20 || c.Name != name {
			t.Errorf("%s is called %s", name, c.Name)
		}
	}
}

// randomInput is any pool and request, sane or not.
func randomInput(r *rand.Rand, n int) *Input {
	in := &Input{Now: t0, Random: dice(r.Uint64()), Tokens: int64(r.IntN(9000)) - 10, Turn: r.Uint64(),
		Critical: r.IntN(2) == 0, Priority: r.IntN(5) - 2,
		Adapter: []string{"", "x", "\x00\xff{}\n", strings.Repeat("a", 1000)}[r.IntN(4)],
		Session: []string{"", "s", "\xff"}[r.IntN(3)]}
	odd := []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 0, 0.5, 1, 7, math.MaxFloat64}
	counts := []int{math.MinInt, -1, 0, 1, 2, 3, 10, math.MaxInt}
	ages := []time.Duration{0, time.Second, 9 * time.Second, time.Hour, -time.Second, -9 * time.Second, -time.Hour, math.MinInt64, math.MaxInt64}
	for range n {
		e := Endpoint{Name: fmt.Sprint(r.IntN(n)), Open: r.IntN(5) > 0, InFlight: counts[r.IntN(8)],
			AtLoad: counts[r.IntN(8)], Tokens: int64(counts[r.IntN(8)])}
		if r.IntN(5) > 0 {
			e.Load = &replica.Load{At: t0.Add(-ages[r.IntN(9)]), Waiting: counts[r.IntN(8)], Running: counts[r.IntN(8)], KV: odd[r.IntN(9)]}
		}
		if e.Load != nil && r.IntN(2) == 0 {
			e.Load.Adapters = &replica.Adapters{Running: []string{"x", in.Adapter}[:r.IntN(3)], Waiting: []string{"x"}[:r.IntN(2)], Max: counts[r.IntN(8)]}
		}
		if r.IntN(2) == 0 {
			e.Resident = &Residency{}
			e.Resident.Used("x")
			if e.Load != nil {
				e.Resident.Observe(e.Load.Adapters)
			}
		}
		in.Endpoints = append(in.Endpoints, e)
	}
	if r.IntN(4) == 0 {
		in.Allowed = Set{r.Uint64()}
	}
	if n > 0 {
		in.Tried = []int{-1, r.IntN(n), 1 << 40}[:r.IntN(4)]
	}
	return in
}

// TestWhateverComes: an endpoint is picked if and only if one may be, except
// by the trees that drop; the same draws give the same choice; explaining
// changes nothing.
func TestWhateverComes(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	ix, err := NewIndex(DefaultIndexConfig())
	if err != nil {
		t.Fatal(err)
	}
	blocks := []uint64{1, 2, 3, 4, 5, 6}
	var out Choice
	policies := map[string]*Policy{}
	for _, name := range Presets() {
		policies[name] = mustPolicy(t, name)
	}
	for range 1000 {
		in := randomInput(r, r.IntN(12))
		in.Blocks = blocks[:r.IntN(7)]
		for _, name := range Presets() {
			p := policies[name]
			seed := r.Uint64()
			pick := func(explain bool) string {
				in.Random = dice(seed)
				out.Explain = explain
				p.Pick(in, ix, &out)
				_ = out.String()
				return fmt.Sprint(out.Outcome, out.Slot, out.Matched, out.Uncached)
			}
			first := pick(false)
			mayPick := false
			for i, e := range in.Endpoints {
				tried := false
				for _, s := range in.Tried {
					tried = tried || s == i
				}
				may := e.Open && !tried && (in.Allowed == nil || in.Allowed.Has(i))
				mayPick = mayPick || may
				if out.Slot == i && !may {
					t.Fatalf("%s: slot %d is picked and must not be", name, i)
				}
			}
			if (out.Outcome == None) == mayPick || (out.Outcome == Picked) != (out.Slot >= 0) || out.Uncached < 0 {
				t.Fatalf("%s: %v, but one may be picked: %v", name, out.Outcome, mayPick)
			}
			if out.Outcome == Dropped && (in.Critical || !strings.Contains(name, "-50") && !strings.Contains(name, "-128")) {
				t.Fatalf("%s drops", name)
			}
			if again := pick(true); again != first {
				t.Fatalf("%s: %s, explained %s", name, first, again)
			}
		}
		if out.Slot >= 0 {
			ix.Sent(out.Slot, in.Blocks)
		}
	}
}

// TestGoesOnByLessThanABlock: a prompt whose blocks one endpoint alone was sent stays there
// if it goes on, be it by less than a block, and is spread if it is asked again as it was.
func TestGoesOnByLessThanABlock(t *testing.T) {
	ix, err := NewIndex(DefaultIndexConfig())
	if err != nil {
		t.Fatal(err)
	}
	in := &Input{Now: t0, Endpoints: []Endpoint{{Name: "idle", Open: true}, {Name: "busy", Open: true, InFlight: 2}}, Random: dice(1), Tokens: 2000}
	policy := mustPolicy(t, Default)
	sent := func(text []byte) {
		parts := [][]byte{text}
		in.Blocks = ix.Config().AppendBlocks(nil, Seed("m", ""), parts)
		in.Whole = ix.Config().Whole(in.Blocks, parts)
	}
	before := prompt(8000, rand.New(rand.NewPCG(5, 6))) // 31 blocks and a quarter
	sent(before)
	ix.Remember(in.Whole)
	ix.Sent(1, in.Blocks)
	for at, prompt := range [][]byte{before, slices.Concat(before, []byte(" and more"))} {
		var out Choice
		sent(prompt)
		if policy.Pick(in, ix, &out); out.Slot != at || out.matches.Longest != len(in.Blocks) {
			t.Errorf("prompt %d goes to %d; %d of %d blocks are known", at, out.Slot, out.matches.Longest, len(in.Blocks))
		}
	}
}

func TestNothingIsAllocated(t *testing.T) {
	for _, n := range []int{1, 4, 1000} {
		in, ix, text := scene(t, n, many)
		in.Session, in.Adapter = "someone", "a"
		parts := [][]byte{text}
		blocks := make([]uint64, 0, 128)
		for _, name := range Presets() {
			p := mustPolicy(t, name)
			var out Choice
			p.Pick(in, ix, &out)
			if got := testing.AllocsPerRun(20, func() {
				in.Blocks = ix.Config().AppendBlocks(blocks[:0], Seed("m", ""), parts)
				in.Whole = ix.Config().Whole(in.Blocks, parts)
				p.Pick(in, ix, &out)
			}); got != 0 {
				t.Errorf("%s among %d endpoints: %v allocations", name, n, got)
			}
			if name == Default && len(in.Blocks) != 128 {
				t.Errorf("%d blocks of 32 KiB", len(in.Blocks))
			}
		}
	}
}

// TestLoadIsCountedOnce: what metrics count and what we sent since add up.
func TestLoadIsCountedOnce(t *testing.T) {
	load := func(waiting, running int, age time.Duration) *replica.Load {
		return &replica.Load{At: t0.Add(-age), Waiting: waiting, Running: running}
	}
	for _, c := range []struct {
		name                       string
		e                          Endpoint
		waiting, running, requests float64
	}{
		{"nothing known", Endpoint{InFlight: 3}, 0, 3, 3},
		{"all ours", Endpoint{InFlight: 3, AtLoad: 3, Load: load(0, 3, 0)}, 0, 3, 3},
		{"two sent since", Endpoint{InFlight: 5, AtLoad: 3, Load: load(0, 3, 0)}, 0, 5, 5},
		{"two done since", Endpoint{InFlight: 1, AtLoad: 3, Load: load(0, 3, 0)}, 0, 1, 1},
		{"another gateway's", Endpoint{InFlight: 5, AtLoad: 3, Load: load(0, 7, 0)}, 0, 9, 9},
		{"not there yet", Endpoint{InFlight: 3, AtLoad: 3, Load: load(0, 1, 0)}, 0, 3, 3},
		{"more wait", Endpoint{InFlight: 6, AtLoad: 4, Load: load(2, 4, 0)}, 4, 4, 8},
		{"fewer wait", Endpoint{InFlight: 1, AtLoad: 4, Load: load(2, 4, 0)}, 0, 3, 3},
		// Alone, an endpoint is the mean that makes up for what is missing.
		{"half trusted", Endpoint{InFlight: 2, Load: load(4, 4, 11*time.Second)}, 6, 4, 10},
		{"of the future", Endpoint{InFlight: 2, Load: load(4, 4, -11*time.Second)}, 6, 4, 10},
		{"too old", Endpoint{InFlight: 2, Load: load(4, 4, time.Minute)}, 0, 2, 2},
		{"hostile", Endpoint{InFlight: -5, AtLoad: -5, Load: load(-5, -5, 0)}, 0, 0, 0},
	} {
		p := mustPolicy(t, Default)
		c.e.Open = true
		out := Choice{Explain: true}
		p.Pick(&Input{Now: t0, Endpoints: []Endpoint{c.e}}, nil, &out)
		got := [3]float64{out.waiting[0], out.running[0], out.requests[0]}
		want := [3]float64{c.waiting, c.running, c.requests}
		if got != want {
			t.Errorf("%s: waiting, running, all are %v, want %v", c.name, got, want)
		}
	}
}

// TestStaleMetricsFade: the older what an endpoint said of a long queue, the
// less it is avoided.
func TestStaleMetricsFade(t *testing.T) {
	p := mustPolicy(t, Default)
	var out Choice
	last := -100.0
	for _, age := range []time.Duration{0, 2, 5, 8, 12, 16, 19, 30} {
		in := &Input{Now: t0, Endpoints: []Endpoint{
			{Open: true, Load: &replica.Load{At: t0.Add(-age * time.Second), Waiting: 20, Running: 20}},
			{Open: true, Load: &replica.Load{At: t0, Waiting: 2, Running: 20}}}}
		p.Pick(in, nil, &out)
		gap := out.waiting[1] - out.waiting[0]
		if out.Slot != 1 && age < 20 {
			t.Errorf("%d s: goes to the long queue", age)
		}
		if gap < last {
			t.Errorf("%d s: the gap grew to %v", age, gap)
		}
		last = gap
	}
	if last != 0 {
		t.Errorf("a queue of 30 s ago still counts: %v", last)
	}
}

// TestWeights: a scorer of weight 0 says nothing, a heavier one decides.
func TestWeights(t *testing.T) {
	in := &Input{Now: t0, Endpoints: []Endpoint{
		{Open: true, Load: &replica.Load{At: t0, Waiting: 5, KV: 0.1}},
		{Open: true, Load: &replica.Load{At: t0, Waiting: 0, KV: 0.9}}}}
	for _, c := range []struct {
		queue, kv float64
		want      int
	}{{1, 0, 1}, {0, 1, 0}, {3, 1, 1}, {1, 3, 0}} {
		p, err := New(Config{Scorers: []Scorer{{Name: "queue", Weight: c.queue}, {Name: "kv", Weight: c.kv}}})
		if err != nil {
			t.Fatal(err)
		}
		var out Choice
		if p.Pick(in, nil, &out); out.Slot != c.want {
			t.Errorf("%+v: slot %d", c, out.Slot)
		}
	}
}

// TestBurst: identical prompts, faster than any metrics, over idle endpoints.
func TestBurst(t *testing.T) {
	for _, c := range []struct {
		endpoints, concurrency int
		most                   float64 // part of all
	}{{4, 8, 0.40}, {4, 16, 0.40}, {4, 64, 0.33}, {8, 64, 0.2}, {100, 400, 0.02}} {
		in := &Input{Now: t0, Random: dice(4), Tokens: 8192, Endpoints: make([]Endpoint, c.endpoints)}
		for i := range in.Endpoints {
			in.Endpoints[i] = Endpoint{Name: fmt.Sprint(i), Open: true, Load: &replica.Load{At: t0}}
		}
		ix, err := NewIndex(DefaultIndexConfig())
		if err != nil {
			t.Fatal(err)
		}
		in.Blocks = ix.Config().AppendBlocks(nil, 1, [][]byte{make([]byte, 32<<10)})
		p := mustPolicy(t, Default)
		var out Choice
		got := make([]int, c.endpoints)
		r := rand.New(rand.NewPCG(1, 1))
		var flying []int
		const n = 4000
		for range n {
			if len(flying) == c.concurrency { // they end in any order
				k := r.IntN(len(flying))
				in.Endpoints[flying[k]].InFlight--
				flying[k] = flying[len(flying)-1]
				flying = flying[:len(flying)-1]
			}
			p.Pick(in, ix, &out)
			got[out.Slot]++
			in.Endpoints[out.Slot].InFlight++
			ix.Sent(out.Slot, in.Blocks)
			flying = append(flying, out.Slot)
		}
		for slot, k := range got {
			if part := float64(k) / n; part > c.most {
				t.Errorf("%d endpoints, %d at once: slot %d got %.1f %%", c.endpoints, c.concurrency, slot, 100*part)
			}
		}
	}
}

// TestSessionsMoveLittle: when an endpoint goes, only its sessions move.
func TestSessionsMoveLittle(t *testing.T) {
	p := mustPolicy(t, Default)
	in := &Input{Now: t0, Endpoints: make([]Endpoint, 10)}
	for i := range in.Endpoints {
		in.Endpoints[i] = Endpoint{Name: fmt.Sprintf("10.0.0.%d:80", i), Open: true}
	}
	var out Choice
	before := map[string]int{}
	counts := make([]int, 10)
	for i := range 1000 {
		in.Session = fmt.Sprint("session", i)
		p.Pick(in, nil, &out)
		before[in.Session] = out.Slot
		counts[out.Slot]++
	}
	for slot, n := range counts {
		if n < 60 || n > 150 {
			t.Errorf("slot %d has %d of 1000 sessions", slot, n)
		}
	}
	in.Endpoints[3].Open = false
	for session, slot := range before {
		in.Session = session
		if p.Pick(in, nil, &out); slot != 3 && out.Slot != slot {
			t.Fatalf("%s moved from %d to %d", session, slot, out.Slot)
		}
	}
	// The slots' order does not matter, only the names do.
	in.Endpoints[0], in.Endpoints[9] = in.Endpoints[9], in.Endpoints[0]
	for session, slot := range before {
		in.Session = session
		if p.Pick(in, nil, &out); slot == 0 && out.Slot != 9 {
			t.Fatalf("%s moved", session)
		}
	}
}

// TestConcurrentPicks is what the package promises: many Picks at once while
// nobody writes. The race detector judges.
func TestConcurrentPicks(t *testing.T) {
	in, ix, _ := scene(t, 100, many)
	p := mustPolicy(t, Default)
	var mu sync.RWMutex
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			mine := *in
			mine.Random = dice(uint64(g))
			var out Choice
			for i := range 300 {
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
	wg.Wait()
}

func TestSet(t *testing.T) {
	var s Set
	for _, slot := range []int{0, 63, 64, 999} {
		if s.Has(slot) {
			t.Errorf("%d is in", slot)
		}
		if s = s.Add(slot); !s.Has(slot) || s.Has(slot+1) {
			t.Errorf("%d is not in", slot)
		}
	}
}
