// Package route decides which service a request is for, from the host it was
// sent to and the model it names. A Table is immutable: it is built anew for
// every change of the services and read without locks.
package route

import (
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// DefaultDomain ends the hosts of services whose URL is not stated.
const DefaultDomain = "localhost"

// Entry is one service to route to.
type Entry struct {
	Key service.Key
	// Host is the host of the service's URL, without a port; "" means
	// Host(Key, domain).
	Host string
}

// Query is what a request says of where it wants to go.
type Query struct {
	// Host is the request's Host header; a port is ignored.
	Host string
	// Model is the name in the body or path: "name" or "namespace/name".
	// It may be empty when the Host decides.
	Model string
}

// Target is where a request goes.
type Target struct {
	Service service.Key
	// Named says that Model named the service, so that a replica is to be
	// given its own name for the model instead. It is false when the Host
	// alone decided and Model is a name only the server behind knows (an
	// adapter, one model of many).
	Named bool
}

// Table resolves queries in constant time. The zero Table knows no service.
type Table struct {
	hosts map[string]service.Key   // the zero Key marks a host that two services claim
	full  map[string]service.Key   // "namespace/name"
	bare  map[string][]service.Key // "name", each list sorted
	keys  []service.Key            // sorted by name, then namespace
}

// Host is the host of a service's URL: "name.namespace.domain". An empty
// domain means DefaultDomain.
func Host(k service.Key, domain string) string {
	if domain == "" {
		domain = DefaultDomain
	}
	return strings.ToLower(k.Name + "." + k.Namespace + "." + domain)
}

// NewTable builds the table of entries; domain ends the hosts of entries that
// state none. Of entries with the same Key the last counts. A host that two
// services claim decides for neither.
func NewTable(entries []Entry, domain string) *Table {
	t := &Table{
		hosts: make(map[string]service.Key, len(entries)),
		full:  make(map[string]service.Key, len(entries)),
		bare:  make(map[string][]service.Key, len(entries)),
	}
	hostOf := make(map[service.Key]string, len(entries))
	for _, e := range entries {
		host := normalHost(e.Host)
		if host == "" {
			host = Host(e.Key, domain)
		}
		hostOf[e.Key] = host
		t.full[e.Key.String()] = e.Key
	}
	for k, host := range hostOf {
		t.keys = append(t.keys, k)
		if _, claimed := t.hosts[host]; claimed {
			k = service.Key{}
		}
		t.hosts[host] = k
	}
	slices.SortFunc(t.keys, compareKeys)
	for _, k := range t.keys {
		t.bare[k.Name] = append(t.bare[k.Name], k)
	}
	return t
}

func compareKeys(a, b service.Key) int {
	if c := strings.Compare(a.Name, b.Name); c != 0 {
		return c
	}
	return strings.Compare(a.Namespace, b.Namespace)
}

// Resolve finds the service of a query. A Host that is a service's decides; a
// full name comes next; a bare name works while one service has it. The error
// is a *NotFoundError or an *AmbiguousError.
func (t *Table) Resolve(q Query) (Target, error) {
	if k, ok := t.hosts[normalHost(q.Host)]; ok && k.Name != "" {
		named := q.Model == "" || q.Model == k.Name || q.Model == k.String()
		return Target{Service: k, Named: named}, nil
	}
	if k, ok := t.full[q.Model]; ok {
		return Target{Service: k, Named: true}, nil
	}
	switch found := t.bare[q.Model]; len(found) {
	case 0:
		return Target{}, t.notFound(q.Model)
	case 1:
		return Target{Service: found[0], Named: true}, nil
	default:
		return Target{}, &AmbiguousError{Model: q.Model, Candidates: names(found)}
	}
}

// Name is the shortest name that resolves to k: its bare name while that is
// unique, else "namespace/name".
func (t *Table) Name(k service.Key) string {
	if len(t.bare[k.Name]) > 1 {
		return k.String()
	}
	return k.Name
}

// Keys lists the services by name, then namespace. The caller must not change
// the slice.
func (t *Table) Keys() []service.Key { return t.keys }

// normalHost strips port and trailing dot and lowers the case. It allocates
// only for hosts with upper-case letters.
func normalHost(h string) string {
	if i := strings.LastIndexByte(h, ':'); i >= 0 && strings.IndexByte(h[i:], ']') < 0 {
		h = h[:i]
	}
	return strings.ToLower(strings.TrimSuffix(h, "."))
}

func names(keys []service.Key) []string {
	out := make([]string, len(keys))
	for i, k := range keys {
		out[i] = k.String()
	}
	return out
}
