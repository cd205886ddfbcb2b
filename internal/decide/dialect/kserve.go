package dialect

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// The names KServe gives its containers.
const (
	kserveMain        = "kserve-container"
	kserveTransformed = "transformer-container"
	kserveWorkerMain  = "worker-container"
)

// KServe's annotations that are acted upon.
const (
	kserveStop = "serving.kserve.io/stop"
	kserveMode = "serving.kserve.io/deploymentMode"
)

// readKServeService reads a v1beta1 InferenceService: a predictor that is a
// model (new or legacy schema) or only containers, and a transformer, which
// platforms that have none refuse later.
func readKServeService(r *reading, m *kserveService, o *Object) {
	s := r.service(m.Metadata, o)
	s.ProtocolDefault = service.ProtocolV1
	s.Stopped = strings.EqualFold(s.Annotations[kserveStop], "true")
	r.kserveMode(s)
	p := m.Spec.Predictor
	if p == nil {
		r.errorf("spec.predictor", "is missing: say what to serve")
		return
	}
	s.Components.Engine = r.kserveComponent("spec.predictor", p.PodSpec, &p.kserveExtension)
	s.CanaryPercent = r.canary("spec.predictor", p.CanaryTrafficPercent)
	r.annotated("spec.predictor.annotations", kservePrefix, s.Components.Engine, s.Annotations)
	r.kserveModel(p, s)
	if p.WorkerSpec != nil {
		r.kserveWorker(p.WorkerSpec, s.Components.Engine)
		r.oneMachine("spec.predictor.workerSpec", true, manyMachines)
	}
	if t := m.Spec.Transformer; t != nil {
		c := r.kserveComponent("spec.transformer", t.PodSpec, &t.kserveExtension)
		r.oneMachine("spec.transformer", true, "does not run on one machine: serve it as a service of its own that calls this one")
		r.oneCanary("spec.transformer", t.CanaryTrafficPercent, s)
		if len(t.Containers) == 0 {
			r.errorf("spec.transformer.containers", "is missing: say what transforms")
		}
		c.Main = mainOf(c.Pod.Containers, kserveMain)
		r.annotatedToo("spec.transformer.annotations", kservePrefix, c, s.Annotations)
		s.Components.Transformer = c
	}
}

// kserveMode reads the deployment mode, which says where KServe would put the
// replicas; here the platform does.
func (r *reading) kserveMode(s *service.Service) {
	at := strict.Key("metadata.annotations", kserveMode)
	switch mode, stated := s.Annotations[kserveMode]; mode {
	case "ModelMesh":
		s.MultiModel = true
	case "Serverless", "Knative", "RawDeployment", "Standard":
	default:
		if stated {
			r.warnf(at, "unknown mode %q has no effect", clip(mode))
		}
	}
}

// kserveComponent reads what predictor and transformer have in common.
func (r *reading) kserveComponent(path string, pod corev1.PodSpec, e *kserveExtension) *service.Component {
	r.containers(path+".containers", pod.Containers)
	return &service.Component{Pod: pod, Labels: e.Labels, Annotations: e.Annotations,
		Scaling: r.commonScaling(path, commonScaling{e.MinReplicas, e.MaxReplicas, e.ScaleTarget, e.ScaleMetric, e.ContainerConcurrency})}
}

// canary reads how much of the traffic a changed manifest is to take.
func (r *reading) canary(path string, percent *int) *int {
	path += ".canaryTrafficPercent"
	if percent != nil && (*percent < 0 || *percent > 100) {
		r.errorf(path, "%d is no percentage: write 0 to 100", *percent)
	}
	return percent
}

// oneCanary refuses a component with a share of its own: a service's revision
// is all of its components.
func (r *reading) oneCanary(path string, percent *int, s *service.Service) {
	if percent != nil && (s.CanaryPercent == nil && *percent != 100 || s.CanaryPercent != nil && *s.CanaryPercent != *percent) {
		r.errorf(path+".canaryTrafficPercent", "%d is not what the first component says: all components of a service are one revision", *percent)
	}
}

// commonScaling is what KServe and OME both write.
type commonScaling struct {
	min, max, target *int
	metric           string
	concurrency      *int
}

func (r *reading) commonScaling(path string, in commonScaling) service.Scaling {
	out := service.Scaling{MinReplicas: in.min, MaxReplicas: in.max,
		ScaleMetric: service.ScaleMetric(in.metric), MaxConcurrency: in.concurrency}
	if in.target != nil {
		f := float64(*in.target)
		out.ScaleTarget = &f
	}
	r.notNegative(path+".containerConcurrency", in.concurrency)
	return r.scaling(path, out)
}

