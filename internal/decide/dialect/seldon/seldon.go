// Package seldon reads Seldon Core 1's SeldonDeployment.
package seldon

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// formats are the model formats of Seldon's pre-packaged servers that
// speak the V2 protocol, by graph.implementation.
var formats = map[string]string{
	"SKLEARN_SERVER":     "sklearn",
	"XGBOOST_SERVER":     "xgboost",
	"MLFLOW_SERVER":      "mlflow",
	"HUGGINGFACE_SERVER": "huggingface",
	"TRITON_SERVER":      "triton",
	"TENSORFLOW_SERVER":  "tensorflow",
}

// huggingFace alone needs no modelUri: it fetches from the hub what its
// parameters name.
const huggingFace = "HUGGINGFACE_SERVER"

// builtin are the implementations of Seldon's orchestrator itself.
var builtin = []string{"SIMPLE_MODEL", "SIMPLE_ROUTER", "RANDOM_ABTEST", "AVERAGE_COMBINER"}

// parametersVariable is the variable in which Seldon hands a node's parameters
// to its server; MLServer's HuggingFace runtime reads it.
const parametersVariable = "PREDICTIVE_UNIT_PARAMETERS"

// readDeployment reads a SeldonDeployment whose requests one node answers: a
// pre-packaged server, which names the model's format, or a container of its
// own. Graphs of several nodes and split traffic are refused.
func readDeployment(r *manifest.Reader, m *deployment, o *manifest.Object) {
	s := r.Service(m.Metadata, o)
	s.Protocol = readProtocol(r, m.Spec.Protocol)
	s.ProtocolDefault = service.ProtocolV2
	if t := m.Spec.ServerType; t != "" && t != "rpc" {
		r.Errorf("spec.serverType", "%q is not served: requests come over HTTP and gRPC (rpc)", manifest.Clip(t))
	}
	checkAnnotations(r, "metadata.annotations", m.Metadata.Annotations)
	checkAnnotations(r, "spec.annotations", m.Spec.Annotations)
	i := livePredictor(r, m.Spec.Predictors)
	if i < 0 {
		return
	}
	path, p := strict.Index("spec.predictors", i), &m.Spec.Predictors[i]
	checkAnnotations(r, path+".annotations", p.Annotations)
	engine := readComponent(r, path, p)
	engine.Annotations = joinedMaps(m.Spec.Annotations, p.Annotations, engine.Annotations)
	s.Components.Engine = engine
	readScaling(r, path, &m.Spec, p, s)
	readUnit(r, path+".graph", &p.Graph, s)
}

// readProtocol reads the protocol. Seldon's default is its own.
func readProtocol(r *manifest.Reader, protocol string) service.Protocol {
	const at = "spec.protocol"
	switch protocol {
	case "v2", "kfserving":
		return service.ProtocolV2
	case "":
		r.Errorf(at, "is missing, which stands for Seldon's own protocol, and that is not served: write v2, and send requests to /v2/models/NAME/infer")
	case "seldon":
		r.Errorf(at, "Seldon's own is not served: write v2, and send requests to /v2/models/NAME/infer")
	case "tensorflow":
		r.Errorf(at, "tensorflow is not served from a SeldonDeployment: write v2, or an InferenceService with modelFormat tensorflow and protocolVersion v1, which takes the same requests")
	default:
		r.Errorf(at, "unknown protocol %q: write v2 (or kfserving, its older name)", manifest.Clip(protocol))
	}
	return ""
}

// checkAnnotations warns of those that steer Seldon's orchestrator.
func checkAnnotations(r *manifest.Reader, path string, in map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(in)) {
		if strings.HasPrefix(name, "seldon.io/") {
			r.Warnf(strict.Key(path, name), "has no effect: there is no service orchestrator, and the gateway's own settings hold")
		}
	}
}

// livePredictor is the index of the one predictor that answers requests, -1 with
// a problem if there is none. Of several it is the first, with a problem.
func livePredictor(r *manifest.Reader, all []predictor) int {
	live := -1
	for i := range all {
		p, at := &all[i], strict.Index("spec.predictors", i)
		if p.Traffic < 0 || p.Traffic > 100 {
			r.Errorf(at+".traffic", "%d is not a percentage", p.Traffic)
		}
		switch {
		case p.Shadow:
			r.Warnf(at, "is a shadow, whose answers nobody gets: it is not started")
		case len(all) > 1 && p.Traffic == 0:
			r.Warnf(at, "gets no traffic: it is not started")
		case live < 0:
			live = i
		default:
			r.Errorf(at+".traffic", "is split between predictors, which is not served yet: keep one predictor, or write each as a SeldonDeployment of its own")
		}
	}
	switch {
	case live < 0:
		r.Errorf("spec.predictors", "has none that answers requests: write one, not a shadow, with all traffic")
	case len(all) == 1 && all[0].Traffic > 0 && all[0].Traffic < 100:
		r.Errorf("spec.predictors[0].traffic", "%d leaves requests unanswered: write 100, or nothing", all[0].Traffic)
	}
	return live
}

