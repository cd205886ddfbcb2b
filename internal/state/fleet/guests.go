package fleet

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/guests"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// A guest is a service whose model the replicas of another, its host, load while they
// run. Its record is made of the host's at each reconcile and is not stored; the host's
// revision lists the guests, and that is. The replicas of a guest are the host's, ready
// where they have loaded its model, and demand for it is demand for the host.

// placement is where a service's model is served, and why.
type placement struct {
	place guests.Place
	host  service.Key
	why   string
}

// parentKey is the service that o names as its parent; the zero key for none.
func (o Object) parentKey() service.Key {
	if o.Service == nil || o.Service.Parent == "" {
		return service.Key{}
	}
	return service.Key{Namespace: o.Key.Namespace, Name: o.Service.Parent}
}

// bringUpLocked notes whose child a service is. mu is held.
func (s *services) bringUpLocked(o Object) {
	if p := o.parentKey(); p != (service.Key{}) {
		s.mu.parents[o.Key] = p
	} else {
		delete(s.mu.parents, o.Key)
	}
}

// childrenLocked are the services that name k as their parent, by name; mu is held.
func (s *services) childrenLocked(k service.Key) (out []*entry) {
	for child, p := range s.mu.parents {
		if p != k {
			continue
		}
		if e := s.presentLocked(child); e != nil {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b *entry) int { return strings.Compare(a.object.Key.Name, b.object.Key.Name) })
	return out
}

// relateLocked queues the services that what has become of k concerns: its parent, and
// those that name it as theirs. mu is held.
func (s *services) relateLocked(k service.Key) {
	if p, ok := s.mu.parents[k]; ok && s.presentLocked(p) != nil {
		s.queue.add(p)
	}
	s.tellChildrenLocked(k)
}

// tellChildrenLocked queues the services that name k as their parent; mu is held.
func (s *services) tellChildrenLocked(k service.Key) {
	for child, p := range s.mu.parents {
		if p == k && s.presentLocked(child) != nil {
			s.queue.add(child)
		}
	}
}

// tellGuestsLocked queues the services to which what a reconcile of their parent found
// matters. A host may have a thousand guests, each of which changes its replicas as it is
// loaded. mu is held.
func (s *services) tellGuestsLocked(w *work, e *entry) {
	of := func(roles map[service.Role]*roleState) int {
		if rs := roles[service.RoleEngine]; rs != nil {
			return rs.scaled
		}
		return 0
	}
	if e.record != w.record || !reflect.DeepEqual(e.failure, w.failure) || of(e.roles) != w.roles[service.RoleEngine].scaled {
		s.tellChildrenLocked(w.key)
		return
	}
	for child, p := range s.mu.parents {
		if p == w.key && !reflect.DeepEqual(guests.Replicas(e.lent, child.Name), guests.Replicas(w.replicas, child.Name)) {
			s.queue.add(child)
		}
	}
}

// hostOf is the service whose replicas serve k: its host, or k itself.
func (s *services) hostOf(k service.Key) service.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hostOfLocked(k)
}

// hostOfLocked is hostOf with mu held.
func (s *services) hostOfLocked(k service.Key) service.Key {
	if e := s.presentLocked(k); e != nil && e.placed.place == guests.Guest {
		return e.placed.host
	}
	return k
}

// family is what a guest's reconcile looks at of its parent.
type family struct {
	guests.Parent
	record *Record
	roles  map[service.Role]roleState
	// models are those of all that name the parent, and may be loaded there.
	models []guests.Model
}

// familyOf copies what is known of a service's parent.
func (s *services) familyOf(parent service.Key) family {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := family{Parent: guests.Parent{Key: parent}}
	e := s.presentLocked(parent)
	if e == nil {
		return f
	}
	f.Service, f.record, f.roles = e.object.Service, e.record, map[service.Role]roleState{}
	if e.record != nil {
		f.Revision = &e.record.Revision
	}
	if e.failure != nil {
		f.Failure = e.failure.Message
	}
	for r, rs := range e.roles {
		f.roles[r] = *rs
	}
	f.models = s.modelsLocked(parent)
	return f
}

