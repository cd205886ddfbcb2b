package workload

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Accelerator is the class of accelerators that a role runs on, as far as that
// changes what runs.
type Accelerator struct {
	Class        string                      `json:"class"`
	NodeSelector map[string]string           `json:"nodeSelector,omitempty"`
	Affinity     *corev1.Affinity            `json:"affinity,omitempty"`
	Resources    corev1.ResourceList         `json:"resources,omitempty"`
	Args         []string                    `json:"args,omitempty"`
	Env          map[string]string           `json:"env,omitempty"`
	Parallel     service.AcceleratorParallel `json:"parallel,omitzero"`
}

// accelerated are the accelerators as a revision's hash counts them: one machine
// places nothing.
func (in Input) accelerated() map[service.Role]Accelerator {
	out := maps.Clone(in.Accelerators)
	for role, a := range out {
		if !in.Cluster {
			a.NodeSelector, a.Affinity = nil, nil
		}
		out[role] = a
	}
	return out
}

// onClass is a runtime's part of a component with what its class of accelerators
// changes laid over it, and the nodes of its model under it. The service's part goes
// over the result, so what the service states stays.
func (in Input) onClass(role service.Role, base, over *service.Component) (*service.Component, error) {
	a, classed := in.Accelerators[role]
	if !accelerates(role) || !classed && len(in.Placement.NodeSelector) == 0 {
		return base, nil
	}
	out := *base
	var err error
	if out.Pod, err = in.podOn(a, service.Node{Pod: base.Pod, Main: base.Main}, service.Node{Pod: over.Pod, Main: over.Main}, false); err != nil {
		return nil, err
	}
	if out.Leader, err = in.nodeOn(a, base.Leader, over.Leader, false); err != nil {
		return nil, fmt.Errorf("leader: %w", err)
	}
	if out.Worker, err = in.nodeOn(a, base.Worker, over.Worker, true); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	if l := base.Local; l != nil && len(l.Command) > 0 {
		local := *l
		program, args, err := a.onto("", l.Command[:1:1], l.Command[1:], false)
		if err != nil {
			return nil, fmt.Errorf("local command: %w", err)
		}
		local.Command, local.Env = slices.Concat(program, args), a.variables(l.Env)
		out.Local = &local
	}
	return &out, nil
}

// accelerates reports whether a role runs on accelerators.
func accelerates(r service.Role) bool { return r == service.RoleEngine || r == service.RoleDecoder }

func (in Input) nodeOn(a Accelerator, base, over *service.Node, worker bool) (*service.Node, error) {
	if base == nil {
		return nil, nil
	}
	if over == nil {
		over = &service.Node{}
	}
	out := *base
	var err error
	out.Pod, err = in.podOn(a, *base, *over, worker)
	return &out, err
}

// podOn lays a class over one pod of a runtime. over is the service's part of it,
// beside whose affinity a class's does not count.
func (in Input) podOn(a Accelerator, base, over service.Node, worker bool) (corev1.PodSpec, error) {
	pod := *base.Pod.DeepCopy()
	if in.Cluster {
		pod.NodeSelector = overlay(in.Placement.NodeSelector, pod.NodeSelector, a.NodeSelector)
		if a.Affinity != nil && over.Pod.Affinity == nil {
			pod.Affinity = a.Affinity.DeepCopy()
		}
	}
	m := container(pod, base.Main)
	if m == nil {
		return pod, nil
	}
	var own corev1.ResourceRequirements
	for _, c := range over.Pod.Containers {
		if c.Name == over.Main || c.Name == "" || c.Name == base.Main {
			own = c.Resources
		}
	}
	m.Resources = resources(m.Resources, a.Resources, own)
	m.Env = a.variables(m.Env)
	var err error
	if m.Command, m.Args, err = a.onto(m.Image, m.Command, m.Args, worker); err != nil {
		return pod, fmt.Errorf("container %s: %w", m.Name, err)
	}
	return pod, nil
}

