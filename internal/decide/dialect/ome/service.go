// Package ome reads OME's kinds. It shares KServe's words for status, as OME does.
package ome

import (
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/kserve"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// mainContainer is the name OME gives a component's runner.
const mainContainer = "ome-container"

// modeAnnotation is OME's deployment mode annotation.
const modeAnnotation = "ome.io/deploymentMode"

// modes are the deployment modes; all but one say only where OME would put
// the replicas, or repeat the shape that the components have.
var modes = []string{"RawDeployment", "Serverless", "MultiNode", "MultiNodeRayVLLM", "PDDisaggregated"}

// readService reads a v1beta1 InferenceService of OME: a model and a
// runtime by reference, engine, decoder and router as overrides; or the legacy
// predictor.
func readService(r *manifest.Reader, m *inferenceService, o *manifest.Object) {
	s := r.Service(m.Metadata, o)
	s.ProtocolDefault = service.ProtocolOpenAI
	if mode, stated := s.Annotations[modeAnnotation]; stated && !slices.Contains(modes, mode) {
		r.Warnf(strict.Key("metadata.annotations", modeAnnotation), "mode %q has no effect", manifest.Clip(mode))
	}
	spec := &m.Spec
	if p := spec.Predictor; p != nil && !reflect.DeepEqual(*p, predictor{}) {
		for _, newer := range []string{"model", "runtime", "engine", "decoder", "router"} {
			if r.Has("spec." + newer) {
				r.Errorf("spec.predictor", "is the legacy schema and cannot be mixed with spec.%s: keep one", newer)
				return
			}
		}
		readPredictor(r, p, s)
		return
	}
	s.Components = service.Components{
		Engine:  readComponent(r, "spec.engine", spec.Engine),
		Decoder: readComponent(r, "spec.decoder", spec.Decoder),
		Router:  readRouter(r, "spec.router", spec.Router),
	}
	if spec.Decoder != nil && spec.Engine == nil {
		r.Refuse("spec.decoder", "needs spec.engine: write engine: {} for the runtime's own")
	}
	if s.Components.Engine == nil {
		s.Components.Engine = &service.Component{Main: mainContainer}
	}
	if e := spec.Engine; e != nil {
		s.CanaryPercent = manifest.CheckCanary(r.Report, "spec.engine", e.CanaryTrafficPercent)
	}
	if d := spec.Decoder; d != nil {
		manifest.CheckOneCanary(r.Report, "spec.decoder", d.CanaryTrafficPercent, s)
	}
	if o := spec.Router; o != nil {
		manifest.CheckOneCanary(r.Report, "spec.router", o.CanaryTrafficPercent, s)
	}
	manifest.ReadAnnotations(r.Report, "spec.engine.annotations", "ome.io/", s.Components.Engine, s.Annotations)
	manifest.ReadOtherAnnotations(r.Report, "spec.decoder.annotations", "ome.io/", s.Components.Decoder, s.Annotations)
	manifest.ReadOtherAnnotations(r.Report, "spec.router.annotations", "ome.io/", s.Components.Router, s.Annotations)
	if spec.Model != nil {
		s.Model = &service.ModelSource{Ref: readRef(r, "spec.model", spec.Model.Name, spec.Model.Kind, spec.Model.APIGroup, "BaseModel", "ClusterBaseModel")}
		s.Model.Adapters = readFineTuned(r, "spec.model.fineTunedWeights", s.Name, spec.Model.FineTunedWeights)
	}
	if spec.Runtime != nil {
		s.Runtime = readRef(r, "spec.runtime", spec.Runtime.Name, spec.Runtime.Kind, spec.Runtime.APIGroup, "ServingRuntime", "ClusterServingRuntime")
	}
	readSelectors(r, spec, s)
	manifest.WarnManyMachines(r.Report, "spec.engine", s.Components.Engine)
	manifest.WarnManyMachines(r.Report, "spec.decoder", s.Components.Decoder)
	manifest.CheckReplacement(r.Report, "spec.engine", s.Components.Engine, s)
	manifest.CheckReplacement(r.Report, "spec.decoder", s.Components.Decoder, s)
	manifest.CheckReplacement(r.Report, "spec.router", s.Components.Router, s)
	checkServed(r, s)
	for _, path := range []string{"spec.acceleratorSelector", "spec.engine.acceleratorOverride", "spec.decoder.acceleratorOverride"} {
		if s.Custom && r.Has(path) {
			r.Warnf(path, "has no effect: the service brings its own containers, so no runtime lists classes to choose from")
		}
	}
}

// checkServed checks that a service has something to serve. Without a model and
// a runtime its engine must be complete.
func checkServed(r *manifest.Reader, s *service.Service) {
	switch {
	case s.Model != nil || s.Runtime != nil:
	case manifest.Complete(s.Components.Engine):
		s.Custom = true
	default:
		r.Errorf("spec.model", "is missing: name the BaseModel or ClusterBaseModel to serve, or give engine.runner an image")
	}
}

func readRef(r *manifest.Reader, path, name, kind, group string, kinds ...string) *service.ObjectRef {
	manifest.CheckName(r.Report, path+".name", name, true)
	manifest.CheckRefKind(r.Report, path+".kind", kind, kinds...)
	if group != "" && group != "ome.io" {
		r.Errorf(path+".apiGroup", "%q is not ome.io: leave it out", manifest.Clip(group))
	}
	return &service.ObjectRef{Name: name, Kind: kind}
}

// readComponent reads an engine or a decoder; nil when absent.
func readComponent(r *manifest.Reader, path string, c *component) *service.Component {
	if c == nil {
		return nil
	}
	out := readPart(r, path, c.PodSpec, &c.extension, c.Runner)
	out.Leader = readNode(r, path+".leader", c.Leader)
	out.Worker = readNode(r, path+".worker", c.Worker)
	if c.Leader != nil && c.Leader.Size != nil && *c.Leader.Size != 1 {
		r.Errorf(path+".leader.size", "%d: a replica has one leader", *c.Leader.Size)
	}
	return out
}

func readRouter(r *manifest.Reader, path string, c *router) *service.Component {
	if c == nil {
		return nil
	}
	out := readPart(r, path, c.PodSpec, &c.extension, c.Runner)
	out.Config = c.Config
	return out
}

// readPart reads what every component has.
func readPart(r *manifest.Reader, path string, pod corev1.PodSpec, e *extension, runner *corev1.Container) *service.Component {
	out := &service.Component{Labels: e.Labels, Annotations: e.Annotations,
		Scaling: manifest.ReadComponentScaling(r.Report, path, manifest.ScalingFields{Min: e.MinReplicas, Max: e.MaxReplicas,
			Target: e.ScaleTarget, Metric: e.ScaleMetric, Concurrency: e.ContainerConcurrency,
			Timeout: e.TimeoutSeconds, TimeoutField: "timeoutSeconds"}),
		Strategy: manifest.ReadStrategy(r.Report, path+".deploymentStrategy", e.DeploymentStrategy),
		Budget:   manifest.ReadBudget(r.Report, path, e.MinAvailable, e.MaxUnavailable)}
	out.Pod, out.Main = readPod(r, path, pod, runner)
	return out
}

// readPod puts the runner among a pod's containers, first, and names it.
func readPod(r *manifest.Reader, path string, pod corev1.PodSpec, runner *corev1.Container) (corev1.PodSpec, string) {
	manifest.CheckContainers(r.Report, path+".containers", pod.Containers)
	if runner == nil {
		main := manifest.MainOf(pod.Containers, mainContainer)
		if main == "" {
			main = mainContainer
		}
		return pod, main
	}
	manifest.CheckContainer(r.Report, path+".runner", *runner)
	main := *runner
	if main.Name == "" {
		main.Name = mainContainer
	}
	for i, c := range pod.Containers {
		if c.Name == main.Name {
			r.Errorf(strict.Index(path+".containers", i), "and runner both describe %q: write one of them", manifest.Clip(c.Name))
		}
	}
	pod.Containers = append([]corev1.Container{main}, pod.Containers...)
	return pod, main.Name
}

func readNode(r *manifest.Reader, path string, n *node) *service.Node {
	if n == nil {
		return nil
	}
	manifest.CheckPositive(r.Report, path+".size", n.Size)
	pod, main := readPod(r, path, n.PodSpec, n.Runner)
	return manifest.NodeOf(pod, main, n.Size)
}

// readPredictor reads the legacy schema, in which a predictor is the engine and
// names model and runtime itself.
func readPredictor(r *manifest.Reader, p *predictor, s *service.Service) {
	const path = "spec.predictor"
	r.Warnf(path, "is the legacy schema: read as spec.model, spec.runtime and spec.engine")
	var runner *corev1.Container
	if m := p.Model; m != nil {
		if !reflect.DeepEqual(m.Container, corev1.Container{}) {
			runner = &m.Container
		}
		s.RuntimeVersion = m.RuntimeVersion
		s.Protocol = manifest.ReadProtocol(r.Report, path+".model.protocolVersion", m.ProtocolVersion)
		if m.Runtime != "" {
			s.Runtime = readRef(r, path+".model.runtime", m.Runtime, "", "")
		}
		switch {
		case m.BaseModel != "" && m.StorageURI != "":
			r.Errorf(path+".model.storageUri", "and baseModel both say where the model is: remove one")
		case m.BaseModel != "":
			s.Model = &service.ModelSource{Ref: readRef(r, path+".model.baseModel", m.BaseModel, "", "")}
		case m.StorageURI != "":
			s.Model = &service.ModelSource{URI: m.StorageURI}
			manifest.CheckURI(r.Report, path+".model.storageUri", m.StorageURI, s.Runtime != nil)
		default:
			r.Errorf(path+".model.baseModel", "is missing: name the model to serve")
		}
		if adapters := readFineTuned(r, path+".model.fineTunedWeights", s.Name, m.FineTunedWeights); s.Model != nil {
			s.Model.Adapters = adapters
		}
	}
	s.Components.Engine = readPart(r, path, p.PodSpec, &p.extension, runner)
	s.CanaryPercent = manifest.CheckCanary(r.Report, path, p.CanaryTrafficPercent)
	if p.WorkerSpec != nil {
		s.Components.Engine.Worker = readNode(r, path+".workerSpec", p.WorkerSpec)
		r.OneMachine(path+".workerSpec", true, manifest.ManyMachines)
	}
	manifest.CheckReplacement(r.Report, path, s.Components.Engine, s)
	if p.Model == nil {
		checkServed(r, s)
	}
}

const v1beta1 = "ome.io/v1beta1"

// Schemas are the kinds of this dialect.
var Schemas = []manifest.Schema{
	manifest.SchemaOf(v1beta1, "InferenceService", readService),
	manifest.SchemaOf(v1beta1, "ServingRuntime", func(r *manifest.Reader, m *servingRuntime, o *manifest.Object) {
		r.Runtime(m.Metadata, service.ScopeNamespace, o)
		readRuntime(r, &m.Spec, o.Runtime)
	}),
	manifest.SchemaOf(v1beta1, "ClusterServingRuntime", func(r *manifest.Reader, m *servingRuntime, o *manifest.Object) {
		r.Runtime(m.Metadata, service.ScopeCluster, o)
		readRuntime(r, &m.Spec, o.Runtime)
	}),
	manifest.SchemaOf(v1beta1, "BaseModel", func(r *manifest.Reader, m *baseModel, o *manifest.Object) { readModel(r, m, false, o) }),
	manifest.SchemaOf(v1beta1, "ClusterBaseModel", func(r *manifest.Reader, m *baseModel, o *manifest.Object) { readModel(r, m, true, o) }),
	manifest.SchemaOf(v1beta1, manifest.KindFineTunedWeight, readWeight),
	manifest.SchemaOf(v1beta1, manifest.KindAcceleratorClass, readClass),
	manifest.SchemaOf(v1beta1, KindBenchmarkJob, readBenchmark),
}

// words are OME's; the form of its status is KServe's.
var words = kserve.Words{
	Components: map[service.Role]string{service.RoleEngine: "engine", service.RoleDecoder: "decoder", service.RoleRouter: "router"},
	Conditions: map[string]string{service.ConditionSelected: "", service.ConditionPredictorReady: "EngineReady"},
	States:     "modelRevisionStates", Copies: "modelCopies",
}

// Status is a service's status in OME's words.
func Status(st service.Status) map[string]any { return words.Status(st) }

// ReadStatus is the other way of Status.
func ReadStatus(status any) service.Status { return words.ReadStatus(status) }
