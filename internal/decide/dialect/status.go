package dialect

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Status is a service's status in the words of the dialect it was written in:
// what goes under "status:" of its manifest. The map is the caller's.
func Status(origin service.Origin, st service.Status) map[string]any {
	switch origin.Dialect() {
	case service.DialectKServe:
		return kserveStatus(st)
	case service.DialectOME:
		return omeStatus(st)
	case service.DialectSeldon:
		return seldonStatus(st)
	}
	return ownStatus(st)
}

// Render is an object's manifest as it was written, comments and order
// included, with its status in place of any it had; nil leaves the status out.
func Render(o Object, st *service.Status) ([]byte, error) {
	if st == nil {
		return render(o, nil)
	}
	return render(o, Status(o.Origin, *st))
}

// render is Render with the status as it is to stand there, nil for none.
func render(o Object, status map[string]any) ([]byte, error) {
	root, bad := parse(o.Original)
	if bad != nil || root == nil || root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("render %s %s: its stored manifest cannot be parsed: apply it again", o.Kind, o.Key)
	}
	root = without(root, "status")
	if status != nil {
		var v yaml.Node
		if err := v.Encode(status); err != nil {
			return nil, fmt.Errorf("render %s %s: %w", o.Kind, o.Key, err)
		}
		root.Style &^= yaml.FlowStyle
		root.Content = append(root.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "status"}, &v)
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return nil, fmt.Errorf("render %s %s: %w", o.Kind, o.Key, err)
	}
	return b.Bytes(), enc.Close()
}

// fields collects a status, leaving out what is empty.
type fields map[string]any

func (f fields) str(name, v string) {
	if v != "" {
		f[name] = v
	}
}

func (f fields) num(name string, v int64) {
	if v != 0 {
		f[name] = v
	}
}

func (f fields) sub(name string, v fields) {
	if len(v) > 0 {
		f[name] = map[string]any(v)
	}
}

func (f fields) time(name string, t time.Time) {
	if !t.IsZero() {
		f[name] = t.UTC().Format(time.RFC3339)
	}
}

// conditions lists conditions under their dialect's names. A condition that
// rename maps to "" is left out.
func conditions(in []service.Condition, rename map[string]string) []any {
	out := []any{}
	for _, c := range in {
		name := c.Type
		if n, ok := rename[name]; ok {
			name = n
		}
		if name == "" {
			continue
		}
		f := fields{"type": name, "status": c.Status}
		f.str("reason", c.Reason)
		f.str("message", c.Message)
		f.time("lastTransitionTime", c.Since)
		out = append(out, map[string]any(f))
	}
	return out
}

// failure is a failure in KServe's words, which OME shares.
func failure(f *service.Failure, revision string) fields {
	if f == nil {
		return nil
	}
	out := fields{}
	out.str("location", f.Replica)
	out.str("reason", f.Reason)
	out.str("message", f.Message)
	out.num("exitCode", int64(f.ExitCode))
	out.str("modelRevisionName", revision)
	out.time("time", f.Time)
	return out
}

// modelStatus is where the model is, under KServe's names for its states and
// copies; OME has the same words under other names.
func modelStatus(st service.Status, states, copies string) fields {
	m := st.Model
	t, revision := latest(st)
	out := fields{}
	out.str("transitionStatus", string(t))
	s := fields{}
	s.str("activeModelState", string(m.Active))
	if t != m.Transition && t != service.InProgress { // the canary's
		m.Target = service.ModelFailedToLoad
	}
	s.str("targetModelState", string(m.Target))
	out.sub(states, s)
	c := fields{"failedCopies": m.Failed}
	c.num("totalCopies", int64(m.Copies))
	out.sub(copies, c)
	out.sub("lastFailureInfo", failure(m.LastFailure, revision))
	return out
}

// latest is how far the manifest's revision is in serving, and which that is:
// the canary's while it is not there yet, as KServe speaks of the latest.
func latest(st service.Status) (service.Transition, string) {
	if c := st.Canary; c != nil && c.Transition != "" && c.Transition != service.UpToDate {
		return c.Transition, c.Revision
	}
	return st.Model.Transition, st.Revision
}

// deployed is KServe's condition of the latest revision, which OME shares: a
// rollout that fails makes it false while Ready stays true of what serves.
func deployed(st service.Status) []any {
	t, revision := latest(st)
	if t == "" {
		return nil
	}
	f := fields{"type": "LatestDeploymentReady", "status": "False", "reason": string(t)}
	switch {
	case t == service.UpToDate:
		f["status"] = "True"
		delete(f, "reason")
	case t == service.InProgress:
		f["status"] = "Unknown"
		f["message"] = "revision " + revision + " is not ready yet"
	case st.Model.LastFailure != nil:
		f.str("message", st.Model.LastFailure.Message)
	}
	return []any{map[string]any(f)}
}