// readComponent reads the pod of a predictor's one node.
func readComponent(r *manifest.Reader, path string, p *predictor) *service.Component {
	c := &service.Component{Main: p.Graph.Name, Labels: p.Labels}
	used := false
	for i := range p.ComponentSpecs {
		at, pod := strict.Index(path+".componentSpecs", i), &p.ComponentSpecs[i]
		manifest.CheckContainers(r.Report, at+".spec.containers", pod.Spec.Containers)
		if used && len(pod.Spec.Containers) > 0 {
			r.Errorf(at, "is a second pod, which is not served: a graph of one node has one")
			continue
		}
		if used {
			continue
		}
		used = len(pod.Spec.Containers) > 0
		c.Pod = pod.Spec
		if b := pod.PDB; b != nil {
			c.Budget = manifest.ReadBudget(r.Report, at+".pdbSpec", b.MinAvailable, b.MaxUnavailable)
		}
		c.Labels = joinedMaps(p.Labels, pod.Metadata.Labels)
		c.Annotations = pod.Metadata.Annotations
	}
	return c
}

// joinedMaps lays maps over one another; nil if all are empty.
func joinedMaps(in ...map[string]string) map[string]string {
	var out map[string]string
	for _, m := range in {
		if len(m) > 0 && out == nil {
			out = map[string]string{}
		}
		maps.Copy(out, m)
	}
	return out
}

// readUnit reads the node: what it serves and how.
func readUnit(r *manifest.Reader, path string, u *unit, s *service.Service) {
	engine := s.Components.Engine
	if u.Name == "" {
		r.Errorf(path+".name", "is missing: name the node, and the container if it has one")
	}
	checkShape(r, path, u)
	at := slices.IndexFunc(engine.Pod.Containers, func(c corev1.Container) bool { return c.Name == u.Name && u.Name != "" })
	if u.ModelURI != "" {
		s.Model = &service.ModelSource{URI: u.ModelURI}
		manifest.CheckURI(r.Report, path+".modelUri", u.ModelURI, false)
	}
	switch format := formats[u.Implementation]; {
	case format != "":
		if u.ModelURI == "" && u.Implementation != huggingFace {
			r.Errorf(path+".modelUri", "is missing: say where the model is")
		}
		if s.Model == nil {
			s.Model = &service.ModelSource{}
		}
		s.Model.Format.Name = format
		if u.Name != s.Name && u.Name != "" {
			r.Warnf(path+".name", "has no effect on requests: the model is asked for as %s", s.Name)
		}
	case u.Implementation != "" && u.Implementation != "UNKNOWN_IMPLEMENTATION":
		readImplementation(r, path+".implementation", u.Implementation)
	case at < 0:
		r.Errorf(path+".implementation", "is missing: name a pre-packaged server such as SKLEARN_SERVER, or describe the container %q in componentSpecs", manifest.Clip(u.Name))
	default:
		readCustom(r, path, at, s)
	}
	readEndpoint(r, path+".endpoint", u.Endpoint, s)
	if len(u.Parameters) > 0 {
		value, _ := json.Marshal(u.Parameters) // strings always encode
		engine.Pod.Containers = manifest.WithEnv(engine.Pod.Containers, u.Name, []corev1.EnvVar{{Name: parametersVariable, Value: string(value)}})
	}
}

// checkShape refuses what is not a single model.
func checkShape(r *manifest.Reader, path string, u *unit) {
	if u.Type != "" && u.Type != "MODEL" && u.Type != "UNKNOWN_TYPE" {
		r.Errorf(path+".type", "%s is not served: a graph is one MODEL", manifest.Clip(u.Type))
	}
	if len(u.Methods) > 0 {
		r.Errorf(path+".methods", "(%s) are not served: a graph is one MODEL, which predicts", manifest.Clip(strings.Join(u.Methods, ", ")))
	}
	if len(u.Children) == 0 {
		return
	}
	var names []string
	for _, c := range u.Children {
		kind := c.Type
		if kind == "" {
			kind = "MODEL"
		}
		names = append(names, c.Name+" "+kind)
	}
	r.Errorf(path+".children", "(%s) are not served: write each model as a SeldonDeployment of its own, and combine them in the client or in one custom server", manifest.Clip(strings.Join(names, ", ")))
}

