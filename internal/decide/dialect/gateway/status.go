package gateway

import (
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
)

// Controller is who writes the status of Gateway API objects.
const Controller = "roundhouse.dev/gateway"

// Status is a routing object's status in the words of its own kind: what
// goes under "status:" of its manifest. The map is the caller's.
func Status(o routing.Object, st routing.Status) map[string]any {
	var ready, gateway []service.Condition
	for _, c := range st.Conditions {
		if c.Type == routing.ConditionReady {
			ready = append(ready, c)
		} else {
			gateway = append(gateway, c)
		}
	}
	version := o.Common().Origin.APIVersion
	switch {
	case o.RoutingKind() == routing.KindHTTPRoute, o.RoutingKind() == routing.KindGRPCRoute:
		return map[string]any{"parents": parents(st.Parents, gateway, true)}
	case version == InferenceV1:
		return map[string]any{"parents": parents(st.Parents, gateway, false)}
	case version == InferenceV1alpha1:
		return map[string]any{"controllers": []any{map[string]any{"name": Controller, "parents": parents(st.Parents, gateway, true),
			"conditions": manifest.Conditions(gateway[:min(1, len(gateway))], nil)}}}
	case o.RoutingKind() == routing.KindPool && strings.HasPrefix(version, "inference."):
		at := st.Parents
		if len(at) == 0 { // v1alpha2's way to write that there is none
			at = []routing.Parent{{Kind: "Status", Name: "default"}}
		}
		return map[string]any{"parent": parents(at, gateway, false)}
	case o.RoutingKind() == routing.KindGraph:
		f := manifest.Fields{"conditions": manifest.Conditions(ready, nil)}
		f.Str("url", st.URL)
		return f
	case o.RoutingKind() == routing.KindPool, o.RoutingKind() == routing.KindRoute:
		return map[string]any{"conditions": manifest.Conditions(ready, nil)}
	}
	return map[string]any{"conditions": manifest.Conditions(gateway, nil)}
}

// parents repeats the conditions for each gateway, all of which are this one.
func parents(in []routing.Parent, cs []service.Condition, controller bool) []any {
	out := []any{}
	for _, p := range in {
		ref := manifest.Fields{"name": p.Name}
		ref.Str("group", p.Group)
		ref.Str("kind", p.Kind)
		ref.Str("namespace", p.Namespace)
		ref.Str("sectionName", p.SectionName)
		ref.Num("port", int64(p.Port))
		f := manifest.Fields{"parentRef": map[string]any(ref), "conditions": manifest.Conditions(cs, nil)}
		if controller {
			f.Str("controllerName", Controller)
		}
		out = append(out, map[string]any(f))
	}
	return out
}

// ReadStatus is the other way of Status. A status that several
// gateways write is read where it is ours, else where it is the first's.
func ReadStatus(o routing.Object, status any) routing.Status {
	type parent struct {
		Controller string `json:"controllerName"`
		Ref        struct {
			Group     string `json:"group"`
			Kind      string `json:"kind"`
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
			Section   string `json:"sectionName"`
			Port      int32  `json:"port"`
		} `json:"parentRef"`
		Conditions []manifest.Condition `json:"conditions"`
	}
	in := manifest.Decoded[struct {
		Conditions []manifest.Condition `json:"conditions"`
		URL        string               `json:"url"`
		Parents    []parent             `json:"parents"`
		Parent     []parent             `json:"parent"`
		// Controllers are an InferencePoolImport's.
		Controllers []struct {
			Name       string               `json:"name"`
			Parents    []parent             `json:"parents"`
			Conditions []manifest.Condition `json:"conditions"`
		} `json:"controllers"`
	}](status)
	out := routing.Status{URL: in.URL}
	list, parents := in.Conditions, append(in.Parents, in.Parent...)
	for _, c := range in.Controllers {
		if c.Name == Controller {
			list, parents = c.Conditions, c.Parents
		}
	}
	for i, p := range parents {
		if i == 0 || p.Controller == Controller {
			list = p.Conditions
		}
		if p.Ref.Kind == "Status" { // v1alpha2's way to write that there is none
			continue
		}
		out.Parents = append(out.Parents, routing.Parent{Group: p.Ref.Group, Kind: p.Ref.Kind, Namespace: p.Ref.Namespace, Name: p.Ref.Name,
			SectionName: p.Ref.Section, Port: p.Ref.Port})
	}
	for _, c := range list {
		out.Conditions = append(out.Conditions, service.Condition(c))
	}
	if len(list) > 0 && list[0].Type != routing.ConditionReady {
		out.Conditions = append([]service.Condition{summedUp(out.Conditions)}, out.Conditions...)
	}
	return out
}

// summedUp is Ready of conditions that have none: the first that is not true.
func summedUp(list []service.Condition) service.Condition {
	ready := service.Condition{Type: routing.ConditionReady, Status: "True", Reason: "Accepted"}
	for _, c := range list {
		ready.Since = c.Since
		if c.Status != "True" {
			ready.Status, ready.Reason, ready.Message = c.Status, c.Reason, c.Message
			break
		}
	}
	return ready
}
