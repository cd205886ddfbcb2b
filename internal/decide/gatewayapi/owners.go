package gatewayapi

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/route"
)

// All Gateways are one gateway, so a host can be only one namespace's:
//
//   - NAME.NAMESPACE.DOMAIN is the namespace's in it, whichever Gateway a route
//     is attached to;
//   - DOMAIN, the names of the gateway's own Service, and whatever Gateways
//     with every host claim, are the operator's;
//   - any other is that of the Gateway's namespace which claimed it, or a
//     wildcard over it, first.
//
// Who claims no host has what is left: see routing.HTTPRoute.AfterNames.

// AnnotationAnyHost on a GatewayClass names the namespaces whose Gateways of
// the class have every host, with commas between; "*" is all. The gateway's
// own namespace always has.
const AnnotationAnyHost = "roundhouse.dev/any-host"

// claim is a host, exact or "*.suffix", and who has it.
type claim struct {
	free      bool // by a Gateway that has every host
	since     time.Time
	namespace string // of the Gateway
	gateway   string
}

// before returns which of two claims of a host counts: a free one, the older.
func (c claim) before(o claim) bool {
	if c.free != o.free {
		return c.free
	}
	return cmp.Or(c.since.Compare(o.since), strings.Compare(c.namespace, o.namespace), strings.Compare(c.gateway, o.gateway)) < 0
}

// owners are the claims by host.
type owners map[string]claim

func (o owners) add(host string, c claim) {
	if have, ok := o[host]; host != "" && (!ok || c.before(have)) {
		o[host] = c
	}
}

// of is the claim that counts for a host or wildcard.
func (o owners) of(host string) (best claim, ok bool) {
	for at := host; ; {
		if c, there := o[at]; there && (!ok || c.before(best)) {
			best, ok = c, true
		}
		_, rest, more := strings.Cut(strings.TrimPrefix(at, "*."), ".")
		if !more {
			return best, ok
		}
		at = "*." + rest
	}
}

// above are the wildcards that cover free claims, each with the first of these.
func (o owners) above() owners {
	out := owners{}
	for host, c := range o {
		if !c.free {
			continue
		}
		for at := strings.TrimPrefix(host, "*."); ; {
			_, rest, more := strings.Cut(at, ".")
			if !more {
				break
			}
			out.add("*."+rest, c)
			at = rest
		}
	}
	return out
}

// free reports whether a Gateway has every host.
func (j *judge) free(g *gateway) bool {
	if ns := g.Metadata.Namespace; ns == j.System {
		return true
	}
	for i := range j.Classes {
		if j.Classes[i].Metadata.Name != g.Spec.Class {
			continue
		}
		for _, ns := range strings.Split(j.Classes[i].Metadata.Annotations[AnnotationAnyHost], ",") {
			if ns = strings.TrimSpace(ns); ns == "*" || ns == g.Metadata.Namespace {
				return true
			}
		}
	}
	return false
}

// claims notes which hosts Gateways and the routes attached to them have.
func (j *judge) claims() {
	j.owners = owners{}
	defer func() { j.above = j.owners.above() }()
	by := func(g *gateway, since time.Time) claim {
		return claim{free: j.free(g), since: since, namespace: g.Metadata.Namespace, gateway: g.Key().String()}
	}
	for _, g := range j.gateways {
		for i := range g.listeners {
			if l := &g.listeners[i]; g.refusal == nil && l.served() {
				j.owners.add(strings.ToLower(l.Hostname), by(g, g.Metadata.CreationTimestamp.Time))
			}
		}
	}
	for i := range j.Routes {
		r := &j.Routes[i]
		if r.Object == nil {
			continue
		}
		for _, p := range r.Parents {
			g := j.parent(r, p)
			if g == nil || g.refusal != nil {
				continue
			}
			for k := range g.listeners {
				l := &g.listeners[k]
				if ok, _ := j.admits(g, l, r); !ok || !l.named(p) || !l.served() {
					continue
				}
				one := hostnames{}
				one.add(l.Hostname, r.Object.Hostnames)
				for host := range one.set {
					j.owners.add(host, by(g, r.Object.Created))
				}
			}
		}
	}
}

// certificates notes which Secret each host of a listener for HTTPS is served with: of
// several that claim a host, the first that may.
func (j *judge) certificates() {
	claims := map[string]claim{}
	for _, g := range j.gateways {
		for i := range g.listeners {
			l := &g.listeners[i]
			host := strings.ToLower(l.Hostname)
			if g.refusal != nil || !l.served() || !j.secured(l.Listener) || j.taken(host, g, g.Metadata.Namespace) != "" {
				continue
			}
			ref := l.TLS.CertificateRefs[0]
			c := claim{free: j.free(g), since: g.Metadata.CreationTimestamp.Time, namespace: g.Metadata.Namespace, gateway: g.Key().String() + "/" + l.Name}
			if have, ok := claims[host]; ok && !c.before(have) {
				continue
			}
			claims[host] = c
			if j.out.Certificates == nil {
				j.out.Certificates = map[string]service.Key{}
			}
			j.out.Certificates[host] = service.Key{Namespace: cmp.Or(ref.Namespace, g.Metadata.Namespace), Name: ref.Name}
		}
	}
}

// named reports whether a reference to a Gateway means the listener.
func (l *listener) named(p routing.Parent) bool {
	return (p.SectionName == "" || p.SectionName == l.Name) && (p.Port == 0 || p.Port == l.Port)
}

// taken returns why a route of a namespace may not be served under a host by a
// Gateway, "" where it may.
func (j *judge) taken(host string, g *gateway, namespace string) string {
	if host == "" || j.free(g) {
		return ""
	}
	switch of, within := route.HostNamespace(host, j.Domain); {
	case within && of == "", covers(host, cmp.Or(j.Domain, route.DefaultDomain)):
		return host + " has hosts of every namespace's services, or is the gateway's own"
	case within && of != namespace:
		return fmt.Sprintf("%s is of the services of namespace %s, by the gateway's URL (--gateway-url) under %s", host, of, cmp.Or(j.Domain, route.DefaultDomain))
	case within:
		return ""
	}
	if slices.ContainsFunc(j.Own, func(own string) bool { return host == own || covers(host, own) }) {
		return host + " is a name of the gateway itself"
	}
	if c, ok := j.owners.of(host); ok && c.namespace != g.Metadata.Namespace {
		return fmt.Sprintf("%s is Gateway %s's", host, c.gateway)
	}
	if c, ok := j.above[host]; ok {
		return fmt.Sprintf("%s has hosts of Gateway %s", host, c.gateway)
	}
	return ""
}

// keep returns those of the hosts that a route may be served under, and for the
// others the reasons.
func (j *judge) keep(h hostnames, g *gateway, namespace string) (out hostnames, lost []string) {
	if h.any {
		out.attached, out.any, out.free = true, true, j.free(g)
	}
	for host := range h.set {
		if why := j.taken(host, g, namespace); why != "" {
			lost = append(lost, why)
		} else {
			out.one(host)
		}
	}
	slices.Sort(lost)
	return out, lost
}

// tellOperator ends what is said of hosts that a Gateway may not have.
func (j *judge) tellOperator(g *gateway) string {
	return fmt.Sprintf(" (the annotation %s of GatewayClass %s names the namespaces whose Gateways have every host)", AnnotationAnyHost, g.Spec.Class)
}
