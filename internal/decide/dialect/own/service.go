// Package own reads Roundhouse's own kinds.
package own

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// mainContainer is the serving container of a component of ours that names none. In
// a service it stands for the runtime's, whatever that is called.
const mainContainer = "main"

func readService(r *manifest.Reader, m *api.ModelService, o *manifest.Object) {
	s := r.Service(m.Metadata, o)
	spec := &m.Spec
	s.Runtime = readRef(r, "spec.runtime", spec.Runtime)
	s.RuntimeVersion = spec.RuntimeVersion
	s.Protocol = manifest.ReadProtocol(r.Report, "spec.protocol", spec.Protocol)
	s.Stopped = s.Stopped || spec.Stopped
	readResidency(r, spec.Residency, &s.Residency)
	s.KVCache = readKVCache(r, spec)
	s.CanaryPercent = manifest.CheckCanary(r.Report, "spec", spec.CanaryTrafficPercent)
	s.Disaggregation = manifest.ReadDisaggregation(r.Report, "spec.disaggregation", spec.Disaggregation)
	if spec.Model != nil {
		s.Model = readModel(r, spec.Model, s.Name)
	}
	engine := readComponent(r, "spec.engine", spec.Engine)
	if engine == nil {
		engine = &service.Component{}
	}
	apart, all := engine.Scaling, readScaling(r, "spec.scaling", spec.Scaling)
	engine.Scaling = apart.Over(all)
	manifest.CheckTogether(r.Report, "spec.engine.scaling", engine.Scaling, apart, all)
	manifest.CheckPresetTogether(r.Report, "spec.engine.scaling", engine.Scaling, apart, all)
	s.Components.Engine = engine
	s.Components.Decoder = readComponent(r, "spec.decoder", spec.Decoder)
	s.Components.Router = readComponent(r, "spec.router", spec.Router)
	for _, role := range service.Roles {
		manifest.WarnManyMachines(r.Report, "spec."+string(role), s.Components.Get(role))
	}
	if s.Model != nil {
		manifest.CheckURI(r.Report, "spec.model.uri", s.Model.URI, s.Runtime != nil)
	}
	if s.Model == nil {
		switch {
		case s.Runtime != nil:
			// A runtime asked for by name may bring its model along.
		case manifest.Complete(engine):
			s.Custom = true
		default:
			r.Errorf("spec.model", "is missing: say what to serve, as model.uri or model.ref, or give engine.containers an image or engine.local a command")
		}
	}
}

// readResidency reads spec.residency over what annotations state.
func readResidency(r *manifest.Reader, in *api.Residency, out *service.Residency) {
	if in == nil {
		return
	}
	*out = service.Residency{Pin: in.Pin, Priority: in.Priority, GPUPercent: in.GPUPercent, ShareGPU: in.ShareGPU, Preload: in.Preload, Group: in.Group, Exclusive: in.Exclusive, OneOf: in.OneOf}
	if q := in.GPUMemory; q != nil {
		if out.GPUMemory = q.Value(); out.GPUMemory <= 0 {
			r.Errorf("spec.residency.gpuMemory", "%s is not more than 0: write the memory that a replica takes of a GPU, such as 8Gi", q)
		}
	}
	manifest.CheckResidency(r.Report, func(field string) string { return "spec.residency." + field }, *out)
	manifest.WarnResidency(r.Report, "spec.residency")
}

