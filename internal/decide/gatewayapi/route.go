package gatewayapi

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// maxParents is how many entries a status may have, as published.
const maxParents = 32

// route judges a route, if it names one of our Gateways.
func (j *judge) route(r *Route) {
	var out RouteStatus
	var hosts attachment
	var resolved service.Condition
	var dropped unsupported
	served := r.Object
	if served != nil && slices.ContainsFunc(r.Parents, func(p routing.Parent) bool { return j.parent(r, p) != nil }) {
		dropped = unsupportedOf(served)
		served, resolved = j.backends(served)
	}
	for _, p := range r.Parents {
		g := j.parent(r, p)
		if g == nil || len(out.Parents) == maxParents {
			continue
		}
		accepted := j.attach(r, p, g, &hosts)
		if dropped.whole && accepted.Status == "True" { // its requests get the error all the same
			accepted = condition(conditionAccepted, false, routing.ReasonUnsupported, dropped.message)
		}
		out.Parents = append(out.Parents, ParentStatus{Ref: p, Conditions: []service.Condition{accepted}})
		if r.Object == nil {
			continue
		}
		at := &out.Parents[len(out.Parents)-1]
		at.Conditions = append(at.Conditions, resolved)
		if dropped.message != "" && !dropped.whole {
			at.Conditions = append(at.Conditions, condition(conditionPartial, true, routing.ReasonUnsupported, dropped.message))
		}
		j.pools(r.Object, p, g, accepted)
	}
	if len(out.Parents) == 0 {
		return
	}
	if served != nil {
		out.Served, out.Secured = hosts.plain.serve(served), hosts.secured.serve(served)
		if j.Front != nil && len(j.Front.SecurePorts) > 0 && !j.Front.TLS() { // otherwise all come over TLS
			setScheme(out.Served, "http")
			setScheme(out.Secured, "https")
		}
	}
	j.out.Routes[r.ID] = out
}

// attachment is the hosts that a route is served under, by listeners for HTTPS with
// certificates that they name, and by others.
type attachment struct{ plain, secured hostnames }

// serve is a route as it is served under the hosts; nil under none.
func (h *hostnames) serve(r *routing.HTTPRoute) *routing.HTTPRoute {
	if !h.attached {
		return nil
	}
	o := *r
	o.Hostnames = h.names()
	o.AfterNames = h.any && !h.free
	return &o
}

func setScheme(r *routing.HTTPRoute, scheme string) {
	if r != nil {
		r.Scheme = scheme
	}
}

// parent is the Gateway of ours that a reference names; nil for none.
func (j *judge) parent(r *Route, p routing.Parent) *gateway {
	if p.Group != "" && p.Group != Group || p.Kind != "" && p.Kind != "Gateway" {
		return nil
	}
	return j.gateways[service.Key{Namespace: cmp.Or(p.Namespace, r.Namespace), Name: p.Name}]
}

// attach attaches a route to the listeners of a Gateway that take it.
func (j *judge) attach(r *Route, p routing.Parent, g *gateway, hosts *attachment) service.Condition {
	no := func(reason, message string) service.Condition {
		return condition(conditionAccepted, false, reason, message)
	}
	if r.Problem != "" {
		return no("UnsupportedValue", r.Problem)
	}
	var a attempt
	for i := range g.listeners {
		if l := &g.listeners[i]; l.named(p) {
			a.listener(j, r, g, l)
		}
	}
	slices.Sort(a.lost)
	a.lost = slices.Compact(a.lost)
	switch {
	case a.named == 0:
		return no("NoMatchingParent", fmt.Sprintf("Gateway %s has no such listener (%s)", g.Key(), g.listed()))
	case a.allowed == 0:
		return no("NotAllowedByListeners", strings.Join(a.refused, "; "))
	case a.found.plain.attached || a.found.secured.attached:
		hosts.plain.join(a.found.plain)
		hosts.secured.join(a.found.secured)
		return condition(conditionAccepted, true, "Accepted", a.but(j.tellOperator(g)))
	case len(a.conflicts) > 0:
		return no(reasonConflict, strings.Join(a.conflicts, "; ")+": HTTPRoutes and GRPCRoutes share no host of a listener, and the older route has it")
	case g.refusal != nil:
		return no("Pending", "Gateway "+g.Key().String()+" is not served: "+g.refusal.Message)
	case len(a.unserved) > 0:
		return no("Pending", "not served yet: "+strings.Join(a.unserved, "; "))
	case len(a.lost) > 0:
		return no("NoMatchingListenerHostname", strings.Join(a.lost, "; ")+j.tellOperator(g))
	}
	return no("NoMatchingListenerHostname", fmt.Sprintf("none of the hostnames %s is one of Gateway %s's listeners (%s)", strings.Join(r.Object.Hostnames, ", "), g.Key(), g.listed()))
}

