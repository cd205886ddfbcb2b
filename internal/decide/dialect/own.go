package dialect

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// ownMain is the serving container of a component of ours that names none. In
// a service it stands for the runtime's, whatever that is called.
const ownMain = "main"

func readModelService(r *reading, m *api.ModelService, o *Object) {
	s := r.service(m.Metadata, o)
	spec := &m.Spec
	s.Runtime = r.ref("spec.runtime", spec.Runtime)
	s.RuntimeVersion = spec.RuntimeVersion
	s.Protocol = r.protocol("spec.protocol", spec.Protocol)
	s.Stopped = spec.Stopped
	s.CanaryPercent = r.canary("spec", spec.CanaryTrafficPercent)
	s.Disaggregation = r.disaggregation("spec.disaggregation", spec.Disaggregation)
	if spec.Model != nil {
		s.Model = r.ownModel(spec.Model, s.Name)
	}
	engine := r.ownComponent("spec.engine", spec.Engine)
	if engine == nil {
		engine = &service.Component{}
	}
	apart, all := engine.Scaling, r.ownScaling("spec.scaling", spec.Scaling)
	engine.Scaling = apart.Over(all)
	r.together("spec.engine.scaling", engine.Scaling, apart, all)
	s.Components.Engine = engine
	s.Components.Decoder = r.ownComponent("spec.decoder", spec.Decoder)
	s.Components.Router = r.ownComponent("spec.router", spec.Router)
	for _, role := range service.Roles {
		r.manyMachines("spec."+string(role), s.Components.Get(role))
	}
	if s.Model != nil {
		r.uri("spec.model.uri", s.Model.URI, s.Runtime != nil)
	}
	if s.Model == nil {
		switch {
		case s.Runtime != nil:
			// A runtime asked for by name may bring its model along.
		case complete(engine):
			s.Custom = true
		default:
			r.errorf("spec.model", "is missing: say what to serve, as model.uri or model.ref, or give engine.containers an image or engine.local a command")
		}
	}
}

// complete says whether a component can run without a runtime.
func complete(c *service.Component) bool {
	if c.Local != nil && len(c.Local.Command) > 0 {
		return true
	}
	for _, ctr := range c.Pod.Containers {
		if ctr.Image != "" || len(ctr.Command) > 0 {
			return true
		}
	}
	return false
}

func (r *reading) ref(path string, in *api.ObjectRef) *service.ObjectRef {
	if in == nil {
		return nil
	}
	r.name(path+".name", in.Name, true)
	return &service.ObjectRef{Name: in.Name, Kind: in.Kind}
}

// refKind checks a reference's kind.
func (r *reading) refKind(path, kind string, kinds ...string) {
	if kind != "" && !slices.Contains(kinds, kind) {
		r.errorf(path, "unknown kind %q: write %s, or nothing for whichever there is", clip(kind), strings.Join(kinds, " or "))
	}
}

func (r *reading) ownModel(m *api.Model, name string) *service.ModelSource {
	const at = "spec.model"
	out := &service.ModelSource{
		Ref: r.ref(at+".ref", m.Ref),
		URI: m.URI,
		Attributes: service.Attributes{
			Architecture: m.Architecture,
			Quantization: m.Quantization,
			Parameters:   r.size(at+".parameters", m.Parameters),
		},
	}
	if m.Ref != nil {
		r.refKind(at+".ref.kind", m.Ref.Kind, "BaseModel", "ClusterBaseModel")
	}
	if m.Format != nil {
		out.Format = service.NamedVersion{Name: m.Format.Name, Version: m.Format.Version}
	}
	if m.Framework != nil {
		out.Framework = service.NamedVersion{Name: m.Framework.Name, Version: m.Framework.Version}
	}
	out.Adapters = r.ownAdapters(at+".adapters", name, m.Adapters)
	switch {
	case m.URI != "" && m.Ref != nil:
		r.errorf(at+".ref", "and model.uri both say where the model is: remove one")
	case m.URI == "" && m.Ref == nil && out.Format.Name == "":
		r.errorf(at+".uri", "is missing: say where the model is, or name a model in model.ref")
	}
	return out
}