// readKVCache reads spec.kvCache, and reports what the engine's own arguments and
// variables say of the same.
func readKVCache(r *manifest.Reader, spec *api.ModelServiceSpec) *service.KVCache {
	const at = "spec.kvCache"
	in := spec.KVCache
	if in == nil {
		return nil
	}
	out := &service.KVCache{Connector: in.Connector, Remote: in.Remote}
	if in.Memory != nil {
		if out.Memory = in.Memory.Value(); out.Memory < 1<<30 {
			r.Errorf(at+".memory", "%s is less than 1Gi: write the memory that a replica may take, such as 20Gi", in.Memory)
		}
	}
	switch {
	case !slices.Contains(service.Connectors, in.Connector):
		r.Errorf(at+".connector", "%q is none: write %s", manifest.Clip(in.Connector), strings.Join(service.Connectors, " or "))
	case in.Connector == service.ConnectorLMCache && in.Remote != "":
		if scheme, rest, ok := strings.Cut(in.Remote, "://"); !ok || scheme == "" || rest == "" || strings.ContainsAny(in.Remote, " \n") {
			r.Errorf(at+".remote", "%q is no URL of a store: write one such as redis://HOST:PORT or lm://HOST:PORT", service.RedactURI(in.Remote))
		}
	case in.Connector == service.ConnectorHiCache && strings.Trim(in.Remote, "abcdefghijklmnopqrstuvwxyz0123456789_-") != "":
		r.Errorf(at+".remote", "%q is no name of a storage backend of SGLang's: write one such as mooncake, hf3fs, nixl or file", service.RedactURI(in.Remote))
	}
	checkKVCache(r, in.Connector, "spec.engine", spec.Engine)
	checkKVCache(r, in.Connector, "spec.decoder", spec.Decoder)
	return out
}

// checkKVCache reports the arguments and variables of a component that say what
// spec.kvCache does.
func checkKVCache(r *manifest.Reader, connector, at string, c *api.Component) {
	if c == nil {
		return
	}
	const both = "%s and spec.kvCache both say where prompts are kept: remove one"
	words := func(path string, list []string) {
		for n, w := range list {
			if flag := workload.KVCacheFlag(w); flag != "" {
				r.Errorf(fmt.Sprintf("%s[%d]", path, n), both, flag)
			}
		}
	}
	for i := range c.Containers {
		path := fmt.Sprintf("%s.containers[%d]", at, i)
		words(path+".command", c.Containers[i].Command)
		words(path+".args", c.Containers[i].Args)
		for n, e := range c.Containers[i].Env {
			if workload.KVCacheVariable(connector, e.Name) {
				r.Errorf(fmt.Sprintf("%s.env[%d]", path, n), both, e.Name)
			}
		}
	}
	if c.Local != nil {
		words(at+".local.command", c.Local.Command)
	}
}

func readRef(r *manifest.Reader, path string, in *api.ObjectRef) *service.ObjectRef {
	if in == nil {
		return nil
	}
	manifest.CheckName(r.Report, path+".name", in.Name, true)
	return &service.ObjectRef{Name: in.Name, Kind: in.Kind}
}

func readModel(r *manifest.Reader, m *api.Model, name string) *service.ModelSource {
	const at = "spec.model"
	out := &service.ModelSource{
		Ref: readRef(r, at+".ref", m.Ref),
		URI: m.URI,
		Attributes: service.Attributes{
			Architecture: m.Architecture,
			Quantization: m.Quantization,
			Parameters:   manifest.ReadSize(r.Report, at+".parameters", m.Parameters),
		},
	}
	if m.Ref != nil {
		manifest.CheckRefKind(r.Report, at+".ref.kind", m.Ref.Kind, "BaseModel", "ClusterBaseModel")
	}
	if m.Format != nil {
		out.Format = service.NamedVersion{Name: m.Format.Name, Version: m.Format.Version}
	}
	if m.Framework != nil {
		out.Framework = service.NamedVersion{Name: m.Framework.Name, Version: m.Framework.Version}
	}
	out.Adapters = readAdapters(r, at+".adapters", name, m.Adapters)
	switch {
	case m.URI != "" && m.Ref != nil:
		r.Errorf(at+".ref", "and model.uri both say where the model is: remove one")
	case m.URI == "" && m.Ref == nil && out.Format.Name == "":
		r.Errorf(at+".uri", "is missing: say where the model is, or name a model in model.ref")
	}
	return out
}

func readKnative(k *api.Knative) *service.Knative {
	if k == nil {
		return nil
	}
	return &service.Knative{TargetUtilization: k.TargetUtilizationPercentage, Window: span(k.Window), PanicWindow: k.PanicWindowPercentage,
		PanicThreshold: k.PanicThresholdPercentage, ScaleDownDelay: span(k.ScaleDownDelay), Retention: span(k.ScaleToZeroPodRetentionPeriod),
		InitialScale: k.InitialScale, ActivationScale: k.ActivationScale, BurstCapacity: k.TargetBurstCapacity}
}

