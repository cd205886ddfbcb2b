package picker

import (
	"fmt"
	"math"
	"slices"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// filter narrows a set of slots down, in place. It returns how many it keeps,
// which are then the first; with 0 the set is as it was.
type filter struct {
	run func(p *pick, s *step, set []int32) int
	// Which thresholds it takes.
	waiting, kv, probability bool
	// why says of an endpoint what it is left out for; "" has the filter's name. A
	// decision tells of such a filter only where it left something out.
	why string
}

func (f filter) takes(s Step) error {
	switch {
	case s.Waiting != 0 && !f.waiting:
		return fmt.Errorf("%s takes no waiting", s.Filter)
	case s.Waiting < 0:
		return fmt.Errorf("waiting is %d: write a number of requests", s.Waiting)
	case s.KV != 0 && !f.kv:
		return fmt.Errorf("%s takes no kv", s.Filter)
	case !(s.KV >= 0 && s.KV <= 1):
		return fmt.Errorf("kv is %v: write a part from 0 to 1", s.KV)
	case s.Probability != 0 && !f.probability:
		return fmt.Errorf("%s takes no probability", s.Filter)
	case !(s.Probability >= 0 && s.Probability <= 1):
		return fmt.Errorf("probability is %v: write a number from 0 to 1", s.Probability)
	}
	return nil
}

// filterDrop is the filter that drops the request.
const filterDrop = "drop"

// filterRoom is the filter that the presets with scorers begin with.
const filterRoom = "room"

// filters are what a Step can name. Those of the Inference Extension go by
// what an endpoint last said, as there, however old it is; one that never
// said anything counts as idle.
var filters = map[string]filter{
	"critical":         {run: ofRequest(func(in *Input) bool { return in.Critical })},
	"sheddable":        {run: ofRequest(func(in *Input) bool { return in.Priority < 0 })},
	filterDrop:         {run: ofRequest(func(*Input) bool { return false })},
	"waiting-below":    {waiting: true, run: each(func(p *pick, s *step, e *Endpoint) bool { return load(e).Waiting < s.Waiting })},
	"waiting-at-most":  {waiting: true, run: each(func(p *pick, s *step, e *Endpoint) bool { return load(e).Waiting <= s.Waiting })},
	"capacity-below":   {waiting: true, kv: true, run: each(capacityBelow)},
	"capacity-at-most": {waiting: true, kv: true, run: each(capacityAtMost)},
	"lora-active":      {run: each(func(p *pick, s *step, e *Endpoint) bool { return p.adapter(e).active })},
	"lora-room":        {run: each(func(p *pick, s *step, e *Endpoint) bool { return p.adapter(e).loadable })},
	"lora-low-cost":    {run: each(lowCost)},
	"lora-soft":        {probability: true, run: softAdapter},
	"least-queue":      {run: leastQueue},
	"least-kv":         {run: leastKV},
	"least-request":    {run: leastRequest},
	filterRoom:         {run: withRoom, why: "has no room in its KV memory for what it would compute of the prompt"},
}

var nothing replica.Load

// load is what the endpoint said last.
func load(e *Endpoint) *replica.Load {
	if e.Load == nil {
		return &nothing
	}
	return e.Load
}

// ofRequest keeps all or none.
func ofRequest(keep func(*Input) bool) func(*pick, *step, []int32) int {
	return func(p *pick, _ *step, set []int32) int {
		if keep(p.in) {
			return len(set)
		}
		return 0
	}
}

// each keeps the endpoints that pass.
func each(pass func(*pick, *step, *Endpoint) bool) func(*pick, *step, []int32) int {
	return func(p *pick, s *step, set []int32) int {
		kept := 0
		for _, slot := range set {
			if pass(p, s, &p.in.Endpoints[slot]) {
				set[kept] = slot
				kept++
			}
		}
		return kept
	}
}

func capacityBelow(_ *pick, s *step, e *Endpoint) bool {
	l := load(e)
	return l.Waiting < s.Waiting && l.KV < s.KV
}

func capacityAtMost(_ *pick, s *step, e *Endpoint) bool {
	l := load(e)
	return l.Waiting <= s.Waiting && l.KV <= s.KV
}

// adapterState is how an endpoint stands to the request's adapter, by what it said.
type adapterState struct {
	active   bool // works with it now: running or waiting
	loadable bool // could load one more
}

func (p *pick) adapter(e *Endpoint) adapterState {
	a := load(e).Adapters
	if a == nil {
		return adapterState{}
	}
	name := p.in.Adapter
	h := adapterState{active: slices.Contains(a.Running, name) || slices.Contains(a.Waiting, name)}
	h.loadable = active(a) < a.Max
	return h
}

// active counts the adapters that run or wait, each once.
func active(a *replica.Adapters) int {
	n := 0
	for i, name := range a.Running {
		if !slices.Contains(a.Running[:i], name) {
			n++
		}
	}
	for i, name := range a.Waiting {
		if !slices.Contains(a.Waiting[:i], name) && !slices.Contains(a.Running, name) {
			n++
		}
	}
	return n
}

func lowCost(p *pick, _ *step, e *Endpoint) bool {
	h := p.adapter(e)
	return h.active || h.loadable
}

// softAdapter keeps the endpoints that have the adapter, or now and then
// those that could load it, so that an adapter spreads. It draws only where
// there are both.
func softAdapter(p *pick, s *step, set []int32) int {
	have, could := 0, 0
	for _, slot := range set {
		switch h := p.adapter(&p.in.Endpoints[slot]); {
		case h.active:
			have++
		case h.loadable:
			could++
		}
	}
	want := have > 0
	if have > 0 && could > 0 {
		const parts = 1_000_000
		want = p.in.random(parts) < int(math.Round(s.Probability*parts))
	}
	kept := 0
	for _, slot := range set {
		h := p.adapter(&p.in.Endpoints[slot])
		if want && h.active || !want && !h.active && h.loadable {
			set[kept] = slot
			kept++
		}
	}
	return kept
}

// leastQueue keeps the lowest n-th of the range of waiting requests, with the
// integer division of the Inference Extension.
func leastQueue(p *pick, _ *step, set []int32) int {
	lo, hi := math.MaxInt, 0
	for _, slot := range set {
		q := load(&p.in.Endpoints[slot]).Waiting
		lo, hi = min(lo, q), max(hi, q)
	}
	limit := lo + (hi-lo)/len(set)
	kept := 0
	for _, slot := range set {
		if q := load(&p.in.Endpoints[slot]).Waiting; q >= lo && q <= limit {
			set[kept] = slot
			kept++
		}
	}
	return kept
}

// leastKV is leastQueue with the cache's use, in floats. What is no number
// passes no comparison.
func leastKV(p *pick, _ *step, set []int32) int {
	lo, hi := math.MaxFloat64, 0.0
	for _, slot := range set {
		kv := load(&p.in.Endpoints[slot]).KV
		if kv <= lo {
			lo = kv
		}
		if kv >= hi {
			hi = kv
		}
	}
	limit := lo + (hi-lo)/float64(len(set))
	kept := 0
	for _, slot := range set {
		if kv := load(&p.in.Endpoints[slot]).KV; kv >= lo && kv <= limit {
			set[kept] = slot
			kept++
		}
	}
	return kept
}

// leastRequest keeps the endpoints with the fewest of our own requests.
func leastRequest(p *pick, _ *step, set []int32) int {
	lo := math.MaxInt
	for _, slot := range set {
		lo = min(lo, p.in.Endpoints[slot].InFlight)
	}
	kept := 0
	for _, slot := range set {
		if p.in.Endpoints[slot].InFlight == lo {
			set[kept] = slot
			kept++
		}
	}
	return kept
}

// able keeps the endpoints that can answer, and those that have less of the prompt to
// compute than any of these. One that would compute again what another holds delays all
// who wait behind: where a pool is nearly full, more is lost by that than won.
func (p *pick) able(set []int32, can func(slot int32) bool) int {
	const may = -1 // stands for the tokens of one that can
	least := math.Inf(1)
	tokens := p.out.values[:len(set)]
	for i, slot := range set {
		tokens[i] = float64(p.uncached(slot))
		if can(slot) {
			least = min(least, tokens[i])
			tokens[i] = may
		}
	}
	if math.IsInf(least, 1) {
		return 0
	}
	kept := 0
	for i, slot := range set {
		if tokens[i] == may || tokens[i] < least {
			set[i], set[kept] = set[kept], slot
			tokens[i], tokens[kept] = tokens[kept], tokens[i]
			kept++
		}
	}
	return kept
}

// withRoom keeps the endpoints whose KV memory has room for what they would compute of
// the prompt, and those that would compute less. Where there is none, the request waits
// in the engine's queue until others have ended, and all behind it wait too.
func withRoom(p *pick, _ *step, set []int32) int {
	for _, slot := range set {
		if !p.hasRoom(slot, max(0, p.in.Tokens)) { // as hardly ever
			return p.able(set, func(slot int32) bool { return p.hasRoom(slot, p.uncached(slot)) })
		}
	}
	return len(set)
}

// hasRoom reports whether an endpoint has room for so many tokens: by what it last said,
// as far as that is fresh, and by what we have sent there that is not begun. What it
// holds for nobody is only cached.
func (p *pick) hasRoom(slot int32, tokens int64) bool {
	e := &p.in.Endpoints[slot]
	l := load(e)
	if l.Blocks <= 0 || l.BlockTokens <= 0 {
		return true
	}
	size, kv := float64(l.Blocks)*float64(l.BlockTokens), part(l.KV)
	needs := float64(max(0, e.Tokens)) + float64(tokens)
	return (1-kv)*size >= needs ||
		(1-p.freshness(p.in.Now.Sub(l.At))*kv)*size >= needs ||
		e.InFlight <= 0 && l.Running <= 0 && l.Waiting <= 0
}
