package own

import (
	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
)

// Status is a status in the form of api/v1alpha1's ModelServiceStatus.
func Status(st service.Status) map[string]any {
	out := manifest.Fields{}
	out.Num("observedGeneration", st.Generation)
	if cs := manifest.Conditions(st.Conditions, nil); len(cs) > 0 {
		out["conditions"] = cs
	}
	out.Str("url", st.URL)
	rt := manifest.Fields{}
	rt.Str("name", st.Runtime.Name)
	rt.Str("namespace", st.Runtime.Namespace)
	rt.Str("scope", string(st.Runtime.Scope))
	rt.Str("why", st.Runtime.Why)
	out.Sub("runtime", rt)
	out.Str("protocol", string(st.Protocol))
	out.Str("revision", st.Revision)
	if c := st.Canary; c != nil {
		f := manifest.Fields{"wantedPercent": c.Wanted, "percent": c.Percent, "ready": c.Ready}
		f.Str("revision", c.Revision)
		f.Str("why", c.Why)
		f.Str("transition", string(c.Transition))
		out.Sub("canary", f)
	}
	m := manifest.Fields{"copies": st.Model.Copies, "failed": st.Model.Failed}
	m.Str("transition", string(st.Model.Transition))
	m.Str("state", string(st.Model.Active))
	if f := st.Model.LastFailure; f != nil {
		l := manifest.Fields{}
		l.Str("reason", f.Reason)
		l.Str("message", f.Message)
		l.Num("exitCode", int64(f.ExitCode))
		l.Str("replica", f.Replica)
		l.Time("time", f.Time)
		m.Sub("lastFailure", l)
	}
	out.Sub("model", m)
	var parts []any
	for _, c := range st.Components {
		p := manifest.Fields{"role": string(c.Role), "desired": c.Desired, "running": c.Running, "ready": c.Ready,
			"replicaSeconds": c.ReplicaSeconds, "idleSeconds": c.IdleSeconds, "startupSeconds": c.StartupSeconds}
		p.Str("progress", c.Progress)
		p.Str("servingRevision", c.Serving)
		parts = append(parts, map[string]any(p))
	}
	if len(parts) > 0 {
		out["components"] = parts
	}
	return out
}

// ReadStatus is the other way of Status.
func ReadStatus(status any) service.Status {
	in := manifest.Decoded[struct {
		api.ModelServiceStatus
		Conditions []manifest.Condition `json:"conditions"`
	}](status)
	out := service.Status{Generation: in.ObservedGeneration, Conditions: manifest.HubConditions(in.Conditions, nil), URL: in.URL,
		Protocol: service.Protocol(in.Protocol), Revision: in.Revision}
	if rt := in.Runtime; rt != nil {
		out.Runtime = service.RuntimeChoice{Name: rt.Name, Namespace: rt.Namespace, Scope: service.Scope(rt.Scope), Why: rt.Why}
	}
	if c := in.Canary; c != nil {
		out.Canary = &service.CanaryStatus{Revision: c.Revision, Wanted: c.WantedPercent, Percent: c.Percent, Ready: c.Ready, Why: c.Why,
			Transition: service.Transition(c.Transition)}
	}
	if m := in.Model; m != nil {
		out.Model = service.ModelStatus{Transition: service.Transition(m.Transition), Active: service.ModelState(m.State), Copies: m.Copies, Failed: m.Failed}
		if f := m.LastFailure; f != nil {
			out.Model.LastFailure = &service.Failure{Reason: f.Reason, Message: f.Message, ExitCode: f.ExitCode, Replica: f.Replica}
			if f.Time != nil {
				out.Model.LastFailure.Time = f.Time.UTC()
			}
		}
	}
	for _, c := range in.Components {
		out.Components = append(out.Components, service.ComponentStatus{Role: service.Role(c.Role), Desired: c.Desired, Running: c.Running, Ready: c.Ready, Serving: c.ServingRevision,
			ReplicaSeconds: c.ReplicaSeconds, IdleSeconds: c.IdleSeconds, StartupSeconds: c.StartupSeconds, Progress: c.Progress})
	}
	return out
}