// resources are a runtime's with those of a class: of one that both state the more, as
// a class states what a single accelerator is. Of one that the service states, in
// either list, its number stands in both: Kubernetes refuses a request for devices that
// is not their limit.
func resources(of corev1.ResourceRequirements, class corev1.ResourceList, own corev1.ResourceRequirements) corev1.ResourceRequirements {
	if len(class) == 0 {
		return of
	}
	limits, requests := corev1.ResourceList{}, corev1.ResourceList{}
	maps.Copy(limits, of.Limits)
	maps.Copy(requests, of.Requests)
	for name, least := range class {
		if q, ok := stated(name, own.Limits, own.Requests); ok {
			limits[name], requests[name] = q, q
			continue
		}
		request, ok := stated(name, requests, limits) // what Kubernetes takes for it
		if !ok || request.Cmp(least) < 0 {
			request = least
		}
		requests[name] = request
		if limit, ok := limits[name]; !ok || limit.Cmp(request) < 0 {
			limits[name] = request
		}
	}
	of.Limits, of.Requests = limits, requests
	return of
}

// stated is the quantity of the first list that has one.
func stated(name corev1.ResourceName, lists ...corev1.ResourceList) (resource.Quantity, bool) {
	for _, l := range lists {
		if q, ok := l[name]; ok {
			return q, true
		}
	}
	return resource.Quantity{}, false
}

// variables are a runtime's with those of a class: each in place of the same one, as
// variables after it may refer to it, others at the end.
func (a Accelerator) variables(env []corev1.EnvVar) []corev1.EnvVar {
	out := slices.Clone(env)
	for _, name := range slices.Sorted(maps.Keys(a.Env)) {
		e, found := corev1.EnvVar{Name: name, Value: a.Env[name]}, false
		for i := range out {
			if out[i].Name == name {
				out[i], found = e, true
			}
		}
		if !found {
			out = append(out, e)
		}
	}
	return out
}

// parallelFlags are the flags for the sizes of tensor, pipeline and data parallelism,
// by engine: SGLang's, vLLM's, and the short ones that both take.
var parallelFlags = [3]map[string]string{
	{"sglang": "--tp-size", "vllm": "--tensor-parallel-size", "short": "--tp", "shortest": "-tp"},
	{"sglang": "--pp-size", "vllm": "--pipeline-parallel-size", "short": "--pp", "shortest": "-pp"},
	{"sglang": "--dp-size", "vllm": "--data-parallel-size", "short": "--dp", "shortest": "-dp"},
}

// onto puts a class's arguments and sizes into a command line: each flag in place of
// the same one, others at the end, of the engine's command where a shell is given one.
// A size whose flag is not stated is left out where the engine is not known. Nothing is
// added to a node of Ray, nor to a worker that does not run the engine.
func (a Accelerator) onto(image string, command, args []string, worker bool) (newCommand, newArgs []string, err error) {
	line := commandLine{command: slices.Clone(command), args: slices.Clone(args)}
	given, sizes := parseArgs(flagWords(a.Args)), a.sizes()
	if len(given) == 0 && len(sizes) == 0 {
		return line.command, line.args, nil
	}
	words := slices.Concat(command, args)
	engine := engineOf(image, words)
	runs := runsEngine(words) || len(command) == 0 && engine != ""
	if text := line.script(); text != nil {
		s, err := readScript(*text)
		if err != nil {
			return nil, nil, a.failure("", err)
		}
		if runs = s.engine; s.at >= 0 {
			words = s.words[s.at]
		}
		if engine == "" && runs {
			engine = engineOf("", program(words))
		}
	}
	line.closed = joinsRay(words) || worker && !runs
	if err := line.lay(given); err != nil {
		return nil, nil, a.failure(".runtimeArgsOverride", err)
	}
	for _, size := range sizes {
		name := size.names[engine] // "" where the engine is not known
		for _, stated := range slices.Sorted(maps.Values(size.names)) {
			if line.states(stated) {
				name = stated
			}
		}
		if name == "" {
			continue
		}
		if err := line.put(flag{name: name, words: []string{name + "=" + strconv.FormatInt(size.size, 10)}}, false); err != nil {
			return nil, nil, a.failure(".tensorParallelismOverride", err)
		}
	}
	return line.command, line.args, nil
}

