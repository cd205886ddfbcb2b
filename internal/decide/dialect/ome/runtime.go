package ome

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// readRuntime reads a v1beta1 ServingRuntime or ClusterServingRuntime of
// OME. Any entry's autoSelect admits it, as its guide says.
func readRuntime(r *manifest.Reader, spec *servingRuntimeSpec, out *service.Runtime) {
	out.Disabled, out.AutoSelectAny = spec.Disabled, true
	out.Protocols = manifest.ReadProtocols(r.Report, "spec.protocolVersions", spec.ProtocolVersions)
	for i, f := range spec.SupportedModelFormats {
		out.Formats = append(out.Formats, readFormat(r, strict.Index("spec.supportedModelFormats", i), f))
	}
	if spec.ModelSizeRange != nil {
		out.Size = manifest.ReadSizeRange(r.Report, "spec.modelSizeRange", spec.ModelSizeRange.Min, spec.ModelSizeRange.Max)
	}
	if q := spec.AcceleratorRequirements; q != nil {
		out.AcceleratorClasses = q.AcceleratorClasses
		out.AcceleratorNeeds = readNeeds(r, "spec.acceleratorRequirements", &q.needs)
	}
	checkRuntimeAccelerators(r, spec, out)
	out.Components = service.Components{
		Engine:  readComponent(r, "spec.engineConfig", spec.EngineConfig),
		Decoder: readComponent(r, "spec.decoderConfig", spec.DecoderConfig),
		Router:  readRouter(r, "spec.routerConfig", spec.RouterConfig),
	}
	manifest.CheckReplacement(r.Report, "spec.engineConfig", out.Components.Engine, nil)
	manifest.CheckReplacement(r.Report, "spec.decoderConfig", out.Components.Decoder, nil)
	manifest.CheckReplacement(r.Report, "spec.routerConfig", out.Components.Router, nil)
	if len(spec.Containers) > 0 {
		readLegacyRuntime(r, spec, out)
	}
	switch e := out.Components.Engine; {
	case e == nil && !r.Has("spec.containers"):
		out.Components.Engine = &service.Component{Main: mainContainer}
		r.Warnf("spec", "does not say what runs: it serves services that do, as engine.runner; add engineConfig.runner for the others")
	case e == nil:
	case !manifest.Complete(e) && (e.Leader == nil || !completeNode(e.Leader)):
		r.Errorf("spec.engineConfig.runner", "is missing: say what runs, here or in the leader")
	}
	out.MultiNode = manifest.MultiNode(out.Components)
}

// completeNode reports whether a node is complete: it has what it runs.
func completeNode(n *service.Node) bool { return manifest.Complete(&service.Component{Pod: n.Pod}) }

