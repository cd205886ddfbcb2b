package selection

import (
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Containers is what a machine can do with images. The zero value does nothing
// with them, and suggests nothing.
type Containers struct {
	// Engine is what runs containers, as "podman 4.9.3"; "" for nothing.
	Engine string `json:"engine,omitempty"`
	// Lacks is why there is no engine, with what to do; "" where none is wanted.
	Lacks string `json:"lacks,omitempty"`
	// NoGPUs is why containers get no GPUs, with what to do; "" where they do.
	NoGPUs string `json:"noGPUs,omitempty"`
	// NoCalls is why a container reaches no other component of its service, with what to
	// do; "" where it does.
	NoCalls string `json:"noCalls,omitempty"`
	// NoMemoryLimits is why limits of memory have no effect; "" where they have.
	NoMemoryLimits string `json:"noMemoryLimits,omitempty"`
}

// Contained lists the roles that run as containers on this machine: those that
// have no command here whose program and requirements are there, and whose
// container the machine's engine can run.
func Contained(base, over service.Components, h Host, model service.Attributes) (out []service.Role) {
	if h.Cluster || h.Containers.Engine == "" {
		return nil
	}
	for _, role := range service.Roles {
		p := part{role, base.Get(role), over.Get(role)}
		if p.base == nil && p.over == nil {
			continue
		}
		if why, contained := p.placed(h, model); why == "" && contained {
			out = append(out, role)
		}
	}
	return out
}

// placed is why this machine cannot start the part, "" when it can, and whether it
// then runs as a container: what can run as a process does.
func (p part) placed(h Host, model service.Attributes) (why string, contained bool) {
	if nodes := p.nodes(); nodes > 0 {
		return "its " + string(p.role) + " runs on " + strconv.Itoa(nodes) + " nodes, this is one machine", false
	}
	why = p.lacks(h, model)
	image := p.image()
	switch {
	case image == "" || ours(image) || why == "" && !p.guessed():
		return why, false
	case why == "":
		return "", h.Containers.Engine != "" && p.uncontained(h) == ""
	case h.Containers.Engine == "" && h.Containers.Lacks == "":
		return why, false
	case h.Containers.Engine == "":
		return why + "; nor can its image run as a container: " + h.Containers.Lacks, false
	}
	if but := p.uncontained(h); but != "" {
		return why + "; nor can its image run as a container: " + but, false
	}
	return "", true
}

// ownImage stands for the image of this program, whose programs are on this
// machine.
const ownImage = "roundhouse"

// ours reports whether an image is one of this release, which stands for programs
// that are on this machine, or could be.
func ours(image string) bool { return image == ownImage || image == ownImage+"-onnx" }

// image is that of the container that serves.
func (p part) image() string {
	if m := p.serving(); m != nil {
		return m.Image
	}
	return ""
}

// asContainer says how a part runs as a container, and why not as a process.
func (p part) asContainer(h Host, model service.Attributes) string {
	engine, _, _ := strings.Cut(h.Containers.Engine, " ")
	out := "image " + p.image() + " as a container of " + engine
	l := p.local()
	switch {
	case l == nil || len(l.Command) == 0:
	case p.guessed():
		out += ", since its command runs " + l.Command[0] + ", whose files are the image's"
	default:
		out += ", since " + p.lacks(h, model)
	}
	return out
}

// guessed reports whether the part's command was read from a container and runs
// an interpreter: that is on most machines, and what it is to run is in the image.
// Whether a module is there is asked.
func (p part) guessed() bool {
	l := p.local()
	from := p.base
	if p.over != nil && p.over.Local != nil {
		from = p.over
	}
	if l == nil || len(l.Command) == 0 || !from.LocalDerived {
		return false
	}
	program := strings.TrimRight(path.Base(l.Command[0]), "0123456789.")
	return slices.Contains(interpreters, program) && moduleOf(l.Command) == "" && slices.Equal(l.Command[:1], p.serving().Command[:min(1, len(p.serving().Command))])
}

// interpreters run files that are named after them.
var interpreters = []string{"sh", "bash", "python", "node", "java", "perl", "ruby"}

// uncontained is why the part's pod cannot run as one container of this machine's
// engine, "" when it can. What only a cluster has is named rather than left out:
// without it the container would not be what its author wrote.
func (p part) uncontained(h Host) string {
	if why := p.alone(h); why != "" {
		return why
	}
	if gpus, _ := p.needs(); gpus > 0 && h.Containers.NoGPUs != "" {
		return h.Containers.NoGPUs
	}
	if image := p.image(); h.Accelerators == 0 && forCUDA(image) {
		return repository(image) + " is built for CUDA, and this machine has no GPU"
	}
	names := map[string]bool{}
	var volumes []corev1.Volume
	for _, c := range []*service.Component{p.base, p.over} {
		if c == nil {
			continue
		}
		if why := unshared(&c.Pod); why != "" {
			return why
		}
		volumes = append(volumes, c.Pod.Volumes...)
		for i := range c.Pod.Containers {
			names[c.Pod.Containers[i].Name] = true
		}
	}
	if len(names) > 1 {
		return "its pod has " + strconv.Itoa(len(names)) + " containers, and on one machine a replica is one"
	}
	for _, c := range []*service.Component{p.base, p.over} {
		if c == nil {
			continue
		}
		if m := container(c.Pod, c.Main); m != nil {
			if why := confined(m, volumes); why != "" {
				return why
			}
		}
	}
	return ""
}

// alone is why the part would not find those that it calls, if it were a container.
func (p part) alone(h Host) string {
	if p.role != service.RoleRouter && p.role != service.RoleTransformer && p.role != service.RoleExplainer {
		return ""
	}
	if h.Containers.NoCalls != "" {
		return "the " + string(p.role) + " calls the service's other components: " + h.Containers.NoCalls
	}
	if m := p.serving(); m != nil && slices.ContainsFunc(slices.Concat(m.Command, m.Args), func(w string) bool { return strings.HasPrefix(w, "--service-discovery") }) {
		return "it looks for pods (--service-discovery), which one machine does not have"
	}
	return ""
}

// forCUDA reports whether an image is known to run on NVIDIA's GPUs alone, whatever its
// runtime asks for: by its name, or as an engine's own release for them.
func forCUDA(image string) bool {
	name := repository(image)
	return strings.Contains(name[strings.LastIndexByte(name, '/')+1:], "cuda") ||
		strings.HasSuffix(name, "vllm/vllm-openai") || strings.HasSuffix(name, "lmsysorg/sglang")
}

// unshared is what a pod has that one container on one machine is not given.
func unshared(p *corev1.PodSpec) string {
	switch {
	case len(p.InitContainers) > 0:
		return "its pod has init containers, which do not run on one machine"
	case p.HostNetwork, p.HostPID, p.HostIPC:
		return "hostNetwork, hostPID and hostIPC are not given on one machine: take them away"
	}
	return ""
}

// confined is what a container asks for that it is not given on one machine. Of the
// volumes the last of a name counts.
func confined(m *corev1.Container, volumes []corev1.Volume) string {
	if s := m.SecurityContext; s != nil {
		if s.Privileged != nil && *s.Privileged {
			return "securityContext.privileged is not given on one machine: take it away"
		}
		if s.Capabilities != nil && len(s.Capabilities.Add) > 0 {
			return "securityContext.capabilities.add (" + string(s.Capabilities.Add[0]) + ") is not given on one machine: take it away"
		}
	}
	if len(m.VolumeDevices) > 0 {
		return "volumeDevices are not given on one machine: take them away"
	}
	for _, mount := range m.VolumeMounts {
		v := volume(volumes, mount.Name)
		switch {
		case v == nil:
			return "it mounts volume " + mount.Name + ", which its pod does not have"
		case v.EmptyDir == nil && v.HostPath == nil:
			return "its volume " + mount.Name + " is neither an emptyDir nor a hostPath, and one machine has no others"
		case slices.Contains(strings.Split(mount.SubPath, "/"), "..") || mount.SubPathExpr != "":
			return "the subPath of its mount " + mount.Name + " leaves the volume, or is an expression"
		case !path.IsAbs(mount.MountPath) || strings.ContainsAny(mount.MountPath, ":,"):
			return "its mount " + mount.Name + " needs an absolute mountPath without a colon or a comma"
		}
	}
	return ""
}

// volume is the last volume of a name, nil for none.
func volume(volumes []corev1.Volume, name string) *corev1.Volume {
	for i := len(volumes) - 1; i >= 0; i-- {
		if volumes[i].Name == name {
			return &volumes[i]
		}
	}
	return nil
}
