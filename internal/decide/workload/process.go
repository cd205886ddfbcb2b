package workload

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/residency"
	"roundhouse.dev/roundhouse/internal/decide/selection"
)

// mountPath is where KServe and OME put a model inside a container.
const mountPath = "/mnt/models"

// Localize fills in how a runtime's components run as processes: by the
// fallback of what the runtime says, where its program is not on this host; and
// where the runtime does not say, by the main container's own command, if its program is
// on this host; else as the catalog runtime with the same image repository
// does. A component that stays without Local cannot run here; selection rejects
// it with that reason. The runtime given is not changed.
func Localize(rt service.Runtime, catalog []service.Runtime, host selection.Host) service.Runtime {
	for _, role := range service.Roles {
		c := rt.Components.Get(role)
		if c == nil {
			continue
		}
		filled := *c
		if c.Local != nil {
			filled.Local = present(installable(c.Local, role, catalog, host), host)
		} else if l := localOf(*c, role, catalog, host); l != nil {
			filled.Local, filled.LocalDerived = present(sleeping(l, role, catalog), host), true
		}
		if filled.Local != c.Local {
			rt.Components.Set(role, &filled)
		}
	}
	return rt
}

// LocalizeService does the same for a service that brings its own containers.
func LocalizeService(s service.Service, catalog []service.Runtime, host selection.Host) service.Service {
	rt := Localize(service.Runtime{Components: s.Components}, catalog, host)
	s.Components = rt.Components
	return s
}

// installable is l with the install line of the catalog's runtime whose command
// is the same program, where l states none and the program is not on the host.
func installable(l *service.Local, role service.Role, catalog []service.Runtime, host selection.Host) *service.Local {
	l = sleeping(l, role, catalog)
	program := selection.Program(l.Command)
	if l.Install != "" || program == "" || host.Programs == nil || host.Programs[program] {
		return l
	}
	for i := range catalog {
		c := catalog[i].Components.Get(role)
		if c != nil && c.Local != nil && c.Local.Install != "" && selection.Program(c.Local.Command) == program {
			filled := *l
			filled.Install = c.Local.Install
			return &filled
		}
	}
	return l
}

// sleeping is l with the way to sleep of the catalog's runtime whose command
// begins with the same words, where l states none.
func sleeping(l *service.Local, role service.Role, catalog []service.Runtime) *service.Local {
	if l.Standby != nil {
		return l
	}
	for i := range catalog {
		c := catalog[i].Components.Get(role)
		if c == nil || c.Local == nil || c.Local.Standby == nil {
			continue
		}
		words := c.Local.Command
		if end := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "-") || strings.Contains(w, "{{") }); end >= 0 {
			words = words[:end]
		}
		if len(words) > 0 && len(l.Command) >= len(words) && slices.Equal(l.Command[:len(words)], words) {
			filled := *l
			filled.Standby = c.Local.Standby
			return &filled
		}
	}
	return l
}

// present is l, or its fallback where the program of l is not on the host. A
// host that is not known changes nothing.
func present(l *service.Local, host selection.Host) *service.Local {
	program := selection.Program(l.Command)
	if l.Fallback == nil || program == "" || host.Programs == nil || host.Programs[program] {
		return l
	}
	fallback := *l.Fallback
	fallback.FallbackOf = l
	return &fallback
}

func localOf(c service.Component, role service.Role, catalog []service.Runtime, host selection.Host) *service.Local {
	m := container(c.Pod, c.Main)
	if m == nil {
		return nil
	}
	if len(m.Command) > 0 && (host.Programs[m.Command[0]] || strings.Contains(m.Command[0], "/") && !inImage(m.Command[0])) {
		return fromContainer(m, c.Metrics.Over(c.Annotations).Port)
	}
	if m.Image == "" {
		return nil
	}
	for i := range catalog {
		other := catalog[i].Components.Get(role)
		if other == nil || other.Local == nil {
			continue
		}
		if o := container(other.Pod, other.Main); o != nil && Repository(o.Image) == Repository(m.Image) {
			l := *other.Local
			// Arguments belong to the image's program; where this binary stands
			// in for it, they would mean nothing to it.
			if l.Command[0] != "roundhouse" {
				l.Command = MergeArgs(l.Command, portable(m.Args))
			}
			return &l
		}
	}
	return nil
}

