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
			give(&c.Pod.Containers[i], "INFERENCE_SERVICE_NAME", "{{.Name}}")
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
	case serverTorchServe:
		give(m, "PROTOCOL_VERSION", string(in.Protocol))
	}
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

// parallelism tells an engine in PARALLELISM_SIZE how many GPUs a replica has, on
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
