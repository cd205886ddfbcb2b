package dispatch

import (
	"slices"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/breaker"
)

// byHeader reports whether those that help a replica are named to it in headers, so that
// its sidecar asks them.
func (f *PoolConfig) byHeader() bool {
	return f.Disaggregation == "" || f.Disaggregation == service.DisaggregationHeader
}

// helpers are those that the sidecar of the replica that answers asks for the request:
// the one that computes the prompt, and those that compute its pictures. Of prefill
// replicas that the gateway asks itself it sees what becomes.
func (g *Grant) helpers() []*slot {
	r := &g.reservation
	if r.prefill == nil || !g.config.byHeader() {
		return r.encoders
	}
	return append(slices.Clip(r.encoders), r.prefill)
}

// blame is a failure that is held against a helper, which led from one state of its
// circuit breaker to another.
type blame struct {
	helper        *slot
	before, after breaker.State
}

// blameHelpers tells the breakers of a request's helpers that its sidecar answered 502,
// as it does when one of them fails; false if it has none. It does not say which, so of
// several each is ejected only when it was there three times in a row. The replica that
// answers goes free: if it is to blame, it shows that without helpers too, which rest
// now. Nobody needs them, so all may rest. The pool's mutex is held.
func (p *pool) blameHelpers(g *Grant) bool {
	all := g.helpers()
	for _, x := range all {
		result := breaker.Failed
		if len(all) == 1 && x.set != &p.entry { // which requests may depend on
			result = breaker.Lost
		}
		before, after := x.set.observe(x, result, 0)
		g.blames = append(g.blames, blame{x, before, after})
	}
	if len(all) == 0 {
		return false
	}
	g.reservation.explained, g.alone = true, true
	return true
}

// acquitHelpers takes back what is held against a request's helpers, where it has been sent
// again without them and was answered no better: a picture that nobody can load is no fault
// of the encoder's, though its sidecar says so. What has not been sent again stands, since
// behind Envoy nothing else would tell of a helper that is dead. The pool's mutex is held.
func (p *pool) acquitHelpers(g *Grant) {
	if !g.reservation.explained {
		for _, b := range g.blames {
			b.helper.set.acquit(b)
		}
	}
	g.blames = nil
}

// creditHelpers tells them that the answer has begun. The pool's mutex is held.
func (p *pool) creditHelpers(g *Grant) {
	for _, x := range g.helpers() {
		x.set.observe(x, breaker.Answered, 0)
	}
}