// inImage reports whether an absolute program path means a place inside an image
// rather than on this machine. Relative paths and paths below a home or /opt
// could be either; only the well-known shells and interpreters are certain to
// be here too, and those a host lists by name.
func inImage(program string) bool {
	return strings.HasPrefix(program, "/") && !strings.HasPrefix(program, "/bin/") && !strings.HasPrefix(program, "/usr/bin/")
}

// fromContainer reads a container's command line as a process: the model's
// mount path, the declared port and that of the metrics become the replica's
// own.
func fromContainer(m *corev1.Container, metrics int32) *service.Local {
	words := slices.Concat(m.Command, m.Args)
	var http int32
	if len(m.Ports) > 0 {
		http = m.Ports[0].ContainerPort
	}
	for i, w := range words {
		w = strings.ReplaceAll(w, mountPath, "{{.ModelPath}}")
		if there, ok := withoutPort(w, http); ok {
			w = there + "{{.Port}}"
		} else if there, ok := withoutPort(w, metrics); ok {
			w = there + "{{.MetricsPort}}"
		}
		words[i] = w
	}
	return &service.Local{Command: words, WorkingDir: m.WorkingDir}
}

// withoutPort is what stands before a port in a word that is one, or ends in
// "=" and one.
func withoutPort(word string, port int32) (before string, ok bool) {
	before, ok = strings.CutSuffix(word, strconv.Itoa(int(port)))
	return before, ok && port > 0 && (before == "" || strings.HasSuffix(before, "="))
}

// portable keeps of a container's arguments those that mean the same outside
// the container: not ports, hosts and paths, which the replica's own replace.
func portable(args []string) []string {
	var out []string
	for _, f := range parseArgs(args) {
		name := strings.TrimLeft(f.name, "-")
		switch {
		case f.name == "", strings.HasSuffix(name, "port"), name == "host", name == "model-dir", name == "model", name == "model-path":
			continue
		case strings.Contains(strings.Join(f.words, " "), mountPath):
			continue
		}
		out = append(out, f.words...)
	}
	return out
}

// process derives how a merged component runs on one machine. own is the
// service's part of it, whose arguments go over the local command's.
func process(merged Component, local *service.Local, own *service.Component) *Process {
	if local == nil {
		return nil
	}
	p := &Process{Command: slices.Clone(local.Command), WorkingDir: local.WorkingDir, Install: local.Install,
		Readiness: local.ReadinessProbe, Liveness: local.LivenessProbe}
	m := container(merged.Pod, merged.Main)
	var ownMain *corev1.Container
	if own != nil {
		ownMain = container(own.Pod, own.Main)
	}
	if ownMain != nil && own.Local == nil && len(ownMain.Command) == 0 && len(p.Command) > 0 {
		p.Command = append(p.Command[:1:1], MergeArgs(p.Command[1:], ownMain.Args)...)
	}
	p.Env = configured(environment(m, local, ownMain), merged)
	if m != nil {
		p.Readiness = first(p.Readiness, m.ReadinessProbe)
		p.Liveness = first(p.Liveness, m.LivenessProbe)
		if ownMain != nil && p.WorkingDir == "" {
			p.WorkingDir = ownMain.WorkingDir
		}
		p.GPUs = gpus(m)
		if q, ok := m.Resources.Limits[corev1.ResourceMemory]; ok {
			p.MemoryBytes = q.Value()
		}
	}
	p.ReservedMemory = statedMemory(ownMain)
	if s := merged.Pod.TerminationGracePeriodSeconds; s != nil {
		p.TerminationGrace = time.Duration(*s) * time.Second
	}
	return p
}

