package dialect

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// The bounds of the published schemas.
const (
	maxModelName  = 256
	maxTargetName = 253
	maxTargets    = 10
	maxPorts      = 8
	maxWeight     = 1_000_000
	maxRules      = 16
	maxLabels     = 64
)

// routing begins a routing object, whose metadata common returns.
func (r *reading) routing(m metav1.ObjectMeta, o *Object, obj routing.Object) {
	meta := r.meta(m, false, true)
	*obj.Common() = meta
	o.Kind, o.Key, o.Routing = KindRouting, meta.Key, obj
}

func readInferenceModel(r *reading, m *gieModel, o *Object) {
	out := &routing.Model{}
	r.routing(m.Metadata, o, out)
	out.ModelName = m.Spec.ModelName
	r.modelName("spec.modelName", m.Spec.ModelName, maxModelName)
	out.Pool = r.poolRef("spec.poolRef", out.Namespace, m.Spec.PoolRef)
	out.Criticality, out.Priority = m.Spec.Criticality, r.criticality("spec.criticality", m.Spec.Criticality)
	var names []string
	var weights []*int32
	for _, t := range m.Spec.TargetModels {
		names, weights = append(names, t.Name), append(weights, t.Weight)
	}
	out.Targets = r.targetModels("spec.targetModels", "name", names, weights, maxTargets)
}

// criticality is a criticality's priority.
func (r *reading) criticality(path, s string) int32 {
	switch s {
	case "Critical":
		return routing.PriorityCritical
	case "Sheddable":
		return routing.PrioritySheddable
	case "", "Standard":
	default:
		known := []string{"Critical", "Standard", "Sheddable"}
		if near := strict.Nearest(s, known); near != "" {
			r.errorf(path, "unknown criticality %q; did you mean %q?", clip(s), near)
		} else {
			r.errorf(path, "unknown criticality %q: write one of %s", clip(s), strings.Join(known, ", "))
		}
	}
	return routing.PriorityStandard
}

// modelName checks a model's name in requests.
func (r *reading) modelName(path, name string, limit int) {
	switch {
	case name == "":
		r.errorf(path, "is missing: write the model's name")
	case len(name) > limit:
		r.errorf(path, "%d bytes are more than a model's name may have (%d)", len(name), limit)
	case strings.TrimSpace(name) != name || strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c == 0x7f }):
		r.errorf(path, "%q is not a model's name: it has blanks at its ends or control characters", clip(name))
	}
}

// targetModels reads weighted model names; field is what a name is called.
func (r *reading) targetModels(path, field string, names []string, weights []*int32, limit int) []routing.WeightedModel {
	if len(names) > limit {
		r.errorf(path, "%d targets are more than there may be (%d)", len(names), limit)
	}
	var out []routing.WeightedModel
	for i, w := range r.weights(path, weights, 1) {
		r.modelName(strict.Index(path, i)+"."+field, names[i], maxTargetName)
		out = append(out, routing.WeightedModel{Name: names[i], Weight: w})
	}
	return out
}

// weights reads weights from least to 1,000,000, of which all or none are
// stated; none makes all equal.
func (r *reading) weights(path string, in []*int32, least int32) []uint32 {
	out := make([]uint32, len(in))
	stated := 0
	for i, w := range in {
		out[i] = routing.DefaultWeight
		if w == nil {
			continue
		}
		stated++
		if *w < least || *w > maxWeight {
			r.errorf(strict.Index(path, i)+".weight", "%d is not a weight: %d to %d", *w, least, maxWeight)
			continue
		}
		out[i] = uint32(*w)
	}
	if stated > 0 && stated < len(in) {
		at := slices.IndexFunc(in, func(w *int32) bool { return w == nil })
		r.errorf(strict.Index(path, at)+".weight", "is missing: either every target has a weight or none has")
	}
	return out
}

