package dialect

import (
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// GatewayController is who writes the status of Gateway API objects.
const GatewayController = "roundhouse.dev/gateway"

// RoutingStatus is a routing object's status in the words of its own kind: what
// goes under "status:" of its manifest. The map is the caller's.
func RoutingStatus(o routing.Object, st routing.Status) map[string]any {
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
	case o.RoutingKind() == routing.KindHTTPRoute:
		return map[string]any{"parents": parents(st.Parents, gateway, true)}
	case version == gieV1:
		return map[string]any{"parents": parents(st.Parents, gateway, false)}
	case o.RoutingKind() == routing.KindPool && strings.HasPrefix(version, "inference."):
		at := st.Parents
		if len(at) == 0 { // how v1alpha2 says that there is none
			at = []routing.Parent{{Kind: "Status", Name: "default"}}
		}
		return map[string]any{"parent": parents(at, gateway, false)}
	case o.RoutingKind() == routing.KindPool, o.RoutingKind() == routing.KindRoute:
		return map[string]any{"conditions": conditions(ready, nil)}
	}
	return map[string]any{"conditions": conditions(gateway, nil)}
}

// parents repeats the conditions for each gateway, all of which are this one.
func parents(in []routing.Parent, cs []service.Condition, controller bool) []any {
	out := []any{}
	for _, p := range in {
		ref := fields{"name": p.Name}
		ref.str("group", p.Group)
		ref.str("kind", p.Kind)
		ref.str("namespace", p.Namespace)
		ref.str("sectionName", p.SectionName)
		ref.num("port", int64(p.Port))
		f := fields{"parentRef": map[string]any(ref), "conditions": conditions(cs, nil)}
		if controller {
			f.str("controllerName", GatewayController)
		}
		out = append(out, map[string]any(f))
	}
	return out
}

// RenderRouting is Render for a routing object.
func RenderRouting(o Object, st routing.Status) ([]byte, error) {
	return render(o, RoutingStatus(o.Routing, st))
}
