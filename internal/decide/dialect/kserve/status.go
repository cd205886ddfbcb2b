package kserve

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
)

// failure is a failure in KServe's words, which OME shares.
func failure(f *service.Failure, revision string) manifest.Fields {
	if f == nil {
		return nil
	}
	out := manifest.Fields{}
	out.Str("location", f.Replica)
	out.Str("reason", f.Reason)
	out.Str("message", f.Message)
	out.Num("exitCode", int64(f.ExitCode))
	out.Str("modelRevisionName", revision)
	out.Time("time", f.Time)
	return out
}

// modelStatus is where the model is.
func (w Words) modelStatus(st service.Status) manifest.Fields {
	m := st.Model
	t, revision := st.Latest()
	out := manifest.Fields{}
	out.Str("transitionStatus", string(t))
	s := manifest.Fields{}
	s.Str("activeModelState", string(m.Active))
	if t != m.Transition && t != service.InProgress { // the canary's
		m.Target = service.ModelFailedToLoad
	}
	s.Str("targetModelState", string(m.Target))
	out.Sub(w.States, s)
	c := manifest.Fields{"failedCopies": m.Failed}
	c.Num("totalCopies", int64(m.Copies))
	out.Sub(w.Copies, c)
	out.Sub("lastFailureInfo", failure(m.LastFailure, revision))
	return out
}

// deployed is KServe's condition of the latest revision, which OME shares: a
// rollout that fails makes it false while Ready stays true of what serves.
func deployed(st service.Status) []any {
	t, revision := st.Latest()
	if t == "" {
		return nil
	}
	f := manifest.Fields{"type": "LatestDeploymentReady", "status": "False", "reason": string(t)}
	switch {
	case t == service.UpToDate:
		f["status"] = "True"
		delete(f, "reason")
	case t == service.InProgress:
		f["status"] = "Unknown"
		f["message"] = "revision " + revision + " is not ready yet"
	case st.Model.LastFailure != nil:
		f.Str("message", st.Model.LastFailure.Message)
	}
	f.Time("lastTransitionTime", st.LatestSince)
	return []any{map[string]any(f)}
}

// Status is a service's status in KServe's form, with these words.
func (w Words) Status(st service.Status) manifest.Fields {
	names, rename := w.Components, w.Conditions
	out := manifest.Fields{}
	out.Num("observedGeneration", st.Generation)
	if cs := slices.Concat(manifest.Conditions(st.Conditions, rename), partConditions(st, names), deployed(st)); len(cs) > 0 {
		out["conditions"] = cs
	}
	out.Str("url", st.URL)
	if st.URL != "" {
		out.Sub("address", manifest.Fields{"url": st.URL})
	}
	parts := manifest.Fields{}
	for _, c := range st.Components {
		name := names[c.Role]
		if name == "" {
			continue
		}
		p := manifest.Fields{}
		p.Str("latestCreatedRevision", st.Revision)
		p.Str("latestReadyRevision", c.Serving)
		if c.Role == service.RoleEngine {
			p.Str("url", st.URL)
			traffic(p, st, c.Serving)
		}
		parts.Sub(name, p)
	}
	out.Sub("components", parts)
	out.Sub("modelStatus", w.modelStatus(st))
	return out
}

// traffic is how requests are split between revisions, in KServe's words,
// which OME shares. serving takes all of them without a canary; a canary is the
// latest revision, and what serves beside it the one rolled out.
func traffic(p manifest.Fields, st service.Status, serving string) {
	target := func(revision string, latest bool, percent int) any {
		f := manifest.Fields{"revisionName": revision, "latestRevision": latest, "percent": percent}
		switch {
		case latest && st.Canary != nil:
			f["tag"] = "latest"
		case !latest:
			f["tag"] = "prev" // which kubectl's columns of KServe's definition look for
		}
		return map[string]any(f)
	}
	c := st.Canary
	if c == nil || c.Revision == "" {
		if serving != "" {
			p.Str("latestRolledoutRevision", serving)
			p["traffic"] = []any{target(serving, c == nil, 100)}
		}
		return
	}
	p.Str("latestRolledoutRevision", st.Revision)
	p.Str("latestCreatedRevision", c.Revision)
	if c.Ready > 0 || c.Percent > 0 { // or asleep, and trusted to wake
		p.Str("latestReadyRevision", c.Revision)
	}
	p["traffic"] = []any{target(c.Revision, true, c.Percent), target(st.Revision, false, 100-c.Percent)}
}

