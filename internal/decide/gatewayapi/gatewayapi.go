// Package gatewayapi decides what becomes of the Gateway API's objects:
// which GatewayClasses, Gateways and listeners are Roundhouse's and can be
// served, which HTTPRoutes and GRPCRoutes are attached to them, under which hosts, and what
// the status of each says, in the API's published conditions and reasons.
// The controller writes what it decides; every gateway serves by it.
package gatewayapi

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
)

// Group is the Gateway API's.
const Group = "gateway.networking.k8s.io"

// ControllerName is what a GatewayClass names to have its Gateways served.
const ControllerName = dialect.GatewayController

// Class is a GatewayClass, as far as it matters.
type Class struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		ControllerName string `json:"controllerName"`
		ParametersRef  *struct {
			Kind string `json:"kind"`
			Name string `json:"name"`
		} `json:"parametersRef"`
	} `json:"spec"`
}

// Gateway is a Gateway, as far as it matters.
type Gateway struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Class     string     `json:"gatewayClassName"`
		Addresses []Address  `json:"addresses"`
		Listeners []Listener `json:"listeners"`
	} `json:"spec"`
}

// Key is the Gateway's name.
func (g *Gateway) Key() service.Key {
	return service.Key{Namespace: g.Metadata.Namespace, Name: g.Metadata.Name}
}

// Address is where a Gateway is reached: of type IPAddress or Hostname.
type Address struct {
	Type  string `json:"type"`
	Value string `json:"value"`
}

// The types of addresses.
const (
	AddressIP       = "IPAddress"
	AddressHostname = "Hostname"
)

// Listener is one of a Gateway's.
type Listener struct {
	Name          string         `json:"name"`
	Hostname      string         `json:"hostname"`
	Port          int32          `json:"port"`
	Protocol      string         `json:"protocol"`
	TLS           *TLS           `json:"tls"`
	AllowedRoutes *AllowedRoutes `json:"allowedRoutes"`
}

// TLS is how a listener ends it.
type TLS struct {
	Mode            string      `json:"mode"`
	CertificateRefs []SecretRef `json:"certificateRefs"`
}

