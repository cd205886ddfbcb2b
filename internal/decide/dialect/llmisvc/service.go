// Package llmisvc reads KServe's kinds for language models: LLMInferenceService,
// and LLMInferenceServiceConfig, which services are laid over.
package llmisvc

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/kserve"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/pickerconfig"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// The kinds.
const (
	KindService = "LLMInferenceService"
	KindConfig  = "LLMInferenceServiceConfig"
)

// mainContainer is the name that KServe gives the container of the engine.
const mainContainer = "main"

// The runtimes of the catalog that stand for KServe's presets: one engine; prefill
// and decode apart; and both of them over several nodes.
const (
	runtimeSingle       = "kserve-llm"
	runtimeApart        = "kserve-llm-prefill-decode"
	runtimeNodes        = "kserve-llm-multinode"
	runtimeApartOnNodes = "kserve-llm-prefill-decode-multinode"
)

// ports are those that KServe's presets have their engines listen on.
var ports = []int{8000, 8001}

// Schemas are the kinds of this dialect.
var Schemas = []manifest.Schema{
	manifest.SchemaOf("serving.kserve.io/v1alpha2", KindService, readService),
	manifest.SchemaOf("serving.kserve.io/v1alpha1", KindService, readService),
	manifest.SchemaOf("serving.kserve.io/v1alpha2", KindConfig, readConfig),
	manifest.SchemaOf("serving.kserve.io/v1alpha1", KindConfig, readConfig),
}

// readConfig checks a Config. Its fields have their meaning where they are merged.
func readConfig(r *manifest.Reader, m *object, o *manifest.Object) {
	r.Base(m.Metadata, o)
	checkAnnotations(r, &m.Spec)
	if r.Has("spec.baseRefs") {
		r.Errorf("spec.baseRefs", "a Config is laid over no other: name each in the service")
	}
	o.Base.SchedulingFrom = readConfigRef(r, m.Spec.Router)
	checkCriticality(r, "spec.model.criticality", m.Spec.Model.Criticality)
	uri := m.Spec.Model.URI
	if at, local := service.LocalPath(uri); local && uri != "" && !path.IsAbs(at) {
		r.Errorf("spec.model.uri", "%q begins nowhere: many services may be laid over this: write file:// and an absolute path", manifest.Clip(uri))
	}
	m.check(func(path string, err error) { r.Errorf(path, "%v", err) })
}

// checkAnnotations checks KServe's annotations of the pods.
func checkAnnotations(r *manifest.Reader, spec *spec) {
	kserve.CheckAnnotations(r, "spec.annotations", spec.Annotations, kserve.OnLLM)
	if p := spec.Prefill; p != nil {
		kserve.CheckAnnotations(r, "spec.prefill.annotations", p.Annotations, kserve.OnLLM)
	}
}

// maxBases is how many Configs one service may be laid over.
const maxBases = 32

// readService reads an LLMInferenceService. With baseRefs it is one part of what is
// served: what it lacks may come from there, so that it is not looked for.
func readService(r *manifest.Reader, m *object, o *manifest.Object) {
	s := r.Service(m.Metadata, o)
	s.ProtocolDefault = service.ProtocolOpenAI
	s.Stopped = s.Stopped || strings.EqualFold(s.Annotations[service.AnnotationKServeStop], "true")
	manifest.CheckAtMost(r.Report, "spec.baseRefs", len(m.Spec.BaseRefs), maxBases)
	for i, ref := range m.Spec.BaseRefs {
		manifest.CheckName(r.Report, strict.Index("spec.baseRefs", i)+".name", ref.Name, true)
		s.Bases = append(s.Bases, ref.Name)
	}
	kserve.CheckAnnotations(r, "metadata.annotations", s.Annotations, kserve.OnLLM)
	checkAnnotations(r, &m.Spec)
	m.Metadata.Namespace = s.Namespace
	m.Spec.Model.Name = cmp.Or(m.Spec.Model.Name, s.Name)
	m.fill(func(path string, err error) {
		if len(s.Bases) == 0 {
			r.Errorf(path, "%v", err)
		}
	})
	readModel(r, &m.Spec, s)
	readRouter(r, m.Spec.Router, s)
	main := readWorkload(r, "spec", &m.Spec.workload)
	if m.Spec.Prefill == nil {
		s.Components.Engine = main
	} else {
		s.Components.Engine, s.Components.Decoder = readWorkload(r, "spec.prefill", m.Spec.Prefill), main
		s.Disaggregation = service.DisaggregationVLLM
	}
	choose(r, &m.Spec, s)
}

