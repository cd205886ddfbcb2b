package workload

import (
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/core/service"
)

func TestRenderContainer(t *testing.T) {
	size := resource.MustParse("1Gi")
	pod := corev1.PodSpec{
		TerminationGracePeriodSeconds: new(int64(7)),
		SecurityContext:               &corev1.PodSecurityContext{RunAsUser: new(int64(1)), RunAsNonRoot: new(true)},
		Volumes: []corev1.Volume{
			{Name: "data", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}}},
			{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "shm", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &size}}},
		},
		Containers: []corev1.Container{{Name: "main", Image: "example.com/iris:1", Command: []string{"serve"}, Args: []string{"--name={{.Name}}", "--port={{.Port}}", "--model={{.ModelPath}}", "$(COLOR)"},
			Env:             []corev1.EnvVar{{Name: "COLOR", Value: "red"}},
			Ports:           []corev1.ContainerPort{{ContainerPort: 9000, Name: "http"}, {ContainerPort: 9001, Name: "grpc"}, {ContainerPort: 9003, Name: "health"}},
			Resources:       corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: size, corev1.ResourceCPU: resource.MustParse("1500m")}},
			ReadinessProbe:  &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromString("health")}}},
			SecurityContext: &corev1.SecurityContext{RunAsGroup: new(int64(2)), ReadOnlyRootFilesystem: new(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
			VolumeMounts:    []corev1.VolumeMount{{Name: "data", MountPath: "/data/", SubPath: "in", ReadOnly: true}, {Name: "scratch", MountPath: "/tmp"}, {Name: "shm", MountPath: "/dev/shm"}},
		}},
	}
	svc := &service.Service{Meta: service.Meta{Key: service.Key{Namespace: "default", Name: "iris"}}, Custom: true,
		Components: service.Components{Engine: &service.Component{Main: "main", Pod: pod}}}
	rev, err := Render(Input{Service: svc, Containers: []service.Role{service.RoleEngine}})
	if err != nil {
		t.Fatal(err)
	}
	p := rev.Component(service.RoleEngine).Process
	want := &Container{Image: "example.com/iris:1", Entrypoint: true, Port: 9000, GRPCPort: 9001, More: []int32{9003}, CPUs: 1.5, SharedMemory: 1 << 30,
		User: new(int64(1)), Group: new(int64(2)), NonRoot: true, ReadOnly: true, Drop: []string{"ALL"},
		Mounts: []Mount{{Target: "/data", Source: "/data", SubPath: "in", ReadOnly: true}, {Target: "/tmp", Volume: "scratch"}}}
	if !reflect.DeepEqual(p.Container, want) {
		t.Errorf("container %+v\nwant %+v", p.Container, want)
	}
	if p.MemoryBytes != 1<<30 || p.TerminationGrace == nil || *p.TerminationGrace != 7*time.Second || p.Readiness.HTTPGet.Port != intstr.FromInt32(9003) {
		t.Errorf("%+v", p)
	}
	if at := pod.Containers[0].ReadinessProbe.HTTPGet.Port; at.Type != intstr.String {
		t.Errorf("the manifest's own probe was changed: %v", at)
	}
	// What was a process and is now a container is another revision, which is rolled out.
	if other, err := Render(Input{Service: svc}); err != nil || other.Hash == rev.Hash {
		t.Errorf("hash %s, with an engine %s, %v", other.Hash, rev.Hash, err)
	}
	at := Location{Port: 20000, GRPCPort: 20001, ModelPath: "/var/models/iris", Mounted: true}
	out, err := p.Resolve(at)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"serve", "--name=iris", "--port=9000", "--model=/mnt/models", "red"}; !reflect.DeepEqual(out.Command, want) {
		t.Errorf("%q, want %q", out.Command, want)
	}
	at.Mounted = false // the container reads the store itself
	if out, err = p.Resolve(at); err != nil || out.Command[3] != "--model=/var/models/iris" {
		t.Errorf("%q, %v", out.Command, err)
	}
}

// TestCallingContainer: a transformer's container is told the addresses that a process
// would be told, and its own port.
func TestCallingContainer(t *testing.T) {
	beside := &service.Component{Main: "main", Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/resize:1",
		Args: []string{"--size=3", "--predictor_host", "elsewhere"}, Ports: []corev1.ContainerPort{{ContainerPort: 7000}}}}}}
	svc := &service.Service{Meta: service.Meta{Key: service.Key{Namespace: "default", Name: "iris"}}, Custom: true,
		Components: service.Components{Engine: beside, Transformer: beside}}
	rev, err := Render(Input{Service: svc, Containers: []service.Role{service.RoleEngine, service.RoleTransformer}})
	if err != nil {
		t.Fatal(err)
	}
	at := Location{Port: 20000, Addresses: map[service.Role]string{service.RoleEngine: "127.0.0.1:20001"}}
	for role, want := range map[service.Role][]string{
		service.RoleTransformer: {"--size=3", "--predictor_host", "127.0.0.1:20001", "--model_name", "iris", "--http_port", "7000"},
		service.RoleEngine:      {"--size=3", "--predictor_host", "elsewhere"},
	} {
		out, err := rev.Component(role).Process.Resolve(at)
		if err != nil || !reflect.DeepEqual(out.Command, want) {
			t.Errorf("%s: %q, %v, want %q", role, out.Command, err, want)
		}
	}
}

func TestContainerPorts(t *testing.T) {
	port := func(name string, n int32) corev1.ContainerPort {
		return corev1.ContainerPort{Name: name, ContainerPort: n}
	}
	for name, c := range map[string]struct {
		ports      []corev1.ContainerPort
		overGRPC   bool
		http, grpc int32
	}{
		"none":                {nil, false, 8080, 0},
		"none, over gRPC":     {nil, true, 8081, 8081},
		"one":                 {[]corev1.ContainerPort{port("", 80)}, false, 80, 0},
		"one, over gRPC":      {[]corev1.ContainerPort{port("", 80)}, true, 80, 80},
		"h2c alone":           {[]corev1.ContainerPort{port("h2c", 9000)}, false, 9000, 9000},
		"both, metrics first": {[]corev1.ContainerPort{port("metrics", 1), port("grpc", 2), port("http", 3)}, false, 3, 2},
		"UDP counts not":      {[]corev1.ContainerPort{{ContainerPort: 53, Protocol: corev1.ProtocolUDP}}, false, 8080, 0},
	} {
		if http, grpc := portsOf(&corev1.Container{Ports: c.ports}, c.overGRPC); http != c.http || grpc != c.grpc {
			t.Errorf("%s: %d, %d", name, http, grpc)
		}
	}
}
