package shape

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

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