// readImplementation adds the error that an implementation is not served.
func readImplementation(r *manifest.Reader, path, name string) {
	known := slices.Sorted(maps.Keys(formats))
	switch near := strict.Nearest(name, known); {
	case slices.Contains(builtin, name):
		r.Errorf(path, "%s is a part of Seldon's orchestrator and is not served: serve a model", name)
	case near != "":
		r.Errorf(path, "unknown server %q; did you mean %q?", manifest.Clip(name), near)
	default:
		r.Errorf(path, "unknown server %q: write one of %s, or leave it out and describe the container in componentSpecs", manifest.Clip(name), strings.Join(known, ", "))
	}
}

// readCustom reads a node that is a container of its own, at an index.
func readCustom(r *manifest.Reader, path string, at int, s *service.Service) {
	s.Custom = true
	for i, c := range s.Components.Engine.Pod.Containers {
		if c.Image != "" || len(c.Command) > 0 {
			continue
		}
		if i == at {
			r.Errorf(path+".implementation", "is missing, and the container %q has no image: write one of them", manifest.Clip(c.Name))
		} else {
			r.Errorf(path, "stands beside the container %q, which has no image", manifest.Clip(c.Name))
		}
	}
}

// readEndpoint reads the ports of a container of the user's own. Those of
// other servers are known.
func readEndpoint(r *manifest.Reader, path string, e *endpoint, s *service.Service) {
	if e == nil {
		return
	}
	if e.ServiceHost != "" && e.ServiceHost != "localhost" {
		r.Errorf(path+".service_host", "%q is not served: requests go to the replicas that are started", manifest.Clip(e.ServiceHost))
	}
	for _, p := range []struct {
		field, name string
		number      int32
	}{{"httpPort", "http", e.HTTPPort}, {"grpcPort", "grpc", e.GRPCPort}} {
		at := path + "." + p.field
		switch {
		case p.number == 0:
		case p.number < 0 || p.number > 65535:
			r.Errorf(at, "%d is not a port: 1 to 65535", p.number)
		case !s.Custom:
			r.Warnf(at, "has no effect: a pre-packaged server's ports are known")
		default:
			readPort(r, at, corev1.ContainerPort{Name: p.name, ContainerPort: p.number}, s.Components.Engine)
		}
	}
}

// readPort gives the serving container a port.
func readPort(r *manifest.Reader, path string, port corev1.ContainerPort, c *service.Component) {
	for i := range c.Pod.Containers {
		main := &c.Pod.Containers[i]
		if main.Name != c.Main {
			continue
		}
		same := func(q corev1.ContainerPort) bool { return q.Name == port.Name }
		have := slices.IndexFunc(main.Ports, same)
		switch {
		case have < 0:
			main.Ports = append(main.Ports, port)
		case main.Ports[have].ContainerPort != port.ContainerPort:
			r.Errorf(path, "%d is not the container's port %q, %d: keep one", port.ContainerPort, port.Name, main.Ports[have].ContainerPort)
		}
	}
}

// readScaling reads how many replicas there are: a number, or the bounds of
// an autoscaler. A number of 0 stops the service, as it does there.
func readScaling(r *manifest.Reader, path string, spec *deploymentSpec, p *predictor, s *service.Service) {
	at, count := replicaCount(r, path, spec, p)
	scaler, out := readScaler(r, path, p)
	switch {
	case count != nil && *count == 0:
		s.Stopped = true
	case count != nil && scaler != "":
		r.Warnf(at, "has no effect: %s says how many", scaler)
	case count != nil:
		out.MinReplicas, out.MaxReplicas = count, count
	}
	if d := p.ProgressDeadlineSeconds; d != nil {
		manifest.CheckPositive(r.Report, path+".progressDeadlineSeconds", d)
		timeout := time.Duration(*d) * time.Second
		out.StartupTimeout = &timeout
	}
	s.Components.Engine.Scaling = out
}

// replicaCount is the most specific number of replicas and where it stands.
func replicaCount(r *manifest.Reader, path string, spec *deploymentSpec, p *predictor) (at string, count *int) {
	note := func(in string, n *int) {
		manifest.CheckNotNegative(r.Report, in, n)
		if n != nil {
			at, count = in, n
		}
	}
	note("spec.replicas", spec.Replicas)
	note(path+".replicas", p.Replicas)
	for i := range p.ComponentSpecs {
		note(strict.Index(path+".componentSpecs", i)+".replicas", p.ComponentSpecs[i].Replicas)
	}
	return at, count
}

