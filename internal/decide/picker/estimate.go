package picker

import (
	"math"
	"time"
)

// estimate is what an endpoint is believed to have to do now.
type estimate struct {
	waiting  float64 // requests in its queue
	requests float64 // all of them
	kv       float64 // part of its cache in use
	fresh    float64 // weight of what it said, 0 to 1
}

// estimate works out, for every endpoint of the set, what is scraped and
// what is our own since then together.
//
// A load's weight falls with its age. What is missing to 1 is made up with the
// mean of the set, each by its weight, so an endpoint nobody knows anything of
// is neither favoured nor avoided; when nobody knows anything of any, our own
// requests in flight decide.
func (p *pick) estimate(set []int32) {
	est := p.out.est[:len(set)]
	var weight, others, waiting, kv, requests float64
	for i, slot := range set {
		e := &p.in.Endpoints[slot]
		est[i] = estimate{requests: float64(max(0, e.InFlight))}
		l := e.Load
		if l == nil {
			continue
		}
		f := p.freshness(p.in.Now.Sub(l.At))
		if f == 0 {
			continue
		}
		x := &est[i]
		x.fresh = f
		x.waiting = float64(max(0, l.Waiting))
		// Others' are what it counts beyond our own of that time.
		o := max(0, x.waiting+float64(max(0, l.Running))-float64(max(0, e.AtLoad)))
		if x.waiting > 0 {
			// Where requests wait, one more waits too and one less lets one in.
			x.waiting = max(0, x.waiting+x.requests-float64(max(0, e.AtLoad)))
		}
		x.kv = part(l.KV)
		weight += f
		others += f * o
		waiting += f * x.waiting
		kv += f * x.kv
		x.waiting *= f
		x.kv *= f
		x.requests += f * o
	}
	if weight > 0 {
		others, waiting, kv = others/weight, waiting/weight, kv/weight
	}
	for i := range est {
		x := &est[i]
		if missing := 1 - x.fresh; missing > 0 {
			x.waiting += missing * waiting
			x.kv += missing * kv
			x.requests += missing * others
		}
		requests += x.requests
	}
	// As in consistent hashing with bounded loads (Mirrokni, Thorup,
	// Zadimoghaddam 2016): the bound counts the request that is to come.
	p.out.bound = max(float64(p.config.Slack), math.Ceil(p.config.Balance*(requests+1)/float64(len(set))))
}

// freshness is a load's weight. A load of the future, as when a clock was set
// back, is as doubtful as one of the past.
func (p *pick) freshness(age time.Duration) float64 {
	age = max(age, -age, 0)
	c := &p.config
	switch {
	case age <= c.Fresh:
		return 1
	case age >= c.Stale:
		return 0
	}
	return float64(c.Stale-age) / float64(c.Stale-c.Fresh)
}

// part bounds what should be from 0 to 1; what is no number is 0.
func part(v float64) float64 {
	if !(v > 0) {
		return 0
	}
	return min(v, 1)
}
