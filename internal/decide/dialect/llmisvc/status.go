package llmisvc

import (
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
)

// rename gives the hub's conditions KServe's names for this kind.
var rename = map[string]string{service.ConditionSelected: "PresetsCombined", service.ConditionPredictorReady: "WorkloadsReady", service.ConditionIngressReady: "RouterReady"}

// workloads are the conditions of the roles: with a decoder the engine prefills.
func workloads(st service.Status) map[service.Role]string {
	out := map[service.Role]string{service.RoleEngine: "MainWorkloadReady"}
	for _, c := range st.Components {
		if c.Role == service.RoleDecoder {
			out[service.RoleEngine], out[service.RoleDecoder] = "PrefillWorkloadReady", "MainWorkloadReady"
		}
	}
	return out
}

// Status is a service's status in KServe's words for this kind.
func Status(st service.Status) map[string]any {
	out := manifest.Fields{}
	out.Num("observedGeneration", st.Generation)
	conditions := manifest.Conditions(st.Conditions, rename)
	names := workloads(st)
	for _, c := range st.Components {
		name := names[c.Role]
		if name == "" {
			continue
		}
		f := manifest.Fields{"type": name, "status": "True"}
		if c.Ready < c.Desired {
			f["status"], f["reason"] = "False", "MinimumReplicasUnavailable"
		}
		conditions = append(conditions, map[string]any(f))
	}
	if len(conditions) > 0 {
		out["conditions"] = conditions
	}
	out.Str("url", st.URL)
	if st.URL != "" {
		out["addresses"] = []any{map[string]any{"url": st.URL}}
	}
	return out
}

// written is what is read back of a status.
type written struct {
	Generation int64                `json:"observedGeneration"`
	Conditions []manifest.Condition `json:"conditions"`
	URL        string               `json:"url"`
}

// ReadStatus is the other way of Status, as far as it has fields.
func ReadStatus(status any) service.Status {
	in, back := manifest.Decoded[written](status), map[string]string{}
	for hub, name := range rename {
		back[name] = hub
	}
	return service.Status{Generation: in.Generation, URL: in.URL, Conditions: manifest.HubConditions(in.Conditions, back)}
}
