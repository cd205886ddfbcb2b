package fleet

import (
	"fmt"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

func ref(k service.Key, role service.Role) workload.Ref { return workload.Ref{Service: k, Role: role} }

// entrance is the role that traffic enters through: the transformer, else the
// router, else the decoder, else the engine.
func entrance(r *workload.Revision) service.Role {
	for _, role := range []service.Role{service.RoleTransformer, service.RoleRouter, service.RoleDecoder} {
		if r.Component(role) != nil {
			return role
		}
	}
	return service.RoleEngine
}

// Needs are the roles behind an entrance that calls them by itself: those of a
// transformer's predictor, those of a router.
func Needs(r *workload.Revision) (out []service.Role) {
	in := entrance(r)
	if in != service.RoleTransformer && in != service.RoleRouter {
		return nil
	}
	for i := range r.Components {
		if role := r.Components[i].Role; role != in {
			out = append(out, role)
		}
	}
	return out
}

// view is what the request path is told.
func (f *Fleet) view(w *work) View {
	v := w.view(f.cfg.URL(w.key), f.cfg.Now(), f.cfg.Cluster)
	if w.canary != nil {
		v.CanaryPercent = w.canary.Percent
	}
	return v
}

// view is what the request path is told, but for the share of a canary.
func (s *snapshot) view(url string, now time.Time, cluster bool) View {
	v := View{Key: s.key, Service: s.object.Service, URL: url, Replicas: s.replicas}
	if s.record == nil {
		v.Adapters = named(s.object.Service)
		v.Cause = "not yet resolved"
		if s.failure != nil {
			v.Reason, v.Cause, v.Blocked = s.failure.Reason, s.failure.Message, true
		}
		return v
	}
	v.Role, v.Disaggregation = entrance(&s.record.Revision), s.record.Revision.Disaggregation
	v.Needs = Needs(&s.record.Revision)
	v.Adapters = s.record.Revision.Model.Adapters
	v.Protocol, v.Limits = s.record.Revision.Protocol, s.record.Revision.Component(v.Role).Limits
	if !s.mixed() {
		v.Protocols = s.record.Revision.Protocols
	}
	if bad := worst(s.replicas); bad != nil {
		// A program that is not there does not come by waiting, one that cannot
		// be executed cannot a second later, and a process that ends at every
		// start ends at the next; one crash or a busy accelerator
		// may pass.
		v.Reason, v.Cause = bad.Reason, bad.Message
		wait := bad.Restart.Sub(now)
		v.Blocked = bad.Reason == replica.ReasonProgramMissing || bad.Reason == replica.ReasonCannotExecute ||
			bad.Phase == replica.Failed && (wait > patience || bad.FailedStarts >= hopeless)
		if s.returning() {
			v.Blocked = false
		}
		if v.Blocked && bad.Phase == replica.Failed {
			v.RetryAfter = max(wait, time.Second)
		}
	}
	s.deny(&v, now, cluster)
	if s.object.Service.Stopped {
		v.Reason, v.Cause, v.Blocked = "Stopped", "stopped by its owner", true
	}
	return v
}

// mixed reports whether replicas of another revision than the present one serve.
func (s *snapshot) mixed() bool {
	return slices.ContainsFunc(s.replicas, func(r replica.Replica) bool {
		return r.Revision != "" && r.Revision != s.record.Revision.Hash && r.Serving()
	})
}

// named are the adapters that a service names, wherever they are: a request for
// one is for the service, also while that cannot be run.
func named(s *service.Service) (out []workload.Adapter) {
	if s.Model != nil {
		for _, a := range s.Model.Adapters {
			out = append(out, workload.Adapter{Name: a.Name, URI: a.URI})
		}
	}
	return out
}

// patience is how far off a failed replica's next start may be for requests to
// wait for it. Platforms wait longer after each failure, so that beyond it
// several starts in a row have failed.
const patience = 3 * time.Second

// hopeless is how many starts in a row have failed when requests no longer wait
// for the next.
const hopeless = 2

// worst is the replica whose trouble explains the service's, nil when none.
func worst(rs []replica.Replica) *replica.Replica {
	var out *replica.Replica
	for i := range rs {
		if r := &rs[i]; r.Message != "" && (r.Phase == replica.Failed || r.Phase == replica.Pending && out == nil) {
			out = r
		}
	}
	return out
}

// statusOf recomputes the whole status from the record and the replicas.
func (f *Fleet) statusOf(w *work) service.Status {
	st := service.Status{URL: f.cfg.URL(w.key), Generation: w.generation}
	if w.record != nil {
		st.Runtime, st.Protocol, st.Revision = w.record.Revision.Runtime, w.record.Revision.Protocol, w.record.Revision.Name
		for _, c := range w.record.Revision.Components {
			st.Components = append(st.Components, componentStatus(w, c.Role))
		}
	}
	st.Model, st.Canary = modelStatus(w), w.canary
	if st.Model.LastFailure == nil {
		st.Model.LastFailure = w.canaryFailure
	}
	st.Conditions = conditions(w, st)
	return st
}

func componentStatus(w *work, role service.Role) service.ComponentStatus {
	cs := service.ComponentStatus{Role: role, Desired: w.wanted(role), Serving: serving(w, role)}
	for _, r := range w.replicas {
		if r.Role != role {
			continue
		}
		if r.PID != 0 || r.Phase == replica.Starting || r.Phase == replica.Ready {
			cs.Running++
		}
		if r.Phase == replica.Ready {
			cs.Ready++
		}
		if p := r.Progress; p != nil && r.Phase == replica.Fetching {
			cs.Progress = progress(*p)
		}
	}
	return cs
}

// serving is the name of the revision that a role answers with.
func serving(w *work, role service.Role) string {
	present, before := w.record.Revision, ""
	for _, r := range w.replicas {
		switch {
		case r.Role != role || !r.Serving():
		case r.Revision == "" || r.Revision == present.Hash:
			return present.Name
		default:
			before = workload.RevisionName(w.key.Name, r.Revision)
		}
	}
	if before == "" && w.wanted(role) == 0 {
		return present.Name
	}
	return before
}

func progress(p replica.Progress) string {
	if p.Total <= 0 {
		return size(p.Done)
	}
	return size(p.Done) + " of " + size(p.Total)
}

func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	default:
		return fmt.Sprintf("%.0f KiB", float64(n)/(1<<10))
	}
}

