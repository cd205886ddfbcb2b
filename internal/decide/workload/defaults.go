package workload

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// The model servers that KServe treats each in its own way.
const (
	serverMLServer    = "mlserver"
	serverTriton      = "tritonserver"
	serverTorchServe  = "torchserve"
	serverTensorFlow  = "tensorflow-serving"
	serverHuggingFace = "huggingfaceserver"
	serverVLLM        = "vllmserver"
)

// annotationServer of a KServe runtime names the model server that it runs.
const annotationServer = "serving.kserve.io/server-type"

// servers are those of KServe's own runtimes, of releases without the annotation.
var servers = map[string]string{
	"kserve-mlserver":           serverMLServer,
	"kserve-tritonserver":       serverTriton,
	"kserve-torchserve":         serverTorchServe,
	"kserve-tensorflow-serving": serverTensorFlow,
	"kserve-huggingfaceserver":  serverHuggingFace,
	"kserve-vllmserver":         serverVLLM,
}

// server is the model server of a KServe runtime, "" where none is known.
func (in Input) server() string {
	if in.Runtime == nil || in.Runtime.Origin.Dialect() != service.DialectKServe {
		return ""
	}
	if named := in.Runtime.Annotations[annotationServer]; named != "" {
		return named
	}
	return servers[in.Runtime.Name]
}

// kserve gives a component's containers what KServe's defaulting and controller
// give them. Its runtimes are written to be completed so: they do not start, or
// serve something else, without. What the manifests state stays.
func (in Input) kserve(c *Component) {
	if in.Cluster && in.Service.Origin.Dialect() == service.DialectKServe {
		for i := range c.Pod.Containers {
			give(&c.Pod.Containers[i], "INFERENCE_SERVICE_NAME", in.Service.Name)
		}
	}
	m := container(c.Pod, c.Main)
	if m == nil || c.Role != service.RoleEngine {
		return
	}
	switch in.server() {
	case serverMLServer:
		if in.URI == "" {
			give(m, "MLSERVER_LOAD_MODELS_AT_STARTUP", "false")
			return
		}
		give(m, "MLSERVER_MODEL_NAME", "{{.Name}}")
		give(m, "MLSERVER_MODEL_URI", "{{.ModelPath}}")
	case serverTriton:
		if in.URI == "" {
			m.Args = MergeArgs([]string{"--model-control-mode=explicit"}, m.Args)
		}
		// A process of this machine sees those of others; the catalog states its probe.
		if m.LivenessProbe == nil && (in.Cluster || slices.Contains(in.Containers, c.Role)) {
			m.LivenessProbe = tritonLives()
		}
	case serverTorchServe:
		give(m, "PROTOCOL_VERSION", string(in.Protocol))
	}
}

// tritonLives is how a container of Triton is seen to have lost the process of a Python
// model. Its health and that of the model stay well, and each request for the model
// fails from then on; the process stays as a zombie, since Triton waits for it at an
// unload alone. Two looks are enough for one that is just being unloaded.
func tritonLives() *corev1.Probe {
	return &corev1.Probe{PeriodSeconds: 5, FailureThreshold: 2, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{
		Command: []string{"sh", "-c", "! grep -qsF '(triton_python_b) Z ' /proc/[0-9]*/stat"}}}}
}

// give adds a variable to a container that does not state it.
func give(c *corev1.Container, name, value string) {
	for i := range c.Env {
		if c.Env[i].Name == name {
			return
		}
	}
	c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
}

// parallelism gives an engine in PARALLELISM_SIZE the number of GPUs of a replica, on
// all its nodes together, as OME does: its runtimes name the variable in their
// command lines. What the manifests state stays.
func (in Input) parallelism(c *Component) {
	ome := in.Service.Origin.Dialect() == service.DialectOME || in.Runtime != nil && in.Runtime.Origin.Dialect() == service.DialectOME
	if !ome || c.Role != service.RoleEngine && c.Role != service.RoleDecoder {
		return
	}
	nodes := 1
	if c.Worker != nil {
		nodes += c.Worker.Size
	}
	mains := []*corev1.Container{container(c.Pod, c.Main)}
	for _, n := range []*Node{c.Leader, c.Worker} {
		if n != nil {
			mains = append(mains, container(n.Pod, n.Main))
		}
	}
	for _, m := range mains {
		if m == nil || gpus(m) == 0 || slices.ContainsFunc(m.Env, func(e corev1.EnvVar) bool { return e.Name == parallelismSize }) {
			continue
		}
		// First, so that others may refer to it.
		m.Env = append([]corev1.EnvVar{{Name: parallelismSize, Value: strconv.Itoa(gpus(m) * nodes)}}, m.Env...)
	}
}

const parallelismSize = "PARALLELISM_SIZE"

// modelClasses are the values KServe's webhook gives the label modelClass,
// which its mlserver runtime names in a template.
var modelClasses = map[string]string{
	"sklearn":  "mlserver_sklearn.SKLearnModel",
	"xgboost":  "mlserver_xgboost.XGBoostModel",
	"lightgbm": "mlserver_lightgbm.LightGBMModel",
	"mlflow":   "mlserver_mlflow.MLflowRuntime",
}

