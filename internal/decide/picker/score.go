package picker

import "github.com/cespare/xxhash/v2"

// scorer fills raw with a value per endpoint of the set, and says whether it
// has anything to say of this request.
type scorer struct {
	raw   func(p *pick, s *scoring, set []int32, raw []float64) bool
	scale float64 // the default
	// load says that raw is an amount of which less is better, measured
	// against the least in the set; otherwise it is a score already.
	load bool
}

// scoring is a scorer with its settings.
type scoring struct {
	Scorer
	scorer
}

// scorers are what a Scorer can name.
var scorers = map[string]scorer{
	"queue":   {raw: waiting, scale: 5, load: true},
	"running": {raw: running, scale: 8, load: true},
	"tokens":  {raw: tokens, scale: 8192, load: true},
	"kv":      {raw: cache},
	"prefix":  {raw: prefix, scale: 4},
	"lora":    {raw: lora},
	"session": {raw: session},
}

// score adds a scorer's part to the totals.
func (p *pick) score(s *scoring, column int, set []int32, total []float64) {
	raw := p.out.raw[:len(set)]
	if !s.raw(p, s, set, raw) {
		return
	}
	if !s.load {
		for i, v := range raw {
			total[i] += s.Weight * v
		}
		p.out.scored(p.Policy, column, set, raw, 0, 0)
		return
	}
	lo, hi := raw[0], raw[0]
	for _, v := range raw {
		lo, hi = min(lo, v), max(hi, v)
	}
	per := 1 / max(hi-lo, s.Scale)
	for i, v := range raw {
		total[i] += s.Weight * (1 - (v-lo)*per)
	}
	p.out.scored(p.Policy, column, set, raw, lo, per)
}

func waiting(p *pick, _ *scoring, set []int32, raw []float64) bool {
	for i := range set {
		raw[i] = p.out.est[i].waiting
	}
	return true
}

func running(p *pick, _ *scoring, set []int32, raw []float64) bool {
	for i := range set {
		raw[i] = max(0, p.out.est[i].requests-p.out.est[i].waiting)
	}
	return true
}

func tokens(p *pick, _ *scoring, set []int32, raw []float64) bool {
	for i, slot := range set {
		raw[i] = float64(max(0, p.in.Endpoints[slot].Tokens))
	}
	return true
}

func cache(p *pick, _ *scoring, set []int32, raw []float64) bool {
	for i := range set {
		raw[i] = 1 - p.out.est[i].kv
	}
	return true
}

// prefix is the part of the prompt that an endpoint was sent before, while it
// is not overloaded.
func prefix(p *pick, s *scoring, set []int32, raw []float64) bool {
	m := &p.out.matches
	if m.Longest == 0 {
		return false
	}
	per := 1 / max(float64(len(p.in.Blocks)), s.Scale)
	for i, slot := range set {
		raw[i] = 0
		if n := m.At(int(slot)); n > 0 && p.out.est[i].requests < p.out.bound {
			raw[i] = min(1, float64(n)*per)
		}
	}
	return true
}

// lora is 1 where the adapter is loaded, 0.8 where there is room, 0.6 where an
// idle one must go first, 0 where all are in use.
func lora(p *pick, _ *scoring, set []int32, raw []float64) bool {
	if p.in.Adapter == "" {
		return false
	}
	h := xxhash.Sum64String(p.in.Adapter)
	for i, slot := range set {
		e := &p.in.Endpoints[slot]
		if e.Resident != nil {
			raw[i] = e.Resident.score(h)
			continue
		}
		switch a := p.adapter(e); {
		case a.active:
			raw[i] = 1
		case a.room:
			raw[i] = 0.8
		default:
			raw[i] = 0
		}
	}
	return true
}

// session is 1 for the endpoint that rendezvous hashing gives the key among
// those that are not overloaded, else 0. When none is left, nobody is favoured.
func session(p *pick, _ *scoring, set []int32, raw []float64) bool {
	if p.in.Session == "" {
		return false
	}
	key := xxhash.Sum64String(p.in.Session)
	best, top := -1, uint64(0)
	for i, slot := range set {
		raw[i] = 0
		if p.out.est[i].requests >= p.out.bound {
			continue
		}
		h := mix(key ^ xxhash.Sum64String(p.in.Endpoints[slot].Name))
		if best < 0 || h > top {
			best, top = i, h
		}
	}
	if best < 0 {
		return false
	}
	raw[best] = 1
	return true
}
