package fleet

import (
	"fmt"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/usage"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/metering"
)

func ref(k service.Key, role service.Role) workload.Ref { return workload.Ref{Service: k, Role: role} }

// worst is the replica whose failure explains the service's, nil when none.
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
func statusOf(w *work, url string) service.Status {
	st := service.Status{URL: url, Generation: w.generation}
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
		if r.PID != 0 && r.Phase != replica.Asleep || r.Phase == replica.Starting || r.Phase == replica.Ready {
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
	ms.LastFailure = lastFailure(w, ms.LastFailure, ready)
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

// lastFailure is what there is to tell of failures: why the manifest cannot be run,
// else what a replica says now, else what one of the past said.
func lastFailure(w *work, present *service.Failure, ready int) *service.Failure {
	switch late, _ := behind(w); {
	case w.failure != nil:
		return w.failure
	case present != nil:
		return present
	case ready == 0:
		return w.past
	case late:
		return retried(w)
	}
	return nil
}

// blocked is KServe's word for a manifest that comes to no revision.
func blocked(f *service.Failure) service.Transition {
	if f.Reason == reasonModelLoadFailed {
		return service.BlockedByFailedLoad
	}
	return service.InvalidSpec
}

// behind reports that replicas of an older revision serve and none of the present
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

// retried returns why a replica of the present revision that is tried again
// failed before, nil for none.
func retried(w *work) *service.Failure {
	if w.past == nil || !slices.ContainsFunc(w.replicas, func(r replica.Replica) bool {
		return r.ID == w.past.Replica && r.Revision == w.record.Revision.Hash && r.Phase != replica.Ready
	}) {
		return nil
	}
	return w.past
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

// sleeping reports whether nothing runs because nothing is wanted to.
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
		selected = cond(service.ConditionSelected, false, "NoRevision", "queued: its model has not been inspected yet")
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
	if c := w.canary; ready.Status == "True" && (ready.Message == "" || ready.Message == service.WakesAtRequest) && waiting(c) {
		ready.Message = c.Why
	}
	out := append([]service.Condition{ready, selected, predictor, ingress}, guestConditions(w, cond)...)
	if stopped {
		out = append(out, cond(service.ConditionStopped, true, "Stopped", service.StoppedByOwner(w.object.Key)))
	}
	return out
}

// waiting reports whether a canary takes nothing because it is not ready.
func waiting(c *service.CanaryStatus) bool {
	return c != nil && c.Ready == 0 && c.Percent == 0 && c.Transition != service.UpToDate
}

func predictorReady(w *work, cond func(string, bool, string, string) service.Condition) service.Condition {
	kind := service.ConditionPredictorReady
	if w.record == nil {
		return cond(kind, false, "NoRevision", "")
	}
	if w.object.Service.Stopped {
		return cond(kind, false, "Stopped", service.StoppedByOwner(w.object.Key))
	}
	if w.platformErr != nil {
		return cond(kind, false, "PlatformFailed", w.platformErr.Error())
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
		return cond(kind, true, "Asleep", service.WakesAtRequest+lastTry(w))
	}
	message := short(w)
	if late, bad := behind(w); late {
		message = "revision " + w.record.Revision.Name + " is not ready, the previous one keeps serving"
		if bad != nil {
			message += ": " + bad.Message
		} else if past := retried(w); past != nil {
			message += "; the last try failed: " + past.Message
		}
	}
	if message == "" {
		message = w.externalScalers()
	}
	return cond(kind, true, "Serving", message)
}

// short returns which role has fewer replicas than it should for a reason that
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

// starting returns how far a role without a ready replica is, and what went wrong
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
	return cond(service.ConditionPredictorReady, false, reason, message+lastTry(w))
}

// lastTry tells of a failure after which no replica has been ready, "" for none.
func lastTry(w *work) string {
	if w.past == nil {
		return ""
	}
	return "; the last try failed: " + w.past.Message
}

// ready is the status of a condition that a transition amounts to.
func ready(t service.Transition) string {
	switch t {
	case service.UpToDate:
		return "True"
	case service.InProgress:
		return "Unknown"
	}
	return "False"
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
	now.LatestSince = at.UTC().Truncate(time.Second)
	if was, _ := before.Latest(); !before.LatestSince.IsZero() {
		if is, _ := now.Latest(); ready(is) == ready(was) {
			now.LatestSince = before.LatestSince
		}
	}
	return now
}

// samples are what w's replicas use now.
func (w *work) samples(cluster bool, inFlight func(replica string) int) []usage.Sample {
	out := make([]usage.Sample, 0, len(w.replicas))
	for _, r := range w.replicas {
		gpus := len(r.GPUs)
		if cluster && w.record != nil && !r.Started.IsZero() {
			if c := w.record.Revision.Component(r.Role); c != nil {
				gpus = c.GPUs()
			}
		}
		out = append(out, usage.SampleOf(r, gpus, inFlight(r.ID)))
	}
	return out
}

// measured returns st with what the components have used since this process
// started, and how long their last starts took.
func (e *entry) measured(m *metering.Meter) service.Status {
	st := e.status
	st.Components = slices.Clone(st.Components)
	for i := range st.Components {
		c := &st.Components[i]
		used := m.Total(usage.Account{Namespace: e.object.Key.Namespace, Service: e.object.Key.Name, Component: c.Role}).Replicas
		c.ReplicaSeconds, c.IdleSeconds = used.Running(), used.Idle
		if rs := e.roles[c.Role]; rs != nil && rs.startup > 0 {
			c.StartupSeconds = rs.startup.Seconds()
		} else if e.record != nil { // by a process before this one
			if starts := e.record.Learned[c.Role].Startups; len(starts) > 0 {
				c.StartupSeconds = starts[len(starts)-1]
			}
		}
	}
	return st
}

// noteStarts notes how long the last start of each role took.
func (e *entry) noteStarts(replicas []replica.Replica) {
	for _, r := range replicas {
		if rs := e.roles[r.Role]; rs != nil && r.Phase == replica.Ready && r.Woke == nil && !r.Started.IsZero() && r.ReadyAt.After(r.Started) {
			rs.startup = r.ReadyAt.Sub(r.Started)
		}
	}
}