func (r *reading) ownScaling(path string, s *api.Scaling) service.Scaling {
	if s == nil {
		return service.Scaling{}
	}
	out := service.Scaling{
		MinReplicas: s.MinReplicas, MaxReplicas: s.MaxReplicas,
		ScaleTarget: s.ScaleTarget, ScaleMetric: service.ScaleMetric(s.ScaleMetric),
		MaxConcurrency:   s.MaxConcurrency,
		ScaleToZeroAfter: span(s.ScaleToZeroAfter), StartupTimeout: span(s.StartupTimeout),
	}
	r.notNegative(path+".maxConcurrency", s.MaxConcurrency)
	r.duration(path+".scaleToZeroAfter", s.ScaleToZeroAfter)
	r.duration(path+".startupTimeout", s.StartupTimeout)
	r.scaling(path, out)
	if s.TargetConcurrency != nil {
		switch {
		case s.ScaleTarget != nil || s.ScaleMetric != "" && out.ScaleMetric != service.MetricConcurrency:
			r.errorf(path+".targetConcurrency", "and scaleTarget or scaleMetric both say what to scale on: remove one")
		case *s.TargetConcurrency <= 0:
			r.errorf(path+".targetConcurrency", "%v is not more than 0", *s.TargetConcurrency)
		}
		out.ScaleTarget, out.ScaleMetric = s.TargetConcurrency, service.MetricConcurrency
	}
	return out
}

func span(d *metav1.Duration) *time.Duration {
	if d == nil {
		return nil
	}
	return &d.Duration
}

// ownComponent reads a component of ours; nil when absent.
func (r *reading) ownComponent(path string, c *api.Component) *service.Component {
	if c == nil {
		return nil
	}
	out := &service.Component{
		Pod: c.PodSpec, Labels: c.Labels, Annotations: c.Annotations, Config: c.Config,
		Scaling: r.ownScaling(path+".scaling", c.Scaling),
		Leader:  r.ownNode(path+".leader", c.Leader),
		Worker:  r.ownNode(path+".worker", c.Worker),
		Metrics: r.metrics(path+".metrics", c.Metrics),
		Local:   r.ownLocal(path+".local", c.Local),
	}
	out.Pod.Resources = nil // the pod's own are hidden by the container's here
	r.containers(path+".containers", c.Containers)
	short := corev1.Container{Image: c.Image, Command: c.Command, Args: c.Args, Env: c.Env}
	if c.Resources != nil {
		short.Resources = *c.Resources
	}
	stated := c.Image != "" || len(c.Command)+len(c.Args)+len(c.Env) > 0 || c.Resources != nil
	switch {
	case stated && len(c.Containers) > 0:
		r.errorf(path+".containers", "and the short form (image, command, args, env, resources) both describe the serving container: write one of them")
	case stated:
		r.container(path, short)
		short.Name = ownMain
		out.Pod.Containers = []corev1.Container{short}
	}
	out.Main = mainOf(out.Pod.Containers, ownMain)
	return out
}

// mainOf names the serving container: the one called as the dialect calls it,
// else the first, which takes that name if it has none. "" without containers.
func mainOf(cs []corev1.Container, want string) string {
	if len(cs) == 0 {
		return ""
	}
	for _, c := range cs {
		if c.Name == want {
			return want
		}
	}
	if cs[0].Name == "" {
		cs[0].Name = want
	}
	return cs[0].Name
}

func (r *reading) ownNode(path string, n *api.Node) *service.Node {
	if n == nil {
		return nil
	}
	r.containers(path+".containers", n.Containers)
	r.positive(path+".size", n.Size)
	return node(n.PodSpec, mainOf(n.Containers, ownMain), n.Size)
}

func node(pod corev1.PodSpec, main string, size *int) *service.Node {
	out := &service.Node{Pod: pod, Main: main}
	if size != nil {
		out.Size = *size
	}
	return out
}

func (r *reading) ownLocal(path string, l *api.Local) *service.Local {
	if l == nil {
		return nil
	}
	if len(l.Command) == 0 || l.Command[0] == "" {
		r.errorf(path+".command", "is missing: name the program to run and its arguments")
	}
	out := &service.Local{Command: l.Command, Env: l.Env, WorkingDir: l.WorkingDir, Install: l.Install,
		ReadinessProbe: l.ReadinessProbe, LivenessProbe: l.LivenessProbe, Requires: r.requirements(path+".requires", l.Requires)}
	if f := l.Fallback; f != nil {
		if len(f.Command) == 0 || f.Command[0] == "" {
			r.errorf(path+".fallback.command", "is missing: name the program to run and its arguments")
		}
		out.Fallback = &service.Local{Command: f.Command, Env: f.Env, WorkingDir: l.WorkingDir, Install: f.Install,
			ReadinessProbe: l.ReadinessProbe, LivenessProbe: l.LivenessProbe, Requires: r.requirements(path+".fallback.requires", f.Requires)}
	}
	return out
}