// readScaler reads a predictor's autoscaler; "" is none.
func readScaler(r *manifest.Reader, path string, p *predictor) (name string, out service.Scaling) {
	for i := range p.ComponentSpecs {
		pod, at := &p.ComponentSpecs[i], strict.Index(path+".componentSpecs", i)
		if pod.HPA != nil {
			name, out = "hpaSpec", readHPA(r, at+".hpaSpec", pod.HPA)
		}
		if pod.KEDA != nil {
			if pod.HPA != nil {
				r.Errorf(at+".kedaSpec", "and hpaSpec both scale the pod: keep one")
			}
			name, out = "kedaSpec", readKEDA(r, at+".kedaSpec", pod.KEDA)
		}
		if manifest.Crossed(out) {
			r.Errorf(at+"."+name, "asks for at least %d and at most %d replicas", *out.MinReplicas, *out.MaxReplicas)
		}
	}
	return name, out
}

// readHPA reads a HorizontalPodAutoscaler's bounds and the one metric of it
// that is scaled on.
func readHPA(r *manifest.Reader, path string, h *hpa) service.Scaling {
	out := service.Scaling{MinReplicas: h.MinReplicas, MaxReplicas: h.MaxReplicas}
	manifest.CheckNotNegative(r.Report, path+".minReplicas", h.MinReplicas)
	if h.MaxReplicas == nil {
		r.Errorf(path+".maxReplicas", "is missing: say how many replicas there may be")
	} else {
		manifest.CheckPositive(r.Report, path+".maxReplicas", h.MaxReplicas)
	}
	readMetrics(r, path+".metrics", h.Metrics, &out)
	readMetrics(r, path+".metricsv2", h.MetricsV2, &out)
	return out
}

func readMetrics(r *manifest.Reader, path string, in []metric, out *service.Scaling) {
	for i, m := range in {
		at := strict.Index(path, i)
		target := m.target()
		switch {
		case target == nil:
			r.Warnf(at, "has no effect: of metrics the average utilization of cpu or memory is scaled on")
		case out.ScaleTarget != nil:
			r.Warnf(at, "has no effect: one metric is scaled on, and one is stated before it")
		default:
			manifest.CheckPositive(r.Report, at+".resource", target)
			f := float64(*target)
			out.ScaleTarget, out.ScaleMetric = &f, service.ScaleMetric(m.Resource.Name)
		}
	}
}

// target is a metric's average utilization in percent, nil if it is of
// another kind.
func (m *metric) target() *int {
	if m.Resource == nil || m.Resource.Name != string(service.MetricCPU) && m.Resource.Name != string(service.MetricMemory) {
		return nil
	}
	if t := m.Resource.Target; t != nil {
		return t.AverageUtilization
	}
	return m.Resource.TargetAverageUtilization
}

// readKEDA reads a ScaledObject's bounds, which are 0 and 100 unless it says
// otherwise. An idle count of 0 lets the service sleep, which a least count of
// 0 does here.
func readKEDA(r *manifest.Reader, path string, k *keda) service.Scaling {
	least, most := 0, 100
	out := service.Scaling{MinReplicas: &least, MaxReplicas: &most}
	manifest.CheckNotNegative(r.Report, path+".minReplicaCount", k.MinReplicaCount)
	if k.MinReplicaCount != nil {
		out.MinReplicas = k.MinReplicaCount
	}
	if k.MaxReplicaCount != nil {
		manifest.CheckPositive(r.Report, path+".maxReplicaCount", k.MaxReplicaCount)
		out.MaxReplicas = k.MaxReplicaCount
	}
	if k.IdleReplicaCount != nil {
		if *k.IdleReplicaCount != 0 {
			r.Errorf(path+".idleReplicaCount", "%d is not 0, the only count a service idles at", *k.IdleReplicaCount)
		}
		out.MinReplicas = k.IdleReplicaCount
	}
	if k.CooldownPeriod != nil {
		manifest.CheckPositive(r.Report, path+".cooldownPeriod", k.CooldownPeriod)
		after := time.Duration(*k.CooldownPeriod) * time.Second
		out.ScaleToZeroAfter = &after
	}
	return out
}

// Schemas are the kinds of this dialect. SeldonDeployment's versions differ in
// name alone.
var Schemas = []manifest.Schema{
	manifest.SchemaOf("machinelearning.seldon.io/v1", "SeldonDeployment", readDeployment),
	manifest.SchemaOf("machinelearning.seldon.io/v1alpha3", "SeldonDeployment", readDeployment),
	manifest.SchemaOf("machinelearning.seldon.io/v1alpha2", "SeldonDeployment", readDeployment),
}
