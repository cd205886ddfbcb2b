package dialect

import (
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// readOMERuntime reads a v1beta1 ServingRuntime or ClusterServingRuntime of
// OME. Any entry's autoSelect admits it, as its guide says.
func readOMERuntime(r *reading, spec *omeRuntimeSpec, out *service.Runtime) {
	out.Disabled, out.AutoSelectAny = spec.Disabled, true
	out.Protocols = r.protocols("spec.protocolVersions", spec.ProtocolVersions)
	for i, f := range spec.SupportedModelFormats {
		out.Formats = append(out.Formats, r.omeFormat(strict.Index("spec.supportedModelFormats", i), f))
	}
	if spec.ModelSizeRange != nil {
		out.Size = r.sizeRange("spec.modelSizeRange", spec.ModelSizeRange.Min, spec.ModelSizeRange.Max)
	}
	if spec.AcceleratorRequirements != nil {
		out.AcceleratorClasses = spec.AcceleratorRequirements.AcceleratorClasses
	}
	out.Components = service.Components{
		Engine:  r.omeComponent("spec.engineConfig", spec.EngineConfig),
		Decoder: r.omeComponent("spec.decoderConfig", spec.DecoderConfig),
		Router:  r.omeRouter("spec.routerConfig", spec.RouterConfig),
	}
	if len(spec.Containers) > 0 {
		r.omeLegacyRuntime(spec, out)
	}
	switch e := out.Components.Engine; {
	case e == nil:
		r.errorf("spec.engineConfig", "is missing: say what runs, as engineConfig.runner")
	case !complete(e) && (e.Leader == nil || !completeNode(e.Leader)):
		r.errorf("spec.engineConfig.runner", "is missing: say what runs, here or in the leader")
	}
	out.MultiNode = multiNode(out.Components)
}

// completeNode says whether a node says what it runs.
func completeNode(n *service.Node) bool { return complete(&service.Component{Pod: n.Pod}) }

// omeLegacyRuntime reads a runtime of OME's older shape: containers and
// workers beside the formats.
func (r *reading) omeLegacyRuntime(spec *omeRuntimeSpec, out *service.Runtime) {
	if spec.EngineConfig != nil {
		r.errorf("spec.containers", "and engineConfig both say what runs: keep engineConfig")
		return
	}
	r.containers("spec.containers", spec.Containers)
	engine := &service.Component{Pod: spec.spec(), Labels: spec.Labels, Annotations: spec.Annotations}
	engine.Main = mainOf(engine.Pod.Containers, omeMain)
	if w := spec.Workers; w != nil {
		r.containers("spec.workers.containers", w.Containers)
		r.positive("spec.workers.size", w.Size)
		r.runtimeLabels("spec.workers", w.Labels, w.Annotations)
		engine.Worker = node(w.spec(), mainOf(w.Containers, omeMain), w.Size)
	}
	out.Components.Engine = engine
}

// omeFormat reads one supported format. Its name alone is deprecated; a name
// and version beside modelFormat must agree with it.
func (r *reading) omeFormat(path string, f omeSupportedFormat) service.SupportedFormat {
	out := service.SupportedFormat{
		Format:       service.NamedVersion{Name: f.Name, Version: f.Version},
		Architecture: f.ModelArchitecture, Quantization: f.Quantization,
		AutoSelect: f.AutoSelect, Priority: priority(r, path, f.Priority),
	}
	switch mf := f.ModelFormat; {
	case mf == nil && f.Name == "":
		r.errorf(path+".modelFormat.name", "is missing: name the model format")
	case mf == nil:
		r.warnf(path+".name", "is deprecated: write modelFormat.name")
	default:
		if mf.Name == "" {
			r.errorf(path+".modelFormat.name", "is missing: name the model format")
		}
		if f.Name != "" && !strings.EqualFold(f.Name, mf.Name) {
			r.errorf(path+".name", "%q disagrees with modelFormat.name %q: remove name, which is deprecated", clip(f.Name), clip(mf.Name))
		}
		if f.Version != "" && mf.Version != "" && f.Version != mf.Version {
			// OME's own manifests have such entries and match modelFormat alone.
			r.warnf(path+".version", "%q has no effect: modelFormat.version %q counts", clip(f.Version), clip(mf.Version))
		}
		out.Format.Name = mf.Name
		if mf.Version != "" {
			out.Format.Version = mf.Version
		}
		out.FormatOperator = r.operator(path+".modelFormat.operator", mf.Operator)
		r.weighed(path+".modelFormat", mf)
	}
	if fw := f.ModelFramework; fw != nil {
		if fw.Name == "" {
			r.errorf(path+".modelFramework.name", "is missing: name the framework or remove modelFramework")
		}
		out.Framework = service.NamedVersion{Name: fw.Name, Version: fw.Version}
		out.FrameworkOperator = r.operator(path+".modelFramework.operator", fw.Operator)
		r.weighed(path+".modelFramework", fw)
	}
	return out
}

// readOMEModel reads a BaseModel or ClusterBaseModel.
func readOMEModel(r *reading, m *omeBaseModel, cluster bool, o *Object) {
	r.model(m.Metadata, cluster, o)
	spec, out := &m.Spec, o.Model
	out.Disabled, out.DisplayName = spec.Disabled, spec.DisplayName
	out.Architecture, out.Quantization = spec.ModelArchitecture, spec.Quantization
	out.Parameters = r.size("spec.modelParameterSize", spec.ModelParameterSize)
	if f := spec.ModelFormat; f != nil {
		out.Format = service.NamedVersion{Name: f.Name, Version: f.Version}
		r.unusedOperator("spec.modelFormat", f)
	}
	if f := spec.ModelFramework; f != nil {
		out.Framework = service.NamedVersion{Name: f.Name, Version: f.Version}
		r.unusedOperator("spec.modelFramework", f)
	}
	if spec.Storage != nil {
		out.URI = spec.Storage.StorageURI
	}
	if out.URI == "" {
		r.errorf("spec.storage.storageUri", "is missing: say where the model's files are")
	}
	r.uri("spec.storage.storageUri", out.URI, true)
}

// weighed warns of a weight. OME's definition writes 1 where none is stated.
func (r *reading) weighed(path string, v *omeVersioned) {
	if v.Weight != nil && *v.Weight != 1 {
		r.warnf(path+".weight", "has no effect: size, priority and the number of attributes that match rank runtimes")
	}
}

// unusedOperator warns of an operator on the model's side: the runtime's says
// how versions compare.
func (r *reading) unusedOperator(path string, v *omeVersioned) {
	r.weighed(path, v)
	r.operator(path+".operator", v.Operator)
	if v.Operator != "" && service.Operator(v.Operator) != service.OperatorEqual {
		r.warnf(path+".operator", "has no effect on a model: the runtime's operator compares versions")
	}
}
