package picker

import "math"

// Policy is a compiled Config. It never changes, so it may be shared.
type Policy struct {
	config  Config
	steps   []step
	names   []string // of the filters, by step.id
	scorers []scoring
	// Which work the scorers need.
	prefix, session bool
	predicts        bool
	sheds           bool // a filter drops
	// near is the weight of the scorers of load.
	near float64
}

// step is a Step with its filter found.
type step struct {
	Step
	id             int
	run            func(p *pick, s *step, set []int32) int
	passed, failed []step
}

// New makes a policy. It fails where Validate does.
func New(c Config) (*Policy, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	p := &Policy{config: c}
	p.steps = p.compile(c.Filters)
	for _, s := range c.Scorers {
		if s.Weight == 0 {
			continue
		}
		k := scorers[s.Name]
		def(&s.Scale, k.scale)
		p.scorers = append(p.scorers, scoring{Scorer: s, scorer: k})
		p.prefix = p.prefix || s.Name == "prefix" || s.Name == "llm-d-prefix" || s.Name == "latency"
		p.session = p.session || s.Name == "session"
		p.predicts = p.predicts || s.Name == "latency"
		if k.ofLoad {
			p.near += s.Weight
		}
	}
	return p, nil
}

func (p *Policy) compile(steps []Step) []step {
	var out []step
	for _, s := range steps {
		id := len(p.names)
		p.sheds = p.sheds || s.Filter == filterDrop
		p.names = append(p.names, s.Filter)
		out = append(out, step{Step: s, id: id, run: filters[s.Filter].run,
			passed: p.compile(s.Then), failed: p.compile(s.Else)})
	}
	return out
}

// Config is what the policy was made from, with its defaults.
func (p *Policy) Config() Config { return p.config }

// Affinity reports whether the policy looks at prompts and at sessions: where it
// does not, the owner need not hash them, nor keep an Index.
func (p *Policy) Affinity() (prefix, session bool) { return p.prefix, p.session }

// Predicts reports whether the policy goes by predicted latencies.
func (p *Policy) Predicts() bool { return p.predicts }

// Sheds reports whether the policy decides by itself who is dropped when no
// endpoint has capacity, as the trees of the Inference Extension do.
func (p *Policy) Sheds() bool { return p.sheds }

// pick is one decision under way.
type pick struct {
	*Policy
	in    *Input
	out   *Choice
	index *Index
}

// Pick chooses an endpoint. It allocates nothing once out has served for a
// pool of the size, unless out.Explain is set. ix may be nil.
func (p *Policy) Pick(in *Input, ix *Index, out *Choice) {
	out.reset(p, in)
	set := out.open(in)
	if len(set) == 0 {
		return
	}
	r := &out.run // not on the stack, from where it would escape
	*r = pick{Policy: p, in: in, out: out, index: ix}
	defer func() { *r = pick{} }()
	if p.prefix && ix != nil {
		ix.Match(in.Blocks, &out.matches)
	}
	if set = r.filter(p.steps, set); len(set) == 0 {
		out.Outcome = Dropped
		return
	}
	r.foresee(set)
	set = r.inTime(set)
	out.Left = len(set)
	at := 0
	switch {
	case p.config.Choice == choiceRoundRobin:
		at = int(in.Turn % uint64(len(set)))
	case p.config.Choice == choiceRandom:
		at = in.random(len(set))
	case len(set) > 1 || out.Explain:
		at = r.best(set)
	}
	out.pick(int(set[at]), ix, in)
	r.forecast(set[at])
}

// filter runs a chain. It returns nothing when the request is to be dropped,
// which only the filter "drop" does.
func (p *pick) filter(steps []step, set []int32) []int32 {
	for i := range steps {
		s := &steps[i]
		before := p.out.before(set)
		kept := s.run(p, s, set)
		p.out.passed(s, before, set[:kept])
		if kept > 0 {
			set = p.filter(s.passed, set[:kept])
		} else if s.Filter == filterDrop {
			return nil
		} else {
			set = p.filter(s.failed, set)
		}
		if len(set) == 0 {
			return nil
		}
	}
	return set
}