// templateLabels are the service's labels with those KServe's webhook adds, so
// that KServe's own runtimes render.
func templateLabels(in Input) map[string]string {
	out := map[string]string{}
	if class, ok := modelClasses[strings.ToLower(in.Attributes.Format.Name)]; ok {
		out["modelClass"] = class
	}
	switch in.Protocol {
	case service.ProtocolV1, service.ProtocolGRPCV1:
		out["serviceEnvelope"] = "kserve"
	case service.ProtocolV2, service.ProtocolGRPCV2:
		out["serviceEnvelope"] = "kservev2"
	}
	maps.Copy(out, in.Service.Labels)
	return out
}

// templateAnnotations are the service's annotations with the one that KServe's webhook
// adds.
func templateAnnotations(in Input) map[string]string {
	out := map[string]string{}
	if f := in.Attributes.Format.Name; f != "" && in.Runtime != nil && in.Runtime.Origin.Dialect() == service.DialectKServe {
		out["modelFormat"] = f
	}
	maps.Copy(out, in.Service.Annotations)
	return out
}

// maxLabel is the length of a label's value in Kubernetes.
const maxLabel = 63

// dialectLabels are those that KServe and OME put on pods, for what looks for
// pods by them: SGLang's router, monitors, network policies. They are those of
// the dialects of the service and, over it, of its runtime.
func dialectLabels(in Input, role service.Role) map[string]string {
	out := map[string]string{}
	if len(in.Service.Name) > maxLabel {
		return out
	}
	add := func(o service.Origin) {
		switch o.Dialect() {
		case service.DialectKServe:
			component := string(role)
			if role == service.RoleEngine {
				component = "predictor"
			}
			maps.Copy(out, map[string]string{"serving.kserve.io/inferenceservice": in.Service.Name, "component": component})
		case service.DialectOME:
			maps.Copy(out, map[string]string{"ome.io/inferenceservice": in.Service.Name, "component": string(role)})
		case service.DialectRoundhouse, service.DialectSeldon, service.DialectGateway:
		}
	}
	add(in.Service.Origin)
	if in.Runtime != nil {
		add(in.Runtime.Origin)
	}
	return out
}

// ownImage as a container's image stands for the image of this program.
const ownImage = "roundhouse"

// setImage puts this program's image where the pods of c name it by its word.
func (c *Component) setImage(image string) {
	if image == "" {
		return
	}
	pods := []*corev1.PodSpec{&c.Pod}
	for _, n := range []*Node{c.Leader, c.Worker} {
		if n != nil {
			pods = append(pods, &n.Pod)
		}
	}
	for _, p := range pods {
		for _, list := range [][]corev1.Container{p.InitContainers, p.Containers} {
			for i := range list {
				if list[i].Image == ownImage {
					list[i].Image = image
				}
			}
		}
	}
}

// splitImage cuts an image reference into repository, tag and digest
// ("registry:5000/a/b:v1@sha256:…"). A colon before the last slash is a
// registry's port.
func splitImage(image string) (repository, tag, digest string) {
	repository, digest, _ = strings.Cut(image, "@")
	slash := strings.LastIndexByte(repository, '/')
	if colon := strings.LastIndexByte(repository, ':'); colon > slash {
		return repository[:colon], repository[colon+1:], digest
	}
	return repository, "", digest
}

// withVersion puts version in the place of the image's tag. An image pinned
// by digest stays as it is: the digest identifies exactly what runs.
func withVersion(image, version string) string {
	repository, _, digest := splitImage(image)
	if version == "" || digest != "" || image == "" {
		return image
	}
	return repository + ":" + version
}

// variant is the build of a KServe server's image for the accelerators that its
// container asks for: TensorFlow Serving, TorchServe and the Hugging Face server
// have a tag of their own for NVIDIA's GPUs, vLLM has a repository of its own for
// none. An image pinned by digest, or without a tag, stays as it is.
func variant(image, server string, limits corev1.ResourceList) string {
	repository, tag, digest := splitImage(image)
	if tag == "" || digest != "" {
		return image
	}
	switch server {
	case serverTensorFlow, serverTorchServe, serverHuggingFace:
		if asksFor(limits, "nvidia.com/gpu", "nvidia.com/mig") && !strings.HasSuffix(tag, "-gpu") {
			return image + "-gpu"
		}
	case serverVLLM:
		if !asksFor(limits, "nvidia.com/gpu", "nvidia.com/mig", "amd.com/gpu", "gpu.intel.com", "intel.com/gpu", "habana.ai/gaudi", "google.com/tpu") &&
			!strings.HasSuffix(repository, "-cpu") {
			return repository + "-cpu:" + tag
		}
	}
	return image
}

// asksFor reports whether limits name a resource that begins so.
func asksFor(limits corev1.ResourceList, prefixes ...string) bool {
	for name := range limits {
		for _, p := range prefixes {
			if strings.HasPrefix(string(name), p) {
				return true
			}
		}
	}
	return false
}

// Repository is the image's repository without tag and digest, and without
// the registry's default names, so that "vllm/vllm-openai:v0.9" and
// "docker.io/vllm/vllm-openai@sha256:…" are one.
func Repository(image string) string {
	r, _, _ := splitImage(image)
	r = strings.TrimPrefix(strings.TrimPrefix(r, "docker.io/"), "index.docker.io/")
	return strings.TrimPrefix(r, "library/")
}
