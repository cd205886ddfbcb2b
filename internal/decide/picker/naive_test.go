package picker

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// naiveTree is the two filter trees as written down. It returns everyone the final
// draw may choose, nil when the request is dropped. seed tells the article's
// tree from that of release 0.3; soft is what its soft steps draw, true for
// the endpoints that have the adapter.
func naiveTree(seed bool, in *Input, soft bool) []int {
	has := func(e Endpoint) bool {
		return e.Load != nil && e.Load.Adapters != nil && naiveActive(e)[in.Adapter]
	}
	room := func(e Endpoint) bool {
		return e.Load != nil && e.Load.Adapters != nil && len(naiveActive(e)) < e.Load.Adapters.Max
	}
	waiting := func(e Endpoint) int {
		if e.Load == nil {
			return 0
		}
		return e.Load.Waiting
	}
	kv := func(e Endpoint) float64 {
		if e.Load == nil {
			return 0
		}
		return e.Load.KV
	}
	where := func(set []int, keep func(Endpoint) bool) []int {
		var out []int
		for _, i := range set {
			if keep(in.Endpoints[i]) {
				out = append(out, i)
			}
		}
		return out
	}
	leastQueue := func(set []int) []int {
		lo, hi := math.MaxInt, 0
		for _, i := range set {
			lo, hi = min(lo, waiting(in.Endpoints[i])), max(hi, waiting(in.Endpoints[i]))
		}
		return where(set, func(e Endpoint) bool { return waiting(e) <= lo+(hi-lo)/len(set) })
	}
	leastKV := func(set []int) []int {
		lo, hi := math.Inf(1), 0.0
		for _, i := range set {
			lo, hi = math.Min(lo, kv(in.Endpoints[i])), math.Max(hi, kv(in.Endpoints[i]))
		}
		return where(set, func(e Endpoint) bool { return kv(e) <= lo+(hi-lo)/float64(len(set)) })
	}
	or := func(some, all []int) []int {
		if len(some) > 0 {
			return some
		}
		return all
	}
	// Affinity and low cost, each with what is left when nothing is.
	softly := func(set []int) []int {
		have := where(set, has)
		could := where(set, func(e Endpoint) bool { return !has(e) && room(e) })
		if len(have) > 0 && len(could) > 0 {
			if soft {
				return have
			}
			return could
		}
		return or(have, or(could, set))
	}
	affinity, lowCost := softly, softly
	short, few := 128, 5
	if seed {
		affinity = func(set []int) []int { return or(where(set, has), or(where(set, room), set)) }
		lowCost = func(set []int) []int {
			return or(where(set, func(e Endpoint) bool { return has(e) || room(e) }), set)
		}
		short, few = 49, 4 // in whole numbers < 50 is <= 49
	}
	var open []int
	for i, e := range in.Endpoints {
		if e.Open {
			open = append(open, i)
		}
	}
	if in.Critical {
		idle := where(open, func(e Endpoint) bool { return waiting(e) <= short })
		if len(idle) > 0 {
			return leastKV(leastQueue(affinity(idle)))
		}
		return leastKV(lowCost(leastQueue(open)))
	}
	able := where(open, func(e Endpoint) bool {
		return waiting(e) <= few && (seed && kv(e) < 0.8 || !seed && kv(e) <= 0.8)
	})
	if len(able) == 0 {
		return nil
	}
	return leastKV(lowCost(leastQueue(able)))
}

func naiveActive(e Endpoint) map[string]bool {
	out := map[string]bool{}
	for _, n := range e.Load.Adapters.Running {
		out[n] = true
	}
	for _, n := range e.Load.Adapters.Waiting {
		out[n] = true
	}
	return out
}

// randomTreeInput is a small pool near the trees' thresholds.
func randomTreeInput(r *rand.Rand) *Input {
	in := &Input{Now: t0, Critical: r.IntN(2) == 0, Adapter: []string{"", "x", "y"}[r.IntN(3)]}
	around := []int{0, 0, 1, 2, 4, 5, 6, 49, 50, 51, 127, 128, 129, 1000}
	from := r.IntN(len(around))
	for range r.IntN(8) {
		e := Endpoint{Open: r.IntN(8) > 0}
		if r.IntN(8) > 0 {
			e.Load = &replica.Load{
				Waiting: around[from+r.IntN(len(around)-from)],
				KV:      []float64{0, 0.3, 0.5, 0.79, 0.8, 0.81, 1}[r.IntN(7)],
			}
			if r.IntN(4) > 0 {
				names := []string{"x", "y", "z", "x"}
				e.Load.Adapters = &replica.Adapters{Running: names[:r.IntN(4)], Waiting: names[r.IntN(4):], Max: r.IntN(5)}
			}
		}
		in.Endpoints = append(in.Endpoints, e)
	}
	return in
}