// kserveModel reads what the predictor serves: its one model, or its
// containers alone.
func (r *reading) kserveModel(p *kservePredictor, s *service.Service) {
	name, m := r.kserveImplementation(p)
	engine := s.Components.Engine
	if m == nil {
		if name == "" {
			r.kserveCustom(p, s)
		}
		return
	}
	path := "spec.predictor." + name
	if m.Name != "" && m.Name != kserveMain {
		r.warnf(path+".name", "has no effect: the container is %s", kserveMain)
	}
	m.Name = ""
	s.Model = r.kserveSource(path, m)
	r.uri(path+".storageUri", m.StorageURI, m.Runtime != "")
	s.RuntimeVersion = m.RuntimeVersion
	s.Protocol = r.protocol(path+".protocolVersion", m.ProtocolVersion)
	if m.Runtime != "" {
		r.name(path+".runtime", m.Runtime, true)
		s.Runtime = &service.ObjectRef{Name: m.Runtime}
	}
	if f := m.ModelFormat; f != nil {
		s.Model.Format = service.NamedVersion{Name: f.Name, Version: f.Version}
	}
	if name != "model" {
		r.kserveLegacy(path, name, s)
	} else if s.Model.Format.Name == "" {
		r.errorf(path+".modelFormat.name", "is missing: name the model's format, for example sklearn")
	}
	s.ProtocolDefault = kserveDefault(s)
	engine.Main = kserveMain
	if !reflect.DeepEqual(m.Container, corev1.Container{}) {
		r.container(path, m.Container)
		if i := slices.IndexFunc(engine.Pod.Containers, func(c corev1.Container) bool { return c.Name == kserveMain }); i >= 0 {
			r.errorf(strict.Index("spec.predictor.containers", i), "and %s both describe %s: write one of them", name, kserveMain)
		}
		m.Name = kserveMain
		engine.Pod.Containers = append([]corev1.Container{m.Container}, engine.Pod.Containers...)
	}
}

