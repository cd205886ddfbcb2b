package route

import (
	"cmp"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// accepted are the objects that count, by kind, oldest first.
type accepted struct {
	pools      map[service.Key]*routing.Pool
	models     []*routing.Model
	objectives []*routing.Objective
	rewrites   []*routing.Rewrite
	routes     []*routing.Route
	http       []*routing.HTTPRoute
	// modelOf and routeOf hold who has a name: the oldest that asks for it.
	modelOf map[poolModel]*routing.Model
	routeOf map[service.Key]*routing.Route
}

// poolModel is a name that one InferenceModel of a pool can have.
type poolModel struct {
	pool service.Key
	name string
}

// older orders objects by creation, then name: the first wins a name both ask
// for.
func older(a, b routing.Object) int {
	x, y := a.Common(), b.Common()
	return cmp.Or(x.Created.Compare(y.Created), strings.Compare(x.Key.String(), y.Key.String()))
}

// accept sorts objects out. Of models, those that lost their name are left
// out; a route stays for the names it did not lose.
func accept(objects []routing.Object) *accepted {
	s := &accepted{pools: map[service.Key]*routing.Pool{}, modelOf: map[poolModel]*routing.Model{}, routeOf: map[service.Key]*routing.Route{}}
	objects = slices.SortedStableFunc(slices.Values(objects), older)
	for _, o := range objects {
		switch o := o.(type) {
		case *routing.Pool:
			s.pools[o.Key] = o
		case *routing.Model:
			if at := (poolModel{o.Pool, o.ModelName}); s.modelOf[at] == nil {
				s.modelOf[at] = o
				s.models = append(s.models, o)
			}
		case *routing.Objective:
			s.objectives = append(s.objectives, o)
		case *routing.Rewrite:
			s.rewrites = append(s.rewrites, o)
		case *routing.HTTPRoute:
			s.http = append(s.http, o)
		case *routing.Route:
			s.routes = append(s.routes, o)
			for _, name := range o.Models {
				if at := (service.Key{Namespace: o.Namespace, Name: name}); s.routeOf[at] == nil {
					s.routeOf[at] = o
				}
			}
		}
	}
	return s
}
