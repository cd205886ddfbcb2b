package route

import (
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// claim is a model's name in one namespace and where requests for it go: to
// the service of that name, to the targets of a Route, to the pool of an
// InferenceModel, or to the service that has an adapter of that name. Of one
// namespace's, a Route comes before an InferenceModel and that before a service,
// since they define a name and a service only has one; adapters come last.
type claim struct {
	key   service.Key // namespace and name
	route *routing.Route
	split split       // of the route's targets
	pool  *pool       // of an InferenceModel
	of    service.Key // whose adapter it is, or name; zero for other claims
	named bool        // it is a name of the service's model, not of an adapter
}

// rank is which claim of a namespace holds.
func (c *claim) rank() int {
	switch {
	case c.route != nil:
		return 0
	case c.pool != nil:
		return 1
	case c.named:
		return 3
	case c.of != service.Key{}:
		return 4
	}
	return 2
}

// addClaims fills full and bare.
func (t *Table) addClaims(set *accepted) {
	for _, k := range t.keys {
		t.claim(&claim{key: k})
	}
	for _, m := range set.models {
		if p := t.pools[m.Pool]; p != nil {
			t.claim(&claim{key: service.Key{Namespace: m.Namespace, Name: m.ModelName}, pool: p})
		}
	}
	for _, r := range set.routes {
		c := claim{route: r}
		for _, target := range r.Targets {
			c.split.add(target.Weight)
		}
		for _, name := range r.Models {
			if set.routeOf[service.Key{Namespace: r.Namespace, Name: name}] != r {
				continue
			}
			one := c
			one.key = service.Key{Namespace: r.Namespace, Name: name}
			t.claim(&one)
		}
	}
	t.addNames()
	t.addAdapters()
	for _, list := range t.full {
		for _, c := range list {
			t.bare[c.key.Name] = append(t.bare[c.key.Name], c)
			t.all = append(t.all, c)
		}
	}
	for _, list := range t.bare {
		slices.SortFunc(list, compareClaims)
	}
	slices.SortFunc(t.all, compareClaims)
}

func compareClaims(a, b *claim) int {
	if c := compareKeys(a.key, b.key); c != 0 {
		return c
	}
	return strings.Compare(a.at(), b.at())
}

// at is the pool of an InferenceModel's claim, the service of an adapter's.
func (c *claim) at() string {
	if c.pool == nil {
		return c.of.String()
	}
	return c.pool.ref.Key.String()
}

// claim takes the name unless one of a better rank has it. Pools of equal rank
// share it, which makes it ambiguous.
func (t *Table) claim(c *claim) {
	name := c.key.String()
	list := t.full[name]
	switch {
	case len(list) > 0 && list[0].rank() < c.rank():
	case len(list) > 0 && list[0].rank() == c.rank():
		t.full[name] = append(list, c)
	default:
		t.full[name] = []*claim{c}
	}
}

// claimed resolves a query whose model is c's.
func (t *Table) claimed(c *claim, q *Query, random func(n int) int) (Target, error) {
	switch {
	case c.named:
		return Target{Pool: routing.Service(c.of), Named: true, Priority: t.access[c.of].Priority, by: reasons{claim: c}}, nil
	case c.of != service.Key{}:
		return Target{Pool: routing.Service(c.of), Adapter: c.key.Name, Model: c.key.Name, Priority: t.access[c.of].Priority, by: reasons{claim: c}}.leave(q), nil
	case c.route == nil && c.pool == nil:
		return Target{Pool: routing.Service(c.key), Named: true, Priority: t.access[c.key].Priority}, nil
	}
	if c.pool != nil {
		return c.pool.resolve(q, c.key.Name, random, Target{by: reasons{claim: c}})
	}
	i := c.split.pick(random)
	if i < 0 {
		return Target{}, &BackendError{Object: "Route " + c.route.Key.String(), Message: "every target has weight 0"}
	}
	at := &c.route.Targets[i]
	out := Target{Pool: at.Ref, Model: at.Model, Priority: c.route.Priority, Latency: c.route.Latency, Handling: c.route.Handling.OrNil(), by: reasons{claim: c, index: i}}
	if err := t.missing(at.Ref); err != "" {
		return Target{}, &BackendError{Object: "Route " + c.route.Key.String(), Message: err}
	}
	switch {
	case at.Model != "":
		if !at.Pool && slices.Contains(t.adapters[at.Key], at.Model) {
			out.Adapter = at.Model
		}
	case !at.Pool:
		out.Named = true
	default:
		// A pool may map the name further; the route's own priority stays.
		return t.pools[at.Key].resolve(q, c.key.Name, random, out)
	}
	if at.Pool {
		t.pools[at.Key].prioritize(q, &out)
	}
	return out.leave(q), nil
}

// leave empties a Model that is what the request says already.
func (t Target) leave(q *Query) Target {
	if t.Model == q.Model {
		t.Model = ""
	}
	return t
}

// missing returns a message that the object ref names does not exist; "" if it
// does.
func (t *Table) missing(ref routing.Ref) string {
	if ref.Pool {
		if t.pools[ref.Key] != nil {
			return ""
		}
		return notFound(ref, slices.SortedFunc(poolKeys(t.pools), compareKeys))
	}
	if _, ok := slices.BinarySearchFunc(t.keys, ref.Key, compareKeys); ok {
		return ""
	}
	return notFound(ref, t.keys)
}

func poolKeys(pools map[service.Key]*pool) func(func(service.Key) bool) {
	return func(yield func(service.Key) bool) {
		for k := range pools {
			if !yield(k) {
				return
			}
		}
	}
}

// Name of a model and what answers to it.
type Name struct {
	// Model is the shortest name that resolves.
	Model string
	// Pool is where requests for it go first; of several targets, the one with
	// the greatest weight.
	Pool routing.Ref
	// Origin is the metadata of the object that gives the name.
	Origin service.Meta
}

// Names lists the model names that routing objects give, and those by which
// replicas serve a model where it is not their service's own name, by name, then namespace. A name that several pools have is left
// out: it needs a pool's host.
func (t *Table) Names() []Name {
	var out []Name
	for _, c := range t.all {
		first := c.named && t.access[c.of].Names[0] == c.key.Name // of several, that which replicas serve
		if c.rank() >= 2 && !first || len(t.full[c.key.String()]) > 1 {
			continue
		}
		n := Name{Model: c.key.Name}
		if len(t.bare[c.key.Name]) > 1 {
			n.Model = c.key.String()
		}
		switch {
		case first:
			n.Pool, n.Origin = routing.Service(c.of), service.Meta{Key: c.of}
		case c.pool != nil:
			n.Pool, n.Origin = c.pool.ref, c.pool.models[c.key.Name].object.Meta
		default:
			best := 0
			for i, target := range c.route.Targets {
				if target.Weight > c.route.Targets[best].Weight {
					best = i
				}
			}
			n.Pool, n.Origin = c.route.Targets[best].Ref, c.route.Meta
		}
		out = append(out, n)
	}
	return out
}

// addAdapters claims the names of services' adapters. They give way to every
// other claim of their namespace: an adapter takes no service's name away.
func (t *Table) addAdapters() {
	for _, k := range t.keys {
		for _, name := range t.adapters[k] {
			t.claim(&claim{key: service.Key{Namespace: k.Namespace, Name: name}, of: k})
		}
	}
}

// at is a service that a request has been found to be for. The error is a
// *NotFoundError.
func (t *Table) at(k service.Key, q *Query) (Target, error) {
	reach := t.access[k.Stable()]
	out := Target{Pool: routing.Service(k), Priority: reach.Priority,
		Named: q.Model == "" || names(k, q.Model) || slices.Contains(reach.Names, strings.TrimPrefix(q.Model, k.Namespace+"/"))}
	if out.Named {
		return out, nil
	}
	name := strings.TrimPrefix(q.Model, k.Namespace+"/")
	if slices.Contains(t.children[k], name) {
		return Target{Pool: routing.Service(service.Key{Namespace: k.Namespace, Name: name}), Named: true}, nil
	}
	if own := t.adapters[k.Stable()]; slices.Contains(own, name) {
		out.Adapter, out.Model = name, name
	} else if k.IsCanary() && slices.Contains(t.adapters[k], name) {
		out.Adapter, out.Model = name, name
	} else if served := slices.Concat(t.served[k], t.served[k.Stable()]); len(served) > 0 && !slices.Contains(served, name) {
		return Target{}, notServed(k, q, append([]string{k.Name}, t.adapters[k.Stable()]...))
	} else if t.lenders[k] {
		return Target{}, notServed(k, q, slices.Sorted(slices.Values(t.children[k])))
	}
	return out.leave(q), nil
}

// notServed is the error of a model that is not among those that a service knows.
func notServed(k service.Key, q *Query, known []string) *NotFoundError {
	e := &NotFoundError{Model: q.Model, Service: k.String(), Known: known[:min(len(known), maxListed)], Total: len(known)}
	for _, i := range nearest(q.Model, known) {
		e.Near = append(e.Near, known[i])
	}
	return e
}

// Adapter is a name that requests can give an adapter of a service.
type Adapter struct {
	// Model is the shortest name that resolves.
	Model string
	// Name is the adapter's own.
	Name    string
	Service service.Key
}

// Adapters lists the adapters that can be named, by name, then namespace. One
// that does not have its name to itself in its namespace is left out: it needs
// its service's host.
func (t *Table) Adapters() []Adapter {
	var out []Adapter
	for _, c := range t.all {
		if c.of == (service.Key{}) || c.named || len(t.full[c.key.String()]) > 1 {
			continue
		}
		out = append(out, Adapter{Model: t.Name(c.key), Name: c.key.Name, Service: c.of})
	}
	return out
}