// poolRef reads a reference to a pool of the same namespace.
func (r *reading) poolRef(path, namespace string, ref *gieRef) service.Key {
	if ref == nil {
		r.errorf(path, "is missing: name the InferencePool")
		return service.Key{}
	}
	r.name(path+".name", ref.Name, true)
	if ref.Kind != "" && ref.Kind != "InferencePool" && ref.Kind != "Pool" {
		r.errorf(path+".kind", "unknown kind %q: write InferencePool", clip(ref.Kind))
	}
	if ref.Group != "" && !slices.Contains(poolGroups, ref.Group) {
		r.errorf(path+".group", "unknown group %q: write one of %s", clip(ref.Group), strings.Join(poolGroups, ", "))
	}
	return service.Key{Namespace: namespace, Name: ref.Name}
}

var poolGroups = []string{"inference.networking.k8s.io", "inference.networking.x-k8s.io", "roundhouse.dev"}

func readInferencePoolV1alpha2(r *reading, m *giePoolV1alpha2, o *Object) {
	out := &routing.Pool{}
	r.routing(m.Metadata, o, out)
	out.Selector = r.selector("spec.selector", m.Spec.Selector)
	if m.Spec.TargetPortNumber == nil {
		r.errorf("spec.targetPortNumber", "is missing: write the port of the model servers")
	} else {
		r.port("spec.targetPortNumber", *m.Spec.TargetPortNumber)
		out.Ports = []int32{*m.Spec.TargetPortNumber}
	}
	if e := m.Spec.ExtensionRef; e != nil {
		r.extension("spec.extensionRef", e.Name, e.FailureMode)
		r.optionalPort("spec.extensionRef.portNumber", e.PortNumber)
		out.Extension = routing.Extension{Group: e.Group, Kind: e.Kind, Name: e.Name, FailureMode: e.FailureMode}
		if e.PortNumber != nil {
			out.Extension.Port = *e.PortNumber
		}
	}
}

func readInferencePoolV1(r *reading, m *giePoolV1, o *Object) {
	out := &routing.Pool{}
	r.routing(m.Metadata, o, out)
	if m.Spec.Selector == nil {
		r.errorf("spec.selector", "is missing: write matchLabels, the labels of the model servers")
	} else {
		out.Selector = r.selector("spec.selector.matchLabels", m.Spec.Selector.MatchLabels)
	}
	switch n := len(m.Spec.TargetPorts); {
	case n == 0:
		r.errorf("spec.targetPorts", "is missing: write the ports of the model servers, as number")
	case n > maxPorts:
		r.errorf("spec.targetPorts", "%d ports are more than there may be (%d)", n, maxPorts)
	case n > 1:
		p := r.problem("spec.targetPorts", "has no effect on one machine: a replica is one endpoint, at a port of its own")
		p.Warning, p.Platform = true, Process
	}
	seen := map[int32]bool{}
	for i, p := range m.Spec.TargetPorts {
		at := strict.Index("spec.targetPorts", i) + ".number"
		r.port(at, p.Number)
		if seen[p.Number] {
			r.errorf(at, "%d is listed twice", p.Number)
		}
		seen[p.Number] = true
		out.Ports = append(out.Ports, p.Number)
	}
	switch m.Spec.AppProtocol {
	case "", "http":
	case "kubernetes.io/h2c":
		p := r.problem("spec.appProtocol", "has no effect on one machine: replicas are asked over HTTP/1.1")
		p.Warning, p.Platform = true, Process
	default:
		r.errorf("spec.appProtocol", "unknown protocol %q: write http or kubernetes.io/h2c", clip(m.Spec.AppProtocol))
	}
	if e := m.Spec.EndpointPickerRef; e != nil {
		r.extension("spec.endpointPickerRef", e.Name, e.FailureMode)
		r.optionalPort("spec.endpointPickerRef.portNumber", e.PortNumber)
		out.Extension = routing.Extension{Group: e.Group, Kind: e.Kind, Name: e.Name, FailureMode: e.FailureMode}
		if e.PortNumber != nil {
			out.Extension.Port = *e.PortNumber
		}
		if e.Port != nil {
			r.port("spec.endpointPickerRef.port.number", e.Port.Number)
			out.Extension.Port = e.Port.Number
		}
	}
}