// failure names the field of the runtime whose words have no place.
func (a Accelerator) failure(field string, err error) error {
	return fmt.Errorf("acceleratorConfig[%s]%s: %w", a.Class, field, err)
}

// size is one of a class's sizes of parallelism, with the flags for it.
type size struct {
	size  int64
	names map[string]string
}

func (a Accelerator) sizes() (out []size) {
	for i, n := range []int64{a.Parallel.Tensor, a.Parallel.Pipeline, a.Parallel.Data} {
		if n > 0 {
			out = append(out, size{n, parallelFlags[i]})
		}
	}
	return out
}

// commandLine is a container's command and arguments. A closed one takes no flag that
// it does not have.
type commandLine struct {
	command, args []string
	closed        bool
}

// script is the word that is the text of a shell, nil where there is none.
func (l *commandLine) script() *string {
	switch at := scriptAt(slices.Concat(l.command, l.args)); {
	case at < 0:
		return nil
	case at < len(l.command):
		return &l.command[at]
	default:
		return &l.args[at-len(l.command)]
	}
}

func (l *commandLine) states(name string) bool {
	if text := l.script(); text != nil {
		if s, err := readScript(*text); err == nil && len(s.standing(s.at, name)) > 0 {
			return true
		}
	}
	return hasFlag(l.command, name) || hasFlag(l.args, name)
}

// lay lays flags over a command line, as MergeArgs does.
func (l *commandLine) lay(given []flag) error {
	if l.script() == nil && !l.closed {
		var words []string
		for _, f := range given {
			words = append(words, f.words...)
		}
		l.args = MergeArgs(l.args, words)
		return nil
	}
	count := map[string]int{}
	for _, f := range given {
		count[f.name]++
	}
	for _, f := range given {
		if err := l.put(f, count[f.name] > 1); err != nil {
			return err
		}
	}
	return nil
}

// put puts a flag in place of the same one, else at the end. One that is repeated
// replaces none.
func (l *commandLine) put(f flag, repeated bool) error {
	text := l.script()
	if text != nil {
		return l.putInScript(text, f, repeated)
	}
	switch {
	case hasFlag(l.command, f.name):
		l.command = MergeArgs(l.command, f.words)
	case !l.closed || hasFlag(l.args, f.name):
		l.args = MergeArgs(l.args, f.words)
	}
	return nil
}

// putInScript is put for the text of a shell, which runs whatever a template is filled
// with.
func (l *commandLine) putInScript(text *string, f flag, repeated bool) error {
	s, err := readScript(*text)
	switch {
	case err != nil:
		return err
	case f.name == "":
		return fmt.Errorf("%q is not a flag: only flags can be put into a script", f.words[0])
	case slices.ContainsFunc(f.words, func(w string) bool { return strings.Contains(w, "{{") }):
		return fmt.Errorf("%s has a template, which a script may not get: give its value to a variable of the runtime's env, and write ${VARIABLE}", f.name)
	}
	at := s.standing(s.at, f.name)
	others := 0
	for i := range s.commands {
		if i != s.at && runsEngine(s.words[i]) {
			others += len(s.standing(i, f.name))
		}
	}
	switch {
	case others > 0:
		return fmt.Errorf("%s stands in more than one of the script's commands: write one command, with variables for what differs", f.name)
	case len(at) == 1 && !repeated:
		*text = s.replace(at[0], f.words)
	case len(at) == 0 && hasFlag(l.command, f.name): // a parameter of the script
		l.command = MergeArgs(l.command, f.words)
	case len(at) == 0 && hasFlag(l.args, f.name):
		l.args = MergeArgs(l.args, f.words)
	case !l.closed:
		added, err := s.add(f.words)
		if err != nil {
			return err
		}
		*text = added
	}
	return nil
}

