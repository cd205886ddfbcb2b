package route

import (
	"maps"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/graph"
)

// graphs are the inference graphs, which have hosts and names as services have them.
// Where a service or a route has the same name, the name is that one's.
type graphs struct {
	hosts map[string]*routing.Graph
	full  map[string]*routing.Graph
	bare  map[string]*routing.Graph // nil where several namespaces have the name
}

func (t *Table) addGraphs(objects []routing.Object) {
	for _, o := range objects {
		g, ok := o.(*routing.Graph)
		if !ok {
			continue
		}
		if t.graphs.hosts == nil {
			t.graphs = graphs{map[string]*routing.Graph{}, map[string]*routing.Graph{}, map[string]*routing.Graph{}}
		}
		t.graphs.hosts[Host(g.Key, t.domain)] = g
		t.graphs.full[g.Key.String()] = g
		if _, twice := t.graphs.bare[g.Name]; twice {
			t.graphs.bare[g.Name] = nil
		} else {
			t.graphs.bare[g.Name] = g
		}
	}
}

// Graph is the graph that a query is for, by its host or by its model's name; nil for
// none.
func (t *Table) Graph(q Query) *routing.Graph {
	if len(t.graphs.hosts) == 0 {
		return nil
	}
	host := normalHost(q.Host)
	if ref, ok := t.hosts[host]; ok && ref.Name != "" {
		return nil
	}
	if g := t.graphs.hosts[host]; g != nil {
		return g
	}
	if len(t.full[q.Model])+len(t.bare[q.Model]) > 0 {
		return nil
	}
	if g := t.graphs.full[q.Model]; g != nil {
		return g
	}
	return t.graphs.bare[q.Model]
}

// graph is the status of a graph: which services it lacks, and whether it can answer
// without them.
func (s *statuses) graph(g *routing.Graph) routing.Status {
	lost := func(step *routing.GraphStep) bool {
		_, there := slices.BinarySearchFunc(s.keys, service.Key{Namespace: g.Namespace, Name: step.Service}, compareKeys)
		return step.Service != "" && !there
	}
	var lacks []string
	steps := 0
	for _, name := range slices.Sorted(maps.Keys(g.Nodes)) {
		for _, step := range g.Nodes[name].Steps {
			steps++
			if lost(&step) {
				lacks = appendNew(lacks, notFound(routing.Service(service.Key{Namespace: g.Namespace, Name: step.Service}), s.keys))
			}
		}
	}
	status, reason, message := "True", routing.ReasonRouted, plural(len(g.Nodes), "node")+", "+plural(steps, "step")
	if len(lacks) > 0 {
		reason, message = routing.ReasonDegraded, strings.Join(lacks[:min(len(lacks), maxListed)], "; ")
		if graph.Fails(g.Nodes, lost) {
			status, reason = "False", routing.ReasonBackendNotFound
		}
	}
	return routing.Status{Conditions: []service.Condition{condition(routing.ConditionReady, status, reason, message)}}
}
