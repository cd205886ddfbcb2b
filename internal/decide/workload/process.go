package workload

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/residency"
)

// mountPath is where KServe and OME put a model inside a container.
const mountPath = service.MountPath

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
		p.EnvFrom = m.EnvFrom
		p.Readiness = first(p.Readiness, m.ReadinessProbe)
		p.Liveness = first(p.Liveness, m.LivenessProbe)
		if ownMain != nil && ownMain.LivenessProbe != nil {
			p.Liveness = m.LivenessProbe // what the service states, whatever its runtime does
		}
		if ownMain != nil && p.WorkingDir == "" {
			p.WorkingDir = ownMain.WorkingDir
		}
		p.GPUs = gpus(m)
		if q, ok := m.Resources.Limits[corev1.ResourceMemory]; ok {
			p.MemoryBytes = max(0, q.Value())
		}
	}
	p.ReservedMemory = statedMemory(ownMain)
	p.TerminationGrace = graceOf(&merged.Pod)
	return p
}

// locate has a program of this machine find the parts of a model: what its command
// line and its variables say of their folders in a container becomes a path below
// ModelPath, where they lie. Other paths below the folder that the parts have in common
// stay as they are.
func (p *Process) locate(parts service.Parts) {
	if p == nil || len(parts) == 0 {
		return
	}
	root := parts.Root()
	goesOn := func(s string) bool { return s != "" && strings.Contains(pathRunes, s) }
	leads := func(at string) bool {
		return slices.ContainsFunc(parts, func(p service.Part) bool {
			return service.Within(p.Path, at) || service.Within(at, p.Path)
		})
	}
	here := func(s string) string {
		var out strings.Builder
		for {
			before, after, found := strings.Cut(s, root)
			if out.WriteString(before); !found {
				return out.String()
			}
			rest := after[:len(after)-len(strings.TrimLeft(after, pathRunes+"/"))]
			if !goesOn(after[:min(1, len(after))]) && !goesOn(before[max(0, len(before)-1):]) && leads(path.Clean(root+rest)) {
				out.WriteString("{{.ModelPath}}")
			} else {
				out.WriteString(root)
			}
			s = after
		}
	}
	p.Command, p.Env = slices.Clone(p.Command), slices.Clone(p.Env)
	for i := range p.Command {
		p.Command[i] = here(p.Command[i])
	}
	for i := range p.Env {
		p.Env[i].Value = here(p.Env[i].Value)
	}
}

// pathRunes go on with the name of a folder.
const pathRunes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."

// predictor is the role that a transformer and an explainer call.
func (in Input) predictor() service.Role {
	r := Revision{}
	for _, role := range service.Roles {
		if in.Service.Components.Get(role) != nil || in.Runtime != nil && in.Runtime.Components.Get(role) != nil {
			r.Components = append(r.Components, Component{Role: role})
		}
	}
	return r.Predictor()
}

// call gives a transformer or an explainer the arguments that KServe gives it: the
// model's name, where its predictor is, and its port. What it states of the last two
// holds in a pod alone.
func (p *Process) call(role service.Role, name string, predictor service.Role, at int) {
	if p == nil || role != service.RoleTransformer && role != service.RoleExplainer {
		return
	}
	words := slices.Clone(p.Command)
	for _, arg := range []struct {
		flag, value string
		keep        bool
	}{
		{"--model_name", name, true},
		{"--predictor_host", "$(" + AddressVariable(predictor) + ")", false},
		{"--http_port", "{{.Port}}", false},
	} {
		i := slices.IndexFunc(words, func(w string) bool { return w == arg.flag || strings.HasPrefix(w, arg.flag+"=") })
		switch {
		case i < 0 && at >= 0 && at <= len(words):
			words = slices.Insert(words, at, arg.flag, arg.value)
			at += 2
		case i < 0:
			words = append(words, arg.flag, arg.value)
		case arg.keep:
		case words[i] != arg.flag:
			words[i] = arg.flag + "=" + arg.value
		case i+1 < len(words):
			words[i+1] = arg.value
		default:
			words = append(words, arg.value)
		}
	}
	p.Command = words
}

// argumentsAt is where the arguments of a component's own container begin in its command
// line, if what it is told stands before them; -1 if that stands at the end.
func argumentsAt(pod corev1.PodSpec, main string, subcommand bool) int {
	if m := container(pod, main); subcommand && m != nil {
		return len(m.Command)
	}
	return -1
}

// sleeps prepares a process to be put to sleep as the policy allows, where its
// engine can sleep so. One without GPUs can be suspended, whatever its engine is: a
// stopped process would keep its GPUs' memory.
func (p *Process) sleeps(local *service.Local, policy service.StandbyPolicy) {
	_, level, ok := service.ParseStandby(string(policy))
	if p == nil || policy == "" || policy == service.StandbyNever || !ok {
		return
	}
	var s service.Standby
	if local != nil && local.Standby != nil && (p.GPUs == 0 || !local.Standby.KeepsGPUs) {
		s = *local.Standby
	}
	if p.GPUs == 0 && p.Container == nil { // whose processes are the engine's to stop
		s.Levels = append(s.Levels[:len(s.Levels):len(s.Levels)], service.StandbyLevel{Level: service.LevelSuspended})
	}
	if level > 0 {
		only := s.Find(level)
		if only == nil {
			return
		}
		s.Levels = []service.StandbyLevel{*only}
	}
	if len(s.Levels) == 0 {
		return
	}
	if level == service.LevelSuspended {
		s.Args, s.Env = nil, nil
	}
	if p.GPUs > 0 {
		p.given(s.Args)
	}
	for _, e := range s.Env {
		if !slices.ContainsFunc(p.Env, func(x corev1.EnvVar) bool { return x.Name == e.Name }) {
			p.Env = append(p.Env[:len(p.Env):len(p.Env)], e)
		}
	}
	p.Standby = &service.Standby{Levels: s.Levels} // the rest is in the command and the environment
}

