package seldon

import (
	"cmp"
	"slices"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
)

// Seldon's words for where a SeldonDeployment is.
const (
	available = "Available"
	creating  = "Creating"
	failed    = "Failed"
)

// Status is a status in the form of SeldonDeploymentStatus. Seldon's
// deployments are a service's revision here.
func Status(st service.Status) map[string]any {
	out := manifest.Fields{}
	out.Num("observedGeneration", st.Generation)
	state, description := state(st)
	out.Str("state", state)
	out.Str("description", description)
	if cs := manifest.Conditions(st.Conditions, map[string]string{
		service.ConditionSelected:       "",
		service.ConditionPredictorReady: "DeploymentsReady",
		service.ConditionIngressReady:   "ServicesReady",
	}); len(cs) > 0 {
		out["conditions"] = cs
	}
	if st.URL != "" {
		out.Sub("address", manifest.Fields{"url": st.URL})
	}
	for _, c := range st.Components {
		if c.Role != service.RoleEngine {
			continue
		}
		out.Num("replicas", int64(c.Running))
		d := manifest.Fields{}
		d.Num("replicas", int64(c.Running))
		d.Num("availableReplicas", int64(c.Ready))
		d.Str("description", c.Progress)
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

// state is the one word for a status and what there is to say about it.
// A service asleep is available: a request wakes it.
func state(st service.Status) (state, description string) {
	for _, c := range st.Conditions {
		if c.Type != service.ConditionReady {
			continue
		}
		if c.Status == "True" {
			return available, ""
		}
		description = c.Message
	}
	if f := st.Model.LastFailure; f != nil && f.Message != "" {
		description = f.Message
	}
	switch st.Model.Transition {
	case service.BlockedByFailedLoad, service.InvalidSpec:
		return failed, description
	}
	return creating, description
}

// ReadStatus is the other way of Status.
func ReadStatus(status any) service.Status {
	in := manifest.Decoded[struct {
		Generation  int64                `json:"observedGeneration"`
		State       string               `json:"state"`
		Description string               `json:"description"`
		Conditions  []manifest.Condition `json:"conditions"`
		Address     struct {
			URL string `json:"url"`
		} `json:"address"`
		Replicas    int `json:"replicas"`
		Deployments map[string]struct {
			Available int `json:"availableReplicas"`
		} `json:"deploymentStatus"`
	}](status)
	out := service.Status{Generation: in.Generation, URL: in.Address.URL, Conditions: manifest.HubConditions(in.Conditions, map[string]string{
		"DeploymentsReady": service.ConditionPredictorReady, "ServicesReady": service.ConditionIngressReady})}
	if in.State != "" && !slices.ContainsFunc(out.Conditions, func(c service.Condition) bool { return c.Type == service.ConditionReady }) {
		c := service.Condition{Type: service.ConditionReady, Status: "False", Reason: in.State, Message: in.Description}
		if in.State == available {
			c.Status = "True"
		}
		out.Conditions = append([]service.Condition{c}, out.Conditions...)
	}
	if len(in.Deployments) == 1 {
		for name, d := range in.Deployments {
			out.Revision = name
			out.Components = []service.ComponentStatus{{Role: service.RoleEngine, Desired: in.Replicas, Running: in.Replicas, Ready: d.Available}}
		}
	}
	return out
}