// readModel reads what is served, its names and its adapters.
func readModel(r *manifest.Reader, spec *spec, s *service.Service) {
	const at = "spec.model"
	m := &spec.Model
	switch {
	case m.URI != "":
		s.Model = &service.ModelSource{URI: m.URI}
		if !strings.HasSuffix(strings.ToLower(m.URI), ".gguf") {
			s.Model.Format.Name = "huggingface"
		}
		manifest.CheckURI(r.Report, at+".uri", m.URI, false)
	case len(s.Bases) == 0:
		r.Errorf(at+".uri", "is missing: say where the model is, for example hf://Qwen/Qwen3-0.6B")
	}
	if m.Confidential != nil && m.Confidential.Enabled {
		r.Errorf(at+".confidential", "is not supported: the model would be served without it")
	}
	s.Access.Names = []string{m.Name, "publishers/" + s.Namespace + "/models/" + m.Name}
	s.Access.ByPath, s.Access.Paths = true, []string{"/publishers/" + s.Namespace + "/models/" + m.Name}
	s.Access.Priority = checkCriticality(r, at+".criticality", m.Criticality)
	readAdapters(r, at+".lora", m.LoRA, s)
}

// checkCriticality reads the priority of requests.
func checkCriticality(r *manifest.Reader, path, s string) int32 {
	switch s {
	case "", "Standard":
		return routing.PriorityStandard
	case "Critical":
		return routing.PriorityCritical
	case "Sheddable":
		return routing.PrioritySheddable
	}
	r.Errorf(path, "unknown criticality %q: write Critical, Standard or Sheddable", manifest.Clip(s))
	return 0
}

func readAdapters(r *manifest.Reader, path string, l *lora, s *service.Service) {
	if l == nil {
		return
	}
	manifest.CheckPositive(r.Report, path+".maxRank", l.MaxRank)
	manifest.CheckPositive(r.Report, path+".maxAdapters", l.MaxAdapters)
	manifest.CheckPositive(r.Report, path+".maxCpuAdapters", l.MaxCPUAdapters)
	at := func(i int) string { return strict.Index(path+".adapters", i) }
	var out []service.Adapter
	for i, a := range l.Adapters {
		if a.Name == "" {
			r.Errorf(at(i)+".name", "is missing: requests name the adapter by it")
		}
		if a.URI == "" {
			r.Errorf(at(i)+".uri", "is missing: say where the adapter is")
		} else {
			manifest.CheckURI(r.Report, at(i)+".uri", a.URI, false)
		}
		out = append(out, service.Adapter{Name: a.Name, URI: a.URI})
	}
	manifest.CheckAdapterNames(r.Report, path+".adapters", s.Name, out, at)
	if s.Model != nil {
		s.Model.Adapters = out
	}
}

// maxWeight is that of the Gateway API.
const maxWeight = 1_000_000

// readRouter reads how requests reach the service. A gateway, a route and a picker
// are always there; what else the router says has warnings of its own.
func readRouter(r *manifest.Reader, in *router, s *service.Service) {
	if in == nil {
		return
	}
	if c := in.Scheduler; c != nil && c.Config != nil && c.Config.Inline != nil {
		s.Scheduling = pickerconfig.ReadInline(r.Report, "spec.router.scheduler.config.inline", c.Config.Inline)
	}
	s.SchedulingFrom = readConfigRef(r, in)
	if in.Route == nil {
		return
	}
	const path = "spec.router.route"
	s.Access.Weight = routing.DefaultWeight
	if g := in.Route.Group; g != "" {
		manifest.CheckName(r.Report, path+".group", g, false)
		s.Access.Group = g
	}
	if w := in.Route.Weight; w != nil {
		switch {
		case *w < 0 || *w > maxWeight:
			r.Errorf(path+".weight", "%d is not a weight: 0 to %d", *w, maxWeight)
		case in.Route.Group == "":
			r.Warnf(path+".weight", "has no effect without a group: the service has all requests for its names")
		default:
			s.Access.Weight = uint32(*w)
		}
	}
}

// schedulerKey is the key of a ConfigMap that a reference without one means.
const schedulerKey = "epp"

// readConfigRef reads which ConfigMap has the scheduler's configuration; nil for none.
func readConfigRef(r *manifest.Reader, in *router) *service.ConfigMapKey {
	const path = "spec.router.scheduler.config.ref"
	if in == nil || in.Scheduler == nil || in.Scheduler.Config == nil || in.Scheduler.Config.Ref == nil {
		return nil
	}
	ref := in.Scheduler.Config.Ref
	if in.Scheduler.Config.Inline != nil {
		r.Warnf(path, "has no effect beside inline, which counts")
		return nil
	}
	manifest.CheckName(r.Report, path+".name", ref.Name, true)
	return &service.ConfigMapKey{Name: ref.Name, Key: cmp.Or(ref.Key, schedulerKey)}
}

