package shape

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

var update = flag.Bool("update", false, "write the golden files anew")

const image = "registry.example/roundhouse:v1"

// single is a service of one container.
func single() workload.Revision {
	return workload.Revision{
		Service: service.Key{Namespace: "team", Name: "iris"}, Name: "iris-0123456789abcdef", Hash: "0123456789abcdef",
		Protocol: service.ProtocolV2, Image: image, Model: workload.Model{URI: "s3://models/iris"},
		Components: []workload.Component{{
			Role: service.RoleEngine, Main: "kserve-container",
			Pod: corev1.PodSpec{Containers: []corev1.Container{{
				Name: "kserve-container", Image: "docker.io/kserve/xgbserver:v0.20.0",
				Args: []string{"--model_name=iris", "--model_dir=/mnt/models", "--http_port=8080"},
				Env: []corev1.EnvVar{{Name: "AWS_SECRET_ACCESS_KEY", ValueFrom: &corev1.EnvVarSource{
					SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "s3"}, Key: "secret"}}},
					{Name: "OTHER", Value: "x"}},
			}}},
			Limits: service.Limits{Min: 1, Max: 3, StartupTimeout: 10 * time.Minute},
		}},
	}
}

func golden(t *testing.T, name string, objects Objects) {
	t.Helper()
	var out strings.Builder
	add := func(v any) {
		raw, err := yaml.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n")
		out.Write(raw)
	}
	for i := range objects.Deployments {
		add(objects.Deployments[i])
	}
	for i := range objects.Groups {
		add(objects.Groups[i])
	}
	for i := range objects.Services {
		add(objects.Services[i])
	}
	for i := range objects.Budgets {
		add(objects.Budgets[i])
	}
	path := filepath.Join("testdata", name+".yaml")
	if *update {
		if err := os.WriteFile(path, []byte(out.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Errorf("%s differs; run with -update and look at the difference:\n%s", path, out.String())
	}
}

func TestSingleNode(t *testing.T) {
	objects, err := Render(single(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "single", objects)
}
