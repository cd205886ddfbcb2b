package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/route"
)

// Routing is the live side of routing objects. It is told all of them, as a
// whole, whenever one of them changes or a service comes or goes. A lock is held
// meanwhile: a Routing does not call back from there.
type Routing interface {
	Route(RoutingView)
}

// RoutingView is what the request path needs to know of routing objects.
// Nothing in it may be changed.
type RoutingView struct {
	// Objects are all of them, oldest first.
	Objects []routing.Object
	// Members are the services that each pool selects, by the pool's key.
	Members map[service.Key][]service.Key
	// Services are all there are.
	Services []service.Key
}

// RoutingState is a routing object as it is now.
type RoutingState struct {
	Object Object
	Status routing.Status
}

// Routes keeps routing objects and computes their status. A gateway without
// services needs nothing else: no platform, no store, no reconciler. It is safe
// for concurrent use.
type Routes struct {
	to    Routing
	now   func() time.Time
	heard func([]RoutingState)     // of every change of an object or its status; nil is nobody
	url   func(service.Key) string // where people reach a graph; nil is nowhere

	mu struct {
		sync.Mutex
		objects  map[ID]Object
		statuses map[routing.ID]routing.Status
		degraded map[service.Key]routing.Degradation // by pool; one without it is not known yet
		members  []route.Member                      // the services that pools may select
	}
}

// NewRoutes returns an empty set of routing objects that tells the request path
// of every change; a nil Routing is not told.
func NewRoutes(to Routing, now func() time.Time) *Routes {
	r := &Routes{to: to, now: now}
	r.mu.objects = map[ID]Object{}
	r.mu.degraded = map[service.Key]routing.Degradation{}
	return r
}

// Apply makes routing objects the desired ones: all of them or, when any is
// refused, none.
func (r *Routes) Apply(_ context.Context, objects []Object, _ ApplyOptions) ([]Change, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	errs := []error{r.admitLocked(objects)}
	for _, o := range objects {
		if o.Routing == nil {
			errs = append(errs, fmt.Errorf("%s: only routes and pools can be applied here", o.ID()))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	out, changed := make([]Change, 0, len(objects)), false
	for _, o := range objects {
		before, known := r.mu.objects[o.ID()]
		change := compare(&o, before, known, r.now())
		r.putLocked(o)
		out, changed = append(out, change), changed || change.Action != actionUnchanged
	}
	if changed {
		r.publishLocked()
	}
	return out, nil
}

// Delete makes an object no longer desired.
func (r *Routes) Delete(_ context.Context, id ID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.mu.objects[id]; !ok {
		return &NotFoundError{ID: id}
	}
	r.deleteLocked(id)
	r.publishLocked()
	return nil
}

// Sourced lists the objects whose source matches, in order.
func (r *Routes) Sourced(match func(source string) bool) []ID {
	var out []ID
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, o := range r.mu.objects {
		if o.Source != "" && match(o.Source) {
			out = append(out, id)
		}
	}
	slices.SortFunc(out, compareIDs)
	return out
}

// Objects lists every routing object by kind, namespace and name.
func (r *Routes) Objects() []RoutingState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.objectsLocked()
}

func (r *Routes) objectsLocked() []RoutingState {
	var out []RoutingState
	for _, o := range r.mu.objects {
		out = append(out, RoutingState{Object: o, Status: r.mu.statuses[routing.IDOf(o.Routing)]})
	}
	rank := func(s RoutingState) int { return slices.Index(routing.Kinds, s.Object.Routing.RoutingKind()) }
	slices.SortFunc(out, func(a, b RoutingState) int {
		if c := rank(a) - rank(b); c != 0 {
			return c
		}
		return strings.Compare(a.Object.Key.String(), b.Object.Key.String())
	})
	return out
}

// SetDegradation records what is wrong with the addresses of a pool; the zero
// value is nothing. It shows in the status of the pool and of the routes that
// lead to it. Before the first call their state is unknown.
func (r *Routes) SetDegradation(pool service.Key, now routing.Degradation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, known := r.mu.degraded[pool]
	if _, ok := r.mu.objects[ID{Kind: routingKind(routing.KindPool), Key: pool}]; !ok || known && before == now {
		return
	}
	r.mu.degraded[pool] = now
	r.updateStatuses(r.sorted())
}

// admit refuses to change the name of an InferenceModel, which its published
// schema forbids.
func (r *Routes) admit(objects []Object) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.admitLocked(objects)
}

