package shape

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// TestReadinessIsTheKubelets: who asks a pod by Readiness asks as the kubelet
// does by the pod that is rendered.
func TestReadinessIsTheKubelets(t *testing.T) {
	http := corev1.Container{Name: "main", Image: "x", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 9000}}}
	own := func(h corev1.ProbeHandler) corev1.Container {
		c := *http.DeepCopy()
		c.ReadinessProbe = &corev1.Probe{ProbeHandler: h}
		return c
	}
	get := func(port intstr.IntOrString) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ok", Port: port}}
	}
	for name, c := range map[string]struct {
		protocol  service.Protocol
		container corev1.Container
		ok        bool
		port      int32 // where the rendered one names it; 0: the same as rendered
	}{
		"v2":           {service.ProtocolV2, http, true, 0},
		"v1":           {service.ProtocolV1, http, true, 0},
		"openAI":       {service.ProtocolOpenAI, http, true, 0},
		"grpc":         {service.ProtocolGRPCV2, http, true, 0},
		"no ports":     {service.ProtocolV2, corev1.Container{Name: "main", Image: "x"}, true, 0},
		"its own":      {service.ProtocolV2, own(get(intstr.FromInt32(9001))), true, 0},
		"by name":      {service.ProtocolV2, own(get(intstr.FromString("web"))), true, 9000},
		"by no name":   {service.ProtocolV2, own(get(intstr.FromString("none"))), false, 0},
		"exec":         {service.ProtocolV2, own(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}), false, 0},
		"its own gRPC": {service.ProtocolV2, own(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 9002}}), true, 0},
	} {
		rev := workload.Revision{Service: service.Key{Namespace: "a", Name: "x"}, Name: "x-1", Hash: "h", Protocol: c.protocol,
			Components: []workload.Component{{Role: service.RoleEngine, Main: "main", Pod: corev1.PodSpec{Containers: []corev1.Container{c.container}}}}}
		h, ok := Readiness(&rev, service.RoleEngine)
		if ok != c.ok {
			t.Errorf("%s: %t, %+v", name, ok, h)
		}
		objects, err := Render(rev, Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := objects.Deployments[0].Spec.Template.Spec.Containers[0].ReadinessProbe.ProbeHandler
		if c.port > 0 {
			if h.HTTPGet.Port != intstr.FromInt32(c.port) {
				t.Errorf("%s: port %v", name, h.HTTPGet.Port)
			}
		} else if ok && !reflect.DeepEqual(h, want) {
			t.Errorf("%s: asked by %+v, the kubelet by %+v", name, h, want)
		}
	}
	if _, ok := Readiness(&workload.Revision{}, service.RoleRouter); ok {
		t.Error("a role that is not there can be asked")
	}
}