// common is what KServe's and OME's statuses share: components are the roles'
// names in the dialect.
func common(st service.Status, names map[service.Role]string, rename map[string]string) fields {
	out := fields{}
	out.num("observedGeneration", st.Generation)
	if cs := slices.Concat(conditions(st.Conditions, rename), partConditions(st, names), deployed(st)); len(cs) > 0 {
		out["conditions"] = cs
	}
	out.str("url", st.URL)
	if st.URL != "" {
		out.sub("address", fields{"url": st.URL})
	}
	parts := fields{}
	for _, c := range st.Components {
		name := names[c.Role]
		if name == "" {
			continue
		}
		p := fields{}
		p.str("latestCreatedRevision", st.Revision)
		p.str("latestReadyRevision", c.Serving)
		if c.Role == service.RoleEngine {
			p.str("url", st.URL)
			traffic(p, st, c.Serving)
		}
		parts.sub(name, p)
	}
	out.sub("components", parts)
	return out
}

// traffic is how requests are split between revisions, in KServe's words,
// which OME shares. serving takes all of them without a canary; a canary is the
// latest revision, and what serves beside it the one rolled out.
func traffic(p fields, st service.Status, serving string) {
	target := func(revision string, latest bool, percent int) any {
		f := fields{"revisionName": revision, "latestRevision": latest, "percent": percent}
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
			p.str("latestRolledoutRevision", serving)
			p["traffic"] = []any{target(serving, c == nil, 100)}
		}
		return
	}
	p.str("latestRolledoutRevision", st.Revision)
	p.str("latestCreatedRevision", c.Revision)
	if c.Ready > 0 || c.Percent > 0 { // or asleep, and trusted to wake
		p.str("latestReadyRevision", c.Revision)
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
		f := fields{"type": strings.ToUpper(name[:1]) + name[1:] + "Ready", "status": "True"}
		if c.Ready < c.Desired {
			f["status"] = "False"
			f.str("message", fmt.Sprintf("%d of %d replicas ready", c.Ready, c.Desired))
		}
		out = append(out, map[string]any(f))
	}
	return out
}

func kserveStatus(st service.Status) map[string]any {
	names := map[service.Role]string{service.RoleEngine: "predictor", service.RoleTransformer: "transformer"}
	out := common(st, names, map[string]string{service.ConditionSelected: ""})
	out.sub("modelStatus", modelStatus(st, "states", "copies"))
	if st.Runtime.Scope == service.ScopeNamespace {
		out.str("servingRuntimeName", st.Runtime.Name)
	} else {
		out.str("clusterServingRuntimeName", st.Runtime.Name)
	}
	return out
}

func omeStatus(st service.Status) map[string]any {
	names := map[service.Role]string{service.RoleEngine: "engine", service.RoleDecoder: "decoder", service.RoleRouter: "router"}
	out := common(st, names, map[string]string{
		service.ConditionSelected:       "",
		service.ConditionPredictorReady: "EngineReady",
	})
	out.sub("modelStatus", modelStatus(st, "modelRevisionStates", "modelCopies"))
	return out
}

// ownStatus is a status in the form of api/v1alpha1's ModelServiceStatus.
func ownStatus(st service.Status) map[string]any {
	out := fields{}
	out.num("observedGeneration", st.Generation)
	if cs := conditions(st.Conditions, nil); len(cs) > 0 {
		out["conditions"] = cs
	}
	out.str("url", st.URL)
	rt := fields{}
	rt.str("name", st.Runtime.Name)
	rt.str("namespace", st.Runtime.Namespace)
	rt.str("scope", string(st.Runtime.Scope))
	rt.str("why", st.Runtime.Why)
	out.sub("runtime", rt)
	out.str("protocol", string(st.Protocol))
	out.str("revision", st.Revision)
	if c := st.Canary; c != nil {
		f := fields{"wantedPercent": c.Wanted, "percent": c.Percent, "ready": c.Ready}
		f.str("revision", c.Revision)
		f.str("why", c.Why)
		f.str("transition", string(c.Transition))
		out.sub("canary", f)
	}
	m := fields{"copies": st.Model.Copies, "failed": st.Model.Failed}
	m.str("transition", string(st.Model.Transition))
	m.str("state", string(st.Model.Active))
	if f := st.Model.LastFailure; f != nil {
		l := fields{}
		l.str("reason", f.Reason)
		l.str("message", f.Message)
		l.num("exitCode", int64(f.ExitCode))
		l.str("replica", f.Replica)
		l.time("time", f.Time)
		m.sub("lastFailure", l)
	}
	out.sub("model", m)
	var parts []any
	for _, c := range st.Components {
		p := fields{"role": string(c.Role), "desired": c.Desired, "running": c.Running, "ready": c.Ready,
			"replicaSeconds": c.ReplicaSeconds, "idleSeconds": c.IdleSeconds, "startupSeconds": c.StartupSeconds}
		p.str("progress", c.Progress)
		p.str("servingRevision", c.Serving)
		parts = append(parts, map[string]any(p))
	}
	if len(parts) > 0 {
		out["components"] = parts
	}
	return out
}
