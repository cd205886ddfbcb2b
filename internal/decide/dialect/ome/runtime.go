package ome

import (
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// readRuntime reads a v1beta1 ServingRuntime or ClusterServingRuntime of
// OME. Any entry's autoSelect admits it, as its guide says.
func readRuntime(r *manifest.Reader, spec *servingRuntimeSpec, out *service.Runtime) {
	out.Disabled, out.AutoSelectAny = spec.Disabled, true
	out.Protocols = r.Protocols("spec.protocolVersions", spec.ProtocolVersions)
	for i, f := range spec.SupportedModelFormats {
		out.Formats = append(out.Formats, readFormat(r, strict.Index("spec.supportedModelFormats", i), f))
	}
	if spec.ModelSizeRange != nil {
		out.Size = r.SizeRange("spec.modelSizeRange", spec.ModelSizeRange.Min, spec.ModelSizeRange.Max)
	}
	if spec.AcceleratorRequirements != nil {
		out.AcceleratorClasses = spec.AcceleratorRequirements.AcceleratorClasses
	}
	out.Components = service.Components{
		Engine:  readComponent(r, "spec.engineConfig", spec.EngineConfig),
		Decoder: readComponent(r, "spec.decoderConfig", spec.DecoderConfig),
		Router:  readRouter(r, "spec.routerConfig", spec.RouterConfig),
	}
	if len(spec.Containers) > 0 {
		readLegacyRuntime(r, spec, out)
	}
	switch e := out.Components.Engine; {
	case e == nil:
		r.Errorf("spec.engineConfig", "is missing: say what runs, as engineConfig.runner")
	case !manifest.Complete(e) && (e.Leader == nil || !completeNode(e.Leader)):
		r.Errorf("spec.engineConfig.runner", "is missing: say what runs, here or in the leader")
	}
	out.MultiNode = manifest.MultiNode(out.Components)
}

// completeNode reports whether a node says what it runs.
func completeNode(n *service.Node) bool { return manifest.Complete(&service.Component{Pod: n.Pod}) }

// readLegacyRuntime reads a runtime of OME's older shape: containers and
// workers beside the formats.
func readLegacyRuntime(r *manifest.Reader, spec *servingRuntimeSpec, out *service.Runtime) {
	if spec.EngineConfig != nil {
		r.Errorf("spec.containers", "and engineConfig both say what runs: keep engineConfig")
		return
	}
	r.Containers("spec.containers", spec.Containers)
	engine := &service.Component{Pod: spec.spec(), Labels: spec.Labels, Annotations: spec.Annotations}
	engine.Main = manifest.MainOf(engine.Pod.Containers, mainContainer)
	if w := spec.Workers; w != nil {
		r.Containers("spec.workers.containers", w.Containers)
		r.Positive("spec.workers.size", w.Size)
		r.RuntimeLabels("spec.workers", w.Labels, w.Annotations)
		engine.Worker = manifest.NodeOf(w.spec(), manifest.MainOf(w.Containers, mainContainer), w.Size)
	}
	out.Components.Engine = engine
}

// readFormat reads one supported format. Its name alone is deprecated; a name
// and version beside modelFormat must agree with it.
func readFormat(r *manifest.Reader, path string, f supportedFormat) service.SupportedFormat {
	out := service.SupportedFormat{
		Format:       service.NamedVersion{Name: f.Name, Version: f.Version},
		Architecture: f.ModelArchitecture, Quantization: f.Quantization,
		AutoSelect: f.AutoSelect, Priority: manifest.Priority(r, path, f.Priority),
	}
	switch mf := f.ModelFormat; {
	case mf == nil && f.Name == "":
		r.Errorf(path+".modelFormat.name", "is missing: name the model format")
	case mf == nil:
		r.Warnf(path+".name", "is deprecated: write modelFormat.name")
	default:
		if mf.Name == "" {
			r.Errorf(path+".modelFormat.name", "is missing: name the model format")
		}
		if f.Name != "" && !strings.EqualFold(f.Name, mf.Name) {
			r.Errorf(path+".name", "%q disagrees with modelFormat.name %q: remove name, which is deprecated", manifest.Clip(f.Name), manifest.Clip(mf.Name))
		}
		if f.Version != "" && mf.Version != "" && f.Version != mf.Version {
			// OME's own manifests have such entries and match modelFormat alone.
			r.Warnf(path+".version", "%q has no effect: modelFormat.version %q counts", manifest.Clip(f.Version), manifest.Clip(mf.Version))
		}
		out.Format.Name = mf.Name
		if mf.Version != "" {
			out.Format.Version = mf.Version
		}
		out.FormatOperator = r.Operator(path+".modelFormat.operator", mf.Operator)
		checkWeight(r, path+".modelFormat", mf)
	}
	if fw := f.ModelFramework; fw != nil {
		if fw.Name == "" {
			r.Errorf(path+".modelFramework.name", "is missing: name the framework or remove modelFramework")
		}
		out.Framework = service.NamedVersion{Name: fw.Name, Version: fw.Version}
		out.FrameworkOperator = r.Operator(path+".modelFramework.operator", fw.Operator)
		checkWeight(r, path+".modelFramework", fw)
	}
	return out
}

// readModel reads a BaseModel or ClusterBaseModel.
func readModel(r *manifest.Reader, m *baseModel, cluster bool, o *manifest.Object) {
	r.Model(m.Metadata, cluster, o)
	spec, out := &m.Spec, o.Model
	out.Disabled, out.DisplayName = spec.Disabled, spec.DisplayName
	out.Architecture, out.Quantization = spec.ModelArchitecture, spec.Quantization
	out.Parameters = r.Size("spec.modelParameterSize", spec.ModelParameterSize)
	if f := spec.ModelFormat; f != nil {
		out.Format = service.NamedVersion{Name: f.Name, Version: f.Version}
		checkOperator(r, "spec.modelFormat", f)
	}
	if f := spec.ModelFramework; f != nil {
		out.Framework = service.NamedVersion{Name: f.Name, Version: f.Version}
		checkOperator(r, "spec.modelFramework", f)
	}
	if spec.Storage != nil {
		out.URI = spec.Storage.StorageURI
	}
	if out.URI == "" {
		r.Errorf("spec.storage.storageUri", "is missing: say where the model's files are")
	}
	r.URI("spec.storage.storageUri", out.URI, true)
}

// weighed warns of a weight. OME's definition writes 1 where none is stated.
func checkWeight(r *manifest.Reader, path string, v *versioned) {
	if v.Weight != nil && *v.Weight != 1 {
		r.Warnf(path+".weight", "has no effect: size, priority and the number of attributes that match rank runtimes")
	}
}

// checkOperator warns of an operator on the model's side: the runtime's says
// how versions compare.
func checkOperator(r *manifest.Reader, path string, v *versioned) {
	checkWeight(r, path, v)
	r.Operator(path+".operator", v.Operator)
	if v.Operator != "" && service.Operator(v.Operator) != service.OperatorEqual {
		r.Warnf(path+".operator", "has no effect on a model: the runtime's operator compares versions")
	}
}
