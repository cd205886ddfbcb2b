package selection

import (
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// HostRule reports whether a host can run components that are complete in
// themselves, such as those of a service that brings its own containers. Their
// Local must be resolved.
func HostRule(c service.Components, h Host) Rule {
	return hostRule(c, service.Components{}, h, service.Attributes{})
}

// MissingProgram reports whether components that are complete in themselves lack
// a program that is to be installed on the host.
func MissingProgram(c service.Components, h Host) bool {
	for _, role := range service.Roles {
		p := part{role, c.Get(role), nil}
		if l := p.local(); l != nil && !h.Cluster && p.missing(l, h) != "" {
			return true
		}
	}
	return false
}

func (s *subject) runs(rt *service.Runtime) Rule {
	return hostRule(rt.Components, s.svc.Components, s.host, s.model)
}

// runsHere is what a runtime that passes is told; what runs in place of its own
// program follows after a colon.
const runsHere = "runs on this machine"

const withoutGPUs = "without GPUs, since this machine has none"

// hostRule checks base with over laid on it, for a model. On a
// cluster everything runs but what is a command for one machine alone. On one
// machine every component needs a command whose program is there with all that
// it requires, or else an image that the machine's engine runs as a container, and
// all of them together, one replica each, must fit its accelerators and memory.
func hostRule(base, over service.Components, h Host, model service.Attributes) Rule {
	if h.Cluster {
		return clusterRule(base, over)
	}
	var lacks, instead []string
	var gpus, memory int64
	parts := 0
	for _, role := range service.Roles {
		p := part{role, base.Get(role), over.Get(role)}
		if p.base == nil && p.over == nil {
			continue
		}
		parts++
		if why, how := p.how(h, model); why != "" {
			if !slices.Contains(lacks, why) { // both of prefill and decode may lack one program
				lacks = append(lacks, why)
			}
		} else if how != "" && !slices.Contains(instead, how) {
			instead = append(instead, how)
		}
		g, m := p.needs()
		if g > 0 && h.Accelerators == 0 && p.local().NeedsNoGPU() {
			g = 0
			if !slices.Contains(instead, withoutGPUs) {
				instead = append(instead, withoutGPUs)
			}
		}
		gpus, memory = plus(gpus, g), plus(memory, m)
	}
	if parts == 0 {
		lacks = append(lacks, "it has no component to run")
	}
	lacks = append(lacks, h.short(gpus, memory)...)
	if len(lacks) > 0 {
		return fail(RuleHost, strings.Join(lacks, "; "))
	}
	if len(instead) > 0 {
		return pass(RuleHost, runsHere+": "+strings.Join(instead, "; "))
	}
	return pass(RuleHost, runsHere)
}

// pip reports whether one line of pip is all that keeps a runtime from running here.
func (s *subject) pip(rt *service.Runtime) bool {
	if s.host.Cluster {
		return false
	}
	var gpus, memory int64
	lines := map[string]bool{}
	for _, role := range service.Roles {
		p := part{role, rt.Components.Get(role), s.svc.Components.Get(role)}
		if p.base == nil && p.over == nil {
			continue
		}
		if why, _ := p.placed(s.host, s.model); why != "" {
			lines[p.pip(s.host, s.model)] = true
		}
		g, m := p.needs()
		if g > 0 && s.host.Accelerators == 0 && p.local().NeedsNoGPU() {
			g = 0
		}
		gpus, memory = plus(gpus, g), plus(memory, m)
	}
	return len(lines) == 1 && !lines[""] && len(s.host.short(gpus, memory)) == 0
}

// short is what a machine has too little of for GPUs and bytes of memory.
func (h Host) short(gpus, memory int64) (out []string) {
	if gpus > int64(h.Accelerators) {
		out = append(out, "it needs "+strconv.FormatInt(gpus, 10)+" GPUs, this machine has "+strconv.Itoa(h.Accelerators))
	}
	if h.MemoryBytes > 0 && memory > h.MemoryBytes {
		out = append(out, "it needs "+gibibytes(memory)+" of memory, this machine has "+gibibytes(h.MemoryBytes))
	}
	return out
}

// how returns why this machine cannot run the part, or what it runs in place of its own
// program, "" when that itself runs.
func (p part) how(h Host, model service.Attributes) (lacks, instead string) {
	why, contained := p.placed(h, model)
	switch l := p.local(); {
	case why != "":
		return why, ""
	case contained:
		return "", p.asContainer(h, model)
	case l.FallbackOf != nil:
		return "", l.Command[0] + " in place of " + l.FallbackOf.Command[0] + ", which is not on PATH"
	}
	return "", ""
}

// clusterRule fails for components that state only how they run on one machine, and
// for those of runtimes that leave their image to the service where it names none.
func clusterRule(base, over service.Components) Rule {
	for _, role := range service.Roles {
		switch p := (part{role, base.Get(role), over.Get(role)}); {
		case p.contained():
		case p.local() != nil:
			return fail(RuleHost, "its "+string(role)+" is a command for one machine and has no container")
		case p.base != nil && len(p.base.Pod.Containers) == 0 && p.nodes() == 0:
			return fail(RuleHost, "it leaves to the service what its "+string(role)+" runs, and the service names no image")
		case role == service.RoleRouter && p.base == nil && p.over != nil: // of other roles the shape tells
			return fail(RuleHost, "it has no router, and the service names no image for one")
		}
	}
	return pass(RuleHost, "runs on a cluster")
}

// part is one role's component: the runtime's and the service's, either nil.
type part struct {
	role       service.Role
	base, over *service.Component
}

// lacks returns why this machine cannot start the part as a process, "" when it
// can.
func (p part) lacks(h Host, model service.Attributes) string {
	local := p.local()
	if local == nil || len(local.Command) == 0 {
		if m := p.serving(); m != nil {
			why := "no command for image " + repository(m.Image) + " on this machine"
			if len(m.Command) > 0 && strings.HasPrefix(m.Command[0], "/") {
				why += ": its command " + m.Command[0] + " is taken for a path in the image; name a program that is on PATH"
			}
			return why
		}
		return "no command for its " + string(p.role) + " on this machine"
	}
	if why := p.missing(local, h); why != "" {
		return why
	}
	return p.unmet(h, model)
}

// missing names the program that a command lacks, with its install line, ""
// when nothing is lacking.
func (p part) missing(local *service.Local, h Host) string {
	program := Program(local.Command)
	if program == "" || h.Programs[program] {
		return ""
	}
	interpreter := h.Programs[local.Command[0]]
	if q, ok := p.module(local); ok && interpreter {
		if _, known := h.Answers[q.Check]; known {
			return "" // unmet has the answer
		}
	}
	if local.Install != "" {
		return program + " is not on PATH: " + local.Install
	}
	// Nobody says that this module has to be installed: its interpreter will do.
	if interpreter {
		return ""
	}
	return program + " is not on PATH"
}

// Program is what Host.Programs must hold for a command to start: its first
// word, or interpreter and module for "python3 -m MODULE". It is "" for an
// empty command and for one whose program is given as a path or a template,
// which is taken as it is.
func Program(command []string) string {
	if len(command) == 0 || strings.Contains(command[0], "/") || strings.HasPrefix(command[0], "{{") {
		return ""
	}
	if module := moduleOf(command); module != "" {
		return command[0] + " -m " + module
	}
	return command[0]
}

// moduleOf is MODULE of "python3 -m MODULE", "" for any other command.
func moduleOf(command []string) string {
	if !strings.HasPrefix(command[0][strings.LastIndexByte(command[0], '/')+1:], "python") {
		return ""
	}
	for i := 1; i+1 < len(command) && strings.HasPrefix(command[i], "-"); i++ {
		if command[i] == "-m" {
			return command[i+1]
		}
	}
	return ""
}

func (p part) local() *service.Local {
	if p.over != nil && p.over.Local != nil {
		return p.over.Local
	}
	if p.base != nil {
		return p.base.Local
	}
	return nil
}

// contained reports whether the part states anything of pods.
func (p part) contained() bool {
	if c := p.base; c != nil && (len(c.Pod.Containers) > 0 || c.Leader != nil || c.Worker != nil) {
		return true
	}
	c := p.over // whose container may state no more than what it needs
	return c != nil && (c.Leader != nil || c.Worker != nil ||
		slices.ContainsFunc(c.Pod.Containers, func(c corev1.Container) bool { return c.Image != "" }))
}

// serving is the container that serves, of the service or of the runtime, nil for
// none with an image.
func (p part) serving() *corev1.Container {
	for _, c := range []*service.Component{p.over, p.base} {
		if c == nil {
			continue
		}
		if m := container(c.Pod, c.Main); m != nil && m.Image != "" {
			return m
		}
	}
	return nil
}

// nodes is how many machines a multi-node part asks for, 0 for any other.
// Without a leader the component's own pod leads (KServe's workerSpec).
func (p part) nodes() int {
	n, led := 0, false
	for _, group := range p.nodeGroups() {
		n += min(group.size, math.MaxInt16)
		led = led || group.leads
	}
	if n > 0 && !led {
		n++
	}
	return n
}

// nodeGroup is the leader's or the workers' part, the runtime's and the service's.
type nodeGroup struct {
	base, over *service.Node
	leads      bool
	size       int
}

func (p part) nodeGroups() []nodeGroup {
	leader, worker := nodeGroup{leads: true}, nodeGroup{}
	if p.base != nil {
		leader.base, worker.base = p.base.Leader, p.base.Worker
	}
	if p.over != nil {
		leader.over, worker.over = p.over.Leader, p.over.Worker
	}
	var out []nodeGroup
	for _, s := range []nodeGroup{leader, worker} {
		if s.base == nil && s.over == nil {
			continue
		}
		s.size = 1
		for _, n := range []*service.Node{s.base, s.over} {
			if n != nil && n.Size > 0 {
				s.size = n.Size
			}
		}
		out = append(out, s)
	}
	return out
}

// needs sums GPUs and bytes of memory over the main containers of one replica.
func (p part) needs() (gpus, memory int64) {
	var base, over *corev1.Container
	if p.base != nil {
		base = container(p.base.Pod, p.base.Main)
	}
	if p.over != nil {
		over = container(p.over.Pod, p.over.Main)
	}
	gpus, memory = asks(base, over)
	for _, s := range p.nodeGroups() {
		base, over = nil, nil
		if s.base != nil {
			base = container(s.base.Pod, s.base.Main)
		}
		if s.over != nil {
			over = container(s.over.Pod, s.over.Main)
		}
		g, m := asks(base, over)
		gpus, memory = plus(gpus, times(g, s.size)), plus(memory, times(m, s.size))
	}
	return gpus, memory
}

// asks reads one container's resources, what the service states in place of
// what the runtime does. GPUs are limits (Kubernetes has no others); memory is
// the request, which is the limit where only that is stated.
func asks(base, over *corev1.Container) (gpus, memory int64) {
	for _, name := range []corev1.ResourceName{"nvidia.com/gpu", "amd.com/gpu"} {
		gpus = plus(gpus, stated(name, limits(over), limits(base), requests(over), requests(base)))
	}
	return gpus, stated(corev1.ResourceMemory, requests(over), requests(base), limits(over), limits(base))
}

func limits(c *corev1.Container) corev1.ResourceList {
	if c == nil {
		return nil
	}
	return c.Resources.Limits
}

func requests(c *corev1.Container) corev1.ResourceList {
	if c == nil {
		return nil
	}
	return c.Resources.Requests
}

// stated is the first list's value that has one, never below 0.
func stated(name corev1.ResourceName, lists ...corev1.ResourceList) int64 {
	for _, l := range lists {
		if q, ok := l[name]; ok {
			return max(q.Value(), 0)
		}
	}
	return 0
}

// plus and times saturate, so that no manifest's figures wrap around.
func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func times(a int64, n int) int64 {
	if n > 0 && a > math.MaxInt64/int64(n) {
		return math.MaxInt64
	}
	return a * int64(n)
}

// container is the named container, or the first where none is named.
func container(p corev1.PodSpec, name string) *corev1.Container {
	for i := range p.Containers {
		if name == "" || p.Containers[i].Name == name {
			return &p.Containers[i]
		}
	}
	return nil
}

// repository is an image reference without tag and digest; a colon before the
// last slash is a registry's port.
func repository(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if colon := strings.LastIndexByte(image, ':'); colon > strings.LastIndexByte(image, '/') {
		return image[:colon]
	}
	return image
}

// gibibytes prints bytes in Kubernetes' unit ("30Gi", "1.5Gi").
func gibibytes(n int64) string {
	gi := math.Round(float64(n)/(1<<30)*10) / 10
	return strconv.FormatFloat(gi, 'f', -1, 64) + "Gi"
}
