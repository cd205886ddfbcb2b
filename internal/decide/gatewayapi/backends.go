package gatewayapi

import (
	"fmt"
	"slices"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// ServicePort is a port of a Kubernetes Service.
type ServicePort struct {
	service.Key
	Port int32
}

// backends is the route with a Fault for each backend that it may not reach,
// with a pool in place of each Kubernetes Service, and what its status says of them.
func (j *judge) backends(r *routing.HTTPRoute) (*routing.HTTPRoute, service.Condition) {
	to := referrer{judge: j, kind: r.RoutingKind(), namespace: r.Namespace, resolved: condition(conditionResolved, true, "ResolvedRefs", "")}
	out := *r
	out.Rules = slices.Clone(r.Rules)
	for i := range out.Rules {
		rule := &out.Rules[i]
		at := fmt.Sprintf("spec.rules[%d].", i)
		if f := rule.Fault; f != "" && rule.FaultReason != routing.ReasonUnsupported {
			to.fail(rule.FaultReason, f)
		}
		rule.Handling.Mirrors = to.mirrors(at+"filters: ", rule.Handling.Mirrors)
		rule.Backends = slices.Clone(rule.Backends)
		for k := range rule.Backends {
			b := &rule.Backends[k]
			of := fmt.Sprintf("%sbackendRefs[%d]: ", at, k)
			if b.Handling != nil {
				h := *b.Handling
				h.Mirrors = to.mirrors(of, h.Mirrors)
				b.Handling = &h
			}
			to.backend(of, b)
		}
	}
	return &out, to.resolved
}

// referrer checks what a route of a namespace refers to.
type referrer struct {
	*judge
	kind      routing.Kind
	namespace string
	resolved  service.Condition
}

// fail notes why a reference does not lead anywhere. The first counts.
func (r *referrer) fail(reason, message string) {
	if r.resolved.Status == "True" {
		r.resolved = condition(conditionResolved, false, reason, message)
	}
}

func (r *referrer) backend(at string, b *routing.Backend) {
	switch {
	case b.FaultReason == routing.ReasonUnsupported:
	case b.Fault != "":
		r.fail(routing.ReasonInvalidKind, at+b.Fault)
	case !r.granted(reference{Group, string(r.kind), r.namespace}, reference{b.Group, b.Kind, b.Namespace}, b.Name):
		b.Fault = fmt.Sprintf("%s %s is in another namespace, and no ReferenceGrant there lets %ss of %s refer to it", b.Kind, b.Key, r.kind, r.namespace)
		r.fail("RefNotPermitted", at+b.Fault)
	case routing.KubernetesService(b.Group, b.Kind) && r.plain(b.Key):
		var reason string
		b.Plain = true
		b.Ref, reason, b.Fault = r.servicePool(b.Key, b.Port)
		if b.Fault != "" {
			r.fail(reason, at+b.Fault)
		}
	case r.Missing != nil:
		if missing := r.Missing(b.Ref); missing != "" {
			r.fail(reasonNotFound, at+missing)
		}
	}
}

// mirrors are those with a pool in place of each Kubernetes Service. Of one that is not
// there, nobody gets copies.
func (r *referrer) mirrors(at string, in []routing.Mirror) []routing.Mirror {
	out := slices.Clone(in)
	for i := range out {
		m := &out[i]
		if m.Port == 0 || !r.plain(m.Key) {
			continue
		}
		ref, reason, problem := r.servicePool(m.Key, m.Port)
		if m.Ref = ref; problem != "" {
			r.fail(reason, at+problem)
		}
	}
	return out
}

const (
	reasonNotFound = "BackendNotFound"
	reasonProtocol = "UnsupportedProtocol"
)

// protocols are how ports of Kubernetes Services are asked for routes of a kind, by the
// appProtocols of those that can be.
var protocols = map[routing.Kind]struct {
	by   string
	apps []string
}{
	routing.KindHTTPRoute: {"requests are sent by HTTP/1.1", []string{"", "http"}},
	routing.KindGRPCRoute: {"calls are sent by HTTP/2 in plain text", []string{"", "kubernetes.io/h2c", "grpc"}},
}

// plain reports whether what a reference to a Service names is none of our services.
func (j *judge) plain(k service.Key) bool { return j.Ours != nil && !j.Ours(k) }

// servicePool is the pool of a Kubernetes Service, and what is wrong with it.
func (r *referrer) servicePool(k service.Key, port int32) (ref routing.Ref, reason, problem string) {
	ref = routing.ServicePool(k, port)
	if port == 0 {
		return ref, reasonNotFound, "port is missing: write the port of Service " + k.Name
	}
	at := ServicePort{k, port}
	if !r.named[at] {
		r.named[at] = true
		r.out.Services = append(r.out.Services, at)
	}
	if r.Service == nil {
		return ref, "", ""
	}
	known := r.Service(at)
	switch {
	case known.Problem != "":
		return ref, reasonNotFound, known.Problem
	case !slices.Contains(protocols[r.kind].apps, known.AppProtocol):
		return ref, reasonProtocol, fmt.Sprintf("port %d of Service %s speaks %s: %s", port, k, known.AppProtocol, protocols[r.kind].by)
	}
	return ref, "", ""
}

// Service is what is known of a port of a Kubernetes Service.
type Service struct {
	// Problem is why nothing can be sent there; "" for nothing, or where that is not
	// known.
	Problem string
	// AppProtocol is the port's own; "" for none.
	AppProtocol string
}
