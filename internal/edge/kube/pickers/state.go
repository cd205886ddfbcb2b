package pickers

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// defaultPort is a picker's where a pool does not say.
const defaultPort = 9002

// plainText is the appProtocol of a port that speaks HTTP/2 without TLS.
const plainText = "kubernetes.io/h2c"

// State is what is known of the picker that a pool names.
type State struct {
	// Name is the Service's, "namespace/name:port", Authority the host it is
	// asked by, "name.namespace.svc:port".
	Name, Authority string
	// Own: the Service stands for Roundhouse's own picking, so that nobody is to
	// be asked.
	Own bool
	// Problem is what is wrong with the reference: there is no such Service or
	// port; "" when nothing is.
	Problem string
	// Addresses are the "ip:port" of the pods that are ready, sorted.
	Addresses []string
	// Plain: it speaks HTTP/2 in plain text, and not over TLS.
	Plain bool
}

// state is what is known for a pool; mu is held.
func (s *watched) state(e routing.Extension) State {
	port := cmp.Or(e.Port, defaultPort)
	at := strconv.Itoa(int(port))
	out := State{Name: s.key.String() + ":" + at, Authority: s.key.Name + "." + s.key.Namespace + ".svc:" + at}
	if s.object == nil {
		out.Problem = fmt.Sprintf("there is no Service %s in namespace %s", s.key.Name, s.key.Namespace)
		return out
	}
	if s.object.Labels[shape.LabelPicker] == "true" {
		out.Own = true
		return out
	}
	i := slices.IndexFunc(s.object.Spec.Ports, func(p corev1.ServicePort) bool {
		return p.Port == port && cmp.Or(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP
	})
	switch {
	case s.object.Spec.Type == corev1.ServiceTypeExternalName:
		out.Problem = fmt.Sprintf("Service %s is an ExternalName: an endpoint picker has pods", s.key.Name)
	case i < 0:
		out.Problem = fmt.Sprintf("Service %s has no port %d", s.key.Name, port)
	default:
		p := s.object.Spec.Ports[i]
		out.Plain = p.AppProtocol != nil && *p.AppProtocol == plainText
		out.Addresses = s.addresses(p.Name)
	}
	return out
}

// addresses are those of the pods that are ready, at a port of a name.
func (s *watched) addresses(port string) (out []string) {
	for _, es := range s.slices {
		i := slices.IndexFunc(es.Ports, func(p discoveryv1.EndpointPort) bool {
			name := ""
			if p.Name != nil {
				name = *p.Name
			}
			return name == port && p.Port != nil
		})
		if i < 0 {
			continue
		}
		for _, e := range es.Endpoints {
			if len(e.Addresses) > 0 && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
				out = append(out, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*es.Ports[i].Port))))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