// attempt is what became of a route at the listeners that it names.
type attempt struct {
	named, allowed                     int
	refused, unserved, lost, conflicts []string
	found                              attachment
}

// listener attaches a route to a listener if that takes it.
func (a *attempt) listener(j *judge, r *Route, g *gateway, l *listener) {
	a.named++
	if ok, why := j.admits(g, l, r); !ok {
		a.refused = append(a.refused, "listener "+l.Name+" "+why)
		return
	}
	a.allowed++
	one := hostnames{}
	one.add(l.Hostname, r.Object.Hostnames)
	one, others := j.keep(one, g, r.Namespace)
	if a.lost = append(a.lost, others...); !one.attached {
		return
	}
	if other, host := l.conflicts(r, one); other != "" {
		a.conflicts = append(a.conflicts, fmt.Sprintf("%s of listener %s is %s's", cmp.Or(host, "every host"), l.Name, other))
		return
	}
	l.take(r, one)
	l.attached++
	switch {
	case g.refusal != nil || !l.served():
		a.unserved = append(a.unserved, "listener "+l.Name+": "+l.why())
	case j.secured(l.Listener):
		a.found.secured.join(one)
	default:
		a.found.plain.join(one)
	}
}

// but is what a route that is served does not have of what it asks for; "" where it has
// all.
func (a *attempt) but(operator string) string {
	switch {
	case len(a.conflicts) > 0:
		return "served, but not by all listeners: " + strings.Join(a.conflicts, "; ")
	case len(a.lost) > 0:
		return "served, but not under all its hosts: " + strings.Join(a.lost, "; ") + operator
	}
	return ""
}

// reasonConflict is why a route has no listener whose hosts it asks for: the API states
// no word for it.
const reasonConflict = "Conflicted"

// conflicts finds a route of another kind that has one of the hosts already.
func (l *listener) conflicts(r *Route, hosts hostnames) (other, host string) {
	for _, k := range []routing.Kind{routing.KindHTTPRoute, routing.KindGRPCRoute} {
		if set := l.of[k]; k != r.Kind && set != nil {
			if other, host := set.meets(r.Namespace, hosts); other != "" {
				return other, host
			}
		}
	}
	return "", ""
}

// take notes the hosts of a route that is attached.
func (l *listener) take(r *Route, hosts hostnames) {
	set := l.of[r.Kind]
	if set == nil {
		set = &hostSet{spaces: map[string]*hostsOf{}}
		l.of[r.Kind] = set
	}
	set.add(r.Namespace, string(r.Kind)+" "+r.Key.String(), hosts)
}

// listed names the listeners, with their hosts and ports.
func (g *gateway) listed() string {
	out := make([]string, len(g.listeners))
	for i, l := range g.listeners {
		out[i] = fmt.Sprintf("%s: %s port %d", l.Name, cmp.Or(l.Hostname, "any host"), l.Port)
	}
	return strings.Join(out, ", ")
}

// unsupported is what of a route is not applied here: some of its rules, or all.
type unsupported struct {
	message string
	whole   bool
}

func unsupportedOf(r *routing.HTTPRoute) (out unsupported) {
	note := func(fault, reason string) bool {
		if fault == "" || reason != routing.ReasonUnsupported {
			return false
		}
		out.message = cmp.Or(out.message, "Dropped Rule: "+fault)
		return true
	}
	lost := 0
	for i := range r.Rules {
		if note(r.Rules[i].Fault, r.Rules[i].FaultReason) {
			lost++
		}
		for _, b := range r.Rules[i].Backends {
			note(b.Fault, b.FaultReason)
		}
	}
	out.whole = lost > 0 && lost == len(r.Rules)
	return out
}

// pools notes that a route leads from a Gateway to pools.
func (j *judge) pools(r *routing.HTTPRoute, p routing.Parent, g *gateway, accepted service.Condition) {
	kind := string(r.RoutingKind())
	for _, pool := range j.Pools {
		uses := slices.ContainsFunc(r.Rules, func(rule routing.HTTPRule) bool {
			return slices.ContainsFunc(rule.Backends, func(b routing.Backend) bool {
				return b.Ref == routing.PoolRef(pool.Key) && j.granted(reference{Group, kind, r.Namespace}, reference{b.Group, b.Kind, b.Namespace}, b.Name)
			})
		})
		if !uses {
			continue
		}
		ref := routing.Parent{Group: Group, Kind: "Gateway", Namespace: g.Metadata.Namespace, Name: p.Name}
		c := condition(conditionAccepted, true, "Accepted", "")
		if accepted.Status != "True" {
			c = condition(conditionAccepted, false, "HTTPRouteNotAccepted", kind+" "+r.Key.String()+": "+accepted.Message)
		}
		all := j.out.Pools[pool.Key]
		i := slices.IndexFunc(all, func(s ParentStatus) bool { return s.Ref == ref })
		switch {
		case i < 0 && len(all) < maxParents:
			j.out.Pools[pool.Key] = append(all, ParentStatus{Ref: ref, Conditions: []service.Condition{c, j.extension(pool)}})
		case i >= 0 && c.Status == "True": // one route that leads there is enough
			all[i].Conditions[0] = c
		}
	}
}

