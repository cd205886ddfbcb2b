package admin

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
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
	o := st.Object
	out := RoutingObject{Type: o.ID().Kind, Namespace: o.Key.Namespace, Name: o.Key.Name, APIVersion: o.Origin.APIVersion, Kind: o.Origin.Kind,
		File: o.Origin.File, Created: o.Created(), Status: st.Status}
	out.From, out.To = summary(o.Routing, st.Status)
	text, err := dialect.RenderRouting(o.Object, st.Status)
	if err != nil {
		text = []byte("# " + err.Error() + "\n")
	}
	out.Rendered = string(text)
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
			for _, b := range rule.Backends {
				if text := weighted(b.Name, b.Weight, len(rule.Backends)); !slices.Contains(backends, text) {
					backends = append(backends, text)
				}
			}
		}
		return httpWants(o), few(backends)
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