// modelsLocked are what the models of a parent declare; mu is held.
func (s *services) modelsLocked(parent service.Key) (out []guests.Model) {
	for _, e := range s.childrenLocked(parent) {
		out = append(out, guests.Model{Name: e.object.Key.Name, Created: e.object.Created(), Memory: declaredMemory(e.object.Service)})
	}
	return out
}

// declaredMemory is what a model declares that it takes, in bytes.
func declaredMemory(s *service.Service) int64 {
	c := s.Components.Engine
	if c == nil || len(c.Pod.Containers) == 0 {
		return 0
	}
	q := c.Pod.Containers[0].Resources.Requests[corev1.ResourceMemory]
	return q.Value()
}

// refusals are why models do not fit into a host's memory, by name.
func refusals(host *workload.Revision, models []guests.Model) map[string]string {
	c := host.Component(service.RoleEngine)
	return guests.Refuse(host.Service.Name, c.MemoryLimit(), models)
}

// settlePlace decides where w's model is served, and lets go of what there is of it
// elsewhere.
func (r *reconciler) settlePlace(ctx context.Context, w *work) (family, error) {
	f := r.services.familyOf(w.object.parentKey())
	place, why := guests.Decide(f.Parent, r.cfg.Cluster)
	own := w.record != nil && w.record.Revision.Host == (service.Key{})
	switch {
	case place == guests.Later && own: // its own replicas go on until it is known
		place = guests.Own
	case place == guests.Guest && own:
		if err := r.cfg.Platform.Remove(ctx, w.key); err != nil {
			return f, fmt.Errorf("remove the replicas of %s, which %s loads: %w", w.key, f.Key, err)
		}
		if err := r.cfg.Store.DeleteRecord(w.key); err != nil {
			return f, fmt.Errorf("forget the replicas of %s: %w", w.key, err)
		}
		w.record, w.applied, w.stale = nil, false, true
		clear(w.roles)
	case place == guests.Own && !own && w.placed.place != guests.Own:
		w.record, w.applied, w.failure, w.stale = nil, false, nil, true
		clear(w.roles)
	}
	w.placed = placement{place, f.Key, why}
	return f, nil
}

// convergeGuest is converge of a service whose model its parent's replicas load.
func (r *reconciler) convergeGuest(ctx context.Context, w *work, f family) (again time.Duration, err error) {
	again = w.later
	if waits, failure := w.notYet(f); waits {
		w.stale, w.record, w.failure = false, nil, failure
		r.cfg.Traffic.Publish(w.view(r.cfg))
		return again, nil
	}
	if x := w.failure; x != nil && (x.Reason == reasonMemory || x.Reason == reasonHost || x.Reason == reasonFramework || x.Replica != "") {
		w.failure = nil // of the last look
	}
	model := workload.Model{}
	if w.record != nil {
		model = w.record.Revision.Model
	}
	known := w.record != nil
	if w.stale || !known && w.later == 0 {
		m, wait, failure := r.resolver.guestModel(ctx, w.object)
		switch {
		case failure != nil:
			again = sooner(again, r.fail(w, failure, wait))
		case wait > 0:
			again = sooner(again, r.services.retryLater(w, wait, false, nil))
		default:
			model, known, w.failure = m, true, nil
		}
	}
	if known {
		w.record = guestRecord(f.record, w.object.Service, model, w.placed.why)
	}
	all, err := r.cfg.Platform.Observe(ctx, f.Key)
	if err != nil {
		return 0, fmt.Errorf("observe %s: %w", f.Key, err)
	}
	w.replicas, w.roles = guests.Replicas(all, w.key.Name), map[service.Role]roleState{service.RoleEngine: f.roles[service.RoleEngine]}
	if w.failure == nil {
		w.failure = refusedChange(all, w.key.Name)
	}
	v := w.view(r.cfg)
	v.lend(f.Key, f.Service)
	r.cfg.Traffic.Publish(v)
	return again, nil
}

