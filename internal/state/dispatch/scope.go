package dispatch

import (
	"slices"
	"strings"
	"sync"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/route"
)

// maxScopes is how many sets of namespaces have their table kept. Beyond that
// each request of another set has one built for it.
const maxScopes = 1000

// scopes are the tables of a view for requests that may know some namespaces
// only: in each there is nothing else, so that names, hosts and suggestions
// cannot tell of others. They are built when first asked for.
type scopes struct {
	entries []route.Entry

	mu     sync.Mutex
	tables map[string]*route.Table
}

// within is the table of some namespaces; none means all.
func (v *view) within(namespaces []string, domain string) *route.Table {
	if len(namespaces) == 0 || v.scopes == nil {
		return v.table()
	}
	s, id := v.scopes, strings.Join(namespaces, ",")
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tables[id]; t != nil {
		return t
	}
	var entries []route.Entry
	for _, e := range s.entries {
		if among(namespaces, e.Key.Namespace) {
			entries = append(entries, e)
		}
	}
	var objects []routing.Object
	for _, o := range v.objects {
		if among(namespaces, o.Common().Namespace) {
			objects = append(objects, o)
		}
	}
	t := route.NewTable(entries, domain, objects...)
	if s.tables == nil {
		s.tables = map[string]*route.Table{}
	}
	if len(s.tables) < maxScopes {
		s.tables[id] = t
	}
	return t
}

// among says whether a namespace is one of these; none means all.
func among(namespaces []string, namespace string) bool {
	return len(namespaces) == 0 || slices.Contains(namespaces, namespace)
}
