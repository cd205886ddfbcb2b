package route

import (
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// reach takes in how requests reach a service besides by its name and its host.
func (t *Table) reach(e Entry) {
	a := e.Access
	if len(a.Names) == 0 && !a.ByPath && a.Priority == 0 || e.Key.IsCanary() {
		return
	}
	if t.access == nil {
		t.access, t.below = map[service.Key]service.Access{}, map[string]service.Key{}
	}
	t.access[e.Key] = a
	if !a.ByPath {
		return
	}
	for _, path := range append([]string{"/" + e.Key.Namespace + "/" + e.Key.Name}, a.Paths...) {
		if other, taken := t.below[path]; !taken || compareKeys(e.Key, other) < 0 {
			t.below[path] = e.Key
		}
	}
}

// maxSteps is how many elements of a path may name a service.
const maxSteps = 16

// Below finds the service below whose path another is, and the rest, which is the
// service's own: of /NAMESPACE/NAME/v1/models that is /v1/models.
// An HTTPRoute that asks for the path, or for anything else of the query, decides
// before it. The path of the query may be escaped.
func (t *Table) Below(q Query) (k service.Key, rest string, ok bool) {
	if len(t.below) == 0 {
		return k, "", false
	}
	if m := t.find(&q, normalHost(q.Host)); m != nil && !m.everything {
		return k, "", false
	}
	path := q.Path
	at := 0
	for range maxSteps {
		i := strings.IndexByte(path[min(at+1, len(path)):], '/')
		if i < 0 {
			break
		}
		at += 1 + i
		if k, ok = t.below[path[:at]]; ok {
			return k, path[at:], true
		}
	}
	if k, ok = t.below[path]; ok {
		return k, "/", true
	}
	return k, "", false
}

// HostOf is the host of a service.
func (t *Table) HostOf(k service.Key) string { return t.hostOf[k] }

// addNames claims the names of services' models. They give way to objects and to
// services of that name, and are shared, which makes them ambiguous, by services
// that have no group.
func (t *Table) addNames() {
	for _, k := range t.keys {
		a := t.access[k]
		for _, name := range a.Names {
			if name != k.Name && a.Group == "" {
				t.claim(&claim{key: service.Key{Namespace: k.Namespace, Name: name}, of: k, named: true})
			}
		}
	}
}

// groups are a Route for each group of services: the names of them all, shared by
// weight.
func (t *Table) groups() (out []routing.Object) {
	of := map[service.Key]*routing.Route{}
	for _, k := range t.keys {
		a := t.access[k]
		if a.Group == "" {
			continue
		}
		at := service.Key{Namespace: k.Namespace, Name: a.Group}
		r := of[at]
		if r == nil {
			r = &routing.Route{Meta: service.Meta{Key: at}}
			of[at] = r
			out = append(out, r)
		}
		r.Targets = append(r.Targets, routing.Target{Ref: routing.Service(k), Weight: a.Weight})
		for _, name := range a.Names {
			if !slices.Contains(r.Models, name) {
				r.Models = append(r.Models, name)
			}
		}
	}
	return out
}
