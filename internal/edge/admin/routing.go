package admin

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/history"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

func (s *Server) routing(w http.ResponseWriter, r *http.Request) {
	namespace := r.URL.Query().Get("namespace")
	out := []RoutingObject{}
	for _, st := range s.cfg.Fleet.RoutingObjects() {
		if namespace == "" || st.Object.Key.Namespace == namespace {
			o := RoutingOf(st)
			if !owns(r) {
				o.Rendered = ""
			}
			if p, ok := st.Object.Routing.(*routing.Pool); ok && s.cfg.Endpoints != nil {
				o.Endpoints = s.cfg.Endpoints(routing.PoolRef(p.Key))
			}
			out = append(out, o)
		}
	}
	answer(w, out)
}

// removeRouting removes an object of a routing kind only.
func (s *Server) removeRouting(w http.ResponseWriter, r *http.Request) {
	kind := r.PathValue("kind")
	if !slices.ContainsFunc(routing.Kinds, func(k routing.Kind) bool { return strings.EqualFold(string(k), kind) }) {
		fail(w, http.StatusNotFound, "%q is not a routing kind", kind)
		return
	}
	s.remove(kind)(w, r)
}

// RoutingOf is a routing object as commands show it.
func RoutingOf(st fleet.RoutingState) RoutingObject {
	out := routingFacts(st)
	out.Rules = rulesOf(st.Object.Routing)
	text, err := dialect.RenderRouting(st.Object.Object, st.Status)
	if err != nil {
		text = []byte("# " + err.Error() + "\n")
	}
	out.Rendered = string(text)
	return out
}

// routingFacts is a routing object without its manifest.
func routingFacts(st fleet.RoutingState) RoutingObject {
	o := st.Object
	out := RoutingObject{Type: o.ID().Kind, Namespace: o.Key.Namespace, Name: o.Key.Name, APIVersion: o.Origin.APIVersion, Kind: o.Origin.Kind,
		File: o.Origin.File, Created: o.Created(), Status: st.Status}
	out.From, out.To = summary(o.Routing, st.Status)
	for _, r := range leads(o.Routing, st.Status) {
		if text := strings.Replace(r.String(), " ", "/", 1); !slices.Contains(out.Leads, text) {
			out.Leads = append(out.Leads, text)
		}
	}
	return out
}

// RoutesOf are objects of routing as events tell of them.
func RoutesOf(all []fleet.RoutingState) map[routing.ID]history.Route {
	out := make(map[routing.ID]history.Route, len(all))
	for _, st := range all {
		o := history.Route{Manifest: st.Object.Mark(), Ready: st.Status.Ready()}
		if from, to := summary(st.Object.Routing, st.Status); to != "" {
			o.Does = from + " → " + to
		}
		out[routing.IDOf(st.Object.Routing)] = o
	}
	return out
}

// leads is what an object of routing sends requests to or, of those that only change
// what a pool does, that pool.
func leads(o routing.Object, st routing.Status) (out []routing.Ref) {
	switch o := o.(type) {
	case *routing.Pool:
		for _, k := range st.Members {
			out = append(out, routing.Service(k))
		}
	case *routing.Route:
		for _, t := range o.Targets {
			out = append(out, t.Ref)
		}
	case *routing.HTTPRoute:
		for _, rule := range o.Rules {
			for _, b := range rule.Backends {
				out = append(out, b.Ref)
			}
		}
	case *routing.Graph:
		for _, name := range slices.Sorted(maps.Keys(o.Nodes)) {
			for _, step := range o.Nodes[name].Steps {
				if step.Service != "" {
					out = append(out, routing.Service(service.Key{Namespace: o.Namespace, Name: step.Service}))
				}
			}
		}
	case *routing.Model:
		return []routing.Ref{routing.PoolRef(o.Pool)}
	case *routing.Objective:
		return []routing.Ref{routing.PoolRef(o.Pool)}
	case *routing.Rewrite:
		return []routing.Ref{routing.PoolRef(o.Pool)}
	}
	return out
}

// maxSummary is how many names a summary spells out.
const maxSummary = 4

// summary is which requests an object takes and where they go, in a few words.
func summary(o routing.Object, st routing.Status) (from, to string) {
	switch o := o.(type) {
	case *routing.Pool:
		var members []string
		for _, k := range st.Members {
			members = append(members, k.Name)
		}
		return poolWants(o), few(append(members, o.Addresses...))
	case *routing.Route:
		var targets []string
		for _, t := range o.Targets {
			targets = append(targets, weighted(target(t), t.Weight, len(o.Targets)))
		}
		return few(o.Models), few(targets)
	case *routing.HTTPRoute:
		var backends []string
		for _, rule := range o.Rules {
			for _, text := range backendsOf(&rule) {
				if !slices.Contains(backends, text) {
					backends = append(backends, text)
				}
			}
		}
		return httpWants(o), few(backends)
	case *routing.Graph:
		var services []string
		for _, r := range leads(o, st) {
			if !slices.Contains(services, r.Name) {
				services = append(services, r.Name)
			}
		}
		return st.URL, few(services)
	case *routing.Model:
		return o.ModelName + " in " + o.Pool.Name, few(models(o.Targets))
	case *routing.Objective:
		return "asked for in " + o.Pool.Name, fmt.Sprintf("priority %d", o.Priority)
	case *routing.Rewrite:
		var names, targets []string
		for _, rule := range o.Rules {
			if len(rule.Models) == 0 {
				names = append(names, "*")
			}
			names, targets = append(names, rule.Models...), append(targets, models(rule.Targets)...)
		}
		return few(names) + " in " + o.Pool.Name, few(targets)
	}
	return "", ""
}

func poolWants(o *routing.Pool) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(o.Selector)) {
		out = append(out, k+"="+o.Selector[k])
	}
	if len(o.Addresses) > 0 {
		out = append(out, "addresses")
	}
	return few(out)
}

func httpWants(o *routing.HTTPRoute) string {
	hosts := "any host"
	if len(o.Hostnames) > 0 {
		hosts = few(o.Hostnames)
	}
	var paths []string
	for _, rule := range o.Rules {
		for _, m := range rule.Matches {
			if !slices.Contains(paths, m.Path.Value) {
				paths = append(paths, m.Path.Value)
			}
		}
	}
	return hosts + " " + few(paths)
}

func target(t routing.Target) string {
	if t.Model != "" {
		return t.Name + "/" + t.Model
	}
	return t.Name
}

func models(in []routing.WeightedModel) []string {
	out := make([]string, len(in))
	for i, m := range in {
		out[i] = weighted(m.Name, m.Weight, len(in))
	}
	return out
}

// weighted is a name with its weight, if it is one of several.
func weighted(name string, weight uint32, of int) string {
	if of < 2 {
		return name
	}
	return fmt.Sprintf("%s=%d", name, weight)
}

func few(names []string) string {
	if len(names) > maxSummary {
		return strings.Join(names[:maxSummary], ",") + fmt.Sprintf(",… (%d)", len(names))
	}
	return strings.Join(names, ",")
}