// given merges arguments into the command line. One of an image's own entrypoint is
// arguments alone.
func (p *Process) given(args []string) {
	program := 1
	if p.Container != nil && !p.Container.Entrypoint {
		program = 0
	}
	p.Command = append(p.Command[:program:program], MergeArgs(p.Command[program:], args)...)
}

// MissingLevel returns what is wrong with the level at which a component is to sleep, where
// its engine has no such level; "" where it has, or where none is named. over is the
// service's part of the component, base that of its runtime, localized; either may be
// nil.
func MissingLevel(over, base *service.Component) string {
	if over == nil {
		over = &service.Component{}
	}
	if base == nil {
		base = &service.Component{}
	}
	policy := over.Scaling.Over(base.Scaling).Settled().Standby
	_, level, ok := service.ParseStandby(string(policy))
	local := base.Local
	if over.Local != nil {
		local = over.Local
	}
	if !ok || level == 0 || local == nil {
		return ""
	}
	used := 0
	for _, c := range []*service.Component{base, over} {
		if m := container(c.Pod, c.Main); m != nil {
			used = max(used, gpus(m))
		}
	}
	switch {
	case level == service.LevelSuspended && used > 0:
		return string(policy) + " has no effect with GPUs, whose memory a stopped process keeps: replicas stop"
	case level == service.LevelSuspended:
		return ""
	case local.Standby == nil:
		return string(policy) + " has no effect: the engine has no levels to sleep at, so replicas stop; suspend needs none"
	case used > 0 && local.Standby.KeepsGPUs:
		return string(policy) + " has no effect with GPUs, whose memory this engine keeps while it sleeps: replicas stop"
	case local.Standby.Find(level) != nil:
		return ""
	}
	var has []string
	for _, l := range local.Standby.Levels {
		has = append(has, service.StandbyLevelPrefix+strconv.Itoa(l.Level))
	}
	return fmt.Sprintf("%s has no effect: the engine has %s, so replicas stop", policy, strings.Join(has, " and "))
}

// reside has a process share the machine as its service says. With gpuMemory,
// gpuPercent or shareGPU it takes a part of its GPUs, and an engine that states no GPUs takes
// one.
func (p *Process) reside(role service.Role, r service.Residency) {
	if p == nil {
		return
	}
	p.Permit = residency.Sharing{Exclusive: r.Exclusive, OneOf: r.OneOf}.Permit()
	stated := r.GPUMemory > 0 || r.GPUPercent > 0
	if !stated && !r.ShareGPU {
		return
	}
	if p.GPUs == 0 && role == service.RoleEngine {
		p.GPUs = 1
	}
	if p.GPUs > 0 {
		p.GPUMemory, p.GPUPercent, p.ShareGPU = r.GPUMemory, r.GPUPercent, !stated
	}
}

// expect estimates what a process takes of main memory, or of GPUs that it shares,
// for the model that it loads, if its service does not state that.
func (p *Process) expect(role service.Role, model service.Attributes) {
	if p == nil || p.GPUs > 0 && !p.ShareGPU || role != service.RoleEngine && role != service.RoleDecoder {
		return
	}
	switch bytes := residency.Estimate(model.Format.Name, model.Bytes, model.Parameters); {
	case bytes <= 0:
	case p.GPUs > 0:
		p.GPUMemory, p.GPUMemoryFrom = (bytes+int64(p.GPUs)-1)/int64(p.GPUs), residency.Estimated
	default:
		p.ExpectedMemory, p.MemoryFrom = bytes, residency.Estimated
	}
}

// Measured returns the revision with what a replica of a role was seen to use, in
// place of what was expected: of main memory, and of each of its GPUs. 0 was not
// measured.
func (r Revision) Measured(role service.Role, memory, onGPU int64) Revision {
	r.Components = slices.Clone(r.Components)
	for i := range r.Components {
		if c := &r.Components[i]; c.Role == role && c.Process != nil {
			p := *c.Process
			if memory > 0 {
				p.ExpectedMemory, p.MemoryFrom = memory, residency.Measured
			}
			if p.ShareGPU && onGPU > 0 {
				p.GPUMemory, p.GPUMemoryFrom = onGPU, residency.Measured
			}
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

func first[T any](a, b *T) *T {
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
	if p.Container != nil {
		pl = pl.Within(p.Container)
	}
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
	if out.Container == nil && (len(out.Command) == 0 || out.Command[0] == "") {
		return Process{}, fmt.Errorf("process: empty command: the runtime's local.command must name a program")
	}
	return out, nil
}

// Within is where a replica's container sees itself: its own ports, and its files
// where they are mounted. Other roles are where they are for processes: their addresses
// are opened in the container's network.
func (pl Location) Within(c *Container) Location {
	out := Location{Port: int(c.Port), GRPCPort: int(c.GRPCPort), MetricsPort: int(cmp.Or(c.MetricsPort, c.Port)), ModelPath: pl.ModelPath, AdapterPaths: map[string]string{}, Addresses: pl.Addresses}
	if pl.Mounted && out.ModelPath != "" {
		out.ModelPath = cmp.Or(pl.Root, ModelAt)
	}
	for name, at := range pl.AdapterPaths {
		if out.AdapterPaths[name] = at; pl.Mounted {
			out.AdapterPaths[name] = AdapterAt(name)
		}
	}
	return out
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
