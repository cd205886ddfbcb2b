package workload

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/core/service"
)

func TestDialectLabels(t *testing.T) {
	const kserve, ome, own = "serving.kserve.io/v1beta1", "ome.io/v1beta1", "roundhouse.dev/v1alpha1"
	for _, c := range []struct {
		service, runtime string
		role             service.Role
		want             map[string]string
	}{
		{own, own, service.RoleEngine, nil},
		{kserve, "serving.kserve.io/v1alpha1", service.RoleEngine, map[string]string{"serving.kserve.io/inferenceservice": "iris", "component": "predictor"}},
		{kserve, own, service.RoleTransformer, map[string]string{"serving.kserve.io/inferenceservice": "iris", "component": "transformer"}},
		{own, ome, service.RoleDecoder, map[string]string{"ome.io/inferenceservice": "iris", "component": "decoder"}},
		{kserve, ome, service.RoleEngine, map[string]string{"serving.kserve.io/inferenceservice": "iris", "ome.io/inferenceservice": "iris", "component": "engine"}},
	} {
		s := &service.Service{Meta: service.Meta{Key: service.Key{Namespace: "n", Name: "iris"}, Origin: service.Origin{APIVersion: c.service}}}
		part := &service.Component{Main: "main", Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "x:1"}}}}
		s.Components.Set(c.role, part)
		rt := service.Runtime{Meta: service.Meta{Origin: service.Origin{APIVersion: c.runtime}}}
		rev, err := Render(Input{Service: s, Runtime: &rt, Cluster: true})
		if err != nil {
			t.Fatal(err)
		}
		if got := rev.Component(c.role).Labels; !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s on %s, %s: labels %v, want %v", c.service, c.runtime, c.role, got, c.want)
		}
		if rev, err = Render(Input{Service: s, Runtime: &rt}); err != nil || rev.Component(c.role).Labels != nil {
			t.Errorf("on one machine: %v, %v", rev.Component(c.role).Labels, err)
		}
	}
}

func TestResolvePod(t *testing.T) {
	pod := corev1.PodSpec{Containers: []corev1.Container{{
		Name: "main", Args: []string{"--model={{.ModelPath}}", "--port", "{{ .Port }}", "--grpc={{.GRPCPort}}", "{{ m.content }}"},
		ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/x/{{.Port}}", Port: intstr.FromString("{{.Port}}")}}},
		LivenessProbe:  &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("named")}}},
	}}}
	got, err := ResolvePod(pod, Location{Port: 8080, GRPCPort: 8081, ModelPath: "/mnt/models"})
	if err != nil {
		t.Fatal(err)
	}
	c := got.Containers[0]
	if want := []string{"--model=/mnt/models", "--port", "8080", "--grpc=8081", "{{ m.content }}"}; !reflect.DeepEqual(c.Args, want) {
		t.Errorf("args %q", c.Args)
	}
	if h := c.ReadinessProbe.HTTPGet; h.Path != "/x/8080" || h.Port != intstr.FromInt32(8080) {
		t.Errorf("probe %+v", h)
	}
	if c.LivenessProbe.TCPSocket.Port != intstr.FromString("named") {
		t.Errorf("probe %+v", c.LivenessProbe.TCPSocket)
	}
	got.Containers[0].Args[0] = "changed"
	if pod.Containers[0].Args[0] != "--model={{.ModelPath}}" {
		t.Error("the pod given changed")
	}
}
