package fleet

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/route"
)

// Routing is the live side of routing objects. It is told all of them, as a
// whole, whenever one of them changes or a service comes or goes. The fleet
// holds its lock meanwhile: a Routing does not call back from there.
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
}

// RoutingState is a routing object as it is now.
type RoutingState struct {
	Object Object
	Status routing.Status
}

// routingKind is a routing kind as IDs spell it.
func routingKind(k routing.Kind) string { return strings.ToLower(string(k)) }

// admitRouting refuses to change the name of an InferenceModel, which its
// published schema forbids.
func (f *Fleet) admitRouting(objects []Object) error {
	var errs []error
	for _, o := range objects {
		now, ok := o.Routing.(*routing.Model)
		if !ok {
			continue
		}
		if before, ok := f.mu.routing[o.ID()].Routing.(*routing.Model); ok && before.ModelName != now.ModelName {
			errs = append(errs, fmt.Errorf("%s: spec.modelName: cannot change, from %q to %q: delete the object first, or give this one another name",
				o.ID(), before.ModelName, now.ModelName))
		}
	}
	return errors.Join(errs...)
}

// reroute recomputes what is true of every routing object and tells the
// request path; Fleet.mu is held.
func (f *Fleet) reroute() {
	objects := f.routingObjects()
	if len(objects) == 0 && len(f.mu.routed) == 0 {
		return
	}
	f.judge(objects)
	if f.cfg.Routing == nil {
		return
	}
	v := RoutingView{Objects: objects, Members: map[service.Key][]service.Key{}}
	for _, o := range objects {
		if p, ok := o.(*routing.Pool); ok {
			v.Members[p.Key] = f.mu.routed[routing.IDOf(o)].Members
		}
	}
	f.cfg.Routing.Route(v)
}

// judge recomputes the status of every object; Fleet.mu is held.
func (f *Fleet) judge(objects []routing.Object) {
	now := f.cfg.Now()
	statuses := route.Statuses(f.members(), objects, f.mu.troubles)
	for id, st := range statuses {
		before := service.Status{Conditions: f.mu.routed[id].Conditions}
		st.Conditions = transitioned(before, service.Status{Conditions: st.Conditions}, now).Conditions
		statuses[id] = st
	}
	f.mu.routed = statuses
}

func (f *Fleet) routingObjects() []routing.Object {
	out := make([]routing.Object, 0, len(f.mu.routing))
	for _, o := range f.mu.routing {
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

func (f *Fleet) members() []route.Member {
	var out []route.Member
	for k, e := range f.mu.services {
		if !e.deleted && !k.IsCanary() {
			out = append(out, route.NewMember(e.object.Service))
		}
	}
	return out
}

// Troubled says what is wrong with the addresses of a pool. It shows in the
// status of the pool and of what leads to it.
func (f *Fleet) Troubled(pool service.Key, now routing.Trouble) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.mu.routing[ID{Kind: routingKind(routing.KindPool), Key: pool}]; !ok || f.mu.troubles[pool] == now {
		return
	}
	f.mu.troubles[pool] = now
	if now == (routing.Trouble{}) {
		delete(f.mu.troubles, pool)
	}
	f.judge(f.routingObjects())
}

// RoutingObjects lists every routing object by kind, namespace and name.
func (f *Fleet) RoutingObjects() []RoutingState {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []RoutingState
	for _, o := range slices.Collect(maps.Values(f.mu.routing)) {
		out = append(out, RoutingState{Object: o, Status: f.mu.routed[routing.IDOf(o.Routing)]})
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
