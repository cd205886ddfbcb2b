package workload

import (
	"cmp"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Container is how a process of one machine runs as a container. Process.Command
// is then the container's command line, in which the container's own ports and
// paths stand.
type Container struct {
	Image string            `json:"image"`
	Pull  corev1.PullPolicy `json:"pull,omitempty"` // "": as Kubernetes chooses by the tag
	// Entrypoint: the first word of the command takes the place of the image's own
	// entrypoint; else the words are the arguments of that.
	Entrypoint bool `json:"entrypoint,omitempty"`
	// Port is where it answers requests. GRPCPort and MetricsPort are others, 0 for
	// none; More are those besides that its probes ask.
	Port        int32   `json:"port"`
	GRPCPort    int32   `json:"grpcPort,omitempty"`
	MetricsPort int32   `json:"metricsPort,omitempty"`
	More        []int32 `json:"more,omitempty"`
	Mounts      []Mount `json:"mounts,omitempty"`
	// CPUs limits its processors; 0 is no limit. SharedMemory is the size of
	// /dev/shm in bytes; 0 is the engine's own.
	CPUs         float64 `json:"cpus,omitempty"`
	SharedMemory int64   `json:"sharedMemory,omitempty"`
	// User and Group are those that it runs as, nil for the image's own. NonRoot
	// refuses an image that would run as root.
	User     *int64   `json:"user,omitempty"`
	Group    *int64   `json:"group,omitempty"`
	NonRoot  bool     `json:"nonRoot,omitempty"`
	ReadOnly bool     `json:"readOnly,omitempty"` // its root file system
	Drop     []string `json:"drop,omitempty"`     // capabilities
}

// Mount is a volume in a container.
type Mount struct {
	Target string `json:"target"`
	// Source is a path of this machine; "" is a folder that is the replica's own,
	// which Volume names.
	Source string `json:"source,omitempty"`
	Volume string `json:"volume,omitempty"`
	// SubPath is the place in Source or in the folder that is mounted; "" is all of it.
	SubPath  string `json:"subPath,omitempty"`
	Memory   bool   `json:"memory,omitempty"` // it lies in memory
	Size     int64  `json:"size,omitempty"`   // of one in memory, in bytes; 0 for no limit
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// Ports of a container that states none.
const (
	defaultHTTP = 8080
	defaultGRPC = 8081
)

// SharedMemory is where programs look for memory that processes share.
const sharedMemoryPath = "/dev/shm"

// contained derives how a merged component runs as a container on one machine. own
// is the service's part of it. nil where it has no image.
func contained(c Component, own *service.Component, overGRPC bool) *Process {
	m := container(c.Pod, c.Main)
	if m == nil || m.Image == "" {
		return nil
	}
	ct := &Container{Image: m.Image, Pull: m.ImagePullPolicy, Entrypoint: len(m.Command) > 0}
	ct.Port, ct.GRPCPort = portsOf(m, overGRPC)
	if at := c.Exports().Port; at != ct.Port && at != ct.GRPCPort {
		ct.MetricsPort = at
	}
	p := &Process{Command: slices.Concat(m.Command, m.Args), WorkingDir: m.WorkingDir, Env: configured(slices.Clone(m.Env), c),
		EnvFrom: m.EnvFrom, Readiness: m.ReadinessProbe, Liveness: m.LivenessProbe, GPUs: gpus(m), Container: ct}
	if q, ok := m.Resources.Limits[corev1.ResourceMemory]; ok {
		p.MemoryBytes = max(0, q.Value())
	}
	if q, ok := m.Resources.Limits[corev1.ResourceCPU]; ok {
		ct.CPUs = max(0, q.AsApproximateFloat64())
	}
	if own != nil {
		p.ReservedMemory = statedMemory(container(own.Pod, own.Main))
	}
	p.TerminationGrace = graceOf(&c.Pod)
	p.Readiness, p.Liveness, p.Startup = ct.numbered(p.Readiness, m), ct.numbered(p.Liveness, m), ct.numbered(m.StartupProbe, m)
	ct.secure(&c.Pod, m)
	ct.mount(&c.Pod, m)
	return p
}

// portsOf are the ports that a container answers requests on; grpc is 0 for none.
// One that states none listens where KServe's servers do.
func portsOf(m *corev1.Container, overGRPC bool) (http, grpc int32) {
	for _, p := range m.Ports {
		if p.Protocol != "" && p.Protocol != corev1.ProtocolTCP {
			continue
		}
		switch name := strings.ToLower(p.Name); {
		case strings.HasPrefix(name, "grpc"), strings.HasPrefix(name, "h2c"):
			grpc = cmp.Or(grpc, p.ContainerPort)
		case strings.Contains(name, "metrics"):
		default:
			http = cmp.Or(http, p.ContainerPort)
		}
	}
	switch {
	case http == 0 && grpc == 0 && overGRPC:
		return defaultGRPC, defaultGRPC
	case http == 0 && grpc == 0:
		return defaultHTTP, 0
	case http == 0, overGRPC && grpc == 0: // its one port
		http = cmp.Or(http, grpc)
		return http, http
	}
	return http, grpc
}

// numbered is a probe with the number of a port that it names. A port that is asked
// and answers no requests is one of More.
func (ct *Container) numbered(p *corev1.Probe, m *corev1.Container) *corev1.Probe {
	if p == nil {
		return nil
	}
	p = p.DeepCopy()
	var at *intstr.IntOrString
	switch {
	case p.HTTPGet != nil:
		at = &p.HTTPGet.Port
	case p.TCPSocket != nil:
		at = &p.TCPSocket.Port
	default:
		return p
	}
	for _, have := range m.Ports {
		if at.Type == intstr.String && have.Name == at.StrVal {
			*at = intstr.FromInt32(have.ContainerPort)
		}
	}
	if n := at.IntVal; at.Type == intstr.Int && n > 0 && !slices.Contains(append([]int32{ct.Port, ct.GRPCPort, ct.MetricsPort}, ct.More...), n) {
		ct.More = append(ct.More, n)
	}
	return p
}

// secure takes over what the manifest restricts. The pod's applies where the
// container's says nothing.
func (ct *Container) secure(pod *corev1.PodSpec, m *corev1.Container) {
	if s := pod.SecurityContext; s != nil {
		ct.User, ct.Group = s.RunAsUser, s.RunAsGroup
		ct.NonRoot = s.RunAsNonRoot != nil && *s.RunAsNonRoot
	}
	s := m.SecurityContext
	if s == nil {
		return
	}
	if s.RunAsUser != nil {
		ct.User = s.RunAsUser
	}
	if s.RunAsGroup != nil {
		ct.Group = s.RunAsGroup
	}
	if s.RunAsNonRoot != nil {
		ct.NonRoot = *s.RunAsNonRoot
	}
	ct.ReadOnly = s.ReadOnlyRootFilesystem != nil && *s.ReadOnlyRootFilesystem
	if s.Capabilities != nil {
		for _, c := range s.Capabilities.Drop {
			ct.Drop = append(ct.Drop, string(c))
		}
	}
}

// mount takes over the volumes that one machine has: folders of its own, and
// emptyDirs.
func (ct *Container) mount(pod *corev1.PodSpec, m *corev1.Container) {
	for _, at := range m.VolumeMounts {
		i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == at.Name })
		if i < 0 {
			continue
		}
		out := Mount{Target: path.Clean(at.MountPath), ReadOnly: at.ReadOnly}
		switch v := pod.Volumes[i]; {
		case v.HostPath != nil:
			out.Source, out.SubPath = v.HostPath.Path, at.SubPath
		case v.EmptyDir != nil:
			out.Volume, out.SubPath = v.Name, at.SubPath
			out.Memory = v.EmptyDir.Medium == corev1.StorageMediumMemory
			if q := v.EmptyDir.SizeLimit; q != nil {
				out.Size = max(0, q.Value())
			}
			if out.Memory && out.Target == sharedMemoryPath {
				ct.SharedMemory = cmp.Or(out.Size, unboundedShared)
				continue
			}
		default:
			continue
		}
		ct.Mounts = append(ct.Mounts, out)
	}
}

// unboundedShared is the size of a /dev/shm of which nobody stated one: a bound
// that only the machine's memory reaches.
const unboundedShared = 1 << 40

// ModelAt is where a container has the replica's model.
const ModelAt = mountPath

// AdapterAt is where a container has an adapter.
func AdapterAt(name string) string { return path.Join("/mnt/adapters", name) }
