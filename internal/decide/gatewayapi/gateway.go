package gatewayapi

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// gateway is one of ours being checked.
type gateway struct {
	*Gateway
	// refusal is why none of it is served; nil where it is served.
	refusal   *service.Condition
	listeners []listener
}

// listener is one of a gateway of ours being checked.
type listener struct {
	*Listener
	kinds    []RouteKind
	attached int
	accepted service.Condition
	resolved service.Condition
	conflict service.Condition
	// cert reports that what TLS needs is there.
	cert bool
	// of are the hosts that routes of each kind have here.
	of map[routing.Kind]*hostSet
}

// served reports whether requests can come by the listener.
func (l *listener) served() bool {
	return l.accepted.Status == "True" && l.conflict.Status == "False" && l.cert
}

// why returns why the listener is not served.
func (l *listener) why() string {
	for _, c := range []service.Condition{l.accepted, l.resolved} {
		if c.Status == "False" {
			return c.Message
		}
	}
	return l.conflict.Message
}

// gateway judges one, if it is ours.
func (j *judge) gateway(in *Gateway) {
	class, ours := j.out.Classes[in.Spec.Class]
	if !ours {
		return
	}
	g := &gateway{Gateway: in}
	j.gateways[in.Key()] = g
	switch {
	case class[0].Status != "True":
		c := condition(conditionAccepted, false, "InvalidParameters", "GatewayClass "+in.Spec.Class+": "+class[0].Message)
		g.refusal = &c
	case j.Front != nil:
		for _, a := range in.Spec.Addresses {
			if a.Value != "" && !slices.ContainsFunc(j.Front.Addresses, func(have Address) bool { return have.Value == a.Value }) {
				c := condition(conditionAccepted, false, "UnsupportedAddress",
					fmt.Sprintf("spec.addresses: %s is not an address of the gateway's Service, which alone has any: %s", a.Value, list(j.Front.Addresses)))
				g.refusal = &c
			}
		}
	}
	for i := range in.Spec.Listeners {
		g.listeners = append(g.listeners, j.listener(in, &in.Spec.Listeners[i]))
	}
	for i := range g.listeners {
		g.listeners[i].conflict = conflict(in, i)
	}
}

func list(in []Address) string {
	out := make([]string, len(in))
	for i, a := range in {
		out[i] = a.Value
	}
	if len(out) == 0 {
		return "none yet"
	}
	return strings.Join(out, ", ")
}

// conflict finds an earlier listener that conflicts with the one at i.
func conflict(g *Gateway, i int) service.Condition {
	l := &g.Spec.Listeners[i]
	for k := range g.Spec.Listeners[:i] {
		other := &g.Spec.Listeners[k]
		switch {
		case other.Port != l.Port:
		case other.Protocol != l.Protocol:
			return condition(conditionConflicted, true, "ProtocolConflict", fmt.Sprintf("listener %s has port %d with protocol %s", other.Name, l.Port, other.Protocol))
		case strings.EqualFold(other.Hostname, l.Hostname):
			return condition(conditionConflicted, true, "HostnameConflict", fmt.Sprintf("listener %s has port %d with the same hostname", other.Name, l.Port))
		}
	}
	return condition(conditionConflicted, false, "NoConflicts", "")
}

// routeKinds are the kinds of routes that listeners take.
var routeKinds = []RouteKind{{Group, string(routing.KindHTTPRoute)}, {Group, string(routing.KindGRPCRoute)}}

func (j *judge) listener(g *Gateway, l *Listener) listener {
	out := listener{Listener: l, cert: true, kinds: routeKinds, of: map[routing.Kind]*hostSet{},
		accepted: j.accepted(l), resolved: condition(conditionResolved, true, "ResolvedRefs", "")}
	if a := l.AllowedRoutes; a != nil && len(a.Kinds) > 0 {
		out.kinds = nil
		for _, k := range a.Kinds {
			k.Group = cmp.Or(k.Group, Group)
			switch {
			case !slices.Contains(routeKinds, k):
				out.resolved = condition(conditionResolved, false, "InvalidRouteKinds", "allowedRoutes.kinds: "+k.Kind+" is not served: HTTPRoute and GRPCRoute are")
			case !slices.Contains(out.kinds, k):
				out.kinds = append(out.kinds, k)
			}
		}
	}
	if l.Protocol == "HTTPS" {
		if reason, message := j.certificate(g, l); reason != "" {
			out.resolved, out.cert = condition(conditionResolved, false, reason, message), false
		}
	}
	return out
}

