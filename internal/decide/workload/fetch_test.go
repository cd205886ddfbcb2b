package workload

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestFetchProcess: a container that fetches gets the URI and the folder, after a command
// of its own, with its limits, and no more rights than it states.
func TestFetchProcess(t *testing.T) {
	c := corev1.Container{Image: "example.com/fetch:1", Args: []string{"--ignored"}, Env: []corev1.EnvVar{{Name: "A", Value: "b"}}, WorkingDir: "/w", ImagePullPolicy: corev1.PullNever,
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("1Gi")}}}
	p, err := FetchProcess(c, "registry://oak")
	if err != nil || !slices.Equal(p.Command, []string{"registry://oak", "/mnt/models"}) || p.Container.Entrypoint || p.MemoryBytes != 1<<30 || p.Container.CPUs != 0.5 ||
		!slices.Equal(p.Container.Drop, []string{"ALL"}) || p.WorkingDir != "/w" || p.Container.Pull != corev1.PullNever || len(p.Env) != 1 {
		t.Errorf("%+v %+v, %v", p, p.Container, err)
	}
	c.Command, c.SecurityContext = []string{"/fetch", "-v"}, &corev1.SecurityContext{RunAsUser: new(int64(7)), RunAsNonRoot: new(true)}
	p, err = FetchProcess(c, "registry://oak")
	if err != nil || !slices.Equal(p.Command, []string{"/fetch", "-v", "registry://oak", "/mnt/models"}) || !p.Container.Entrypoint || *p.Container.User != 7 || !p.Container.NonRoot || p.Container.Drop != nil {
		t.Errorf("%+v %+v, %v", p, p.Container, err)
	}
	c.Env[0].ValueFrom = &corev1.EnvVarSource{}
	if _, err := FetchProcess(c, "registry://oak"); err == nil || !strings.Contains(err.Error(), "A takes its value from what only a pod has") {
		t.Error(err)
	}
	c.Env, c.EnvFrom = nil, []corev1.EnvFromSource{{}}
	if _, err := FetchProcess(c, "registry://oak"); err == nil || !strings.Contains(err.Error(), "envFrom") {
		t.Error(err)
	}
}