// sleeps prepares a process to be put to sleep as the policy allows, where its
// engine can sleep so.
func (p *Process) sleeps(local *service.Local, policy service.StandbyPolicy) {
	_, level, ok := service.ParseStandby(string(policy))
	if p == nil || policy == "" || !ok || local.Standby == nil {
		return
	}
	s := *local.Standby
	if level > 0 {
		only := s.Find(level)
		if only == nil {
			return
		}
		s.Levels = []service.StandbyLevel{*only}
	}
	if p.GPUs > 0 {
		p.Command = append(p.Command[:1:1], MergeArgs(p.Command[1:], s.Args)...)
	}
	for _, e := range s.Env {
		if !slices.ContainsFunc(p.Env, func(x corev1.EnvVar) bool { return x.Name == e.Name }) {
			p.Env = append(p.Env[:len(p.Env):len(p.Env)], e)
		}
	}
	p.Standby = &service.Standby{Levels: s.Levels} // the rest is in the command and the environment
}

// reside has a process share the machine as its service says. With gpuMemory it
// takes so much of its GPUs, and an engine that states no GPUs takes one.
func (p *Process) reside(role service.Role, r service.Residency) {
	if p == nil {
		return
	}
	p.Permit = residency.Sharing{Exclusive: r.Exclusive, OneOf: r.OneOf}.Permit()
	if r.GPUMemory <= 0 {
		return
	}
	if p.GPUs == 0 && role == service.RoleEngine {
		p.GPUs = 1
	}
	if p.GPUs > 0 {
		p.GPUMemory = r.GPUMemory
	}
}

// expect estimates what a process takes that loads the model into main memory, if
// its service does not state that.
func (p *Process) expect(role service.Role, model service.Attributes) {
	if p == nil || p.GPUs > 0 || role != service.RoleEngine && role != service.RoleDecoder {
		return
	}
	if p.ExpectedMemory = residency.Estimate(model.Format.Name, model.Bytes, model.Parameters); p.ExpectedMemory > 0 {
		p.MemoryFrom = residency.Estimated
	}
}

// Measured returns the revision with what a replica of a role was seen to use, in
// place of what was expected.
func (r Revision) Measured(role service.Role, memory int64) Revision {
	r.Components = slices.Clone(r.Components)
	for i := range r.Components {
		if c := &r.Components[i]; c.Role == role && c.Process != nil {
			p := *c.Process
			p.ExpectedMemory, p.MemoryFrom = memory, residency.Measured
			c.Process = &p
		}
	}
	return r
}

// statedMemory is the memory that a service states for its container. What a
// runtime states limits each replica, but is no account of what a model takes.
func statedMemory(c *corev1.Container) int64 {
	if c == nil {
		return 0
	}
	for _, list := range []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
		if q, ok := list[corev1.ResourceMemory]; ok {
			return max(0, q.Value())
		}
	}
	return 0
}

// GPUs is how many GPUs a replica asks for, with all its pods.
func (c *Component) GPUs() int {
	n := podGPUs(&c.Pod)
	if c.Leader != nil {
		n = podGPUs(&c.Leader.Pod)
	}
	if c.Worker != nil {
		n += max(c.Worker.Size, 1) * podGPUs(&c.Worker.Pod)
	}
	return n
}

func podGPUs(p *corev1.PodSpec) (n int) {
	for i := range p.Containers {
		n += gpus(&p.Containers[i])
	}
	return n
}

// gpus is how many GPUs a container asks for.
func gpus(c *corev1.Container) int {
	n := 0
	for _, name := range []corev1.ResourceName{"nvidia.com/gpu", "amd.com/gpu"} {
		if q, ok := c.Resources.Limits[name]; ok {
			n += int(q.Value())
		}
	}
	return n
}

// environment is a process's: the variables of the runtime's container, replaced
// by those of its process, and both by those of the service.
func environment(merged *corev1.Container, local *service.Local, own *corev1.Container) []corev1.EnvVar {
	var out []corev1.EnvVar
	set := func(vars []corev1.EnvVar) {
		for _, e := range vars {
			if i := slices.IndexFunc(out, func(have corev1.EnvVar) bool { return have.Name == e.Name }); i >= 0 {
				out[i] = e
				continue
			}
			out = append(out, e)
		}
	}
	if merged != nil {
		set(merged.Env)
	}
	set(local.Env)
	if own != nil && merged != nil {
		// The merged ones: their templates are filled.
		for _, e := range own.Env {
			i := slices.IndexFunc(merged.Env, func(have corev1.EnvVar) bool { return have.Name == e.Name })
			if i >= 0 {
				set(merged.Env[i : i+1])
			}
		}
	}
	return out
}

