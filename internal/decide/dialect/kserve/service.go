// Package kserve reads KServe's kinds: InferenceService, ServingRuntime,
// ClusterServingRuntime, InferenceGraph and TrainedModel.
package kserve

import (
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// The names KServe gives its containers.
const (
	mainContainer        = "kserve-container"
	transformerContainer = "transformer-container"
	workerContainer      = "worker-container"
)

// mode is KServe's annotation of the deployment mode.
const mode = "serving.kserve.io/deploymentMode"

// readService reads a v1beta1 InferenceService: a predictor that is a
// model (new or legacy schema) or only containers, a transformer before it and an
// explainer beside it.
func readService(r *manifest.Reader, m *inferenceService, o *manifest.Object) {
	s := beginService(r, m.Metadata, o)
	readComponents(r, s, "spec", &m.Spec.components)
}

// readFormerService reads a v1alpha2 InferenceService, whose components stand below
// default.
func readFormerService(r *manifest.Reader, m *formerService, o *manifest.Object) {
	s := beginService(r, m.Metadata, o)
	if m.Spec.Default == nil {
		r.Errorf("spec.default", "is missing: say what to serve")
		return
	}
	readComponents(r, s, "spec.default", m.Spec.Default)
	r.Warnf("apiVersion", "is KServe's former version: read as serving.kserve.io/v1beta1, where what is below spec.default stands in spec")
}

func beginService(r *manifest.Reader, m metav1.ObjectMeta, o *manifest.Object) *service.Service {
	s := r.Service(m, o)
	s.ProtocolDefault = service.ProtocolV1
	s.Stopped = s.Stopped || strings.EqualFold(s.Annotations[service.AnnotationKServeStop], "true")
	readMode(r, s)
	CheckAnnotations(r, "metadata.annotations", s.Annotations, OnService)
	return s
}

// readComponents reads the components at a path.
func readComponents(r *manifest.Reader, s *service.Service, at string, in *components) {
	p := in.Predictor
	if p == nil {
		r.Errorf(at+".predictor", "is missing: say what to serve")
		return
	}
	readPredictor(r, s, at+".predictor", p)
	if t := in.Transformer; t != nil {
		path := at + ".transformer"
		t.Containers = t.Custom.over(t.Containers)
		c := readComponent(r, s.Namespace, path, t.PodSpec, &t.extension)
		manifest.CheckOneCanary(r.Report, path, t.CanaryTrafficPercent, s)
		if len(t.Containers) == 0 {
			r.Errorf(path+".containers", "is missing: say what transforms")
		}
		c.Main = manifest.MainOf(c.Pod.Containers, mainContainer)
		c.Parts = readParts(r, path+".storageUris", t.StorageURIs, false)
		manifest.ReadOtherAnnotations(r.Report, path+".annotations", manifest.KServePrefix, c, s.Annotations)
		s.Components.Transformer = c
	}
	if e := in.Explainer; e != nil {
		readExplainer(r, s, at+".explainer", e)
	}
	selectAccelerator(r, s)
	manifest.CheckReplacement(r.Report, at+".predictor", s.Components.Engine, s)
	manifest.CheckReplacement(r.Report, at+".transformer", s.Components.Transformer, s)
	manifest.CheckReplacement(r.Report, at+".explainer", s.Components.Explainer, s)
}

func readPredictor(r *manifest.Reader, s *service.Service, at string, p *predictor) {
	p.Containers = p.Custom.over(p.Containers)
	if p.Parallelism != nil && p.ContainerConcurrency == nil {
		p.ContainerConcurrency = p.Parallelism
	}
	s.Components.Engine = readComponent(r, s.Namespace, at, p.PodSpec, &p.extension)
	s.CanaryPercent = manifest.CheckCanary(r.Report, at, p.CanaryTrafficPercent)
	manifest.ReadAnnotations(r.Report, at+".annotations", manifest.KServePrefix, s.Components.Engine, s.Annotations)
	readModel(r, at, p, s)
	if p.WorkerSpec != nil {
		readWorker(r, at+".workerSpec", p.WorkerSpec, s.Components.Engine)
		r.OneMachine(at+".workerSpec", true, manifest.ManyMachines)
	}
}

// over are the containers with the one of v1alpha2's custom component before them.
func (c *custom) over(containers []corev1.Container) []corev1.Container {
	if c == nil || c.Container == nil {
		return containers
	}
	return append([]corev1.Container{*c.Container}, containers...)
}

// readMode reads the deployment mode. KServe chooses by it how replicas are
// deployed; here the platform determines that.
func readMode(r *manifest.Reader, s *service.Service) {
	at := strict.Key("metadata.annotations", mode)
	switch mode, stated := s.Annotations[mode]; mode {
	case "ModelMesh":
		s.MultiModel = true
	case "Serverless", "Knative", "RawDeployment", "Standard":
	default:
		if stated {
			r.Warnf(at, "unknown mode %q has no effect", manifest.Clip(mode))
		}
	}
}

// readComponent reads what all components have in common.
func readComponent(r *manifest.Reader, namespace, path string, pod corev1.PodSpec, e *extension) *service.Component {
	manifest.CheckContainers(r.Report, path+".containers", pod.Containers)
	CheckAnnotations(r, path+".annotations", e.Annotations, OnService)
	c := &service.Component{Pod: pod, Labels: e.Labels, Annotations: e.Annotations,
		Scaling: manifest.ReadComponentScaling(r.Report, path, manifest.ScalingFields{Min: e.MinReplicas, Max: e.MaxReplicas,
			Target: e.ScaleTarget, Metric: e.ScaleMetric, Concurrency: e.ContainerConcurrency,
			Timeout: e.Timeout, TimeoutField: "timeout"}),
		Strategy: manifest.ReadStrategy(r.Report, path+".deploymentStrategy", e.DeploymentStrategy),
		Logger:   readLogger(r, path+".logger", e.Logger, namespace), Batcher: readBatcher(r, path+".batcher", e.Batcher)}
	readAutoScaling(r.Report, path+".autoScaling", e.AutoScaling, &c.Scaling)
	return c
}

// readModel reads what the predictor serves: its one model, or its
// containers alone.
func readModel(r *manifest.Reader, at string, p *predictor, s *service.Service) {
	name, m := readImplementation(r, at, p)
	engine := s.Components.Engine
	if m == nil {
		if name == "" {
			readCustom(r, at, p, s)
		}
		return
	}
	path := at + "." + name
	if m.Name != "" && m.Name != mainContainer {
		r.Warnf(path+".name", "has no effect: the container is %s", mainContainer)
	}
	m.Name = ""
	s.Model = readSource(r, path, m.StorageURI, m.Storage)
	manifest.CheckURI(r.Report, path+".storageUri", fetched(m.StorageURI), m.Runtime != "")
	readURIs(r, at+".storageUris", p.StorageURIs, s)
	s.RuntimeVersion = m.RuntimeVersion
	s.Protocol = manifest.ReadProtocol(r.Report, path+".protocolVersion", m.ProtocolVersion)
	if m.Runtime != "" {
		manifest.CheckName(r.Report, path+".runtime", m.Runtime, true)
		s.Runtime = &service.ObjectRef{Name: m.Runtime}
	}
	if f := m.ModelFormat; f != nil {
		s.Model.Format = service.NamedVersion{Name: f.Name, Version: f.Version}
	}
	if name != "model" {
		readLegacy(r, path, name, s)
	} else if s.Model.Format.Name == "" {
		r.Errorf(path+".modelFormat.name", "is missing: name the model's format, for example sklearn")
	}
	// As KServe has it: one for Hugging Face has its model's name among its arguments.
	s.Repository = s.Model.URI == "" && m.Storage == nil && len(s.Model.Parts) == 0 && s.Model.Format.Name != "huggingface" && p.WorkerSpec == nil
	s.ProtocolDefault = defaultProtocol(s)
	engine.Main = mainContainer
	if !reflect.DeepEqual(m.Container, corev1.Container{}) {
		manifest.CheckContainer(r.Report, path, m.Container)
		if i := slices.IndexFunc(engine.Pod.Containers, func(c corev1.Container) bool { return c.Name == mainContainer }); i >= 0 {
			r.Errorf(strict.Index(at+".containers", i), "and %s both describe %s: write one of them", name, mainContainer)
		}
		m.Name = mainContainer
		engine.Pod.Containers = append([]corev1.Container{m.Container}, engine.Pod.Containers...)
	}
}

// readImplementation finds the model a predictor states, in the new schema
// or the legacy one. Several are an error; then name is set and m is nil.
func readImplementation(r *manifest.Reader, at string, p *predictor) (name string, m *model) {
	var stated []string
	v := reflect.ValueOf(p.legacy)
	for i := range v.NumField() {
		key := v.Type().Field(i).Tag.Get("json")
		if f, _ := v.Field(i).Interface().(*model); f != nil {
			stated, m = append(stated, key), f
		} else if r.Has(at + "." + key) {
			r.Errorf(at+"."+key, "is empty: give it at least a storageUri")
			stated = append(stated, key)
		}
	}
	if p.Model != nil {
		stated, m = append(stated, "model"), p.Model
	}
	switch len(stated) {
	case 0:
		return "", nil
	case 1:
		return stated[0], m
	}
	r.Errorf(at+"."+stated[1], "and %s both say what to serve: keep one", stated[0])
	return stated[1], nil
}

// legacyRuntimes are the out-of-the-box runtimes the legacy schema pins.
var legacyRuntimes = map[string]string{
	"sklearn":    "kserve-sklearnserver",
	"xgboost":    "kserve-xgbserver",
	"lightgbm":   "kserve-lgbserver",
	"pmml":       "kserve-pmmlserver",
	"paddle":     "kserve-paddleserver",
	"tensorflow": "kserve-tensorflow-serving",
	"pytorch":    "kserve-torchserve",
	"onnx":       "kserve-tritonserver",
	"triton":     "kserve-tritonserver",
	"mlflow":     "kserve-mlserver",
}

// readLegacy turns the legacy schema into the new one: the key becomes the
// format, and its out-of-the-box runtime is pinned.
func readLegacy(r *manifest.Reader, path, framework string, s *service.Service) {
	if f := s.Model.Format.Name; f != "" && f != framework {
		r.Errorf(path+".modelFormat.name", "%q disagrees with %s: keep one", manifest.Clip(f), framework)
	}
	s.Model.Format.Name = framework
	if s.Runtime == nil {
		runtime := legacyRuntimes[framework]
		mlserver := framework == "sklearn" || framework == "xgboost" || framework == "lightgbm"
		if mlserver && (s.Protocol == service.ProtocolV2 || s.Protocol == service.ProtocolGRPCV2) {
			runtime = "kserve-mlserver"
		}
		if runtime == "" { // huggingface came after the nine: its runtime is chosen
			r.Warnf(path, "is the legacy schema: read as model with modelFormat.name %s", framework)
			return
		}
		s.Runtime = &service.ObjectRef{Name: runtime, Implied: true}
	}
	r.Warnf(path, "is the legacy schema: read as model with modelFormat.name %s and runtime %s", framework, s.Runtime.Name)
}

// defaultProtocol is the protocol that "unset" means for a KServe service.
func defaultProtocol(s *service.Service) service.Protocol {
	switch s.Model.Format.Name {
	case "triton", "onnx", "huggingface", "vllm", "mlflow":
		return service.ProtocolV2
	}
	if s.Runtime != nil && (s.Runtime.Name == "kserve-mlserver" || s.Runtime.Name == "kserve-tritonserver") {
		return service.ProtocolV2
	}
	return service.ProtocolV1
}

// readCustom reads a predictor that has only containers: a service that no
// runtime is chosen for.
func readCustom(r *manifest.Reader, path string, p *predictor, s *service.Service) {
	if len(p.Containers) == 0 {
		r.Errorf(path, "has nothing to serve: write model with a modelFormat, or containers")
		return
	}
	s.Custom = true
	engine := s.Components.Engine
	engine.Main = manifest.MainOf(engine.Pod.Containers, mainContainer)
	// With a transformer in the same pod it is the transformer that is spoken to.
	speaker := 0
	for i, c := range engine.Pod.Containers {
		at := strict.Index(path+".containers", i)
		if c.Image == "" && len(c.Command) == 0 {
			r.Errorf(at+".image", "is missing: no runtime is chosen for a predictor of containers alone")
		}
		if c.Name == transformerContainer {
			speaker = i
		}
		if c.Name != engine.Main {
			continue
		}
		if env, uri := manifest.Variable(c, "STORAGE_URI"); uri != "" {
			s.Model = &service.ModelSource{URI: uri}
			manifest.CheckURI(r.Report, strict.Index(at+".env", env)+".value", uri, false)
		}
	}
	if len(p.StorageURIs) > 0 {
		if s.Model == nil {
			s.Model = &service.ModelSource{}
		}
		readURIs(r, path+".storageUris", p.StorageURIs, s)
	}
	if i, v := manifest.Variable(engine.Pod.Containers[speaker], "PROTOCOL"); v != "" {
		at := strict.Index(path+".containers", speaker)
		s.Protocol = manifest.ReadProtocol(r.Report, strict.Index(at+".env", i)+".value", v)
	}
}

// readWorker reads a predictor that spans nodes. The predictor's own pod
// leads; KServe tells both sides their sizes by environment variables.
func readWorker(r *manifest.Reader, path string, w *worker, engine *service.Component) {
	manifest.CheckContainers(r.Report, path+".containers", w.Containers)
	engine.Worker = manifest.NodeOf(w.PodSpec, manifest.MainOf(w.Containers, workerContainer), readWorkers(r, path, &w.parallel))
	if engine.Worker.Main == "" {
		engine.Worker.Main = workerContainer
	}
	sizes := w.variables()
	if len(sizes) == 0 {
		return
	}
	engine.Pod.Containers = manifest.WithEnv(engine.Pod.Containers, engine.Main, sizes)
	engine.Worker.Pod.Containers = manifest.WithEnv(engine.Worker.Pod.Containers, engine.Worker.Main, sizes)
}

// workers is how many nodes follow the leader: one per pipeline stage but the
// first. One stage spread over nodes (tensor parallelism alone) does not say;
// nil leaves it to the default.
func readWorkers(r *manifest.Reader, path string, p *parallel) *int {
	manifest.CheckPositive(r.Report, path+".tensorParallelSize", p.TensorParallelSize)
	manifest.CheckPositive(r.Report, path+".pipelineParallelSize", p.PipelineParallelSize)
	if p.PipelineParallelSize == nil || *p.PipelineParallelSize < 2 {
		return nil
	}
	n := *p.PipelineParallelSize - 1
	return &n
}

// variables are the sizes as KServe hands them to containers.
func (p *parallel) variables() []corev1.EnvVar {
	var out []corev1.EnvVar
	if p.PipelineParallelSize != nil {
		out = append(out, corev1.EnvVar{Name: "PIPELINE_PARALLEL_SIZE", Value: strconv.Itoa(*p.PipelineParallelSize)})
	}
	if p.TensorParallelSize != nil {
		out = append(out, corev1.EnvVar{Name: "TENSOR_PARALLEL_SIZE", Value: strconv.Itoa(*p.TensorParallelSize)})
	}
	return out
}

// Of a cluster's API server there is nothing to read: KServe's definitions have v1beta1
// alone. KFServing's, up to 0.6, had both, in a form that Kubernetes refuses since 1.22.
const former = "is served on one machine alone, since KServe's definitions do not have it: write serving.kserve.io/v1beta1 for a cluster"

// Schemas are the kinds of this dialect.
var Schemas = []manifest.Schema{
	manifest.SchemaOf("serving.kserve.io/v1beta1", "InferenceService", readService),
	manifest.OneMachineSchema("serving.kserve.io/v1alpha2", "InferenceService", former, readFormerService),
	manifest.OneMachineSchema("serving.kubeflow.org/v1beta1", "InferenceService", former, readService),
	manifest.OneMachineSchema("serving.kubeflow.org/v1alpha2", "InferenceService", former, readFormerService),
	manifest.SchemaOf("serving.kserve.io/v1alpha1", "InferenceGraph", readGraph),
	manifest.SchemaOf("serving.kserve.io/v1alpha1", KindTrainedModel, readTrainedModel),
	manifest.SchemaOf("serving.kserve.io/v1alpha1", KindStorageContainer, readStorageContainer),
	manifest.SchemaOf("serving.kserve.io/v1alpha1", KindModelCache, func(r *manifest.Reader, m *modelCache, o *manifest.Object) { readModelCache(r, m, o, true) }),
	manifest.SchemaOf("serving.kserve.io/v1alpha1", KindNamespaceModelCache, func(r *manifest.Reader, m *modelCache, o *manifest.Object) { readModelCache(r, m, o, false) }),
	manifest.SchemaOf("serving.kserve.io/v1alpha1", KindNodeGroup, readNodeGroup),
	manifest.SchemaOf("serving.kserve.io/v1alpha1", "ServingRuntime", func(r *manifest.Reader, m *servingRuntime, o *manifest.Object) {
		r.Runtime(m.Metadata, service.ScopeNamespace, o)
		readRuntime(r, &m.Spec, o.Runtime)
	}),
	manifest.SchemaOf("serving.kserve.io/v1alpha1", "ClusterServingRuntime", func(r *manifest.Reader, m *servingRuntime, o *manifest.Object) {
		r.Runtime(m.Metadata, service.ScopeCluster, o)
		readRuntime(r, &m.Spec, o.Runtime)
	}),
}