func (r *reading) port(path string, n int32) {
	if n < 1 || n > 65535 {
		r.errorf(path, "%d is not a port: 1 to 65535", n)
	}
}

func (r *reading) optionalPort(path string, n *int32) {
	if n != nil {
		r.port(path, *n)
	}
}

// extension checks a reference to an endpoint picker, which another gateway
// would ask.
func (r *reading) extension(path, name, mode string) {
	r.name(path+".name", name, true)
	if mode != "" && mode != "FailOpen" && mode != "FailClose" {
		r.errorf(path+".failureMode", "unknown mode %q: write FailOpen or FailClose", clip(mode))
	}
}

// selector checks labels that members must have.
func (r *reading) selector(path string, in map[string]string) map[string]string {
	switch {
	case len(in) == 0:
		r.errorf(path, "is missing: write the labels of the model servers, such as app: vllm")
	case len(in) > maxLabels:
		r.errorf(path, "%d labels are more than there may be (%d)", len(in), maxLabels)
	}
	for k, v := range in {
		if err := labelFault(k, v); err != "" {
			r.errorf(strict.Key(path, k), "%s", err)
		}
	}
	return in
}

// labelFault says what is wrong with a label, "" for nothing.
func labelFault(key, value string) string {
	name := key
	if prefix, rest, ok := strings.Cut(key, "/"); ok {
		if prefix == "" || len(prefix) > 253 {
			return fmt.Sprintf("%q is not a label's prefix", clip(prefix))
		}
		name = rest
	}
	fine := func(s string) bool {
		return len(s) <= 63 && strings.Trim(s, "-_.") == s && !strings.ContainsFunc(s, func(c rune) bool {
			return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.'
		})
	}
	switch {
	case name == "" || !fine(name):
		return fmt.Sprintf("%q is not a label's name", clip(key))
	case !fine(value):
		return fmt.Sprintf("%q is not a label's value", clip(value))
	}
	return ""
}

func readInferenceObjective(r *reading, m *gieObjective, o *Object) {
	out := &routing.Objective{}
	r.routing(m.Metadata, o, out)
	if m.Spec.Priority != nil {
		out.Priority = *m.Spec.Priority
	}
	out.Pool = r.poolRef("spec.poolRef", out.Namespace, m.Spec.PoolRef)
}

func readInferenceModelRewrite(r *reading, m *gieRewrite, o *Object) {
	out := &routing.Rewrite{}
	r.routing(m.Metadata, o, out)
	out.Pool = r.poolRef("spec.poolRef", out.Namespace, m.Spec.PoolRef)
	switch n := len(m.Spec.Rules); {
	case n == 0:
		r.errorf("spec.rules", "is missing: write which models become which")
	case n > maxRules:
		r.errorf("spec.rules", "%d rules are more than there may be (%d)", n, maxRules)
	}
	for i, rule := range m.Spec.Rules {
		at := strict.Index("spec.rules", i)
		var one routing.RewriteRule
		for j, match := range rule.Matches {
			path := strict.Index(at+".matches", j) + ".model"
			if match.Model == nil {
				r.errorf(path, "is missing: write the model's name as value")
				continue
			}
			if match.Model.Type != "" && match.Model.Type != "Exact" {
				r.errorf(path+".type", "unknown type %q: write Exact", clip(match.Model.Type))
			}
			r.modelName(path+".value", match.Model.Value, maxModelName)
			one.Models = append(one.Models, match.Model.Value)
		}
		if len(rule.Targets) == 0 {
			r.errorf(at+".targets", "is missing: write what the model becomes, as modelRewrite")
		}
		var names []string
		var weights []*int32
		for _, t := range rule.Targets {
			names, weights = append(names, t.ModelRewrite), append(weights, t.Weight)
		}
		one.Targets = r.targetModels(at+".targets", "modelRewrite", names, weights, maxRules)
		out.Rules = append(out.Rules, one)
	}
}