// readLegacyRuntime reads a runtime of OME's older shape: containers and
// workers beside the formats.
func readLegacyRuntime(r *manifest.Reader, spec *servingRuntimeSpec, out *service.Runtime) {
	if spec.EngineConfig != nil {
		r.Errorf("spec.containers", "and engineConfig both say what runs: keep engineConfig")
		return
	}
	manifest.CheckContainers(r.Report, "spec.containers", spec.Containers)
	engine := &service.Component{Pod: spec.spec(), Labels: spec.Labels, Annotations: spec.Annotations}
	engine.Main = manifest.MainOf(engine.Pod.Containers, mainContainer)
	if w := spec.Workers; w != nil {
		manifest.CheckContainers(r.Report, "spec.workers.containers", w.Containers)
		manifest.CheckPositive(r.Report, "spec.workers.size", w.Size)
		manifest.WarnRuntimeLabels(r.Report, "spec.workers", w.Labels, w.Annotations)
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
		AutoSelect: f.AutoSelect, Priority: manifest.Priority(r.Report, path, f.Priority),
		Diffusion: f.DiffusionPipeline.read(), Accelerators: readConfigs(r, path+".acceleratorConfig", f.AcceleratorConfig),
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
		out.FormatOperator = manifest.ReadOperator(r.Report, path+".modelFormat.operator", mf.Operator)
		checkWeight(r, path+".modelFormat", mf)
	}
	if fw := f.ModelFramework; fw != nil {
		if fw.Name == "" {
			r.Errorf(path+".modelFramework.name", "is missing: name the framework or remove modelFramework")
		}
		out.Framework = service.NamedVersion{Name: fw.Name, Version: fw.Version}
		out.FrameworkOperator = manifest.ReadOperator(r.Report, path+".modelFramework.operator", fw.Operator)
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
	out.Parameters = manifest.ReadSize(r.Report, "spec.modelParameterSize", spec.ModelParameterSize)
	if f := spec.ModelFormat; f != nil {
		out.Format = service.NamedVersion{Name: f.Name, Version: f.Version}
		checkOperator(r, "spec.modelFormat", f)
	}
	if f := spec.ModelFramework; f != nil {
		out.Framework = service.NamedVersion{Name: f.Name, Version: f.Version}
		checkOperator(r, "spec.modelFramework", f)
	}
	out.Diffusion = spec.DiffusionPipeline.read()
	if st := spec.Storage; st != nil {
		out.URI = st.StorageURI
		out.Placement = service.Placement{NodeSelector: st.NodeSelector, Affinity: st.NodeAffinity}
		out.Secret = readKey(r, st, cluster)
	}
	if out.URI == "" {
		r.Errorf("spec.storage.storageUri", "is missing: say where the model's files are")
	}
	manifest.CheckURI(r.Report, "spec.storage.storageUri", out.URI, true)
}

// tokenKey is the key of a secret that has the token of a hub, and tokenParameter the
// parameter that names another.
const (
	tokenKey       = "token"
	tokenParameter = "secretKey"
)

// readKey reads which secret a model's files are fetched with. OME goes on without one
// that is not there. The secret of a model of the whole cluster is in a namespace of its
// own, where pods of other namespaces cannot have it.
func readKey(r *manifest.Reader, st *storage, cluster bool) *service.SecretKey {
	for _, name := range slices.Sorted(maps.Keys(st.Parameters)) {
		if name != tokenParameter || cmp.Or(st.Key, st.StorageKey) == "" {
			r.Warnf(strict.Key("spec.storage.parameters", name), "has no effect: give settings to this program's own environment")
		}
	}
	name, at := st.Key, "spec.storage.key"
	if name == "" {
		name, at = st.StorageKey, "spec.storage.storageKey"
	}
	if name == "" {
		return nil
	}
	manifest.CheckName(r.Report, at, name, true)
	if cluster {
		p := r.Problem(at, noKey)
		p.Warning, p.Platform = true, manifest.Kubernetes
	}
	return &service.SecretKey{Secret: name, Key: cmp.Or(st.Parameters[tokenParameter], tokenKey), Optional: true}
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
	manifest.ReadOperator(r.Report, path+".operator", v.Operator)
	if v.Operator != "" && service.Operator(v.Operator) != service.OperatorEqual {
		r.Warnf(path+".operator", "has no effect on a model: the runtime's operator compares versions")
	}
}

// readFineTuned reads the FineTunedWeights that a service names: each is an adapter
// of its name.
func readFineTuned(r *manifest.Reader, path, own string, weights []string) []service.Adapter {
	var out []service.Adapter
	for i, name := range weights {
		manifest.CheckName(r.Report, strict.Index(path, i), name, true)
		out = append(out, service.Adapter{Name: name, Ref: &service.ObjectRef{Name: name, Kind: manifest.KindFineTunedWeight}})
	}
	manifest.CheckAdapterNames(r.Report, path, own, out, func(i int) string { return strict.Index(path, i) })
	return out
}

// readWeight reads a FineTunedWeight. What was merged into whole models is
// told by the key that OME tells it by.
func readWeight(r *manifest.Reader, m *fineTunedWeight, o *manifest.Object) {
	r.Model(m.Metadata, true, o)
	spec, out := &m.Spec, o.Model
	out.Disabled, out.DisplayName = spec.Disabled, spec.DisplayName
	out.FineTuned = &service.FineTuned{Type: spec.ModelType, Rank: rankOf(spec.HyperParameters)}
	if b := spec.BaseModelRef; b == nil {
		r.Errorf("spec.baseModelRef", "is missing: name the model that the weights were made from")
	} else {
		manifest.CheckName(r.Report, "spec.baseModelRef.name", b.Name, true)
		out.FineTuned.Base = service.Key{Namespace: b.Namespace, Name: b.Name}
	}
	if c, ok := spec.Configuration.(map[string]any); ok {
		out.FineTuned.Merged = c["merged_weights"] == true
	}
	if spec.Storage != nil {
		out.URI = spec.Storage.StorageURI
	}
	for _, field := range []string{"key", "storageKey", "parameters"} {
		if at := "spec.storage." + field; r.Has(at) {
			r.Warnf(at, "has no effect: the weights are fetched with what the base model, or the service, is fetched with")
		}
	}
	for _, field := range []string{"nodeSelector", "nodeAffinity"} {
		if at := "spec.storage." + field; r.Has(at) {
			p := r.Problem(at, "has no effect: pods go where the base model's storage says")
			p.Warning, p.Platform = true, manifest.Kubernetes
		}
	}
	if out.URI == "" {
		r.Errorf("spec.storage.storageUri", "is missing: say where the weights' files are")
	}
	manifest.CheckURI(r.Report, "spec.storage.storageUri", out.URI, true)
}

// rankNames are what authors call the rank among the parameters of a training.
var rankNames = []string{"rank", "lora_rank", "r", "lora_r"}

// rankOf is the rank of an adapter as its hyperparameters state it; 0 where they
// do not.
func rankOf(parameters any) int {
	m, _ := parameters.(map[string]any)
	for _, name := range rankNames {
		text := ""
		switch v := m[name].(type) {
		case string:
			text = v
		case json.Number:
			text = v.String()
		case int:
			text = strconv.Itoa(v)
		case int64:
			text = strconv.FormatInt(v, 10)
		case float64:
			text = strconv.FormatFloat(v, 'f', -1, 64)
		}
		if n, err := strconv.Atoi(text); err == nil && n > 0 && n <= manifest.MaxRank {
			return n
		}
	}
	return 0
}