// partConditions are the conditions of the components beside the engine, which
// the hub counts and both dialects name: TransformerReady, DecoderReady. One
// that wants no replica now is ready, as a service asleep is.
func partConditions(st service.Status, names map[service.Role]string) []any {
	var out []any
	for _, c := range st.Components {
		name := names[c.Role]
		if name == "" || c.Role == service.RoleEngine {
			continue
		}
		f := manifest.Fields{"type": strings.ToUpper(name[:1]) + name[1:] + "Ready", "status": "True"}
		if c.Ready < c.Desired {
			f["status"] = "False"
			f.Str("message", fmt.Sprintf("%d of %d replicas ready", c.Ready, c.Desired))
		}
		out = append(out, map[string]any(f))
	}
	return out
}

// Words are the names that a dialect with KServe's form of status uses.
type Words struct {
	// Components are the names of roles; a role without one has no part.
	Components map[service.Role]string
	// Conditions rename the hub's conditions; one renamed to "" is left out.
	Conditions map[string]string
	// States and Copies are the parts of modelStatus.
	States, Copies string
}

var words = Words{
	Components: map[service.Role]string{service.RoleEngine: "predictor", service.RoleTransformer: "transformer"},
	Conditions: map[string]string{service.ConditionSelected: ""},
	States:     "states", Copies: "copies",
}

// Status is a service's status in KServe's words.
func Status(st service.Status) map[string]any {
	out := words.Status(st)
	if st.Runtime.Scope == service.ScopeNamespace {
		out.Str("servingRuntimeName", st.Runtime.Name)
	} else {
		out.Str("clusterServingRuntimeName", st.Runtime.Name)
	}
	return out
}

// ReadStatus is the other way of Status.
func ReadStatus(status any) service.Status { return words.ReadStatus(status) }

// writtenStatus is a status in KServe's form, with either dialect's names for
// the same.
type writtenStatus struct {
	Generation     int64                `json:"observedGeneration"`
	Conditions     []manifest.Condition `json:"conditions"`
	URL            string               `json:"url"`
	Runtime        string               `json:"servingRuntimeName"`
	ClusterRuntime string               `json:"clusterServingRuntimeName"`
	Model          struct {
		Transition     string      `json:"transitionStatus"`
		States         modelStates `json:"states"`
		RevisionStates modelStates `json:"modelRevisionStates"`
		Copies         modelCopies `json:"copies"`
		ModelCopies    modelCopies `json:"modelCopies"`
		Failure        *struct {
			Location string    `json:"location"`
			Reason   string    `json:"reason"`
			Message  string    `json:"message"`
			ExitCode int       `json:"exitCode"`
			Time     time.Time `json:"time"`
		} `json:"lastFailureInfo"`
	} `json:"modelStatus"`
	Components map[string]struct {
		Created   string `json:"latestCreatedRevision"`
		RolledOut string `json:"latestRolledoutRevision"`
		Traffic   []struct {
			Revision string `json:"revisionName"`
			Latest   bool   `json:"latestRevision"`
			Percent  int    `json:"percent"`
		} `json:"traffic"`
	} `json:"components"`
}

type modelStates struct {
	Active string `json:"activeModelState"`
	Target string `json:"targetModelState"`
}

type modelCopies struct {
	Failed int `json:"failedCopies"`
	Total  int `json:"totalCopies"`
}

// ReadStatus is the other way of Status.
func (w Words) ReadStatus(status any) service.Status {
	in := manifest.Decoded[writtenStatus](status)
	states, copies := in.Model.States, in.Model.Copies
	if w.States == "modelRevisionStates" {
		states, copies = in.Model.RevisionStates, in.Model.ModelCopies
	}
	rename := map[string]string{}
	for hub, name := range w.Conditions {
		if name != "" {
			rename[name] = hub
		}
	}
	out := service.Status{Generation: in.Generation, Conditions: manifest.HubConditions(in.Conditions, rename), URL: in.URL,
		Model: service.ModelStatus{Transition: service.Transition(in.Model.Transition), Active: service.ModelState(states.Active),
			Target: service.ModelState(states.Target), Copies: copies.Total, Failed: copies.Failed}}
	switch {
	case in.Runtime != "":
		out.Runtime = service.RuntimeChoice{Name: in.Runtime, Scope: service.ScopeNamespace}
	case in.ClusterRuntime != "":
		out.Runtime = service.RuntimeChoice{Name: in.ClusterRuntime, Scope: service.ScopeCluster}
	}
	if f := in.Model.Failure; f != nil {
		out.Model.LastFailure = &service.Failure{Reason: f.Reason, Message: f.Message, ExitCode: f.ExitCode, Time: f.Time, Replica: f.Location}
	}
	part := in.Components[w.Components[service.RoleEngine]]
	out.Revision = part.Created
	for _, t := range part.Traffic {
		if t.Latest && t.Revision != part.RolledOut {
			out.Revision = part.RolledOut
			out.Canary = &service.CanaryStatus{Revision: t.Revision, Percent: t.Percent, Transition: out.Model.Transition}
		}
	}
	return out
}
