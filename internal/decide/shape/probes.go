package shape

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

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

// How often and how patiently pods are asked, in seconds and tries.
const (
	probePeriod    = 1 // a wake waits for the first answer
	probeTimeout   = 5
	probeFailures  = 3
	startupLongest = 10  // period of startup probes
	quickStart     = 600 // up to here a startup probe asks every second
	lingers        = 3   // how long a pod that goes still answers, in seconds
)

// probes adds the probes that the container lacks. A probe without a handler,
// as KServe allows, gets ours.
func (r *renderer) probes(c *corev1.Container, http, grpc int32) {
	if c.ReadinessProbe == nil {
		c.ReadinessProbe = &corev1.Probe{PeriodSeconds: probePeriod, TimeoutSeconds: probeTimeout, FailureThreshold: probeFailures}
	}
	for _, p := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe, c.StartupProbe} {
		if p != nil && p.ProbeHandler == (corev1.ProbeHandler{}) {
			p.ProbeHandler = r.handler(http, grpc)
		}
	}
	if c.StartupProbe == nil {
		c.StartupProbe = startup(c.ReadinessProbe.ProbeHandler, seconds(r.c.Limits.StartupTimeout))
	}
}

// linger keeps a container answering for a moment after its pod is taken away,
// until no gateway sends requests there any more.
func linger(pod *corev1.PodSpec, c *corev1.Container) {
	if c.Lifecycle != nil || pod.TerminationGracePeriodSeconds != nil && *pod.TerminationGracePeriodSeconds <= lingers {
		return
	}
	c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: lingers}}}
}

// startup holds the other probes off until the first answer, and has the
// container started again where none came within the budget.
func startup(h corev1.ProbeHandler, budget int32) *corev1.Probe {
	period := int32(1)
	if budget > quickStart {
		period = min(startupLongest, (budget+quickStart-1)/quickStart)
	}
	return &corev1.Probe{ProbeHandler: *h.DeepCopy(), PeriodSeconds: period, TimeoutSeconds: probeTimeout,
		FailureThreshold: max((budget+period-1)/period, 1)}
}

// handler is how a server is asked whether it is ready: by the path its protocol
// has for that, else by a connection. KServe's v1 has none that all servers of it
// answer (at "/" TensorFlow Serving has nothing), nor do all servers that speak
// gRPC answer gRPC's own health checks; both listen once their model is loaded.
// A router or a transformer speaks what it likes.
func (r *renderer) handler(http, grpc int32) corev1.ProbeHandler {
	path := ""
	switch p := r.rev.Protocol; {
	case http == 0:
		http = grpc
	case !r.serves():
	case p == service.ProtocolV2:
		path = "/v2/health/ready"
	case p == service.ProtocolOpenAI && r.rev.Runtime.Name != "":
		path = "/health" // no part of the protocol, but every runtime's
	}
	if path == "" {
		return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(http)}}
	}
	return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(http), Scheme: corev1.URISchemeHTTP}}
}

// Readiness is how the pods of a revision's role are asked whether they are
// ready, with a number as the port; ok is false where only the kubelet can
// ask.
func Readiness(rev *workload.Revision, role service.Role) (h corev1.ProbeHandler, ok bool) {
	c := rev.Component(role)
	if c == nil {
		return h, false
	}
	pod, main := c.Pod, c.Main
	if c.Leader != nil {
		pod, main = c.Leader.Pod, c.Leader.Main
	}
	m := container(&pod, main)
	if m == nil || m.ReadinessProbe == nil {
		r := renderer{rev: rev, c: *c}
		http, grpc := r.ports()
		return r.handler(http, grpc), http > 0 || grpc > 0
	}
	h = *m.ReadinessProbe.ProbeHandler.DeepCopy()
	switch {
	case h.HTTPGet != nil:
		h.HTTPGet.Port = numbered(h.HTTPGet.Port, m)
		return h, h.HTTPGet.Port.IntVal > 0
	case h.TCPSocket != nil:
		h.TCPSocket.Port = numbered(h.TCPSocket.Port, m)
		return h, h.TCPSocket.Port.IntVal > 0
	}
	return h, h.GRPC != nil && h.GRPC.Port > 0
}

// numbered is a port that may be named as its number, 0 where there is none.
func numbered(p intstr.IntOrString, c *corev1.Container) intstr.IntOrString {
	if p.Type == intstr.Int {
		return p
	}
	for _, have := range c.Ports {
		if have.Name == p.StrVal {
			return intstr.FromInt32(have.ContainerPort)
		}
	}
	return intstr.FromInt32(int32(p.IntValue()))
}