func readScaling(r *manifest.Reader, path string, s *api.Scaling) service.Scaling {
	if s == nil {
		return service.Scaling{}
	}
	out := service.Scaling{
		MinReplicas: s.MinReplicas, MaxReplicas: s.MaxReplicas,
		ScaleTarget: s.ScaleTarget, ScaleMetric: service.ScaleMetric(s.ScaleMetric), External: readExternal(s.External),
		Metrics:          readScaleMetrics(s.Metrics),
		MaxConcurrency:   s.MaxConcurrency,
		ScaleToZeroAfter: span(s.ScaleToZeroAfter), StartupTimeout: span(s.StartupTimeout),
		AnswerTimeout: span(s.AnswerTimeout), Queue: manifest.ReadQueue(r.Report, path+".queue", s.Queue), Prewarm: service.Prewarm(s.Prewarm),
		Preset: service.Preset(s.Preset), Knative: readKnative(s.Knative),
		Standby: service.StandbyPolicy(s.Standby), StandbyFor: span(s.StandbyFor),
	}
	if _, _, ok := service.ParseStandby(s.Standby); !ok {
		r.Errorf(path+".standby", "%q is none of auto, never, suspend, level1, level2, … level9", s.Standby)
	}
	manifest.CheckDuration(r.Report, path+".standbyFor", s.StandbyFor)
	for _, w := range s.Schedule {
		out.Schedule = append(out.Schedule, service.ScheduleWindow(w))
	}
	if s.Ratio != nil {
		out.Ratio = &service.Ratio{Component: service.Role(s.Ratio.Component), Replicas: s.Ratio.Replicas}
	}
	manifest.CheckNotNegative(r.Report, path+".maxConcurrency", s.MaxConcurrency)
	manifest.CheckDuration(r.Report, path+".scaleToZeroAfter", s.ScaleToZeroAfter)
	manifest.CheckDuration(r.Report, path+".startupTimeout", s.StartupTimeout)
	manifest.CheckDuration(r.Report, path+".answerTimeout", s.AnswerTimeout)
	manifest.CheckScaling(r.Report, path, out)
	if s.TargetConcurrency != nil {
		switch {
		case s.ScaleTarget != nil || s.ScaleMetric != "" && out.ScaleMetric != service.MetricConcurrency:
			r.Errorf(path+".targetConcurrency", "and scaleTarget or scaleMetric both say what to scale on: remove one")
		case *s.TargetConcurrency <= 0:
			r.Errorf(path+".targetConcurrency", "%v is not more than 0", *s.TargetConcurrency)
		}
		out.ScaleTarget, out.ScaleMetric = s.TargetConcurrency, service.MetricConcurrency
	}
	return out
}

func readExternal(e *api.External) *service.ExternalMetric {
	if e == nil {
		return nil
	}
	return &service.ExternalMetric{URL: e.URL, Query: e.Query}
}

func readScaleMetrics(in []api.ScaleMetric) (out []service.MetricTarget) {
	for _, m := range in {
		t := service.MetricTarget{Metric: service.ScaleMetric(m.Metric), External: readExternal(m.External)}
		if t.Target = t.Metric.DefaultTarget(); m.Target != nil {
			t.Target = *m.Target
		}
		out = append(out, t)
	}
	return out
}

func span(d *metav1.Duration) *time.Duration {
	if d == nil {
		return nil
	}
	return &d.Duration
}