// configured is env with a router's configuration, where env does not state it.
func configured(env []corev1.EnvVar, c Component) []corev1.EnvVar {
	if c.Role != service.RoleRouter {
		return env
	}
	for _, name := range slices.Sorted(maps.Keys(c.Config)) {
		if !slices.ContainsFunc(env, func(e corev1.EnvVar) bool { return e.Name == name }) {
			env = append(env, corev1.EnvVar{Name: name, Value: c.Config[name]})
		}
	}
	return env
}

func first(a, b *corev1.Probe) *corev1.Probe {
	if a != nil {
		return a
	}
	return b
}

// Resolve fills what only the replica knows into the command, the environment,
// the working directory and the probes, and expands $(VAR) in the variables'
// values and the command as Kubernetes does, from the process's own variables.
// The addresses of other roles stand before those, which may refer to them.
func (p Process) Resolve(pl Location) (Process, error) {
	out, err := expandAll(p, pl.data(), nil, "process")
	if err != nil {
		return Process{}, err
	}
	env := map[string]string{"PORT": strconv.Itoa(pl.Port), "MODEL_PATH": pl.ModelPath}
	out.Env = append(pl.variables(), out.Env...)
	left := maxFilled
	for i, e := range out.Env {
		if e.ValueFrom == nil {
			out.Env[i].Value = expandVars(e.Value, env, &left) // of those before it
			env[e.Name] = out.Env[i].Value
		}
	}
	out.Command = slices.Clone(out.Command)
	for i, w := range out.Command {
		out.Command[i] = expandVars(w, env, &left)
	}
	if left < 0 {
		return Process{}, fmt.Errorf("process: all texts together are over %d bytes once their variables are expanded", maxFilled)
	}
	if len(out.Command) == 0 || out.Command[0] == "" {
		return Process{}, fmt.Errorf("process: empty command: the runtime's local.command must name a program")
	}
	return out, nil
}

// variables hold the addresses of other roles, in the order of service.Roles.
func (pl Location) variables() (out []corev1.EnvVar) {
	for _, role := range service.Roles {
		if at := pl.Addresses[role]; at != "" {
			out = append(out, corev1.EnvVar{Name: AddressVariable(role), Value: at})
		}
	}
	return out
}

// ResolvePod fills what a replica alone knows into a pod: on a cluster that is
// known before the pod is there. A probe's port that was a template is a number
// then. Nothing is shared with the pod given.
func ResolvePod(pod corev1.PodSpec, pl Location) (corev1.PodSpec, error) {
	out, err := expandAll(pod, pl.data(), nil, "pod")
	if err != nil {
		return corev1.PodSpec{}, err
	}
	out = *out.DeepCopy()
	for i := range out.Containers {
		c := &out.Containers[i]
		for _, p := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe, c.StartupProbe} {
			switch {
			case p == nil:
			case p.HTTPGet != nil:
				p.HTTPGet.Port = intstr.Parse(p.HTTPGet.Port.String())
			case p.TCPSocket != nil:
				p.TCPSocket.Port = intstr.Parse(p.TCPSocket.Port.String())
			}
		}
	}
	return out, nil
}

// expandVars replaces $(NAME) by the variable's value; $$(NAME) is a literal
// $(NAME), and an unknown name stays as written (Kubernetes' rules). left is how
// many bytes there may be in all; below 0 the result is cut.
func expandVars(s string, env map[string]string, left *int) string {
	var out strings.Builder
	defer func() { *left -= out.Len() }()
	for i := 0; i < len(s) && out.Len() <= *left; i++ {
		if s[i] != '$' || i+1 == len(s) {
			out.WriteByte(s[i])
			continue
		}
		switch s[i+1] {
		case '$':
			out.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(s[i:], ')')
			if end < 0 {
				out.WriteByte('$')
				continue
			}
			if v, ok := env[s[i+2:i+end]]; ok {
				out.WriteString(v)
			} else {
				out.WriteString(s[i : i+end+1])
			}
			i += end
		default:
			out.WriteByte('$')
		}
	}
	return out.String()
}