func modelStatus(w *work) service.ModelStatus {
	ms := service.ModelStatus{Transition: service.UpToDate, Target: service.ModelLoaded}
	ready, starting := 0, 0
	for _, r := range w.replicas {
		switch r.Phase {
		case replica.Ready:
			ready++
		case replica.Starting, replica.Fetching:
			starting++
		case replica.Failed:
			ms.Failed++
			ms.LastFailure = &service.Failure{Reason: r.Reason, Message: r.Message, ExitCode: r.ExitCode, Replica: r.ID}
		}
	}
	ms.Copies = ready
	if ms.LastFailure == nil && ready == 0 && !sleeping(w) {
		ms.LastFailure = w.past
	}
	if w.failure != nil {
		ms.LastFailure = w.failure
	}
	switch {
	case w.failure != nil && w.record == nil:
		ms.Active = service.ModelFailedToLoad
	case ready > 0:
		ms.Transition, ms.Active = taking(w), service.ModelLoaded
		if ms.Transition == service.BlockedByFailedLoad {
			ms.Target = service.ModelFailedToLoad
		}
	case ms.Failed > 0:
		ms.Transition, ms.Active = service.BlockedByFailedLoad, service.ModelFailedToLoad
	case starting > 0:
		ms.Transition, ms.Active = service.InProgress, service.ModelLoading
	case sleeping(w):
		ms.Active, ms.Target = service.ModelStandby, service.ModelStandby
	default:
		ms.Transition, ms.Active = service.InProgress, service.ModelPending
	}
	if w.failure != nil { // whatever serves is not what the manifest asks for
		ms.Transition, ms.Target = blocked(w.failure), service.ModelFailedToLoad
	}
	return ms
}

// blocked is KServe's word for a manifest that comes to no revision.
func blocked(f *service.Failure) service.Transition {
	if f.Reason == reasonModelLoadFailed {
		return service.BlockedByFailedLoad
	}
	return service.InvalidSpec
}

// behind says that replicas of an older revision serve and none of the present
// one is ready, and what is wrong with those of the present one, nil for
// nothing.
func behind(w *work) (late bool, bad *replica.Replica) {
	if w.record == nil {
		return false, nil
	}
	var present []replica.Replica
	for _, r := range w.replicas {
		switch {
		case r.Revision == "" || r.Revision == w.record.Revision.Hash:
			if r.Phase == replica.Ready {
				return false, nil
			}
			present = append(present, r)
		case r.Phase == replica.Ready:
			late = true
		}
	}
	return late, worst(present)
}

// taking is how far the present revision is in taking over, while something
// serves.
func taking(w *work) service.Transition {
	late, bad := behind(w)
	switch {
	case !late:
		return service.UpToDate
	case bad != nil && bad.Phase == replica.Failed:
		return service.BlockedByFailedLoad
	}
	return service.InProgress
}

// sleeping says that nothing runs because nothing is wanted to.
func sleeping(w *work) bool {
	if w.record == nil {
		return false
	}
	for _, c := range w.record.Revision.Components {
		if w.wanted(c.Role) > 0 {
			return false
		}
	}
	return true
}

