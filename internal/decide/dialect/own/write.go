package own

import (
	"reflect"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// Write is a service in our own kind. What a service of another kind has and ours
// lacks is left out: who needs all of it reads the result and compares.
func Write(s *service.Service) *api.ModelService {
	out := &api.ModelService{TypeMeta: metav1.TypeMeta{APIVersion: api.APIVersion, Kind: api.KindModelService}}
	out.Metadata = metav1.ObjectMeta{Name: s.Name, Labels: s.Labels, Annotations: s.Annotations}
	if s.Namespace != service.DefaultNamespace {
		out.Metadata.Namespace = s.Namespace
	}
	spec := &out.Spec
	spec.RuntimeVersion, spec.Stopped, spec.CanaryTrafficPercent = s.RuntimeVersion, s.Stopped, s.CanaryPercent
	spec.Disaggregation = string(s.Disaggregation)
	spec.Protocol = string(s.Protocol)
	if s.Runtime != nil {
		spec.Runtime = &api.ObjectRef{Name: s.Runtime.Name, Kind: s.Runtime.Kind}
	}
	if s.Model != nil {
		spec.Model = writeModel(s.Model)
	}
	if r := s.Residency; r != (service.Residency{}) {
		spec.Residency = &api.Residency{Pin: r.Pin, Priority: r.Priority, GPUPercent: r.GPUPercent, ShareGPU: r.ShareGPU, Preload: r.Preload, Group: r.Group, Exclusive: r.Exclusive, OneOf: r.OneOf}
		spec.Residency.GPUMemory = writeBytes(r.GPUMemory)
	}
	if k := s.KVCache; k != nil {
		spec.KVCache = &api.KVCache{Connector: k.Connector, Remote: k.Remote, Memory: writeBytes(k.Memory)}
	}
	if e := s.Components.Engine; e != nil {
		spec.Scaling = writeScaling(e.Scaling)
		bare := *e
		bare.Scaling = service.Scaling{}
		spec.Engine = writeComponent(&bare)
	}
	spec.Decoder, spec.Router = writeComponent(s.Components.Decoder), writeComponent(s.Components.Router)
	return out
}

func writeModel(m *service.ModelSource) *api.Model {
	out := &api.Model{URI: m.URI, Architecture: m.Architecture, Quantization: m.Quantization,
		Format: writeVersion(m.Format), Framework: writeVersion(m.Framework)}
	if m.Parameters > 0 {
		out.Parameters = strconv.FormatInt(m.Parameters, 10)
	}
	if m.Ref != nil {
		out.Ref = &api.ObjectRef{Name: m.Ref.Name, Kind: m.Ref.Kind}
	}
	for _, a := range m.Adapters {
		adapter := api.Adapter{Name: a.Name, URI: a.URI}
		if a.Rank > 0 {
			adapter.Rank = &a.Rank
		}
		out.Adapters = append(out.Adapters, adapter)
	}
	return out
}

func writeVersion(v service.NamedVersion) *api.NamedVersion {
	if v == (service.NamedVersion{}) {
		return nil
	}
	return &api.NamedVersion{Name: v.Name, Version: v.Version}
}

func writeBytes(n int64) *resource.Quantity {
	if n == 0 {
		return nil
	}
	return resource.NewQuantity(n, resource.BinarySI)
}

func writeSpan(d *time.Duration) *metav1.Duration {
	if d == nil {
		return nil
	}
	return &metav1.Duration{Duration: *d}
}

func writeExternal(e *service.ExternalMetric) *api.External {
	if e == nil {
		return nil
	}
	return &api.External{URL: e.URL, Query: e.Query}
}

// writeScaling is nil for a scaling that states nothing.
func writeScaling(s service.Scaling) *api.Scaling {
	if reflect.ValueOf(s).IsZero() {
		return nil
	}
	out := api.Scaling{
		MinReplicas: s.MinReplicas, MaxReplicas: s.MaxReplicas, ScaleTarget: s.ScaleTarget, ScaleMetric: string(s.ScaleMetric),
		External: writeExternal(s.External), MaxConcurrency: s.MaxConcurrency,
		ScaleToZeroAfter: writeSpan(s.ScaleToZeroAfter), StartupTimeout: writeSpan(s.StartupTimeout), AnswerTimeout: writeSpan(s.AnswerTimeout),
		Standby: string(s.Standby), StandbyFor: writeSpan(s.StandbyFor), Prewarm: string(s.Prewarm), Preset: string(s.Preset),
	}
	for _, m := range s.Metrics {
		out.Metrics = append(out.Metrics, api.ScaleMetric{Metric: string(m.Metric), Target: &m.Target, External: writeExternal(m.External)})
	}
	if s.Ratio != nil {
		out.Ratio = &api.Ratio{Component: string(s.Ratio.Component), Replicas: s.Ratio.Replicas}
	}
	if q := s.Queue; q != nil {
		out.Queue = &api.Queue{MaxBytes: writeBytes(q.MaxBytes), Fairness: string(q.Fairness)}
		if q.MaxRequests > 0 {
			out.Queue.MaxRequests = &q.MaxRequests
		}
		if q.MaxWait > 0 {
			out.Queue.MaxWait = writeSpan(&q.MaxWait)
		}
	}
	for _, w := range s.Schedule {
		out.Schedule = append(out.Schedule, api.ScheduleWindow(w))
	}
	if k := s.Knative; k != nil {
		out.Knative = &api.Knative{TargetUtilizationPercentage: k.TargetUtilization, Window: writeSpan(k.Window), PanicWindowPercentage: k.PanicWindow,
			PanicThresholdPercentage: k.PanicThreshold, ScaleDownDelay: writeSpan(k.ScaleDownDelay), ScaleToZeroPodRetentionPeriod: writeSpan(k.Retention),
			InitialScale: k.InitialScale, ActivationScale: k.ActivationScale, TargetBurstCapacity: k.BurstCapacity}
	}
	return &out
}

// writeComponent is nil for a component that states nothing.
func writeComponent(c *service.Component) *api.Component {
	if c == nil {
		return nil
	}
	out := &api.Component{PodSpec: *c.Pod.DeepCopy(), Labels: c.Labels, Annotations: c.Annotations, Config: c.Config, Scaling: writeScaling(c.Scaling)}
	for i := range out.Containers {
		if out.Containers[i].Name == c.Main {
			out.Containers[i].Name = mainContainer
		}
	}
	out.Leader, out.Worker = writeNode(c.Leader), writeNode(c.Worker)
	if c.Metrics != (service.Metrics{}) {
		out.Metrics = &api.Metrics{Path: c.Metrics.Path}
		if c.Metrics.Port > 0 {
			out.Metrics.Port = &c.Metrics.Port
		}
	}
	if l := c.Local; l != nil {
		out.Local = &api.Local{Command: l.Command, Env: l.Env, WorkingDir: l.WorkingDir, Install: l.Install, ReadinessProbe: l.ReadinessProbe, LivenessProbe: l.LivenessProbe}
	}
	if len(out.Containers) == 1 && onlyShort(out.Containers[0]) {
		main := out.Containers[0]
		out.Image, out.Command, out.Args, out.Env = main.Image, main.Command, main.Args, main.Env
		if len(main.Resources.Limits)+len(main.Resources.Requests) > 0 {
			out.Resources = &main.Resources
		}
		out.Containers = nil
	}
	return out
}

// onlyShort reports whether a container is the serving one and states something, all
// of which the short form has.
func onlyShort(c corev1.Container) bool {
	short := corev1.Container{Name: mainContainer, Image: c.Image, Command: c.Command, Args: c.Args, Env: c.Env, Resources: c.Resources}
	return reflect.DeepEqual(c, short) && !reflect.DeepEqual(c, corev1.Container{Name: mainContainer})
}

func writeNode(n *service.Node) *api.Node {
	if n == nil {
		return nil
	}
	out := &api.Node{PodSpec: *n.Pod.DeepCopy()}
	for i := range out.Containers {
		if out.Containers[i].Name == n.Main {
			out.Containers[i].Name = mainContainer
		}
	}
	if n.Size > 0 {
		out.Size = &n.Size
	}
	return out
}
