package picker

import (
	"time"

	"github.com/cespare/xxhash/v2"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// columns are what the endpoints of a set are believed to have to do now, by
// place in the set. They are columns, not a slice of structs, because scorers
// run down one at a time.
type columns struct {
	waiting  []float64 // requests in its queue
	running  []float64 // requests being computed
	requests []float64 // all of them
	kv       []float64 // part of its cache in use
	tokens   []float64 // uncached prompt tokens of ours on the way
	fresh    []float64 // weight of what it said, 0 to 1
	values   []float64 // scratch of scorers
	total    []float64 // the scores' sum
}

func (c *columns) grow(n int) {
	all := make([]float64, 8*n)
	for i, p := range []*[]float64{&c.waiting, &c.running, &c.requests, &c.kv, &c.tokens, &c.fresh, &c.values, &c.total} {
		*p = all[i*n : (i+1)*n : (i+1)*n]
	}
}

// estimate works out, for every endpoint of the set, what is scraped and
// what is our own since then together.
//
// A load's weight falls with its age. What is missing to 1 is made up with the
// mean of the set, each by its weight, so an endpoint nobody knows anything of
// is neither favoured nor avoided; when nobody knows anything of any, our own
// requests in flight decide.
func (p *pick) estimate(set []int32) {
	c := &p.out.columns
	n := len(set)
	waiting, running, requests, kv := c.waiting[:n], c.running[:n], c.requests[:n], c.kv[:n]
	tokens, fresh := c.tokens[:n], c.fresh[:n]
	var sum, mean columnsMean
	for i, slot := range set {
		e := &p.in.Endpoints[slot]
		ours := float64(max(0, e.InFlight))
		tokens[i] = float64(max(0, e.Tokens))
		l := e.Load
		var f float64
		if l != nil {
			f = p.freshness(p.in.Now.Sub(l.At))
		}
		if f == 0 {
			waiting[i], running[i], requests[i], kv[i], fresh[i] = 0, ours, ours, 0, 0
			sum.requests += ours
			continue
		}
		then := float64(max(0, e.AtLoad))
		w := float64(max(0, l.Waiting))
		// Others' are what it counts beyond our own of that time.
		others := w + float64(max(0, l.Running)) - then
		if others < 0 {
			others = 0
		}
		if w > 0 {
			// Where requests wait, one more waits too and one less lets one in.
			if w += ours - then; w < 0 {
				w = 0
			}
		}
		used := part(l.KV)
		mean.add(f, w, others, used)
		w, others = f*w, ours+f*others
		waiting[i], requests[i], kv[i], fresh[i] = w, others, f*used, f
		sum.requests += others
		if others -= w; others < 0 {
			others = 0
		}
		running[i] = others
	}
	if mean.weight > 0 && mean.weight < float64(n) {
		sum.requests += p.complete(mean, n)
	}
	p.out.mean = (sum.requests + 1) / float64(n)
}

// affinity is how much it counts that an endpoint with so many requests has
// something the request wants. One more than the mean is full, balance times
// the mean nothing, so that what is wanted by many spreads: consistent hashing
// with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016) with a soft edge.
// As there, the request that is to come counts in the mean and in the load.
func (p *pick) affinity(requests, balance float64) float64 {
	mean, load := p.out.mean, requests+1
	if load <= mean || load <= float64(p.config.Slack) {
		return 1
	}
	bound := balance * mean
	if load >= bound {
		return 0
	}
	return (bound - load) / (bound - mean)
}

// columnsMean sums up what is known, by its weight.
type columnsMean struct{ weight, waiting, requests, kv float64 }

func (m *columnsMean) add(f, waiting, requests, kv float64) {
	m.weight += f
	m.waiting += f * waiting
	m.requests += f * requests
	m.kv += f * kv
}

// complete makes up for what is not known, and returns the requests added.
func (p *pick) complete(m columnsMean, n int) (added float64) {
	c := &p.out.columns
	waiting, others, kv := m.waiting/m.weight, m.requests/m.weight, m.kv/m.weight
	for i := range n {
		missing := 1 - c.fresh[i]
		if missing <= 0 {
			continue
		}
		c.waiting[i] += missing * waiting
		c.kv[i] += missing * kv
		c.requests[i] += missing * others
		c.running[i] = max(0, c.requests[i]-c.waiting[i])
		added += missing * others
	}
	return added
}

// freshness is a load's weight. A load of the future, as when a clock was set
// back, is as doubtful as one of the past.
func (p *pick) freshness(age time.Duration) float64 {
	c := &p.config
	if age < 0 {
		age = max(-age, 0) // the least duration has no opposite
	}
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
	if v > 1 {
		return 1
	}
	return v
}

// maxAdapters is how many adapters are remembered per endpoint.
const maxAdapters = 32

// usualAdapters is how many are taken to be loaded at once where an endpoint
// does not say.
const usualAdapters = 4

// Residency remembers which LoRA adapters an endpoint worked with last. An
// engine reports the adapters that are active; one that is loaded and idle is
// in no report, yet costs nothing to use. Engines keep the most recently used
// ones, so the most recent Max here are taken to be loaded. The zero value is
// an endpoint nothing is known of; a restart makes it so again.
type Residency struct {
	recent [maxAdapters]uint64 // hashes of names, the most recent first
	n      int                 // how many; 0 <= n <= maxAdapters
	slots  int                 // how many are loaded at once; 0 unknown
	busy   int                 // how many of them are in use, as last reported
}

// Used notes that a request for the adapter was sent there.
func (r *Residency) Used(adapter string) {
	if adapter != "" {
		r.touch(xxhash.Sum64String(adapter))
	}
}

// Observe records the adapters that the endpoint reported; nil records nothing.
func (r *Residency) Observe(a *replica.Adapters) {
	if a == nil {
		return
	}
	r.slots, r.busy = max(0, a.Max), len(a.Running)
	for _, name := range a.Running[:min(len(a.Running), maxAdapters)] {
		r.Used(name)
	}
}

func (r *Residency) touch(h uint64) {
	at := r.rank(h)
	if at == r.n {
		r.n = min(r.n+1, maxAdapters)
		at = r.n - 1
	}
	copy(r.recent[1:at+1], r.recent[:at])
	r.recent[0] = h
}

// rank is how many were used since; n when it is not remembered.
func (r *Residency) rank(h uint64) int {
	for i, v := range r.recent[:r.n] {
		if v == h {
			return i
		}
	}
	return r.n
}

func (r *Residency) score(h uint64) float64 {
	slots := r.slots
	if slots == 0 {
		slots = usualAdapters
	}
	switch at := r.rank(h); {
	case at < r.n && at < slots:
		return 1
	case r.n < slots:
		return 0.8
	case r.busy < slots:
		return 0.6
	}
	return 0
}
