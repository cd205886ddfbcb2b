package dispatch

import (
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
)

// Models is what requests can name, by name: services and their adapters, and
// the names that routing objects give, each with the state of the pool that most of its
// requests go to. A name that a routing object takes from a service is listed
// once, as the object's.
func (d *Dispatcher) Models() []Status { return d.ModelsWithin(nil) }

// ModelsWithin is what requests of some namespaces can name; none means all.
func (d *Dispatcher) ModelsWithin(namespaces []string) []Status {
	v := d.view.Load()
	table := v.within(namespaces, d.cfg.Domain)
	seen := map[string]bool{}
	var out []Status
	for _, n := range table.Names() {
		p := v.pools[n.Pool]
		if p == nil {
			continue
		}
		s := p.status(table)
		s.Name = n.Model
		seen[s.Name] = true
		out = append(out, s)
	}
	for _, p := range v.pools {
		if p.ref.Pool || !among(namespaces, p.ref.Key.Namespace) {
			continue
		}
		if s := p.status(table); !seen[s.Name] {
			out = append(out, s)
		}
	}
	for _, a := range table.Adapters() {
		p := v.pools[routing.Service(a.Service)]
		if p == nil || seen[a.Model] {
			continue
		}
		s := p.status(table)
		if s.Adapter = s.Pool.adapter(a.Name); s.Adapter != nil {
			s.Name = a.Model
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	return out
}