// KServe's reasons for a model that its service has no memory for, and for one whose
// service does not serve.
const (
	reasonMemory = "MemoryResourceNotAvailable"
	reasonHost   = "InferenceServiceNotReady"
	// reasonFramework is of a model that the server of its service does not read.
	reasonFramework = "FrameworkNotSupported"
)

// notYet reports whether w's model is loaded nowhere, and why; nil where that passes.
func (w *work) notYet(f family) (bool, *service.Failure) {
	switch {
	case w.placed.place == guests.Later && f.Failure == "":
		return true, nil
	case w.placed.place == guests.Later:
		return true, &service.Failure{Reason: reasonHost, Message: w.placed.why}
	case f.Service.Stopped:
		return true, &service.Failure{Reason: reasonHost, Message: f.Key.Name + ", whose replicas load it, is " + service.StoppedByOwner(f.Key)}
	}
	if why := guests.Unsupported(f.Revision, framework(w.object.Service)); why != "" {
		return true, &service.Failure{Reason: reasonFramework, Message: why}
	}
	if why := refusals(f.Revision, f.models)[w.key.Name]; why != "" {
		return true, &service.Failure{Reason: reasonMemory, Message: why}
	}
	return false, nil
}

// refusedChange is why replicas that have a model loaded refuse its present files; nil
// where none does.
func refusedChange(of []replica.Replica, name string) *service.Failure {
	for _, r := range of {
		if g := r.Guests[name]; r.Phase == replica.Ready && g.Loaded && g.Failures > 0 {
			return &service.Failure{Reason: guests.ReasonLoadFailed, Message: g.Message, Replica: r.ID}
		}
	}
	return nil
}

// guestModel finds a guest's files, and what they are fetched with. With neither a
// failure nor a model, the time has not come.
func (r *resolver) guestModel(ctx context.Context, o Object) (workload.Model, time.Duration, *service.Failure) {
	if o.Service.Model != nil && r.cfg.Cluster {
		if why := guests.Unfetched(o.Service.Model.URI); why != "" {
			return workload.Model{}, 0, &service.Failure{Reason: reasonModelLoadFailed, Message: why}
		}
	}
	m, err := r.model(ctx, o)
	if busy(err) {
		return workload.Model{}, busyAfter, nil
	}
	if err != nil {
		return workload.Model{}, retryAfter, &service.Failure{Reason: reasonModelLoadFailed, Message: err.Error()}
	}
	return workload.Model{URI: m.uri, Credentials: m.credentials, Format: m.attributes.Format.Name, Fingerprint: m.files}, 0, nil
}

// guestRecord is the record of a guest: that of its host, with its own name and model.
func guestRecord(host *Record, guest *service.Service, m workload.Model, why string) *Record {
	rev := host.Revision
	rev.Host, rev.Service, rev.Model = rev.Service, guest.Key, m
	rev.Name = workload.RevisionName(guest.Name, rev.Hash)
	rev.Guests, rev.Before = nil, nil
	rev.Access, rev.Scheduling = guest.Access, guest.Scheduling
	rev.Labels, rev.Annotations = guest.Labels, guest.Annotations
	rev.Runtime.Why = why
	rev.Components = []workload.Component{*rev.Component(service.RoleEngine)}
	return &Record{Service: guest.Key, Revision: rev, Learned: host.Learned}
}

// lend has a guest's view be one of its host's replicas: copies of its requests go where
// the host has them go.
func (v *View) lend(host service.Key, of *service.Service) {
	v.Host = host
	s := *v.Service
	engine := service.Component{}
	if c := of.Components.Engine; c != nil {
		engine.Logger, engine.Batcher = c.Logger, c.Batcher
	}
	s.Components = service.Components{Engine: &engine}
	v.Service = &s
}

// takeGuests has the host's revision list the models that it is to load now.
func (r *reconciler) takeGuests(w *work) error {
	if w.record == nil || w.key.IsCanary() {
		return nil
	}
	now := r.services.guestsOf(w.key, &w.record.Revision)
	if slices.EqualFunc(w.record.Revision.Guests, now, workload.Guest.Equal) {
		return nil
	}
	next := *w.record
	next.Revision.Guests = now
	if err := r.cfg.Store.PutRecord(next); err != nil {
		return fmt.Errorf("store the models that %s loads: %w", w.key, err)
	}
	w.record, w.applied = &next, false
	return nil
}

