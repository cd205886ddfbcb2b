package shape

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// Ports of a container that states none: those KServe's servers listen on.
const (
	defaultHTTP = 8080
	defaultGRPC = 8081
)

// Ports are those a component answers on; 0 is none. They are what the container
// that is spoken to states: a port named "grpc…" or "h2c" is gRPC's, the first other
// one is HTTP's. A container that states none listens on 8080, or on 8081 where
// the revision's protocol is spoken over gRPC.
func Ports(c workload.Component, p service.Protocol) (http, grpc int32) {
	pod, main := c.Pod, c.Main
	if c.Leader != nil {
		pod, main = c.Leader.Pod, c.Leader.Main
	}
	return portsOf(speaker(&pod, main), p)
}

func portsOf(c *corev1.Container, p service.Protocol) (http, grpc int32) {
	overGRPC := p == service.ProtocolGRPCV1 || p == service.ProtocolGRPCV2
	if c == nil {
		return 0, 0
	}
	for _, port := range c.Ports {
		if port.Protocol != "" && port.Protocol != corev1.ProtocolTCP {
			continue
		}
		switch name := strings.ToLower(port.Name); {
		case strings.HasPrefix(name, "grpc"), strings.HasPrefix(name, "h2c"):
			if grpc == 0 {
				grpc = port.ContainerPort
			}
		case strings.Contains(name, "metrics"):
		case http == 0:
			http = port.ContainerPort
		}
	}
	switch {
	case http == 0 && grpc == 0 && overGRPC:
		return 0, defaultGRPC
	case http == 0 && grpc == 0:
		return defaultHTTP, 0
	case grpc == 0 && overGRPC: // its one port has no name, or another
		return 0, http
	}
	return http, grpc
}

func (r *renderer) ports() (http, grpc int32) { return Ports(r.c, r.rev.Protocol) }

// container finds a container by name, nil when absent.
func container(p *corev1.PodSpec, name string) *corev1.Container {
	for i := range p.Containers {
		if p.Containers[i].Name == name {
			return &p.Containers[i]
		}
	}
	return nil
}