// readWorkload reads one of decode and prefill.
func readWorkload(r *manifest.Reader, path string, w *workload) *service.Component {
	c := &service.Component{Labels: w.Labels, Annotations: w.Annotations, Scaling: readScaling(r, path, w), Main: mainContainer}
	if w.Template != nil {
		manifest.CheckContainers(r.Report, path+".template.containers", w.Template.Containers)
		c.Pod = *w.Template
		c.Pod.InitContainers = slices.DeleteFunc(slices.Clone(c.Pod.InitContainers), func(i corev1.Container) bool { return i.Name == "storage-initializer" })
		if main := manifest.MainOf(c.Pod.Containers, mainContainer); main != "" {
			c.Main = main
		}
	}
	if w.KVCacheOffloading != nil {
		if p := w.KVCacheOffloading.EvictionPolicy; p != "" && p != "lru" && p != "arc" {
			r.Errorf(path+".kvCacheOffloading.evictionPolicy", "unknown policy %q: write lru or arc", manifest.Clip(p))
		}
	}
	checkParallelism(r, path+".parallelism", w.Parallelism)
	if w.Worker != nil {
		manifest.CheckContainers(r.Report, path+".worker.containers", w.Worker.Containers)
		main := cmp.Or(manifest.MainOf(w.Worker.Containers, mainContainer), mainContainer)
		c.Worker = manifest.NodeOf(*w.Worker, main, w.Parallelism.workers())
		r.OneMachine(path+".worker", true, manifest.ManyMachines)
	}
	return c
}

func checkParallelism(r *manifest.Reader, path string, p *parallelism) {
	if p == nil {
		return
	}
	for name, n := range map[string]*int{"tensor": p.Tensor, "pipeline": p.Pipeline, "data": p.Data, "dataLocal": p.DataLocal, "dataRPCPort": p.DataRPCPort} {
		manifest.CheckPositive(r.Report, path+"."+name, n)
	}
	if p.Pipeline != nil && p.Data != nil {
		r.Errorf(path+".pipeline", "and data are two ways to use several nodes: keep one")
	}
	if p.Data != nil && p.DataLocal != nil && *p.DataLocal > 0 && *p.Data%*p.DataLocal != 0 {
		r.Errorf(path+".data", "%d is no multiple of dataLocal %d: every node has as many ranks", *p.Data, *p.DataLocal)
	}
}

// workers is how many nodes follow the first; nil where it is not said.
func (p *parallelism) workers() *int {
	n := 0
	switch {
	case p == nil:
		return nil
	case p.Data != nil && *p.Data > 0:
		n = *p.Data / max(1, value(p.DataLocal))
	case p.Pipeline != nil:
		n = *p.Pipeline
	}
	if n < 2 {
		return nil
	}
	n--
	return &n
}

func value(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}

// choose settles what runs: the containers where they have a command of their own,
// else the catalog's runtime in the shape that KServe's preset has.
func choose(r *manifest.Reader, spec *spec, s *service.Service) {
	parts := []part{{"spec", &spec.workload, s.Components.Engine}}
	if spec.Prefill != nil {
		parts = []part{{"spec", &spec.workload, s.Components.Decoder}, {"spec.prefill", spec.Prefill, s.Components.Engine}}
	}
	if slices.ContainsFunc(parts, part.commands) {
		s.Custom = true
		for _, p := range parts {
			if !p.commands() && len(s.Bases) == 0 {
				r.Errorf(p.path+".template", "has no command, and its counterpart has one: write both, or none")
			}
			p.listens()
		}
		if s.Model != nil && len(s.Model.Adapters) > 0 {
			r.Errorf("spec.model.lora", "does not go with a command of the template's own: give the adapters there, or remove the command")
		}
		return
	}
	engine := spec.Model.LoRA.args()
	for _, p := range parts {
		if p.in.Worker != nil && (p.in.Parallelism == nil || p.in.Parallelism.Data == nil) && len(s.Bases) == 0 {
			r.Errorf(p.path+".worker", "needs parallelism.data, by which the nodes share the work: write it, or a command in template and worker")
		}
		if p.complete(r, engine) {
			engine = nil // said once
		}
	}
	s.Runtime = &service.ObjectRef{Name: runtimeOf(spec)}
	s.RuntimeYields = s.Runtime.Name == runtimeSingle && !slices.ContainsFunc(parts, part.particular)
}

// runtimeOf is the catalog's runtime in the shape that a spec asks for.
func runtimeOf(spec *spec) string {
	nodes := spec.Worker != nil || spec.Prefill != nil && spec.Prefill.Worker != nil
	switch {
	case spec.Prefill != nil && nodes:
		return runtimeApartOnNodes
	case spec.Prefill != nil:
		return runtimeApart
	case nodes:
		return runtimeNodes
	}
	return runtimeSingle
}