// accepted is the condition that reports whether the gateway supports a listener.
func (j *judge) accepted(l *Listener) service.Condition {
	no := func(reason, message string) service.Condition {
		return condition(conditionAccepted, false, reason, message)
	}
	secure := j.Front != nil && j.Front.TLS()
	switch {
	case l.Protocol != "HTTP" && l.Protocol != "HTTPS":
		return no("UnsupportedProtocol", "protocol "+l.Protocol+" is not served: write HTTP or HTTPS")
	case j.secured(l):
		if !slices.Contains(j.Front.SecurePorts, l.Port) {
			return no("PortUnavailable", fmt.Sprintf("the gateway's Service has no port %d for HTTPS: write %v, or set gateway.https.port of its chart", l.Port, j.Front.SecurePorts))
		}
	case l.Protocol == "HTTP" && secure:
		return no("UnsupportedProtocol", "the gateway has a certificate and serves HTTPS alone: write HTTPS")
	case l.Protocol == "HTTPS" && !secure:
		return no("UnsupportedProtocol", "the gateway has no certificate and serves HTTP alone: set gateway.https.enabled or gateway.tls.secret of its chart, or write HTTP")
	case j.Front != nil && len(j.Front.Ports) > 0 && !slices.Contains(j.Front.Ports, l.Port):
		return no("PortUnavailable", fmt.Sprintf("the gateway's Service has no port %d for this: write %v, or add it to the Service", l.Port, j.Front.Ports))
	case l.TLS != nil && l.TLS.Mode != "" && l.TLS.Mode != "Terminate":
		return no("UnsupportedValue", "tls.mode "+l.TLS.Mode+" is not served: write Terminate")
	}
	return condition(conditionAccepted, true, "Accepted", "")
}

// secured reports whether a listener is for HTTPS with the certificates that it names.
func (j *judge) secured(l *Listener) bool {
	return l.Protocol == "HTTPS" && j.Front != nil && len(j.Front.SecurePorts) > 0 && (!j.Front.TLS() || slices.Contains(j.Front.SecurePorts, l.Port))
}

// certificate returns why a listener's certificates cannot be served. Where the gateway
// may not read Secrets, there is one that can: that which its pods have mounted.
func (j *judge) certificate(g *Gateway, l *Listener) (reason, message string) {
	const invalid = "InvalidCertificateRef"
	t := l.TLS
	if t == nil || len(t.CertificateRefs) == 0 {
		return invalid, "tls.certificateRefs is missing: name the gateway's Secret"
	}
	for i, ref := range t.CertificateRefs {
		at := fmt.Sprintf("tls.certificateRefs[%d]: ", i)
		k := service.Key{Namespace: ref.Namespace, Name: ref.Name}
		if k.Namespace == "" {
			k.Namespace = g.Metadata.Namespace
		}
		switch {
		case ref.Group != "" || ref.Kind != "" && ref.Kind != "Secret":
			return invalid, at + "a " + ref.Kind + " is no certificate: name a Secret"
		case !j.granted(reference{Group, "Gateway", g.Metadata.Namespace}, reference{"", "Secret", k.Namespace}, k.Name):
			return "RefNotPermitted", fmt.Sprintf("%s%s is in another namespace, and no ReferenceGrant there lets Gateways of %s refer to it", at, k, g.Metadata.Namespace)
		case j.secured(l):
			if why := j.Certificate(k); why != "" {
				return invalid, at + why
			}
		case j.Front == nil || k != j.Front.Certificate:
			served := "it has none"
			if j.Front != nil && j.Front.TLS() {
				served = "that is " + j.Front.Certificate.String()
			}
			return invalid, at + k.String() + " is not the Secret that the gateway serves HTTPS with: " + served
		}
	}
	return "", ""
}

