package picker

import "github.com/cespare/xxhash/v2"

// scorer gives a value per endpoint of the set; none when it has nothing to
// say of this request.
type scorer struct {
	values func(p *pick, s *scoring, set []int32) []float64
	scale  float64 // the default
	// load reports that the values are amounts of which less is better, measured
	// against the least in the set; otherwise they are scores already.
	load bool
	// ofLoad reports that it rates how busy endpoints are.
	ofLoad bool
	label  string // what explanations call the values; "" is the scorer's name
}

// scoring is a scorer with its settings.
type scoring struct {
	Scorer
	scorer
}

// scorers are what a Scorer can name.
var scorers = map[string]scorer{
	"queue":   {values: func(p *pick, _ *scoring, _ []int32) []float64 { return p.out.waiting }, scale: 5, load: true, ofLoad: true},
	"running": {values: func(p *pick, _ *scoring, _ []int32) []float64 { return p.out.running }, scale: 8, load: true, ofLoad: true},
	"tokens":  {values: func(p *pick, _ *scoring, _ []int32) []float64 { return p.out.tokens }, scale: 8192, load: true, ofLoad: true},
	"kv":      {values: unused, ofLoad: true, label: "free kv"},
	"prefix":  {values: prefix, scale: 4},
	"lora":    {values: lora},
	"session": {values: session},
	"latency": {values: predicted, scale: 0.5, load: true, ofLoad: true, label: "seconds"},

	// Those of llm-d's router: by what an endpoint last said alone.
	"llm-d-queue":  {values: saidWaiting, load: true},
	"llm-d-kv":     {values: saidKV},
	"llm-d-prefix": {values: matchedPart},
}

// score adds a scorer's part to the totals.
func (p *pick) score(s *scoring, column int, set []int32, total []float64) {
	values := s.values(p, s, set)
	if values == nil {
		return
	}
	values = values[:len(total)]
	if !s.load {
		for i, v := range values {
			total[i] += s.Weight * v
		}
		p.out.scored(p.Policy, column, set, values, 0, 0)
		return
	}
	lo, hi := values[0], values[0]
	for _, v := range values {
		if v < lo {
			lo = v
		} else if v > hi {
			hi = v
		}
	}
	per := 1.0
	if spread := max(hi-lo, s.Scale); spread > 0 {
		per = 1 / spread
	}
	p.out.scored(p.Policy, column, set, values, lo, per)
	if lo == hi {
		p.out.same += s.Weight
		return
	}
	w := s.Weight * per
	for i, v := range values {
		total[i] += s.Weight - (v-lo)*w
	}
}

func unused(p *pick, _ *scoring, set []int32) []float64 {
	values := p.out.values[:len(set)]
	for i, v := range p.out.kv[:len(set)] {
		values[i] = 1 - v
	}
	return values
}

// prefix is the part of the prompt that an endpoint was sent before, the less
// the more it is loaded.
func prefix(p *pick, s *scoring, set []int32) []float64 {
	m := &p.out.matches
	if m.Longest == 0 {
		return nil
	}
	// A prompt that is known to its end is what many ask for, and had better
	// spread. What one alone knows, and that goes on, is a conversation. Of what
	// several know as far, the more do, the more must be many's: two may be of two
	// gateways, or of a moment when one was busy, and a third has to compute it.
	sole := p.config.Balance
	if m.Longest < len(p.in.Blocks) || !p.index.remembers(p.in.Whole) {
		sole += (p.config.Sole - p.config.Balance) / float64(2*m.Most-1)
	}
	per := 1 / max(float64(len(p.in.Blocks)), s.Scale)
	values, requests := p.out.values[:len(set)], p.out.requests[:len(set)]
	for i, slot := range set {
		values[i] = 0
		if n := m.At(int(slot)); n > 0 {
			balance := p.config.Balance
			if n == m.Longest {
				balance = sole
			}
			values[i] = float64(n) * per * p.affinity(requests[i], balance)
		}
	}
	return values
}

// lora is 1 where the adapter is loaded, 0.8 where there is room, 0.6 where an
// idle one must go first, 0 where all are in use.
func lora(p *pick, _ *scoring, set []int32) []float64 {
	if p.in.Adapter == "" {
		return nil
	}
	h := xxhash.Sum64String(p.in.Adapter)
	values := p.out.values[:len(set)]
	for i, slot := range set {
		e := &p.in.Endpoints[slot]
		if e.Resident != nil {
			values[i] = e.Resident.score(h)
			continue
		}
		switch a := p.adapter(e); {
		case a.active:
			values[i] = 1
		case a.loadable:
			values[i] = 0.8
		default:
			values[i] = 0
		}
	}
	return values
}

// session is 1 for the endpoint that rendezvous hashing gives the key among
// those that are not overloaded, else 0. When none is left, nobody is favoured.
func session(p *pick, _ *scoring, set []int32) []float64 {
	if p.in.Session == "" {
		return nil
	}
	key := xxhash.Sum64String(p.in.Session)
	values := p.out.values[:len(set)]
	best, top := -1, uint64(0)
	for i, slot := range set {
		values[i] = 0
		if p.affinity(p.out.requests[i], p.config.Balance) == 0 {
			continue
		}
		h := p.in.Endpoints[slot].rendezvous(key)
		if best < 0 || h > top {
			best, top = i, h
		}
	}
	if best < 0 {
		return nil
	}
	values[best] = 1
	return values
}

// saidWaiting is the requests in queues as they were last said.
func saidWaiting(p *pick, _ *scoring, set []int32) []float64 {
	values := p.out.values[:len(set)]
	for i, slot := range set {
		values[i] = float64(load(&p.in.Endpoints[slot]).Waiting)
	}
	return values
}

// saidKV is the part of the KV memory that was last said to be free.
func saidKV(p *pick, _ *scoring, set []int32) []float64 {
	values := p.out.values[:len(set)]
	for i, slot := range set {
		values[i] = 1 - part(load(&p.in.Endpoints[slot]).KV)
	}
	return values
}

// matchedPart is the part of the prompt's blocks that an endpoint was sent before,
// however busy it is.
func matchedPart(p *pick, _ *scoring, set []int32) []float64 {
	if len(p.in.Blocks) == 0 {
		return nil
	}
	values := p.out.values[:len(set)]
	for i, slot := range set {
		values[i] = float64(p.out.matches.At(int(slot))) / float64(len(p.in.Blocks))
	}
	return values
}