// part is one of decode and prefill, as read.
type part struct {
	path string
	in   *workload
	out  *service.Component
}

// main is the engine's container; nil where the part has none.
func (p part) main() *corev1.Container {
	for i := range p.out.Pod.Containers {
		if p.out.Pod.Containers[i].Name == p.out.Main {
			return &p.out.Pod.Containers[i]
		}
	}
	return nil
}

func (p part) commands() bool {
	m := p.main()
	return m != nil && len(m.Command) > 0
}

// particular reports whether the part says something that vLLM alone understands.
func (p part) particular() bool {
	m := p.main()
	return m != nil && len(m.Args) > 0
}

// listens states the port of a command that does not: KServe's preset below has it.
func (p part) listens() {
	if m := p.main(); m != nil && len(m.Ports) == 0 {
		m.Ports = []corev1.ContainerPort{{ContainerPort: int32(ports[0])}}
	}
}

// additional is the variable whose words KServe's presets add to vLLM's command.
const additional = "VLLM_ADDITIONAL_ARGS"

// complete gives the engine the arguments that KServe's preset makes of the fields.
func (p part) complete(r *manifest.Reader, more []string) bool {
	args := slices.Concat(p.in.Parallelism.args(p.in.Worker != nil), p.in.KVCacheOffloading.args(), more)
	m := p.main()
	if m == nil {
		if len(args) == 0 {
			return false
		}
		p.out.Pod.Containers = append(p.out.Pod.Containers, corev1.Container{Name: p.out.Main, Args: args})
		return true
	}
	m.Args = slices.Concat(args, p.stated(r, m, p.path+".template.containers"))
	p.plain(m)
	if w := p.out.Worker; w != nil {
		for i := range w.Pod.Containers {
			if c := &w.Pod.Containers[i]; c.Name == w.Main && len(c.Command) == 0 {
				c.Args = slices.Concat(args, p.stated(r, c, p.path+".worker.containers"))
				p.plain(c)
			}
		}
	}
	return true
}

// stated are the arguments that a container states, in both places. A shell reads
// them in KServe.
func (p part) stated(r *manifest.Reader, c *corev1.Container, path string) []string {
	texts := []string{strings.Join(c.Args, " ")}
	c.Env = slices.Clone(c.Env)
	c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool {
		if e.Name != additional {
			return false
		}
		if e.ValueFrom != nil {
			r.Errorf(path, "%s takes its value from elsewhere, which is not read: write it here", additional)
		}
		texts = append(texts, e.Value)
		return true
	})
	var out []string
	for _, text := range texts {
		found, err := words(text)
		if err != nil {
			r.Errorf(path, "%s: arguments of container %s: %v", manifest.Clip(text), c.Name, err)
		}
		out = append(out, found...)
	}
	return out
}

// plain has probes ask the port that the runtime listens on, without TLS, which
// KServe's presets have and ours do not.
func (p part) plain(c *corev1.Container) {
	for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if probe == nil || probe.HTTPGet == nil {
			continue
		}
		if probe.HTTPGet.Scheme == corev1.URISchemeHTTPS {
			probe.HTTPGet.Scheme = corev1.URISchemeHTTP
		}
		if slices.Contains(ports, probe.HTTPGet.Port.IntValue()) {
			probe.HTTPGet.Port = intstr.FromInt(ports[0])
		}
	}
}

// args are vLLM's.
func (p *parallelism) args(nodes bool) (out []string) {
	if p == nil {
		return nil
	}
	add := func(flag string, n *int) {
		if n != nil {
			out = append(out, flag, strconv.Itoa(*n))
		}
	}
	add("--tensor-parallel-size", p.Tensor)
	add("--pipeline-parallel-size", p.Pipeline)
	add("--data-parallel-size", p.Data)
	if nodes && p.Data != nil {
		local := max(1, value(p.DataLocal))
		add("--data-parallel-size-local", &local)
		add("--data-parallel-rpc-port", p.DataRPCPort)
	}
	if p.Expert {
		out = append(out, "--enable-expert-parallel")
	}
	return out
}

func (o *offloading) args() []string {
	if o == nil {
		return nil
	}
	return []string{"--kv-transfer-config", o.config()}
}

func (l *lora) args() (out []string) {
	if l == nil || len(l.Adapters) == 0 {
		return nil
	}
	for _, f := range []struct {
		flag string
		n    *int
	}{{"--max-lora-rank", l.MaxRank}, {"--max-loras", l.MaxAdapters}, {"--max-cpu-loras", l.MaxCPUAdapters}} {
		if f.n != nil {
			out = append(out, f.flag, strconv.Itoa(*f.n))
		}
	}
	return out
}