func conditions(w *work, st service.Status) []service.Condition {
	cond := func(kind string, ok bool, reason, message string) service.Condition {
		status := "False"
		if ok {
			status = "True"
		}
		return service.Condition{Type: kind, Status: status, Reason: reason, Message: message}
	}
	stopped := w.object.Service.Stopped
	selected := cond(service.ConditionSelected, w.record != nil, "Selected", st.Runtime.Why)
	if w.record == nil && w.failure == nil {
		selected = cond(service.ConditionSelected, false, "NoRevision", "waits for its turn to have its model looked at")
	} else if w.record == nil {
		selected = cond(service.ConditionSelected, false, w.failure.Reason, w.failure.Message)
	} else if w.failure != nil {
		selected = cond(service.ConditionSelected, false, w.failure.Reason, w.failure.Message+service.BeforeServes)
	}
	predictor := predictorReady(w, cond)
	ingress := cond(service.ConditionIngressReady, true, "Routed", "")
	ready := cond(service.ConditionReady, predictor.Status == "True" && w.record != nil && !stopped, predictor.Reason, predictor.Message)
	switch {
	case selected.Status == "False" && w.record == nil:
		ready = cond(service.ConditionReady, false, selected.Reason, selected.Message)
	case selected.Status == "False" && ready.Status == "True": // in every dialect's words, and in every listing
		ready.Message = selected.Message
	}
	out := []service.Condition{ready, selected, predictor, ingress}
	if stopped {
		out = append(out, cond(service.ConditionStopped, true, "Stopped", "stopped by its owner"))
	}
	return out
}

func predictorReady(w *work, cond func(string, bool, string, string) service.Condition) service.Condition {
	kind := service.ConditionPredictorReady
	if w.record == nil {
		return cond(kind, false, "NoRevision", "")
	}
	if w.object.Service.Stopped {
		return cond(kind, false, "Stopped", "stopped by its owner")
	}
	if w.trouble != nil {
		return cond(kind, false, "PlatformFailed", w.trouble.Error())
	}
	for _, c := range w.record.Revision.Components {
		cs := componentStatus(w, c.Role)
		if cs.Ready > 0 || cs.Desired == 0 {
			continue
		}
		if bad := worst(w.replicas); bad != nil {
			return cond(kind, false, bad.Reason, bad.Message)
		}
		return starting(w, cs, cond)
	}
	if sleeping(w) {
		return cond(kind, true, "Asleep", service.WakesAtRequest)
	}
	message := short(w)
	if late, bad := behind(w); late {
		message = "revision " + w.record.Revision.Name + " is not ready, the one before goes on serving"
		if bad != nil {
			message += ": " + bad.Message
		}
	}
	if message == "" {
		message = w.externalScalers()
	}
	return cond(kind, true, "Serving", message)
}

// short says which role has fewer replicas than it should for a reason that
// somebody could do something about, "" for none.
func short(w *work) string {
	for _, c := range w.record.Revision.Components {
		cs := componentStatus(w, c.Role)
		if cs.Ready >= cs.Desired {
			continue
		}
		mine := slices.DeleteFunc(slices.Clone(w.replicas), func(r replica.Replica) bool { return r.Role != c.Role })
		if bad := worst(mine); bad != nil {
			return fmt.Sprintf("%s: %d of %d ready: %s", c.Role, cs.Ready, cs.Desired, bad.Message)
		}
	}
	return ""
}

// starting says how far a role without a ready replica is, and what went wrong
// before.
func starting(w *work, cs service.ComponentStatus, cond func(string, bool, string, string) service.Condition) service.Condition {
	reason, message := "Starting", fmt.Sprintf("%s: 0 of %d ready", cs.Role, cs.Desired)
	if slices.ContainsFunc(w.replicas, func(r replica.Replica) bool { return r.Role == cs.Role && r.Phase == replica.Fetching }) {
		reason, message = "Fetching", "fetching the model"
		if cs.Progress != "" {
			message += ": " + cs.Progress
		}
	}
	if i := slices.IndexFunc(w.replicas, func(r replica.Replica) bool {
		return r.Role == cs.Role && r.Phase == replica.Starting && r.Message != ""
	}); i >= 0 {
		message += ": " + w.replicas[i].Message
	}
	if w.past != nil {
		message += "; the try before failed: " + w.past.Message
	}
	return cond(service.ConditionPredictorReady, false, reason, message)
}

// transitioned carries over since when each condition has been as it is.
func transitioned(before, now service.Status, at time.Time) service.Status {
	for i := range now.Conditions {
		c := &now.Conditions[i]
		c.Since = at.UTC().Truncate(time.Second)
		for _, b := range before.Conditions {
			if b.Type == c.Type && b.Status == c.Status {
				c.Since = b.Since
			}
		}
	}
	return now
}
