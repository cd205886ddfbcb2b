package shape

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// How often and how patiently pods are asked, in seconds and tries.
const (
	probePeriod    = 1 // a wake waits for the first answer
	probeTimeout   = 5
	probeFailures  = 3
	startupLongest = 10  // period of startup probes
	quickStart     = 600 // up to here a startup probe asks every second
	lingers        = 3   // how long a pod that goes still answers, in seconds
)

// probes asks for what the container does not say itself. A probe of its that
// does not say how to ask, as KServe allows, asks as ours.
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
	case !r.bearsModel():
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