// kserveImplementation finds the model a predictor states, in the new schema
// or the legacy one. Several are an error; then name is set and m is nil.
func (r *reading) kserveImplementation(p *kservePredictor) (name string, m *kserveModel) {
	var stated []string
	v := reflect.ValueOf(p.kserveLegacy)
	for i := range v.NumField() {
		key := v.Type().Field(i).Tag.Get("json")
		if f, _ := v.Field(i).Interface().(*kserveModel); f != nil {
			stated, m = append(stated, key), f
		} else if r.doc.Has("spec.predictor." + key) {
			r.errorf("spec.predictor."+key, "is empty: give it at least a storageUri")
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
	r.errorf("spec.predictor."+stated[1], "and %s both say what to serve: keep one", stated[0])
	return stated[1], nil
}

// kserveSource is where a predictor's model is. KServe's storage names a secret
// that holds the rest of the address unless its parameters do.
func (r *reading) kserveSource(path string, m *kserveModel) *service.ModelSource {
	st := m.Storage
	if st == nil || m.StorageURI != "" {
		if st != nil {
			r.errorf(path+".storage", "and storageUri both say where the model is: remove one")
		}
		return &service.ModelSource{URI: m.StorageURI}
	}
	kind, bucket, at := st.Parameters["type"], st.Parameters["bucket"], strings.TrimPrefix(st.Path, "/")
	src := &service.ModelSource{URI: kind + "://" + bucket + "/" + at, Storage: &service.Storage{Key: st.Key, Parameters: st.Parameters}}
	switch {
	case kind != "" && kind != "s3":
		src.Storage = nil
		r.uri(path+".storage.parameters.type", src.URI, false)
	case kind == "" || bucket == "":
		src.URI = "storage://" + at
		r.problem(path+".storage", fmt.Sprintf("leaves the address to the secret %q, which is not read on one machine: write storageUri, or parameters type and bucket", clip(st.Key))).Platform = Process
		return src
	}
	if st.Key != "" {
		p := r.problem(path+".storage.key", "has no effect on one machine: give credentials to this program's own environment")
		p.Warning, p.Platform = true, Process
	}
	return src
}

// kserveRuntimes are the out-of-the-box runtimes the legacy schema pins.
var kserveRuntimes = map[string]string{
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

// kserveLegacy turns the legacy schema into the new one: the key becomes the
// format, and its out-of-the-box runtime is pinned.
func (r *reading) kserveLegacy(path, framework string, s *service.Service) {
	if f := s.Model.Format.Name; f != "" && f != framework {
		r.errorf(path+".modelFormat.name", "%q disagrees with %s: keep one", clip(f), framework)
	}
	s.Model.Format.Name = framework
	if s.Runtime == nil {
		runtime := kserveRuntimes[framework]
		mlserver := framework == "sklearn" || framework == "xgboost" || framework == "lightgbm"
		if mlserver && (s.Protocol == service.ProtocolV2 || s.Protocol == service.ProtocolGRPCV2) {
			runtime = "kserve-mlserver"
		}
		if runtime == "" { // huggingface came after the nine: its runtime is chosen
			r.warnf(path, "is the legacy schema: read as model with modelFormat.name %s", framework)
			return
		}
		s.Runtime = &service.ObjectRef{Name: runtime}
	}
	r.warnf(path, "is the legacy schema: read as model with modelFormat.name %s and runtime %s", framework, s.Runtime.Name)
}

// kserveDefault is the protocol that "unset" means for a KServe service.
func kserveDefault(s *service.Service) service.Protocol {
	switch s.Model.Format.Name {
	case "triton", "onnx", "huggingface", "vllm", "mlflow":
		return service.ProtocolV2
	}
	if s.Runtime != nil && (s.Runtime.Name == "kserve-mlserver" || s.Runtime.Name == "kserve-tritonserver") {
		return service.ProtocolV2
	}
	return service.ProtocolV1
}

// kserveCustom reads a predictor that has only containers: a service that no
// runtime is chosen for.
func (r *reading) kserveCustom(p *kservePredictor, s *service.Service) {
	if len(p.Containers) == 0 {
		r.errorf("spec.predictor", "has nothing to serve: write model with a modelFormat, or containers")
		return
	}
	s.Custom = true
	engine := s.Components.Engine
	engine.Main = mainOf(engine.Pod.Containers, kserveMain)
	// With a transformer in the same pod it is the transformer that is spoken to.
	speaker := 0
	for i, c := range engine.Pod.Containers {
		at := strict.Index("spec.predictor.containers", i)
		if c.Image == "" && len(c.Command) == 0 {
			r.errorf(at+".image", "is missing: no runtime is chosen for a predictor of containers alone")
		}
		if c.Name == kserveTransformed {
			speaker = i
		}
		if c.Name != engine.Main {
			continue
		}
		if env, uri := variable(c, "STORAGE_URI"); uri != "" {
			s.Model = &service.ModelSource{URI: uri}
			r.uri(strict.Index(at+".env", env)+".value", uri, false)
		}
	}
	if i, v := variable(engine.Pod.Containers[speaker], "PROTOCOL"); v != "" {
		at := strict.Index("spec.predictor.containers", speaker)
		s.Protocol = r.protocol(strict.Index(at+".env", i)+".value", v)
	}
}

// variable finds a container's environment variable and its index.
func variable(c corev1.Container, name string) (int, string) {
	for i, e := range c.Env {
		if e.Name == name {
			return i, e.Value
		}
	}
	return -1, ""
}

// kserveWorker reads a predictor that spans nodes. The predictor's own pod
// leads; KServe tells both sides their sizes by environment variables.
func (r *reading) kserveWorker(w *kserveWorker, engine *service.Component) {
	const path = "spec.predictor.workerSpec"
	r.containers(path+".containers", w.Containers)
	engine.Worker = node(w.PodSpec, mainOf(w.Containers, kserveWorkerMain), r.workers(path, &w.kserveParallel))
	if engine.Worker.Main == "" {
		engine.Worker.Main = kserveWorkerMain
	}
	sizes := w.variables()
	if len(sizes) == 0 {
		return
	}
	engine.Pod.Containers = withEnv(engine.Pod.Containers, engine.Main, sizes)
	engine.Worker.Pod.Containers = withEnv(engine.Worker.Pod.Containers, engine.Worker.Main, sizes)
}

// workers is how many nodes follow the leader: one per pipeline stage but the
// first. One stage spread over nodes (tensor parallelism alone) does not say;
// nil leaves it to the default.
func (r *reading) workers(path string, p *kserveParallel) *int {
	r.positive(path+".tensorParallelSize", p.TensorParallelSize)
	r.positive(path+".pipelineParallelSize", p.PipelineParallelSize)
	if p.PipelineParallelSize == nil || *p.PipelineParallelSize < 2 {
		return nil
	}
	n := *p.PipelineParallelSize - 1
	return &n
}

// variables are the sizes as KServe hands them to containers.
func (p *kserveParallel) variables() []corev1.EnvVar {
	var out []corev1.EnvVar
	if p.PipelineParallelSize != nil {
		out = append(out, corev1.EnvVar{Name: "PIPELINE_PARALLEL_SIZE", Value: strconv.Itoa(*p.PipelineParallelSize)})
	}
	if p.TensorParallelSize != nil {
		out = append(out, corev1.EnvVar{Name: "TENSOR_PARALLEL_SIZE", Value: strconv.Itoa(*p.TensorParallelSize)})
	}
	return out
}

// withEnv adds variables to the container called name, making it if need be.
// Variables that are stated already stay as they are.
func withEnv(cs []corev1.Container, name string, env []corev1.EnvVar) []corev1.Container {
	i := slices.IndexFunc(cs, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		cs, i = append(cs, corev1.Container{Name: name}), len(cs)
	}
	for _, e := range env {
		if at, _ := variable(cs[i], e.Name); at < 0 {
			cs[i].Env = append(cs[i].Env, e)
		}
	}
	return cs
}