// SecretRef names a certificate.
type SecretRef struct {
	Group     string `json:"group"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// AllowedRoutes is which routes may attach themselves to a listener.
type AllowedRoutes struct {
	Namespaces *struct {
		From     string                `json:"from"`
		Selector *metav1.LabelSelector `json:"selector"`
	} `json:"namespaces"`
	Kinds []RouteKind `json:"kinds"`
}

// RouteKind is a kind of routes.
type RouteKind struct {
	Group string `json:"group"`
	Kind  string `json:"kind"`
}

// Grant is a ReferenceGrant: what of its namespace others may refer to.
type Grant struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		From []struct {
			Group     string `json:"group"`
			Kind      string `json:"kind"`
			Namespace string `json:"namespace"`
		} `json:"from"`
		To []struct {
			Group string `json:"group"`
			Kind  string `json:"kind"`
			Name  string `json:"name"` // "" is every one
		} `json:"to"`
	} `json:"spec"`
}

// Route is an HTTPRoute or a GRPCRoute.
type Route struct {
	routing.ID
	Parents []routing.Parent
	// Object is what it says, nil where Problem is why that cannot be served.
	Object  *routing.HTTPRoute
	Problem string
}

// Front is what the gateway offers: its Service, and how it was set up.
type Front struct {
	// Ports are those at which it takes HTTP, or HTTPS if TLS.
	Ports []int32
	// Certificate is the Secret that the gateway serves HTTPS with; the zero Key
	// means that it serves HTTP.
	Certificate service.Key
	// SecurePorts are those at which it takes HTTPS with the certificates that listeners
	// name, besides HTTP at Ports; none where it does not.
	SecurePorts []int32
	Addresses   []Address
}

// TLS reports whether the gateway serves HTTPS, and that alone.
func (f *Front) TLS() bool { return f.Certificate.Name != "" }

// World is everything there is to judge, and to judge by.
type World struct {
	Classes  []Class
	Gateways []Gateway
	Routes   []Route
	Grants   []Grant
	Pools    []*routing.Pool
	// Labels gives a namespace's; false where they cannot be known.
	Labels func(namespace string) (map[string]string, bool)
	// Front is nil where no Service of the gateway is known: then ports are not
	// looked at, and no Gateway has an address.
	Front *Front
	// Missing is what is wrong with a backend that is not there, "" for one
	// that is; nil where that is not asked.
	Missing func(routing.Ref) string
	// Ours reports whether a service of ours has a name; nil: whatever a reference to a
	// Service names is one. Others are Kubernetes Services, of which Service is what is
	// known; nil where that is not asked.
	Ours    func(service.Key) bool
	Service func(ServicePort) Service
	// Certificate is what is wrong with a Secret as a certificate; "" for nothing. It is
	// asked where the Front has SecurePorts.
	Certificate func(service.Key) string
	// Picker is what is known of the endpoint picker that a pool names; nil
	// where gateways ask none.
	Picker func(pool service.Key) Picker
	// Domain ends the hosts of services, "name.namespace.domain"; "" is
	// route.DefaultDomain.
	Domain string
	// System is the gateway's own namespace, and Own are the names that its
	// Service is reached by.
	System string
	Own    []string
	// Bundle is the version of the API's definitions, "v1.5.1"; "" where unknown.
	Bundle string
}

// Verdict is what is true of the world. Others' objects are not in it.
type Verdict struct {
	Classes  map[string][]service.Condition
	Gateways map[service.Key]GatewayStatus
	Routes   map[routing.ID]RouteStatus
	// Pools are the InferencePools that routes of our Gateways lead to.
	Pools map[service.Key][]ParentStatus
	// Services are those that routes of our Gateways may lead to and that are none of
	// ours, in the order of the routes, the oldest first.
	Services []ServicePort
	// Certificates are the Secrets to serve HTTPS with at the Front's SecurePorts, by host
	// or wildcard; "" is that for all others.
	Certificates map[string]service.Key
}

// GatewayStatus is what is true of a Gateway.
type GatewayStatus struct {
	Conditions []service.Condition
	Addresses  []Address
	Listeners  []ListenerStatus
}

// ListenerStatus is what is true of a listener.
type ListenerStatus struct {
	Name           string
	SupportedKinds []RouteKind
	AttachedRoutes int
	Conditions     []service.Condition
}

// RouteStatus is what is true of a route that names one of our Gateways.
type RouteStatus struct {
	Parents []ParentStatus
	// Served is the route as our gateway serves it: under the hosts that its
	// listeners and the owners of hosts leave to it, and with a Fault for each backend that it may not
	// reach. nil: not at all.
	Served *routing.HTTPRoute
	// Secured is the route as it is served at the Front's SecurePorts, where it is attached
	// to listeners there; Served is for the other ports then.
	Secured *routing.HTTPRoute
}

// ParentStatus is what is true of an object by one Gateway.
type ParentStatus struct {
	Ref        routing.Parent
	Conditions []service.Condition
}

// The conditions of Gateways and listeners.
const (
	conditionAccepted   = "Accepted"
	conditionProgrammed = "Programmed"
	conditionResolved   = "ResolvedRefs"
	conditionPartial    = "PartiallyInvalid"
	conditionConflicted = "Conflicted"
	conditionSupported  = "SupportedVersion"
)

func condition(kind string, ok bool, reason, message string) service.Condition {
	status := "False"
	if ok {
		status = "True"
	}
	return service.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

// Judge returns what is true of everything in the world that is Roundhouse's.
func Judge(w *World) *Verdict {
	j := judge{World: w, out: &Verdict{Classes: map[string][]service.Condition{}, Gateways: map[service.Key]GatewayStatus{},
		Routes: map[routing.ID]RouteStatus{}, Pools: map[service.Key][]ParentStatus{}}, gateways: map[service.Key]*gateway{}, named: map[ServicePort]bool{}}
	j.classes()
	for i := range w.Gateways {
		j.gateway(&w.Gateways[i])
	}
	j.claims()
	j.certificates()
	for _, r := range oldestFirst(w.Routes) {
		j.route(r)
	}
	for k, g := range j.gateways {
		j.out.Gateways[k] = g.status(w.Front)
	}
	return j.out
}

// oldestFirst orders routes as they are attached: which of two kinds has a host of a
// listener is a matter of age, then of names.
func oldestFirst(routes []Route) []*Route {
	out := make([]*Route, len(routes))
	for i := range routes {
		out[i] = &routes[i]
	}
	slices.SortStableFunc(out, func(a, b *Route) int {
		return cmp.Or(a.created().Compare(b.created()), strings.Compare(a.Key.String(), b.Key.String()), strings.Compare(string(b.Kind), string(a.Kind)))
	})
	return out
}

func (r *Route) created() (t time.Time) {
	if r.Object != nil {
		t = r.Object.Created
	}
	return t
}

// judge is one call of Judge under way.
type judge struct {
	*World
	out      *Verdict
	gateways map[service.Key]*gateway
	owners   owners
	above    owners // of these, by the wildcards over them
	named    map[ServicePort]bool
}

func (j *judge) classes() {
	for i := range j.Classes {
		c := &j.Classes[i]
		if c.Spec.ControllerName != ControllerName {
			continue
		}
		accepted := condition(conditionAccepted, true, "Accepted", "its Gateways are served by Roundhouse")
		if p := c.Spec.ParametersRef; p != nil {
			accepted = condition(conditionAccepted, false, "InvalidParameters", "spec.parametersRef: there are no parameters to set: remove it")
		}
		supported := condition(conditionSupported, true, "SupportedVersion", j.Bundle)
		if j.Bundle != "" && !supportedBundle(j.Bundle) {
			supported = condition(conditionSupported, false, "UnsupportedVersion", "the Gateway API's definitions are of "+j.Bundle+": install those of v1")
		}
		j.out.Classes[c.Metadata.Name] = []service.Condition{accepted, supported}
	}
}

func supportedBundle(v string) bool { return len(v) > 2 && v[:3] == "v1." }

// Picker is what is known of the endpoint picker that a pool names.
type Picker struct {
	Known bool
	// Own: its Service stands for Roundhouse's own picking.
	Own bool
	// Problem is what is wrong with the reference; "" when nothing is.
	Problem string
}

// extension is what is true of a pool's reference to an endpoint picker.
func (j *judge) extension(p *routing.Pool) service.Condition {
	e := p.Extension
	no := func(why string) service.Condition {
		return condition(conditionResolved, false, "InvalidExtensionRef", "endpointPickerRef: "+why)
	}
	yes := func(message string) service.Condition {
		return condition(conditionResolved, true, "ResolvedRefs", message)
	}
	switch {
	case e.Name == "":
		return yes("")
	case e.Kind != "" && e.Kind != "Service" || e.Group != "":
		return no(fmt.Sprintf("a %s is no endpoint picker: name a Service", strings.TrimPrefix(e.Group+"/"+e.Kind, "/")))
	case j.Picker == nil:
		return yes(fmt.Sprintf("this gateway picks endpoints itself (--endpoint-pickers=ignore): Service %s is not asked, and failureMode has nothing to decide", e.Name))
	}
	switch known := j.Picker(p.Key); {
	case !known.Known:
		out := no(fmt.Sprintf("it is not known yet whether there is a Service %s", e.Name))
		out.Status, out.Reason = "Unknown", "Pending"
		return out
	case known.Own:
		return yes(fmt.Sprintf("Service %s is Roundhouse's own: the gateway picks endpoints itself, and asks nobody", e.Name))
	case known.Problem != "" && e.FailureMode == routing.FailOpen:
		return no(known.Problem + "; as failureMode FailOpen says, the gateway picks endpoints itself")
	case known.Problem != "":
		return no(known.Problem + "; as failureMode FailClose says, requests are refused")
	}
	return yes(fmt.Sprintf("Service %s says where requests go", e.Name))
}
