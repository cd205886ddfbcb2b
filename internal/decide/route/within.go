package route

import "roundhouse.dev/roundhouse/internal/core/routing"

// ResolveIn is Resolve for a query of which it is settled already that it is
// for ref, by an outer gateway for example: the model's name and the priority
// are left to find. The errors are those of Resolve.
func (t *Table) ResolveIn(ref routing.Ref, q Query, random func(n int) int) (Target, error) {
	if !ref.Pool {
		return t.at(ref.Key, &q), nil
	}
	if p := t.pools[ref.Key]; p != nil {
		return p.resolve(&q, q.Model, random, Target{})
	}
	return Target{Pool: ref}, nil
}