func TestTreesAreTheNaiveOnes(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	dropped, chosen := 0, 0
	trees := map[string]*Policy{"seed-50": mustPolicy(t, "seed-50"), "v0.3-128": mustPolicy(t, "v0.3-128")}
	for range 5000 {
		in := randomTreeInput(r)
		for preset, p := range trees {
			for _, soft := range []bool{true, false} {
				want := naiveTree(preset == "seed-50", in, soft)
				got := everyone(p, in, soft)
				if !slices.Equal(got, want) {
					t.Fatalf("%s chooses among %v, the naive tree among %v\n%s", preset, got, want, describe(in))
				}
				if len(want) == 0 {
					dropped++
				} else {
					chosen++
				}
			}
		}
	}
	if dropped < 1000 || chosen < 1000 {
		t.Fatalf("%d dropped and %d chosen: the inputs test nothing", dropped, chosen)
	}
}

// everyone is all endpoints a policy may choose when its soft steps draw as
// told. The final draw is the last one.
func everyone(p *Policy, in *Input, soft bool) []int {
	var out Choice
	var all []int
	for k := 0; ; k++ {
		last := 0
		try := *in
		try.Random = func(n uint32) uint32 {
			if n == 1_000_000 {
				if soft {
					return 0
				}
				return n - 1
			}
			last = int(n)
			return uint32(k)
		}
		p.Pick(&try, nil, &out)
		if out.Outcome != Picked {
			return all
		}
		all = append(all, out.Slot)
		if k+1 >= last {
			return all
		}
	}
}

func describe(in *Input) string {
	s := fmt.Sprintf("critical %v, adapter %q\n", in.Critical, in.Adapter)
	for i, e := range in.Endpoints {
		s += fmt.Sprintf("%d open %v in flight %d", i, e.Open, e.InFlight)
		if e.Load != nil {
			s += fmt.Sprintf(" %+v %+v", *e.Load, e.Load.Adapters)
		}
		s += "\n"
	}
	return s
}

// TestSoftStepsDrawOneInAThousand counts draws of a real source.
func TestSoftStepsDrawOneInAThousand(t *testing.T) {
	p := mustPolicy(t, "v0.3-128")
	in := &Input{Now: t0, Critical: true, Adapter: "x", Random: dice(9), Endpoints: []Endpoint{
		{Open: true, Load: &replica.Load{Adapters: &replica.Adapters{Running: []string{"x"}, Max: 2}}},
		{Open: true, Load: &replica.Load{Adapters: &replica.Adapters{Max: 2}}},
	}}
	var out Choice
	other := 0
	for range 50_000 {
		p.Pick(in, nil, &out)
		other += out.Slot
	}
	if other < 20 || other > 85 { // 50 ± 5 σ
		t.Errorf("%d of 50000 went where there is room, want about 50", other)
	}
}

// TestPolicyFromData builds the seed's tree from configuration alone.
func TestPolicyFromData(t *testing.T) {
	c, err := Preset("seed-50")
	if err != nil {
		t.Fatal(err)
	}
	c.Filters[0].Then[0].Waiting = 2
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Preset("seed-50")
	if err != nil || reflect.DeepEqual(again, c) {
		t.Fatal("a preset must be the caller's own")
	}
	in := &Input{Critical: true, Adapter: "x", Endpoints: []Endpoint{
		{Open: true, Load: &replica.Load{Waiting: 3, Adapters: &replica.Adapters{Running: []string{"x"}, Max: 1}}},
		{Open: true, Load: &replica.Load{Waiting: 1}}}}
	var out Choice
	if p.Pick(in, nil, &out); out.Slot != 1 {
		t.Errorf("with a lower threshold: %s", out.Reason())
	}
}
