package gatewayapi

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// maxParents is how many entries a status may have, as published.
const maxParents = 32

// route judges an HTTPRoute, if it names one of our Gateways.
func (j *judge) route(r *Route) {
	var out RouteStatus
	var hosts hostnames
	var resolved service.Condition
	var dropped unsupported
	served := r.Object
	if served != nil {
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
	if served != nil && hosts.attached {
		o := *served
		o.Hostnames = hosts.names()
		o.AfterNames = hosts.any && !hosts.free
		out.Served = &o
	}
	j.out.Routes[r.Key] = out
}

// parent is the Gateway of ours that a reference names; nil for none.
func (j *judge) parent(r *Route, p routing.Parent) *gateway {
	if p.Group != "" && p.Group != Group || p.Kind != "" && p.Kind != "Gateway" {
		return nil
	}
	return j.gateways[service.Key{Namespace: cmp.Or(p.Namespace, r.Namespace), Name: p.Name}]
}

// attach attaches a route to the listeners of a Gateway that take it.
func (j *judge) attach(r *Route, p routing.Parent, g *gateway, hosts *hostnames) service.Condition {
	no := func(reason, message string) service.Condition {
		return condition(conditionAccepted, false, reason, message)
	}
	if r.Problem != "" {
		return no("UnsupportedValue", r.Problem)
	}
	named, allowed := 0, 0
	var refused, unserved, lost []string
	found := hostnames{}
	for i := range g.listeners {
		l := &g.listeners[i]
		if !l.named(p) {
			continue
		}
		named++
		if ok, why := j.admits(g, l, r.Namespace); !ok {
			refused = append(refused, "listener "+l.Name+" "+why)
			continue
		}
		allowed++
		one := hostnames{}
		one.add(l.Hostname, r.Object.Hostnames)
		one, others := j.keep(one, g, r.Namespace)
		if lost = append(lost, others...); !one.attached {
			continue
		}
		l.attached++
		if g.refusal != nil || !l.served() {
			unserved = append(unserved, "listener "+l.Name+": "+l.why())
			continue
		}
		found.join(one)
	}
	slices.Sort(lost)
	lost = slices.Compact(lost)
	switch {
	case named == 0:
		return no("NoMatchingParent", fmt.Sprintf("Gateway %s has no such listener (%s)", g.Key(), g.listed()))
	case allowed == 0:
		return no("NotAllowedByListeners", strings.Join(refused, "; "))
	case found.attached:
		hosts.join(found)
		if len(lost) > 0 {
			return condition(conditionAccepted, true, "Accepted", "served, but not under all its hosts: "+strings.Join(lost, "; ")+j.tellOperator(g))
		}
		return condition(conditionAccepted, true, "Accepted", "")
	case g.refusal != nil:
		return no("Pending", "Gateway "+g.Key().String()+" is not served: "+g.refusal.Message)
	case len(unserved) > 0:
		return no("Pending", "not served yet: "+strings.Join(unserved, "; "))
	case len(lost) > 0:
		return no("NoMatchingListenerHostname", strings.Join(lost, "; ")+j.tellOperator(g))
	}
	return no("NoMatchingListenerHostname", fmt.Sprintf("none of the hostnames %s is one of Gateway %s's listeners (%s)", strings.Join(r.Object.Hostnames, ", "), g.Key(), g.listed()))
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

// backends is the route with a Fault for each backend that it may not reach,
// and what its status says of them.
func (j *judge) backends(r *routing.HTTPRoute) (*routing.HTTPRoute, service.Condition) {
	resolved := condition(conditionResolved, true, "ResolvedRefs", "")
	fail := func(reason, message string) {
		if resolved.Status == "True" {
			resolved = condition(conditionResolved, false, reason, message)
		}
	}
	out := *r
	out.Rules = slices.Clone(r.Rules)
	for i := range out.Rules {
		if f := out.Rules[i].Fault; f != "" && out.Rules[i].FaultReason != routing.ReasonUnsupported {
			fail(out.Rules[i].FaultReason, f)
		}
		bs := slices.Clone(out.Rules[i].Backends)
		out.Rules[i].Backends = bs
		for k := range bs {
			b := &bs[k]
			at := fmt.Sprintf("spec.rules[%d].backendRefs[%d]: ", i, k)
			switch missing := ""; {
			case b.FaultReason == routing.ReasonUnsupported:
			case b.Fault != "":
				fail(routing.ReasonInvalidKind, at+b.Fault)
			case !j.granted(reference{Group, "HTTPRoute", r.Namespace}, reference{b.Group, b.Kind, b.Namespace}, b.Name):
				b.Fault = fmt.Sprintf("%s %s is in another namespace, and no ReferenceGrant there lets HTTPRoutes of %s refer to it", b.Kind, b.Key, r.Namespace)
				fail("RefNotPermitted", at+b.Fault)
			case j.Missing != nil:
				if missing = j.Missing(b.Ref); missing != "" {
					fail("BackendNotFound", at+missing)
				}
			}
		}
	}
	return &out, resolved
}

// pools notes that a route leads from a Gateway to pools.
func (j *judge) pools(r *routing.HTTPRoute, p routing.Parent, g *gateway, accepted service.Condition) {
	for _, pool := range j.Pools {
		uses := slices.ContainsFunc(r.Rules, func(rule routing.HTTPRule) bool {
			return slices.ContainsFunc(rule.Backends, func(b routing.Backend) bool {
				return b.Ref == routing.PoolRef(pool.Key) && j.granted(reference{Group, "HTTPRoute", r.Namespace}, reference{b.Group, b.Kind, b.Namespace}, b.Name)
			})
		})
		if !uses {
			continue
		}
		ref := routing.Parent{Group: Group, Kind: "Gateway", Namespace: g.Metadata.Namespace, Name: p.Name}
		c := condition(conditionAccepted, true, "Accepted", "")
		if accepted.Status != "True" {
			c = condition(conditionAccepted, false, "HTTPRouteNotAccepted", "HTTPRoute "+r.Key.String()+": "+accepted.Message)
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