// nearNew and nearKnown are the parts of the weight of the scorers of load that
// are too little to tell endpoints apart by: for a prompt that is new, and for one
// of which half or more may be in a cache.
const (
	nearNew   = 0.03
	nearKnown = 0.25
)

// best scores the set and returns the place in it of the highest score. Where
// others are as good or nearly so, the prompt's beginning decides between them,
// so that gateways that know nothing of each other agree where prompts belong;
// without a prompt, or where no scorer rates how busy endpoints are now, chance does.
func (p *pick) best(set []int32) int {
	p.estimate(set)
	total := p.out.total[:len(set)]
	clear(total)
	p.out.same = 0
	for i := range p.scorers {
		p.score(&p.scorers[i], i, set, total)
	}
	p.penalizeSilent(set, total)
	top, n, at := math.Inf(-1), 0, 0
	for i, v := range total {
		if v > top {
			top, n, at = v, 1, i
		} else if v == top {
			n++
		}
	}
	if n > 1 {
		k := p.in.random(n)
		for i, v := range total {
			if v == top {
				if k == 0 {
					at = i
					break
				}
				k--
			}
		}
	}
	if n = 1; len(p.in.Blocks) > 0 && p.near > 0 {
		at, n = p.rendezvous(set, total, top)
	}
	p.out.Score, p.out.Alike = total[at]+p.out.same, n
	return at
}

// alike is that part for the prompt: the more of it some endpoint was sent, the more.
// To agree on where it belongs saves what is known of it; where that is only a
// beginning, as all prompts of a pool may share, the load matters more.
func (p *pick) alike() float64 {
	known := min(1, 2*float64(p.out.matches.Longest)/float64(len(p.in.Blocks)))
	return nearNew + (nearKnown-nearNew)*known
}

// penalizeSilent takes all that load counts for from the score of endpoints that
// stopped reporting their load, so that they come after those that report it. It
// does so only where at least one has reported for a while: all are silent while
// nothing reads their reports.
func (p *pick) penalizeSilent(set []int32, total []float64) {
	heard := false
	for i, slot := range set {
		if p.out.fresh[i] > 0 && p.in.Now.Sub(p.in.Endpoints[slot].Heard) >= p.config.Fresh {
			heard = true
			break
		}
	}
	if !heard {
		return
	}
	for i, slot := range set {
		if p.out.fresh[i] == 0 && p.in.Endpoints[slot].Load != nil {
			total[i] -= p.near
			p.out.notReporting(slot, p.near)
		}
	}
}

// rendezvous is the place of the endpoint that rendezvous hashing gives the
// prompt's first block, of those that score nearly as much as the best and are
// not overloaded, and how many those are. A prompt whose beginning none of them
// holds goes to one with room for it: those that hold half as many blocks more
// than another of them are left out, so that few long prompts do not fall on one.
func (p *pick) rendezvous(set []int32, total []float64, top float64) (at, n int) {
	least := top - p.alike()*p.near
	takes := func(i int, v float64) bool {
		return v >= least && (v == top || p.affinity(p.out.requests[i], p.config.Balance) > 0)
	}
	most := math.MaxInt
	if p.out.matches.Longest == 0 && p.index != nil {
		for i, v := range total {
			if takes(i, v) {
				most = min(most, p.index.Blocks(int(set[i])))
			}
		}
		most += most/2 + len(p.in.Blocks)/2
	}
	var highest uint64
	for i, v := range total {
		if !takes(i, v) {
			continue
		}
		n++
		if p.index != nil && p.index.Blocks(int(set[i])) > most {
			p.out.Fuller++
		} else if h := p.in.Endpoints[set[i]].rendezvous(p.in.Blocks[0]); n == p.out.Fuller+1 || h > highest {
			at, highest = i, h
		}
	}
	return at, n
}