// readComponent reads a component of ours; nil when absent.
func readComponent(r *manifest.Reader, path string, c *api.Component) *service.Component {
	if c == nil {
		return nil
	}
	out := &service.Component{
		Pod: c.PodSpec, Labels: c.Labels, Annotations: c.Annotations, Config: c.Config,
		Scaling: readScaling(r, path+".scaling", c.Scaling),
		Leader:  readNode(r, path+".leader", c.Leader),
		Worker:  readNode(r, path+".worker", c.Worker),
		Metrics: readMetrics(r, path+".metrics", c.Metrics),
		Local:   readLocal(r, path+".local", c.Local),
	}
	if l := out.Local; l != nil && out.Metrics.Port > 0 && !tellsMetricsPort(l) {
		r.OneMachine(path+".metrics.port", true, "has no effect on one machine: each replica has a port of its own there, so write {{.MetricsPort}} in local.command where the engine takes the port of its metrics")
	}
	out.Pod.Resources = nil // the pod's own are hidden by the container's here
	manifest.CheckContainers(r.Report, path+".containers", c.Containers)
	short := corev1.Container{Image: c.Image, Command: c.Command, Args: c.Args, Env: c.Env}
	if c.Resources != nil {
		short.Resources = *c.Resources
	}
	stated := c.Image != "" || len(c.Command)+len(c.Args)+len(c.Env) > 0 || c.Resources != nil
	switch {
	case stated && len(c.Containers) > 0:
		r.Errorf(path+".containers", "and the short form (image, command, args, env, resources) both describe the serving container: write one of them")
	case stated:
		manifest.CheckContainer(r.Report, path, short)
		short.Name = mainContainer
		out.Pod.Containers = []corev1.Container{short}
	}
	out.Main = manifest.MainOf(out.Pod.Containers, mainContainer)
	return out
}

// tellsMetricsPort reports whether a command, or a variable of its environment,
// contains the port of the metrics.
func tellsMetricsPort(l *service.Local) bool {
	has := func(text string) bool { return strings.Contains(text, "MetricsPort") }
	return slices.ContainsFunc(l.Command, has) || slices.ContainsFunc(l.Env, func(e corev1.EnvVar) bool { return has(e.Value) })
}

func readNode(r *manifest.Reader, path string, n *api.Node) *service.Node {
	if n == nil {
		return nil
	}
	manifest.CheckContainers(r.Report, path+".containers", n.Containers)
	manifest.CheckPositive(r.Report, path+".size", n.Size)
	return manifest.NodeOf(n.PodSpec, manifest.MainOf(n.Containers, mainContainer), n.Size)
}

func readLocal(r *manifest.Reader, path string, l *api.Local) *service.Local {
	if l == nil {
		return nil
	}
	if len(l.Command) == 0 || l.Command[0] == "" {
		r.Errorf(path+".command", "is missing: name the program to run and its arguments")
	}
	out := &service.Local{Command: l.Command, Env: l.Env, WorkingDir: l.WorkingDir, Install: l.Install,
		ReadinessProbe: l.ReadinessProbe, LivenessProbe: l.LivenessProbe, Standby: readStandby(r, path+".standby", l.Standby),
		Requires: readRequirements(r, path+".requires", l.Requires)}
	manifest.CheckTemplates(r.Report, path+".command", l.Command)
	manifest.CheckVariables(r.Report, path+".env", l.Env)
	manifest.CheckTemplate(r.Report, path+".workingDir", l.WorkingDir)
	if f := l.Fallback; f != nil {
		manifest.CheckTemplates(r.Report, path+".fallback.command", f.Command)
		manifest.CheckVariables(r.Report, path+".fallback.env", f.Env)
		if len(f.Command) == 0 || f.Command[0] == "" {
			r.Errorf(path+".fallback.command", "is missing: name the program to run and its arguments")
		}
		out.Fallback = &service.Local{Command: f.Command, Env: f.Env, WorkingDir: l.WorkingDir, Install: f.Install,
			ReadinessProbe: l.ReadinessProbe, LivenessProbe: l.LivenessProbe, Requires: readRequirements(r, path+".fallback.requires", f.Requires)}
	}
	return out
}

const (
	// maxLevels bounds the levels of an engine, and maxWakeCalls the calls that
	// wake it from one.
	maxLevels    = 9
	maxWakeCalls = 8
)

