package dialect

import (
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// omeMain is the name OME gives a component's runner.
const omeMain = "ome-container"

// omeMode is OME's deployment mode annotation.
const omeMode = "ome.io/deploymentMode"

// omeClass is OME's annotation of an accelerator class that a service needs.
const omeClass = "ome.io/accelerator-class"

// omeModes are the deployment modes; all but one say only where OME would put
// the replicas, or repeat the shape that the components have.
var omeModes = []string{"RawDeployment", "Serverless", "MultiNode", "MultiNodeRayVLLM", "PDDisaggregated"}

// readOMEService reads a v1beta1 InferenceService of OME: a model and a
// runtime by reference, engine, decoder and router as overrides; or the legacy
// predictor.
func readOMEService(r *reading, m *omeService, o *Object) {
	s := r.service(m.Metadata, o)
	s.ProtocolDefault = service.ProtocolOpenAI
	if mode, stated := s.Annotations[omeMode]; stated && !slices.Contains(omeModes, mode) {
		r.warnf(strict.Key("metadata.annotations", omeMode), "mode %q has no effect", clip(mode))
	}
	spec := &m.Spec
	if p := spec.Predictor; p != nil && !reflect.DeepEqual(*p, omePredictor{}) {
		for _, newer := range []string{"model", "runtime", "engine", "decoder", "router"} {
			if r.doc.Has("spec." + newer) {
				r.errorf("spec.predictor", "is the legacy schema and cannot be mixed with spec.%s: keep one", newer)
				return
			}
		}
		r.omePredictor(p, s)
		return
	}
	s.Components = service.Components{
		Engine:  r.omeComponent("spec.engine", spec.Engine),
		Decoder: r.omeComponent("spec.decoder", spec.Decoder),
		Router:  r.omeRouter("spec.router", spec.Router),
	}
	if spec.Decoder != nil && spec.Engine == nil {
		r.refuse("spec.decoder", "needs an engine beside it: write engine: {} for the runtime's own")
	}
	if s.Components.Engine == nil {
		s.Components.Engine = &service.Component{Main: omeMain}
	}
	if e := spec.Engine; e != nil {
		s.CanaryPercent = r.canary("spec.engine", e.CanaryTrafficPercent)
	}
	if d := spec.Decoder; d != nil {
		r.oneCanary("spec.decoder", d.CanaryTrafficPercent, s)
	}
	if o := spec.Router; o != nil {
		r.oneCanary("spec.router", o.CanaryTrafficPercent, s)
	}
	r.annotated("spec.engine.annotations", "ome.io/", s.Components.Engine, s.Annotations)
	r.annotatedToo("spec.decoder.annotations", "ome.io/", s.Components.Decoder, s.Annotations)
	r.annotatedToo("spec.router.annotations", "ome.io/", s.Components.Router, s.Annotations)
	if spec.Model != nil {
		s.Model = &service.ModelSource{Ref: r.omeRef("spec.model", spec.Model.Name, spec.Model.Kind, spec.Model.APIGroup, "BaseModel", "ClusterBaseModel")}
		s.Model.Adapters = r.fineTuned("spec.model.fineTunedWeights", s.Name, spec.Model.FineTunedWeights)
	}
	if spec.Runtime != nil {
		s.Runtime = r.omeRef("spec.runtime", spec.Runtime.Name, spec.Runtime.Kind, spec.Runtime.APIGroup, "ServingRuntime", "ClusterServingRuntime")
	}
	s.AcceleratorClass = omeClasses(s.Annotations[omeClass], spec.AcceleratorSelector, spec.Engine, spec.Decoder)
	r.manyMachines("spec.engine", s.Components.Engine)
	r.manyMachines("spec.decoder", s.Components.Decoder)
	r.omeServed(s)
}

// omeServed checks that a service says what to serve. Without a model and a
// runtime its engine must be complete.
func (r *reading) omeServed(s *service.Service) {
	switch {
	case s.Model != nil || s.Runtime != nil:
	case complete(s.Components.Engine):
		s.Custom = true
	default:
		r.errorf("spec.model", "is missing: name the BaseModel or ClusterBaseModel to serve, or give engine.runner an image")
	}
}

// omeClasses are the accelerator classes a service insists on, each once.
func omeClasses(annotated string, s *omeAccelerator, components ...*omeComponent) []string {
	all := []*omeAccelerator{{AcceleratorClass: annotated}, s}
	for _, c := range components {
		if c != nil {
			all = append(all, c.AcceleratorOverride)
		}
	}
	var out []string
	for _, a := range all {
		if a != nil && a.AcceleratorClass != "" && !slices.Contains(out, a.AcceleratorClass) {
			out = append(out, a.AcceleratorClass)
		}
	}
	return out
}

func (r *reading) omeRef(path, name, kind, group string, kinds ...string) *service.ObjectRef {
	r.name(path+".name", name, true)
	r.refKind(path+".kind", kind, kinds...)
	if group != "" && group != "ome.io" {
		r.errorf(path+".apiGroup", "%q is not ome.io: leave it out", clip(group))
	}
	return &service.ObjectRef{Name: name, Kind: kind}
}

// omeComponent reads an engine or a decoder; nil when absent.
func (r *reading) omeComponent(path string, c *omeComponent) *service.Component {
	if c == nil {
		return nil
	}
	out := r.omePart(path, c.PodSpec, &c.omeExtension, c.Runner)
	out.Leader = r.omeNode(path+".leader", c.Leader)
	out.Worker = r.omeNode(path+".worker", c.Worker)
	if c.Leader != nil && c.Leader.Size != nil && *c.Leader.Size != 1 {
		r.errorf(path+".leader.size", "%d: a replica has one leader", *c.Leader.Size)
	}
	return out
}

func (r *reading) omeRouter(path string, c *omeRouter) *service.Component {
	if c == nil {
		return nil
	}
	out := r.omePart(path, c.PodSpec, &c.omeExtension, c.Runner)
	out.Config = c.Config
	return out
}

// omePart reads what every component has.
func (r *reading) omePart(path string, pod corev1.PodSpec, e *omeExtension, runner *corev1.Container) *service.Component {
	out := &service.Component{Labels: e.Labels, Annotations: e.Annotations,
		Scaling: r.commonScaling(path, commonScaling{e.MinReplicas, e.MaxReplicas, e.ScaleTarget, e.ScaleMetric, e.ContainerConcurrency})}
	out.Pod, out.Main = r.omePod(path, pod, runner)
	return out
}

// omePod puts the runner among a pod's containers, first, and names it.
func (r *reading) omePod(path string, pod corev1.PodSpec, runner *corev1.Container) (corev1.PodSpec, string) {
	r.containers(path+".containers", pod.Containers)
	if runner == nil {
		main := mainOf(pod.Containers, omeMain)
		if main == "" {
			main = omeMain
		}
		return pod, main
	}
	r.container(path+".runner", *runner)
	main := *runner
	if main.Name == "" {
		main.Name = omeMain
	}
	for i, c := range pod.Containers {
		if c.Name == main.Name {
			r.errorf(strict.Index(path+".containers", i), "and runner both describe %q: write one of them", clip(c.Name))
		}
	}
	pod.Containers = append([]corev1.Container{main}, pod.Containers...)
	return pod, main.Name
}

func (r *reading) omeNode(path string, n *omeNode) *service.Node {
	if n == nil {
		return nil
	}
	r.positive(path+".size", n.Size)
	pod, main := r.omePod(path, n.PodSpec, n.Runner)
	return node(pod, main, n.Size)
}

// omePredictor reads the legacy schema, in which a predictor is the engine and
// names model and runtime itself.
func (r *reading) omePredictor(p *omePredictor, s *service.Service) {
	const path = "spec.predictor"
	r.warnf(path, "is the legacy schema: read as spec.model, spec.runtime and spec.engine")
	var runner *corev1.Container
	if m := p.Model; m != nil {
		if !reflect.DeepEqual(m.Container, corev1.Container{}) {
			runner = &m.Container
		}
		s.RuntimeVersion = m.RuntimeVersion
		s.Protocol = r.protocol(path+".model.protocolVersion", m.ProtocolVersion)
		if m.Runtime != "" {
			s.Runtime = r.omeRef(path+".model.runtime", m.Runtime, "", "")
		}
		switch {
		case m.BaseModel != "" && m.StorageURI != "":
			r.errorf(path+".model.storageUri", "and baseModel both say where the model is: remove one")
		case m.BaseModel != "":
			s.Model = &service.ModelSource{Ref: r.omeRef(path+".model.baseModel", m.BaseModel, "", "")}
		case m.StorageURI != "":
			s.Model = &service.ModelSource{URI: m.StorageURI}
			r.uri(path+".model.storageUri", m.StorageURI, s.Runtime != nil)
		default:
			r.errorf(path+".model.baseModel", "is missing: name the model to serve")
		}
		if adapters := r.fineTuned(path+".model.fineTunedWeights", s.Name, m.FineTunedWeights); s.Model != nil {
			s.Model.Adapters = adapters
		}
	}
	s.Components.Engine = r.omePart(path, p.PodSpec, &p.omeExtension, runner)
	s.CanaryPercent = r.canary(path, p.CanaryTrafficPercent)
	if p.WorkerSpec != nil {
		s.Components.Engine.Worker = r.omeNode(path+".workerSpec", p.WorkerSpec)
		r.oneMachine(path+".workerSpec", true, manyMachines)
	}
	if p.Model == nil {
		r.omeServed(s)
	}
}