func (r *Routes) admitLocked(objects []Object) error {
	var errs []error
	for _, o := range objects {
		now, ok := o.Routing.(*routing.Model)
		if !ok {
			continue
		}
		if before, ok := r.mu.objects[o.ID()].Routing.(*routing.Model); ok && before.ModelName != now.ModelName {
			errs = append(errs, fmt.Errorf("%s: spec.modelName: cannot change, from %q to %q: delete the object first, or give this one another name",
				o.ID(), before.ModelName, now.ModelName))
		}
	}
	return errors.Join(errs...)
}

func (r *Routes) object(id ID) (Object, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o, ok := r.mu.objects[id]
	return o, ok
}

// put and remove take effect with the next publish.
func (r *Routes) put(o Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.putLocked(o)
}

// putLocked stores an object. What is known of a pool's addresses does not hold
// once it has others, or checks them in another way.
func (r *Routes) putLocked(o Object) {
	if now, ok := o.Routing.(*routing.Pool); ok {
		before, _ := r.mu.objects[o.ID()].Routing.(*routing.Pool)
		if before == nil || !slices.Equal(before.Addresses, now.Addresses) || before.Health != now.Health ||
			before.Protocol != now.Protocol || before.Metrics != now.Metrics {
			delete(r.mu.degraded, now.Key)
		}
	}
	r.mu.objects[o.ID()] = o
}

func (r *Routes) remove(id ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deleteLocked(id)
}

func (r *Routes) deleteLocked(id ID) {
	delete(r.mu.objects, id)
	if id.Kind == routingKind(routing.KindPool) {
		delete(r.mu.degraded, id.Key)
	}
}

// publish recomputes every status for the services that there are and tells the
// request path.
func (r *Routes) publish(members []route.Member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.members = members
	r.publishLocked()
}

func (r *Routes) publishLocked() {
	objects := r.sorted()
	if len(objects) == 0 && len(r.mu.statuses) == 0 {
		return
	}
	r.updateStatuses(objects)
	if r.to == nil {
		return
	}
	v := RoutingView{Objects: objects, Members: map[service.Key][]service.Key{}}
	for _, m := range r.mu.members {
		v.Services = append(v.Services, m.Key)
	}
	for _, o := range objects {
		if p, ok := o.(*routing.Pool); ok {
			v.Members[p.Key] = r.mu.statuses[routing.IDOf(o)].Members
		}
	}
	r.to.Route(v)
}

// updateStatuses is called with mu held.
func (r *Routes) updateStatuses(objects []routing.Object) {
	now := r.now()
	statuses := route.Statuses(r.mu.members, objects, r.mu.degraded)
	for id, st := range statuses {
		before := service.Status{Conditions: r.mu.statuses[id].Conditions}
		st.Conditions = transitioned(before, service.Status{Conditions: st.Conditions}, now).Conditions
		if id.Kind == routing.KindGraph && r.url != nil {
			st.URL = r.url(id.Key)
		}
		statuses[id] = st
	}
	r.mu.statuses = statuses
	if r.heard != nil {
		r.heard(r.objectsLocked())
	}
}

// sorted returns the objects, oldest first; mu is held.
func (r *Routes) sorted() []routing.Object {
	out := make([]routing.Object, 0, len(r.mu.objects))
	for o := range maps.Values(r.mu.objects) {
		out = append(out, o.Routing)
	}
	slices.SortFunc(out, func(a, b routing.Object) int {
		x, y := a.Common(), b.Common()
		if c := x.Created.Compare(y.Created); c != 0 {
			return c
		}
		return strings.Compare(x.Key.String()+string(a.RoutingKind()), y.Key.String()+string(b.RoutingKind()))
	})
	return out
}

// routingKind is a routing kind as IDs spell it.
func routingKind(k routing.Kind) string { return strings.ToLower(string(k)) }

// RoutingObjects lists every routing object by kind, namespace and name.
func (f *Fleet) RoutingObjects() []RoutingState { return f.routes.Objects() }

// SetDegradation records what is wrong with the addresses of a pool.
func (f *Fleet) SetDegradation(pool service.Key, now routing.Degradation) {
	f.routes.SetDegradation(pool, now)
}