// reference is one end of a reference: objects of a kind in a namespace.
type reference struct{ group, kind, namespace string }

// granted reports whether one namespace's objects may refer to another's.
func (j *judge) granted(from, to reference, name string) bool {
	if from.namespace == to.namespace {
		return true
	}
	for i := range j.Grants {
		g := &j.Grants[i]
		if g.Metadata.Namespace != to.namespace {
			continue
		}
		comes, goes := false, false
		for _, f := range g.Spec.From {
			comes = comes || f.Group == from.group && f.Kind == from.kind && f.Namespace == from.namespace
		}
		for _, t := range g.Spec.To {
			goes = goes || t.Group == to.group && t.Kind == to.kind && (t.Name == "" || t.Name == name)
		}
		if comes && goes {
			return true
		}
	}
	return false
}

// admits reports whether the listener lets a route in, and if not why.
func (j *judge) admits(g *gateway, l *listener, r *Route) (bool, string) {
	if !slices.Contains(l.kinds, RouteKind{Group, string(r.Kind)}) {
		return false, "allows no " + string(r.Kind) + "s"
	}
	namespace := r.Namespace
	from, selector := "Same", (*metav1.LabelSelector)(nil)
	if a := l.AllowedRoutes; a != nil && a.Namespaces != nil && a.Namespaces.From != "" {
		from, selector = a.Namespaces.From, a.Namespaces.Selector
	}
	switch from {
	case "All":
		return true, ""
	case "Same":
		return namespace == g.Metadata.Namespace, "allows routes of its own namespace " + g.Metadata.Namespace
	case "Selector":
		have, known := map[string]string(nil), false
		if j.Labels != nil {
			have, known = j.Labels(namespace)
		}
		if !known {
			return false, "allows routes of namespaces by their labels, and those of " + namespace + " cannot be read: write from: All, or move the route"
		}
		want, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			return false, "has a selector of namespaces that cannot be read: " + err.Error()
		}
		return want.Matches(labels.Set(have)), "allows routes of namespaces with the labels " + want.String()
	}
	return false, "allows no routes (from: " + from + ")"
}

// status puts a Gateway's together, once its routes are counted.
func (g *gateway) status(front *Front) GatewayStatus {
	var out GatewayStatus
	if front != nil {
		out.Addresses = front.Addresses
	}
	served := 0
	for i := range g.listeners {
		l := &g.listeners[i]
		programmed := condition(conditionProgrammed, true, "Programmed", "")
		switch {
		case g.refusal != nil:
			programmed = condition(conditionProgrammed, false, "Invalid", g.refusal.Message)
		case !l.served():
			programmed = condition(conditionProgrammed, false, "Invalid", l.why())
		default:
			served++
		}
		if l.kinds == nil {
			l.kinds = []RouteKind{}
		}
		out.Listeners = append(out.Listeners, ListenerStatus{Name: l.Name, SupportedKinds: l.kinds, AttachedRoutes: l.attached,
			Conditions: []service.Condition{l.accepted, l.conflict, l.resolved, programmed}})
	}
	accepted := condition(conditionAccepted, true, "Accepted", "")
	programmed := condition(conditionProgrammed, true, "Programmed", "")
	switch n := len(g.listeners); {
	case g.refusal != nil:
		accepted, programmed = *g.refusal, condition(conditionProgrammed, false, "Invalid", g.refusal.Message)
	case served == 0:
		accepted = condition(conditionAccepted, false, "ListenersNotValid", "no listener can be served: see theirs")
		programmed = condition(conditionProgrammed, false, "Invalid", accepted.Message)
	case served < n:
		accepted = condition(conditionAccepted, true, "ListenersNotValid", fmt.Sprintf("%d of %d listeners cannot be served: see theirs", n-served, n))
	}
	if programmed.Status == "True" && len(out.Addresses) == 0 {
		programmed = condition(conditionProgrammed, false, "AddressNotAssigned", "the gateway's Service has no address yet")
	}
	out.Conditions = []service.Condition{accepted, programmed}
	return out
}
