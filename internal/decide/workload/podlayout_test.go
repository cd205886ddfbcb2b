package workload

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestLayoutOfPods: on a cluster it is this program's own server that loads models while
// it runs, where it serves the folder of the model and nothing in the manifest starts
// another.
func TestLayoutOfPods(t *testing.T) {
	main := func(c corev1.Container) *service.Component {
		c.Name = "main"
		return &service.Component{Main: "main", Pod: corev1.PodSpec{Containers: []corev1.Container{c}}}
	}
	ours := main(corev1.Container{Image: "roundhouse", Command: []string{"/usr/bin/roundhouse-server"}, Args: []string{"/mnt/models", "--name", "x", "--format", "xgboost"}})
	for name, tt := range map[string]struct {
		runtime, own, transformer *service.Component
		uri                       string
		want                      Layout
	}{
		"ours":            {runtime: ours, want: LayoutRoundhouse},
		"with resources":  {runtime: ours, own: main(corev1.Container{Env: []corev1.EnvVar{{Name: "A"}}}), want: LayoutRoundhouse},
		"a model":         {runtime: ours, uri: "s3://b/m"},
		"another image":   {runtime: ours, own: main(corev1.Container{Image: "example/x"})},
		"another command": {runtime: ours, own: main(corev1.Container{Command: []string{"sh"}})},
		"mlserver":        {runtime: main(corev1.Container{Image: "seldonio/mlserver"})},
		"another folder":  {runtime: main(corev1.Container{Command: []string{"roundhouse-server"}, Args: []string{"/models"}})},
		"transformer":     {runtime: ours, transformer: main(corev1.Container{Image: "example/x"})},
		"nodes":           {runtime: &service.Component{Main: "main", Pod: ours.Pod, Worker: &service.Node{}}},
		"nothing":         {},
	} {
		in := Input{Cluster: true, URI: tt.uri, Service: &service.Service{Repository: true}, Runtime: &service.Runtime{}}
		in.Runtime.Components.Engine, in.Service.Components.Engine, in.Service.Components.Transformer = tt.runtime, tt.own, tt.transformer
		if got := in.layout(); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
		if in.Service.Repository = false; in.layout() != "" {
			t.Errorf("%s: a service with a model of its own has %q", name, in.layout())
		}
	}
}