func readStandby(r *manifest.Reader, path string, in *api.Standby) *service.Standby {
	if in == nil {
		return nil
	}
	if len(in.Levels) == 0 || len(in.Levels) > maxLevels {
		r.Errorf(path+".levels", "has %d entries, want 1 to %d", len(in.Levels), maxLevels)
		return nil
	}
	out := &service.Standby{Args: in.Args, Env: in.Env, KeepsGPUs: in.KeepsGPUs}
	manifest.CheckVariables(r.Report, path+".env", in.Env)
	call := func(at string, c api.StandbyCall) service.Call {
		if !strings.HasPrefix(c.Path, "/") || strings.ContainsFunc(c.Path, func(r rune) bool { return r <= ' ' || r > '~' }) {
			r.Errorf(at+".path", "%q is not a path: write it from the /, with escapes", c.Path)
		}
		return service.Call(c)
	}
	for i, l := range in.Levels {
		at := fmt.Sprintf("%s.levels[%d]", path, i)
		if l.Level < 1 || l.Level > maxLevels || out.Find(l.Level) != nil {
			r.Errorf(at+".level", "is %d, want a number from 1 to %d that no other level has", l.Level, maxLevels)
		}
		if len(l.Wake) == 0 || len(l.Wake) > maxWakeCalls {
			r.Errorf(at+".wake", "has %d calls, want 1 to %d", len(l.Wake), maxWakeCalls)
		}
		next := service.StandbyLevel{Level: l.Level, Sleep: call(at+".sleep", l.Sleep)}
		for j, c := range l.Wake {
			next.Wake = append(next.Wake, call(fmt.Sprintf("%s.wake[%d]", at, j), c))
		}
		out.Levels = append(out.Levels, next)
	}
	return out
}

// maxRequirements bounds what one command requires.
const maxRequirements = 32

func readRequirements(r *manifest.Reader, path string, list []api.Requirement) (out []service.Requirement) {
	if len(list) > maxRequirements {
		r.Errorf(path, "has %d entries, at most %d are read: put modules of one interpreter into one", len(list), maxRequirements)
		return nil
	}
	for i, q := range list {
		if (len(q.Python) == 0) == (len(q.Command) == 0) {
			r.Errorf(fmt.Sprintf("%s[%d]", path, i), "must have either python or command")
		}
		out = append(out, service.Requirement(q))
	}
	return out
}

// readRuntime reads a runtime of ours.
func readRuntime(r *manifest.Reader, spec *api.ServingRuntimeSpec, out *service.Runtime) {
	out.Disabled, out.MultiModel = spec.Disabled, spec.MultiModel
	out.Protocols = manifest.ReadProtocols(r.Report, "spec.protocolVersions", spec.ProtocolVersions)
	out.AcceleratorClasses = spec.AcceleratorClasses
	out.Disaggregation = manifest.ReadDisaggregation(r.Report, "spec.disaggregation", spec.Disaggregation)
	out.Adapters = readAdapterArgs(r, "spec.adapters", spec.Adapters)
	out.StorageHelperDisabled = spec.StorageHelper != nil && spec.StorageHelper.Disabled
	if spec.ModelSizeRange != nil {
		out.Size = manifest.ReadSizeRange(r.Report, "spec.modelSizeRange", spec.ModelSizeRange.Min, spec.ModelSizeRange.Max)
	}
	for i, f := range spec.SupportedModelFormats {
		out.Formats = append(out.Formats, readFormat(r, strict.Index("spec.supportedModelFormats", i), f))
	}
	out.Components = service.Components{
		Engine:  readComponent(r, "spec.engine", spec.Engine),
		Decoder: readComponent(r, "spec.decoder", spec.Decoder),
		Router:  readComponent(r, "spec.router", spec.Router),
	}
	if spec.Local != nil {
		if spec.Engine != nil && spec.Engine.Local != nil {
			r.Errorf("spec.local", "and engine.local both say how the engine runs: remove one")
		}
		if out.Components.Engine == nil {
			out.Components.Engine = &service.Component{}
		}
		out.Components.Engine.Local = readLocal(r, "spec.local", spec.Local)
	}
	if e := out.Components.Engine; e == nil || !manifest.Complete(e) && e.Leader == nil {
		r.Errorf("spec.engine", "is missing what to run: give engine.containers an image, or local a command")
	}
	out.MultiNode = spec.MultiNode || manifest.MultiNode(out.Components)
}

