package fleet

import (
	"cmp"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/rollout"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// snapshot is what is known of one service, or of its canary, at one time.
type snapshot struct {
	key    service.Key
	object Object
	record *Record
	// failure is why the present inputs cannot be run; nil when they can.
	failure  *service.Failure
	replicas []replica.Replica
	// unplaced is since when no place takes its replicas; zero while one does.
	unplaced time.Time
}

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
// transformer's predictor, those of a router. An explainer calls, and is called by
// none.
func Needs(r *workload.Revision) (out []service.Role) {
	in := entrance(r)
	if in != service.RoleTransformer && in != service.RoleRouter {
		return nil
	}
	for i := range r.Components {
		if role := r.Components[i].Role; role != in && role != service.RoleExplainer {
			out = append(out, role)
		}
	}
	return out
}

// Called are the roles that others of their service call.
func Called(r *workload.Revision) []service.Role {
	out := Needs(r)
	if p := r.Predictor(); r.Component(service.RoleExplainer) != nil && !slices.Contains(out, p) {
		out = append(out, p)
	}
	return out
}

// view is what the request path is told.
func (w *work) view(cfg *Config) View {
	v := w.snapshot.view(cfg.URL(w.key), cfg.Now(), cfg.Cluster)
	if w.canary != nil {
		v.CanaryPercent = w.canary.Percent
	}
	if l := w.roles[v.Role].state.Learned; len(l.Startups) > 0 { // the record has it after a while
		v.Startup = l.Startup()
	}
	if s := w.sleeper(v.Role); s != nil && s.Standby > 0 {
		v.Startup = cmp.Or(w.roles[v.Role].state.Learned.Wake(s.Standby), v.Startup)
	}
	return v
}

// view is what the request path is told, but for the share of a canary.
func (s *snapshot) view(url string, now time.Time, cluster bool) View {
	v := View{Key: s.key, Service: s.object.Service, URL: url, Replicas: s.replicas, Access: s.object.Service.Access, Scheduling: s.object.Service.Scheduling}
	if s.record == nil {
		v.Adapters = named(s.object.Service)
		v.Cause = "not yet resolved"
		if s.failure != nil {
			v.Reason, v.Cause, v.Blocked = s.failure.Reason, s.failure.Message, true
		}
		return v
	}
	v.Role, v.Disaggregation = entrance(&s.record.Revision), s.record.Revision.Disaggregation
	v.Repository = s.record.Revision.Repository() != "" && s.record.Revision.Host == (service.Key{})
	v.Needs, v.Called = Needs(&s.record.Revision), Called(&s.record.Revision)
	if e := s.record.Revision.Component(service.RoleExplainer); e != nil {
		v.Explainer = &e.Limits
	}
	v.Startup = s.record.Learned[v.Role].Startup()
	v.Adapters, v.Access = s.record.Revision.Model.Adapters, s.record.Revision.Access
	v.Scheduling = cmp.Or(s.record.Revision.Scheduling, v.Scheduling)
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
		v.Blocked = bad.Reason == replica.ReasonProgramMissing || bad.Reason == replica.ReasonNoRoom || bad.Reason == replica.ReasonCannotExecute ||
			bad.Phase == replica.Failed && (wait > maxRestartWait || bad.FailedStarts >= maxFailedStarts)
		if s.returning() {
			v.Blocked = false
		}
		if v.Blocked && bad.Phase == replica.Failed {
			v.RetryAfter = max(wait, time.Second)
		}
	}
	s.blockUnplaced(&v, now, cluster)
	if s.object.Service.Stopped {
		v.Reason, v.Cause, v.Blocked = "Stopped", service.StoppedByOwner(v.Key), true
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

// maxRestartWait is how far off a failed replica's next start may be for requests to
// wait for it. Platforms wait longer after each failure, so that beyond it
// several starts in a row have failed.
const maxRestartWait = 3 * time.Second

// maxFailedStarts is how many starts in a row have failed when requests no longer wait
// for the next.
const maxFailedStarts = 2

// returning reports whether a replica of the revision before is on its way.
func (s *snapshot) returning() bool {
	b := s.record.Revision.Before
	return b != nil && slices.ContainsFunc(s.replicas, func(r replica.Replica) bool {
		return r.Revision == b.Hash && (r.Phase == replica.Pending && r.Reason == "" || r.Phase == replica.Fetching || r.Phase == replica.Starting)
	})
}

const (
	// nodeTimeout is for how long requests wait for replicas that no place takes
	// and none will of itself.
	nodeTimeout = 30 * time.Second
	// nodeWithin is the same where a cluster may add a node for them.
	nodeWithin = 2 * time.Minute
)

// unplaceable is why no place takes the replicas of a role that has no other,
// in a word; "" where one may be on its way.
func (s *snapshot) unplaceable() string {
	reasons := map[service.Role]string{}
	for _, r := range s.replicas {
		before, known := reasons[r.Role]
		switch {
		case !r.Alive():
		case r.Phase != replica.Pending || !needsChange(r.Reason):
			reasons[r.Role] = ""
		case !known || before != "":
			reasons[r.Role] = r.Reason
		}
	}
	for _, role := range service.Roles {
		if reason := reasons[role]; reason != "" {
			return reason
		}
	}
	return ""
}

// needsChange reports whether what a Pending replica waits for does not come by
// waiting alone.
func needsChange(reason string) bool {
	return slices.Contains([]string{replica.ReasonUnschedulable, replica.ReasonQuotaExceeded, replica.ReasonPodRefused}, reason)
}

func (s *snapshot) serves() bool {
	return slices.ContainsFunc(s.replicas, replica.Replica.Serving)
}

// waitForNode notes since when no place takes the service's replicas, for
// reason, and returns when requests have waited for one for long enough; 0 for
// never.
func (s *snapshot) waitForNode(reason string, now time.Time, cluster bool) time.Duration {
	switch {
	case !needsChange(reason):
		s.unplaced = time.Time{}
		return 0
	case s.unplaced.IsZero():
		s.unplaced = now
	}
	return max(0, s.unplaced.Add(nodeLimit(reason, cluster)).Sub(now))
}

func nodeLimit(reason string, cluster bool) time.Duration {
	if reason == replica.ReasonUnschedulable && cluster {
		return nodeWithin
	}
	return nodeTimeout
}

// blockUnplaced has requests told why no place takes the service's replicas, once they
// have waited for one for long enough.
func (s *snapshot) blockUnplaced(v *View, now time.Time, cluster bool) {
	if s.unplaced.IsZero() || !needsChange(v.Reason) || now.Sub(s.unplaced) < nodeLimit(v.Reason, cluster) {
		return
	}
	v.Blocked, v.RetryAfter = true, nodeTimeout
}

// A service whose manifest asks for a canary keeps its record while the
// manifest is resolved, applied and scaled under a key of its own, as if it
// were another service; package rollout decides what share of the traffic goes
// there. Without the percentage, or with 100, the service resolves the manifest
// itself and the canary ends.

// forCanary reports whether the manifest is for the service's canary and not for
// the service.
func (s *snapshot) forCanary() bool {
	return !s.key.IsCanary() && rollout.Gradual(s.object.Service.CanaryPercent, s.record != nil)
}

// canaryState returns how far s, a canary, has come; asleep: none of its
// replicas is wanted.
func (s *snapshot) canaryState(asleep bool) rollout.Canary {
	var c rollout.Canary
	if s.failure != nil {
		c.Refused = s.failure.Message
	}
	if s.record == nil {
		return c
	}
	c.WasReady, c.Asleep = s.record.WasReady, asleep
	var own []replica.Replica
	for _, r := range s.replicas {
		if r.Revision != s.record.Revision.Hash {
			continue
		}
		own = append(own, r)
		if r.Phase == replica.Ready && r.Role == entrance(&s.record.Revision) {
			c.Ready++
		}
	}
	if bad := worst(own); bad != nil {
		c.Failing = bad.Message
	}
	return c
}

// share is what a service's canary, e, takes now, and what is to be said of it;
// nil without one. The
// lock of services is held.
func share(w *work, e *entry) (*service.CanaryStatus, *service.Failure) {
	if !w.forCanary() || e == nil || e.deleted {
		return nil, nil
	}
	d := rollout.Step(rollout.Input{Percent: w.object.Service.CanaryPercent, Serving: true, Canary: e.canary})
	st := &service.CanaryStatus{Wanted: *w.object.Service.CanaryPercent, Percent: d.Percent, Ready: e.canary.Ready, Why: d.Why,
		Transition: service.InProgress}
	if e.status.Generation == e.generation {
		st.Transition = e.status.Model.Transition
	}
	if e.record != nil {
		st.Revision = e.record.Revision.Name
	}
	return st, e.status.Model.LastFailure
}