// maxRequirements bounds what one command requires.
const maxRequirements = 32

func (r *reading) requirements(path string, list []api.Requirement) (out []service.Requirement) {
	if len(list) > maxRequirements {
		r.errorf(path, "has %d entries, at most %d are read: put modules of one interpreter into one", len(list), maxRequirements)
		return nil
	}
	for i, q := range list {
		if (len(q.Python) == 0) == (len(q.Command) == 0) {
			r.errorf(fmt.Sprintf("%s[%d]", path, i), "must have either python or command")
		}
		out = append(out, service.Requirement(q))
	}
	return out
}

// readOwnRuntime reads a runtime of ours.
func readOwnRuntime(r *reading, spec *api.ServingRuntimeSpec, out *service.Runtime) {
	out.Disabled, out.MultiModel = spec.Disabled, spec.MultiModel
	out.Protocols = r.protocols("spec.protocolVersions", spec.ProtocolVersions)
	out.AcceleratorClasses = spec.AcceleratorClasses
	out.Disaggregation = r.disaggregation("spec.disaggregation", spec.Disaggregation)
	out.Adapters = r.ownAdapterArgs("spec.adapters", spec.Adapters)
	out.StorageHelperDisabled = spec.StorageHelper != nil && spec.StorageHelper.Disabled
	if spec.ModelSizeRange != nil {
		out.Size = r.sizeRange("spec.modelSizeRange", spec.ModelSizeRange.Min, spec.ModelSizeRange.Max)
	}
	for i, f := range spec.SupportedModelFormats {
		out.Formats = append(out.Formats, r.ownFormat(strict.Index("spec.supportedModelFormats", i), f))
	}
	out.Components = service.Components{
		Engine:  r.ownComponent("spec.engine", spec.Engine),
		Decoder: r.ownComponent("spec.decoder", spec.Decoder),
		Router:  r.ownComponent("spec.router", spec.Router),
	}
	if spec.Local != nil {
		if spec.Engine != nil && spec.Engine.Local != nil {
			r.errorf("spec.local", "and engine.local both say how the engine runs: remove one")
		}
		if out.Components.Engine == nil {
			out.Components.Engine = &service.Component{}
		}
		out.Components.Engine.Local = r.ownLocal("spec.local", spec.Local)
	}
	if e := out.Components.Engine; e == nil || !complete(e) && e.Leader == nil {
		r.errorf("spec.engine", "is missing what to run: give engine.containers an image, or local a command")
	}
	out.MultiNode = spec.MultiNode || multiNode(out.Components)
}

// multiNode says whether any component spans nodes.
func multiNode(cs service.Components) bool {
	for _, role := range service.Roles {
		if c := cs.Get(role); c != nil && (c.Leader != nil || c.Worker != nil) {
			return true
		}
	}
	return false
}

func (r *reading) ownFormat(path string, f api.SupportedFormat) service.SupportedFormat {
	out := service.SupportedFormat{
		Format:       service.NamedVersion{Name: f.Name, Version: f.Version},
		Architecture: f.ModelArchitecture, Quantization: f.Quantization,
		AutoSelect: f.AutoSelect, Priority: priority(r, path, f.Priority),
	}
	if mf := f.ModelFormat; mf != nil {
		if f.Name != "" && !strings.EqualFold(f.Name, mf.Name) || f.Version != "" && f.Version != mf.Version {
			r.errorf(path+".name", "%q disagrees with modelFormat %q: keep modelFormat", f.Name, mf.Name)
		}
		out.Format = service.NamedVersion{Name: mf.Name, Version: mf.Version}
		out.FormatOperator = r.operator(path+".modelFormat.operator", mf.Operator)
	}
	if fw := f.ModelFramework; fw != nil {
		out.Framework = service.NamedVersion{Name: fw.Name, Version: fw.Version}
		out.FrameworkOperator = r.operator(path+".modelFramework.operator", fw.Operator)
	}
	if out.Format.Name == "" {
		r.errorf(path+".name", "is missing: name the model format")
	}
	return out
}