// hostnames are the hosts that a route is served under.
type hostnames struct {
	attached bool
	any      bool
	free     bool // any is by a Gateway that has every host
	set      map[string]bool
}

// add adds those that a listener's host and a route's have in common.
func (h *hostnames) add(listener string, route []string) {
	listener = strings.ToLower(listener)
	if len(route) == 0 {
		h.one(listener)
		return
	}
	for _, r := range route {
		if host, ok := common(listener, strings.ToLower(r)); ok {
			h.one(host)
		}
	}
}

func (h *hostnames) one(host string) {
	h.attached = true
	if host == "" {
		h.any = true
		return
	}
	if h.set == nil {
		h.set = map[string]bool{}
	}
	h.set[host] = true
}

func (h *hostnames) join(o hostnames) {
	h.attached, h.any, h.free = h.attached || o.attached, h.any || o.any, h.free || o.free
	for host := range o.set {
		h.one(host)
	}
}

// names are the hosts, sorted; none means any.
func (h *hostnames) names() []string {
	if h.any {
		return nil
	}
	var out []string
	for host := range h.set {
		out = append(out, host)
	}
	slices.Sort(out)
	return out
}

// hostSet are the hosts that routes have, with the first of them. A route that has every
// host after names leaves requests for a host to the routes of other namespaces that name
// it: it shuts those out no more than they do it.
type hostSet struct {
	all    hostsOf
	spaces map[string]*hostsOf // of each namespace
	free   string              // the first route that has every host before names
}

// hostsOf are the hosts of some routes, with the first of them.
type hostsOf struct {
	any string            // that has every host
	by  map[string]string // of a host or wildcard
	// over is of wildcards over those of by.
	over map[string]string
}

func (s *hostSet) add(namespace, route string, hosts hostnames) {
	if s.spaces[namespace] == nil {
		s.spaces[namespace] = &hostsOf{}
	}
	s.all.add(route, hosts)
	s.spaces[namespace].add(route, hosts)
	if hosts.any && hosts.free {
		s.free = cmp.Or(s.free, route)
	}
}

func (o *hostsOf) add(route string, hosts hostnames) {
	if o.by == nil {
		o.by, o.over = map[string]string{}, map[string]string{}
	}
	note := func(in map[string]string, host string) {
		if in[host] == "" {
			in[host] = route
		}
	}
	if hosts.any {
		o.any = cmp.Or(o.any, route)
	}
	for host := range hosts.set {
		note(o.by, host)
		for above := range wildcardsOver(host) {
			note(o.over, above)
		}
	}
}

// meets finds a route that has one of the hosts of a namespace's route, or a part of them.
func (s *hostSet) meets(namespace string, hosts hostnames) (route, host string) {
	own := s.spaces[namespace]
	if own == nil {
		own = &hostsOf{}
	}
	every, named := cmp.Or(s.free, own.any), &s.all
	if hosts.any {
		every = s.all.any
		if !hosts.free {
			named = own
		}
	}
	if every != "" {
		return every, ""
	}
	return named.meets(hosts)
}

// meets finds a route that names one of the hosts, or a part of them.
func (o *hostsOf) meets(hosts hostnames) (route, host string) {
	all := slices.Sorted(maps.Keys(hosts.set))
	if hosts.any {
		all = slices.Sorted(maps.Keys(o.by)) // every host has those in it
	}
	for _, host := range all {
		if route := cmp.Or(o.by[host], o.over[host]); route != "" {
			return route, host
		}
		for above := range wildcardsOver(host) {
			if route := o.by[above]; route != "" {
				return route, host
			}
		}
	}
	return "", ""
}

// wildcardsOver are the wildcards that hold a host or another wildcard.
func wildcardsOver(host string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for rest, more := strings.TrimPrefix(host, "*."), true; more; {
			if _, rest, more = strings.Cut(rest, "."); more && !yield("*."+rest) {
				return
			}
		}
	}
}

// common is the narrower of two hosts, exact or "*.suffix", one of which holds
// the other; "" is any host.
func common(a, b string) (string, bool) {
	switch {
	case a == "" || a == b:
		return b, true
	case b == "" || covers(b, a):
		return a, true
	case covers(a, b):
		return b, true
	}
	return "", false
}

// covers reports whether every host of narrow is one of the wildcard's.
func covers(wildcard, narrow string) bool {
	suffix, ok := strings.CutPrefix(wildcard, "*")
	return ok && strings.HasSuffix(narrow, suffix) && len(narrow) > len(suffix)
}
