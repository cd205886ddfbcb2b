package shape

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// How often and how patiently pods are asked, in seconds and tries.
const (
	probePeriod      = 1 // a wake waits for the first answer
	probeTimeout     = 5
	probeFailures    = 3
	startupLongest   = 10  // period of startup probes
	livenessPeriod   = 10  // of the liveness probe
	livenessFailures = 6   // a minute without an answer
	quickStart       = 600 // up to here a startup probe asks every second
)

// probes asks for what the container does not say itself.
func (r *renderer) probes(c *corev1.Container, http, grpc int32) {
	handler := handlerFor(r.rev.Protocol, http, grpc)
	if c.ReadinessProbe == nil {
		c.ReadinessProbe = &corev1.Probe{ProbeHandler: handler, PeriodSeconds: probePeriod,
			TimeoutSeconds: probeTimeout, FailureThreshold: probeFailures}
	}
	if c.StartupProbe == nil {
		c.StartupProbe = startup(c.ReadinessProbe.ProbeHandler, seconds(r.c.Limits.StartupTimeout))
	}
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

// handlerFor is how a server of the protocol is asked whether it is ready.
func handlerFor(p service.Protocol, http, grpc int32) corev1.ProbeHandler {
	if http == 0 {
		return corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: grpc}}
	}
	path := "/"
	switch p {
	case service.ProtocolV2, service.ProtocolGRPCV2:
		path = "/v2/health/ready"
	case service.ProtocolOpenAI, service.ProtocolCohere:
		path = "/health"
	}
	return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(http), Scheme: corev1.URISchemeHTTP}}
}
