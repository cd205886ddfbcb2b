// Package gateway reads the Gateway API's HTTPRoute and the kinds of its
// Inference Extension.
package gateway

import (
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// The bounds of the published schemas.
const (
	maxTargetName = 253
	maxTargets    = 10
	maxPorts      = 8
	maxRules      = 16
)

func readInferenceModel(r *manifest.Reader, m *model, o *manifest.Object) {
	out := &routing.Model{}
	r.Routing(m.Metadata, o, out)
	out.ModelName = m.Spec.ModelName
	manifest.CheckModelName(r.Report, "spec.modelName", m.Spec.ModelName, manifest.MaxModelName)
	out.Pool = readPoolRef(r, "spec.poolRef", out.Namespace, m.Spec.PoolRef)
	out.Criticality, out.Priority = m.Spec.Criticality, manifest.ReadCriticality(r.Report, "spec.criticality", m.Spec.Criticality)
	var names []string
	var weights []*int32
	for _, t := range m.Spec.TargetModels {
		names, weights = append(names, t.Name), append(weights, t.Weight)
	}
	out.Targets = readTargetModels(r, "spec.targetModels", "name", names, weights, maxTargets)
}

// readTargetModels reads weighted model names; field is what a name is called.
func readTargetModels(r *manifest.Reader, path, field string, names []string, weights []*int32, limit int) []routing.WeightedModel {
	if len(names) > limit {
		r.Errorf(path, "%d targets are more than there may be (%d)", len(names), limit)
	}
	var out []routing.WeightedModel
	for i, w := range manifest.ReadWeights(r.Report, path, weights, 1) {
		manifest.CheckModelName(r.Report, strict.Index(path, i)+"."+field, names[i], maxTargetName)
		out = append(out, routing.WeightedModel{Name: names[i], Weight: w})
	}
	return out
}

// readPoolRef reads a reference to a pool of the same namespace.
func readPoolRef(r *manifest.Reader, path, namespace string, ref *ref) service.Key {
	if ref == nil {
		r.Errorf(path, "is missing: name the InferencePool")
		return service.Key{}
	}
	manifest.CheckName(r.Report, path+".name", ref.Name, true)
	if ref.Kind != "" && ref.Kind != "InferencePool" && ref.Kind != "Pool" {
		r.Errorf(path+".kind", "unknown kind %q: write InferencePool", manifest.Clip(ref.Kind))
	}
	if ref.Group != "" && !slices.Contains(poolGroups, ref.Group) {
		r.Errorf(path+".group", "unknown group %q: write one of %s", manifest.Clip(ref.Group), strings.Join(poolGroups, ", "))
	}
	return service.Key{Namespace: namespace, Name: ref.Name}
}

var poolGroups = []string{"inference.networking.k8s.io", "inference.networking.x-k8s.io", "roundhouse.dev"}

func readInferencePoolV1alpha2(r *manifest.Reader, m *poolV1alpha2, o *manifest.Object) {
	out := &routing.Pool{}
	r.Routing(m.Metadata, o, out)
	out.Selector = manifest.CheckSelector(r.Report, "spec.selector", m.Spec.Selector)
	if m.Spec.TargetPortNumber == nil {
		r.Errorf("spec.targetPortNumber", "is missing: write the port of the model servers")
	} else {
		manifest.CheckPort(r.Report, "spec.targetPortNumber", *m.Spec.TargetPortNumber)
		out.Ports = []int32{*m.Spec.TargetPortNumber}
	}
	if e := m.Spec.ExtensionRef; e != nil {
		readExtension(r, "spec.extensionRef", e.Name, e.FailureMode)
		manifest.CheckOptionalPort(r.Report, "spec.extensionRef.portNumber", e.PortNumber)
		out.Extension = routing.Extension{Group: e.Group, Kind: e.Kind, Name: e.Name, FailureMode: e.FailureMode}
		if e.PortNumber != nil {
			out.Extension.Port = *e.PortNumber
		}
	}
}

func readInferencePoolV1(r *manifest.Reader, m *poolV1, o *manifest.Object) {
	out := &routing.Pool{}
	r.Routing(m.Metadata, o, out)
	if m.Spec.Selector == nil {
		r.Errorf("spec.selector", "is missing: write matchLabels, the labels of the model servers")
	} else {
		out.Selector = manifest.CheckSelector(r.Report, "spec.selector.matchLabels", m.Spec.Selector.MatchLabels)
	}
	switch n := len(m.Spec.TargetPorts); {
	case n == 0:
		r.Errorf("spec.targetPorts", "is missing: write the ports of the model servers, as number")
	case n > maxPorts:
		r.Errorf("spec.targetPorts", "%d ports are more than there may be (%d)", n, maxPorts)
	case n > 1:
		p := r.Problem("spec.targetPorts", "has no effect on one machine: a replica is one endpoint, at a port of its own")
		p.Warning, p.Platform = true, manifest.Process
	}
	seen := map[int32]bool{}
	for i, p := range m.Spec.TargetPorts {
		at := strict.Index("spec.targetPorts", i) + ".number"
		manifest.CheckPort(r.Report, at, p.Number)
		if seen[p.Number] {
			r.Errorf(at, "%d is listed twice", p.Number)
		}
		seen[p.Number] = true
		out.Ports = append(out.Ports, p.Number)
	}
	switch m.Spec.AppProtocol {
	case "", "http":
	case "kubernetes.io/h2c":
		p := r.Problem("spec.appProtocol", "has no effect on one machine: replicas are asked over HTTP/1.1")
		p.Warning, p.Platform = true, manifest.Process
	default:
		r.Errorf("spec.appProtocol", "unknown protocol %q: write http or kubernetes.io/h2c", manifest.Clip(m.Spec.AppProtocol))
	}
	if e := m.Spec.EndpointPickerRef; e != nil {
		readExtension(r, "spec.endpointPickerRef", e.Name, e.FailureMode)
		manifest.CheckOptionalPort(r.Report, "spec.endpointPickerRef.portNumber", e.PortNumber)
		out.Extension = routing.Extension{Group: e.Group, Kind: e.Kind, Name: e.Name, FailureMode: e.FailureMode}
		if e.PortNumber != nil {
			out.Extension.Port = *e.PortNumber
		}
		if e.Port != nil {
			manifest.CheckPort(r.Report, "spec.endpointPickerRef.port.number", e.Port.Number)
			out.Extension.Port = e.Port.Number
		}
	}
}

// extension checks a reference to an endpoint picker, which another gateway
// would ask.
func readExtension(r *manifest.Reader, path, name, mode string) {
	manifest.CheckName(r.Report, path+".name", name, true)
	if mode != "" && mode != "FailOpen" && mode != "FailClose" {
		r.Errorf(path+".failureMode", "unknown mode %q: write FailOpen or FailClose", manifest.Clip(mode))
	}
}

// maxImported is how many addresses an InferencePoolImport may have.
const maxImported = 16

// readInferencePoolImport reads a pool of other clusters. The kind says which clusters
// have it, and nothing of how to reach them, so that an annotation has to.
func readInferencePoolImport(r *manifest.Reader, m *poolImport, o *manifest.Object) {
	out := &routing.Pool{Import: true, Protocol: service.ProtocolOpenAI, Health: routing.HealthCheck{Disabled: true}}
	r.Routing(m.Metadata, o, out)
	at := strict.Key("metadata.annotations", manifest.AnnotationAddresses)
	for a := range strings.SplitSeq(m.Metadata.Annotations[manifest.AnnotationAddresses], ",") {
		if a = strings.TrimSpace(a); a == "" {
			continue
		}
		manifest.CheckAddress(r.Report, at, a)
		if !slices.Contains(out.Addresses, a) {
			out.Addresses = append(out.Addresses, a)
		}
	}
	manifest.CheckAtMost(r.Report, at, len(out.Addresses), maxImported)
	if len(out.Addresses) == 0 {
		r.Warnf("metadata.annotations", "requests to it are refused: %s", routing.ImportLacks)
	}
}

func readInferenceObjective(r *manifest.Reader, m *objective, o *manifest.Object) {
	out := &routing.Objective{}
	r.Routing(m.Metadata, o, out)
	if m.Spec.Priority != nil {
		out.Priority = *m.Spec.Priority
	}
	out.Pool = readPoolRef(r, "spec.poolRef", out.Namespace, m.Spec.PoolRef)
	out.Target = manifest.ReadLatencyTarget(r.Report, m.Metadata.Annotations)
}

func readInferenceModelRewrite(r *manifest.Reader, m *rewrite, o *manifest.Object) {
	out := &routing.Rewrite{}
	r.Routing(m.Metadata, o, out)
	out.Pool = readPoolRef(r, "spec.poolRef", out.Namespace, m.Spec.PoolRef)
	switch n := len(m.Spec.Rules); {
	case n == 0:
		r.Errorf("spec.rules", "is missing: write which models become which")
	case n > maxRules:
		r.Errorf("spec.rules", "%d rules are more than there may be (%d)", n, maxRules)
	}
	for i, rule := range m.Spec.Rules {
		at := strict.Index("spec.rules", i)
		var one routing.RewriteRule
		for j, match := range rule.Matches {
			path := strict.Index(at+".matches", j) + ".model"
			if match.Model == nil {
				r.Errorf(path, "is missing: write the model's name as value")
				continue
			}
			if match.Model.Type != "" && match.Model.Type != "Exact" {
				r.Errorf(path+".type", "unknown type %q: write Exact", manifest.Clip(match.Model.Type))
			}
			manifest.CheckModelName(r.Report, path+".value", match.Model.Value, manifest.MaxModelName)
			one.Models = append(one.Models, match.Model.Value)
		}
		if len(rule.Targets) == 0 {
			r.Errorf(at+".targets", "is missing: write what the model becomes, as modelRewrite")
		}
		var names []string
		var weights []*int32
		for _, t := range rule.Targets {
			names, weights = append(names, t.ModelRewrite), append(weights, t.Weight)
		}
		one.Targets = readTargetModels(r, at+".targets", "modelRewrite", names, weights, maxRules)
		out.Rules = append(out.Rules, one)
	}
}

// The versions that are read: the Inference Extension's before and since its
// kinds settled, and HTTPRoute's, which differ in name alone.
const (
	InferenceV1alpha2 = "inference.networking.x-k8s.io/v1alpha2"
	InferenceV1       = "inference.networking.k8s.io/v1"
	// InferenceV1alpha1 has what spans clusters.
	InferenceV1alpha1 = "inference.networking.x-k8s.io/v1alpha1"
	// LLMDV1alpha2 is llm-d's, which has taken over the kinds for requests.
	LLMDV1alpha2 = "llm-d.ai/v1alpha2"
	V1           = "gateway.networking.k8s.io/v1"
	V1beta1      = "gateway.networking.k8s.io/v1beta1"
)

// Schemas are the kinds of this dialect.
var Schemas = []manifest.Schema{
	manifest.SchemaOf(InferenceV1alpha2, "InferenceModel", readInferenceModel),
	manifest.SchemaOf(InferenceV1alpha2, "InferencePool", readInferencePoolV1alpha2),
	manifest.SchemaOf(InferenceV1, "InferencePool", readInferencePoolV1),
	manifest.SchemaOf(InferenceV1alpha1, "InferencePoolImport", readInferencePoolImport),
	manifest.SchemaOf(InferenceV1alpha2, "InferenceObjective", readInferenceObjective),
	manifest.SchemaOf(InferenceV1alpha2, "InferenceModelRewrite", readInferenceModelRewrite),
	manifest.SchemaOf(LLMDV1alpha2, "InferenceObjective", readInferenceObjective),
	manifest.SchemaOf(LLMDV1alpha2, "InferenceModelRewrite", readInferenceModelRewrite),
	manifest.SchemaOf(V1, "HTTPRoute", readHTTPRoute),
	manifest.SchemaOf(V1beta1, "HTTPRoute", readHTTPRoute),
	manifest.SchemaOf(V1, "GRPCRoute", readGRPCRoute),
}