func hasFlag(words []string, name string) bool {
	return slices.ContainsFunc(words, func(w string) bool {
		have, ok := flagName(w)
		return ok && have == name
	})
}

// flagWords splits words that hold a flag with its value, or lines of such, as
// manifests have them.
func flagWords(args []string) (out []string) {
	for _, a := range args {
		if _, ok := flagName(strings.TrimSpace(a)); !ok {
			out = append(out, a)
			continue
		}
		for line := range strings.Lines(a) {
			name, value, _ := strings.Cut(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(line), `\`)), " ")
			for _, w := range []string{name, strings.TrimSpace(value)} {
				if w != "" {
					out = append(out, w)
				}
			}
		}
	}
	return out
}

// maxTerms is how many terms two affinities to nodes may come to together.
const maxTerms = 256

// place has the pods of c go to nodes that have the model.
func (c *Component) place(in Input) error {
	if !in.Cluster || !accelerates(c.Role) {
		return nil
	}
	if err := c.placeOn(in.Placement.Affinity); err != nil || in.Kept == nil || in.Kept.Nodes == nil {
		return err
	}
	return c.placeOn(&corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: in.Kept.Nodes})
}

// placeOn has the pods of c go where nodes is true besides what they ask for.
func (c *Component) placeOn(nodes *corev1.NodeAffinity) error {
	if nodes == nil {
		return nil
	}
	pods := []*corev1.PodSpec{&c.Pod}
	for _, n := range []*Node{c.Leader, c.Worker} {
		if n != nil {
			pods = append(pods, &n.Pod)
		}
	}
	for _, p := range pods {
		if p.Affinity == nil {
			p.Affinity = &corev1.Affinity{}
		}
		both, err := bothAffinities(p.Affinity.NodeAffinity, nodes)
		if err != nil {
			return err
		}
		p.Affinity.NodeAffinity = both
	}
	return nil
}

// bothAffinities asks for what a and b ask for: terms are alternatives, so each of a
// goes with each of b.
func bothAffinities(a, b *corev1.NodeAffinity) (*corev1.NodeAffinity, error) {
	if a == nil {
		return b.DeepCopy(), nil
	}
	out := a.DeepCopy()
	out.PreferredDuringSchedulingIgnoredDuringExecution = append(out.PreferredDuringSchedulingIgnoredDuringExecution, b.DeepCopy().PreferredDuringSchedulingIgnoredDuringExecution...)
	left, right := a.RequiredDuringSchedulingIgnoredDuringExecution, b.RequiredDuringSchedulingIgnoredDuringExecution
	switch {
	case right == nil:
		return out, nil
	case left == nil:
		out.RequiredDuringSchedulingIgnoredDuringExecution = right.DeepCopy()
		return out, nil
	case len(left.NodeSelectorTerms)*len(right.NodeSelectorTerms) > maxTerms:
		return nil, fmt.Errorf("the affinity of the pods and that of the nodes which have the model come to more than %d terms: write fewer", maxTerms)
	}
	both := &corev1.NodeSelector{}
	for _, l := range left.NodeSelectorTerms {
		for _, r := range right.NodeSelectorTerms {
			both.NodeSelectorTerms = append(both.NodeSelectorTerms, corev1.NodeSelectorTerm{
				MatchExpressions: slices.Concat(l.MatchExpressions, r.MatchExpressions),
				MatchFields:      slices.Concat(l.MatchFields, r.MatchFields),
			})
		}
	}
	out.RequiredDuringSchedulingIgnoredDuringExecution = both
	return out, nil
}
