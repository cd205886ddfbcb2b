package dialect

import (
	"cmp"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Seldon's words for where a SeldonDeployment is.
const (
	seldonAvailable = "Available"
	seldonCreating  = "Creating"
	seldonFailed    = "Failed"
)

// seldonStatus is a status in the form of SeldonDeploymentStatus. Seldon's
// deployments are a service's revision here.
func seldonStatus(st service.Status) map[string]any {
	out := fields{}
	out.num("observedGeneration", st.Generation)
	state, description := seldonState(st)
	out.str("state", state)
	out.str("description", description)
	if cs := conditions(st.Conditions, map[string]string{
		service.ConditionSelected:       "",
		service.ConditionPredictorReady: "DeploymentsReady",
		service.ConditionIngressReady:   "ServicesReady",
	}); len(cs) > 0 {
		out["conditions"] = cs
	}
	if st.URL != "" {
		out.sub("address", fields{"url": st.URL})
	}
	for _, c := range st.Components {
		if c.Role != service.RoleEngine {
			continue
		}
		out.num("replicas", int64(c.Running))
		d := fields{}
		d.num("replicas", int64(c.Running))
		d.num("availableReplicas", int64(c.Ready))
		d.str("description", c.Progress)
		if st.Revision != "" {
			all := map[string]any{cmp.Or(c.Serving, st.Revision): map[string]any(d)}
			if all[st.Revision] == nil { // an older one serves
				all[st.Revision] = map[string]any{}
			}
			out["deploymentStatus"] = all
		}
	}
	return out
}

// seldonState is the one word for a status and what there is to say about it.
// A service asleep is available: a request wakes it.
func seldonState(st service.Status) (state, description string) {
	for _, c := range st.Conditions {
		if c.Type != service.ConditionReady {
			continue
		}
		if c.Status == "True" {
			return seldonAvailable, ""
		}
		description = c.Message
	}
	if f := st.Model.LastFailure; f != nil && f.Message != "" {
		description = f.Message
	}
	switch st.Model.Transition {
	case service.BlockedByFailedLoad, service.InvalidSpec:
		return seldonFailed, description
	}
	return seldonCreating, description
}
