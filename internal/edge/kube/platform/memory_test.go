package platform

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// typical is a pod of an LLM's engine, as large as they are.
func typical(n int) *corev1.Pod {
	name := fmt.Sprintf("llama-%d-engine-5c66b8574f-v9lxs", n)
	p := with(placed(running(true)), func(p *corev1.Pod) {
		p.Name = name
		p.Annotations = map[string]string{shape.AnnotationService: fmt.Sprintf("llama-%d", n), "kubectl.kubernetes.io/last-applied-configuration": strings.Repeat("x", 2000)}
		p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(`{"f:spec":"` + strings.Repeat("x", 4000) + `"}`)}}
	})
	c := &p.Spec.Containers[0]
	c.Image, c.Args = "example.com/vllm:v0.11.0", strings.Fields(strings.Repeat("--flag=value ", 30))
	c.Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
	for i := range 30 {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("NAME_%d_%d", n, i), Value: strings.Repeat("v", 40)})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: fmt.Sprintf("v%d", i), MountPath: fmt.Sprintf("/mnt/%d/%d", n, i)})
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("v%d", i)})
	}
	return p
}

// TestMemory: what is kept of a service, beside the watches' own books.
func TestMemory(t *testing.T) {
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / (1 << 10)
	}
	const services, replicas, limit = 200, 2, 20 // KiB a service
	s := newServices(time.Now, newNotices(), func(service.Key) {})
	before := heap()
	for i := range services {
		k := service.Key{Namespace: "default", Name: fmt.Sprintf("llama-%d", i)}
		h := s.of(k)
		for j := range replicas {
			pod, err := trimPod(overTheWire(t, typical(i*replicas+j)))
			if err != nil {
				t.Fatal(err)
			}
			h.pods[pod.(*corev1.Pod).Name] = member{pod.(*corev1.Pod), j}
		}
		d, _ := trimDeployment(overTheWireDeployment(t, i))
		for _, kd := range []kind{kindDeployment, kindService, kindBudget} {
			h.objects[id{kd, k.Name}] = known(d.(*appsv1.Deployment))
		}
	}
	used := heap() - before
	used /= services
	t.Logf("a service with %d pods: %.1f KiB", replicas, used)
	if used > limit {
		t.Errorf("a service with %d pods takes %.1f KiB, want at most %d", replicas, used, limit)
	}
	runtime.KeepAlive(s)
}

// overTheWire makes a pod's strings its own, as decoding does.
func overTheWire(t *testing.T, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	raw, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	out := &corev1.Pod{}
	if err := json.Unmarshal(raw, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func overTheWireDeployment(t *testing.T, n int) *appsv1.Deployment {
	t.Helper()
	pod := overTheWire(t, typical(n))
	return &appsv1.Deployment{ObjectMeta: pod.ObjectMeta, Spec: appsv1.DeploymentSpec{Replicas: new(int32(2)), Template: corev1.PodTemplateSpec{Spec: pod.Spec}}}
}