// guestsOf are the models that a host's replicas are to load. One that has not been
// looked at since this process started stays as it was.
func (s *services) guestsOf(k service.Key, host *workload.Revision) (out []workload.Guest) {
	if host.Repository() == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	refused := refusals(host, s.modelsLocked(k))
	for _, e := range s.childrenLocked(k) {
		name := e.object.Key.Name
		switch {
		case refused[name] != "" || guests.Unsupported(host, framework(e.object.Service)) != "" || e.placed.place == guests.Own || e.object.Service.Stopped:
		case e.placed.place == guests.Guest && e.record != nil:
			out = append(out, workload.Guest{Name: name, Model: e.record.Revision.Model})
		default:
			if i := slices.IndexFunc(host.Guests, func(g workload.Guest) bool { return g.Name == name }); i >= 0 {
				out = append(out, host.Guests[i])
			}
		}
	}
	return out
}

// sameGuest reports whether two records have the host load the same.
func sameGuest(a, b *Record) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Revision.Host == b.Revision.Host &&
		workload.Guest{Model: a.Revision.Model}.Equal(workload.Guest{Model: b.Revision.Model})
}

// framework is what a model declares that it is of.
func framework(s *service.Service) string {
	if s.Model == nil {
		return ""
	}
	return s.Model.Format.Name
}

// isGuest reports whether w's model is loaded by another service's replicas.
func (w *work) isGuest() bool { return w.placed.place == guests.Guest }

// guestConditions are KServe's conditions of a model that names an InferenceService.
func guestConditions(w *work, cond func(string, bool, string, string) service.Condition) []service.Condition {
	if w.object.Service.Parent == "" || w.placed.why == "" {
		return nil
	}
	out := []service.Condition{cond(service.ConditionLoadedByParent, w.isGuest(), reasonOf(w.isGuest(), "Guest", "IsNotMMSPredictor"), w.placed.why)}
	if !w.isGuest() {
		return out
	}
	unless := func(reason string) (ok bool, message string) {
		if w.failure != nil && w.failure.Reason == reason {
			return false, w.failure.Message
		}
		return true, ""
	}
	fits, message := unless(reasonMemory)
	out = append(out, cond(service.ConditionMemoryAvailable, fits, reasonOf(fits, "Fits", reasonMemory), message))
	supported, message := unless(reasonFramework)
	out = append(out, cond(service.ConditionFramework, supported, reasonOf(supported, "Supported", reasonFramework), message))
	ready, message := unless(reasonHost)
	ready = ready && (guests.HostReady(w.replicas) || sleeping(w))
	return append(out, cond(service.ConditionParentReady, ready, reasonOf(ready, "Ready", reasonHost), message))
}

func reasonOf(ok bool, yes, no string) string {
	if ok {
		return yes
	}
	return no
}

// explainPlace is where the model of a service that names a parent would be served, and
// the parent. One that has no revision yet, as in a draft, is resolved, and pins nothing.
func (f *Fleet) explainPlace(ctx context.Context, o Object) (guests.Place, Object, string) {
	k := o.parentKey()
	f.services.mu.Lock()
	e := f.services.presentLocked(k)
	if e == nil && f.over != nil {
		f.services.mu.Unlock()
		return f.over.explainPlace(ctx, o)
	}
	p := guests.Parent{Key: k}
	var w *work
	if e != nil {
		w = f.services.workLocked(k, e)
		p.Service = e.object.Service
	}
	f.services.mu.Unlock()
	if w == nil {
		place, why := guests.Decide(p, f.cfg.Cluster)
		return place, Object{}, why
	}
	if w.record == nil && p.Service.Repository {
		var failure *service.Failure
		if w.record, _, failure = f.resolver.resolved(ctx, w); failure != nil {
			p.Failure = failure.Message
		}
	}
	if w.record != nil {
		p.Revision = &w.record.Revision
	}
	place, why := guests.Decide(p, f.cfg.Cluster)
	return place, w.object, why
}
