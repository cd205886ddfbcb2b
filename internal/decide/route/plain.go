package route

import (
	"net/netip"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
)

// plain reports whether backends are Kubernetes Services alone.
func plain(backends []routing.Backend) bool {
	return len(backends) > 0 && !slices.ContainsFunc(backends, func(b routing.Backend) bool { return !b.Plain && b.Fault == "" && b.Weight > 0 }) &&
		slices.ContainsFunc(backends, func(b routing.Backend) bool { return b.Plain })
}

// Passes reports whether the HTTPRoute that takes a request leads to Kubernetes
// Services alone. Whoever wrote it means every path, and not those of models alone.
// known marks a path that is a call to the gateway or to a model: it is such a route's
// only if the route asks for a host, or has every host and asks for a path.
func (t *Table) Passes(q Query, known bool) bool {
	host := normalHost(q.Host)
	if ref, ok := t.hosts[host]; ok && ref.Name != "" {
		return false
	}
	m := t.find(&q, host)
	return m != nil && m.plain && !(known && len(m.route.Hostnames) == 0 && (m.everything || m.route.AfterNames))
}

// HasHTTPRoutes reports whether there is any, or any GRPCRoute.
func (t *Table) HasHTTPRoutes() bool {
	return len(t.http.exact)+len(t.http.wildcard)+len(t.http.any) > 0
}

// HasRoot reports whether "/" at a host is the HTTPRoutes' alone, as the Gateway API wants
// it: one of an operator has every host, or the host is a name and some have hosts. At an
// address, where load balancers check the gateway, a tenant's route does not close it.
func (t *Table) HasRoot(host string) bool {
	if slices.ContainsFunc(t.http.any, func(m *httpMatch) bool { return !m.route.AfterNames && !m.route.GRPC }) {
		return true
	}
	_, err := netip.ParseAddr(strings.Trim(normalHost(host), "[]"))
	return err != nil && t.http.hosted
}