func readFormat(r *manifest.Reader, path string, f api.SupportedFormat) service.SupportedFormat {
	out := service.SupportedFormat{
		Format:       service.NamedVersion{Name: f.Name, Version: f.Version},
		Architecture: f.ModelArchitecture, Quantization: f.Quantization,
		AutoSelect: f.AutoSelect, Priority: manifest.Priority(r.Report, path, f.Priority),
	}
	if mf := f.ModelFormat; mf != nil {
		if f.Name != "" && !strings.EqualFold(f.Name, mf.Name) || f.Version != "" && f.Version != mf.Version {
			r.Errorf(path+".name", "%q disagrees with modelFormat %q: keep modelFormat", f.Name, mf.Name)
		}
		out.Format = service.NamedVersion{Name: mf.Name, Version: mf.Version}
		out.FormatOperator = manifest.ReadOperator(r.Report, path+".modelFormat.operator", mf.Operator)
	}
	if fw := f.ModelFramework; fw != nil {
		out.Framework = service.NamedVersion{Name: fw.Name, Version: fw.Version}
		out.FrameworkOperator = manifest.ReadOperator(r.Report, path+".modelFramework.operator", fw.Operator)
	}
	if out.Format.Name == "" {
		r.Errorf(path+".name", "is missing: name the model format")
	}
	return out
}

// Schemas are the kinds of this dialect.
var Schemas = []manifest.Schema{
	manifest.SchemaOf(api.APIVersion, api.KindModelService, readService),
	manifest.SchemaOf(api.APIVersion, api.KindServingRuntime, func(r *manifest.Reader, m *api.ServingRuntime, o *manifest.Object) {
		r.Runtime(m.Metadata, service.ScopeNamespace, o)
		readRuntime(r, &m.Spec, o.Runtime)
	}),
	manifest.SchemaOf(api.APIVersion, api.KindClusterServingRuntime, func(r *manifest.Reader, m *api.ClusterServingRuntime, o *manifest.Object) {
		r.Runtime(m.Metadata, service.ScopeCluster, o)
		readRuntime(r, &m.Spec, o.Runtime)
	}),
	manifest.SchemaOf(api.APIVersion, api.KindRoute, readRoute),
	manifest.SchemaOf(api.APIVersion, api.KindPool, readPool),
	manifest.SchemaOf(api.APIVersion, api.KindReserve, readReserve),
}

func readAdapters(r *manifest.Reader, path, own string, in []api.Adapter) []service.Adapter {
	var out []service.Adapter
	for i, a := range in {
		at := strict.Index(path, i)
		manifest.CheckName(r.Report, at+".name", a.Name, false)
		if a.URI == "" {
			r.Errorf(at+".uri", "is missing: say where the adapter is")
		}
		manifest.CheckURI(r.Report, at+".uri", a.URI, false)
		adapter := service.Adapter{Name: a.Name, URI: a.URI}
		if a.Rank != nil {
			if adapter.Rank = *a.Rank; adapter.Rank < 1 || adapter.Rank > manifest.MaxRank {
				r.Errorf(at+".rank", "%d is no rank: write 1 to %d, or leave it out to have it read", adapter.Rank, manifest.MaxRank)
			}
		}
		out = append(out, adapter)
	}
	manifest.CheckAdapterNames(r.Report, path, own, out, func(i int) string { return strict.Index(path, i) + ".name" })
	return out
}

// readAdapterArgs reads how an engine is told of adapters; nil when absent.
func readAdapterArgs(r *manifest.Reader, path string, in *api.AdapterArgs) *service.AdapterArgs {
	if in == nil {
		return nil
	}
	named := false
	for _, w := range in.Each {
		named = named || strings.Contains(w, "{{.Adapter}}")
	}
	if !named {
		r.Errorf(path+".each", "does not name the adapter: write arguments with {{.Adapter}} and {{.AdapterPath}}")
	}
	if in.Model != "" && !strings.Contains(in.Model, "{{.Adapter}}") {
		r.Errorf(path+".model", "does not name the adapter: write {{.Adapter}} into the model's name, or leave it out")
	}
	return &service.AdapterArgs{Args: in.Args, Each: in.Each, Rank: in.Rank, Model: in.Model}
}
