package route

import (
	"errors"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

func graphNamed(name string, services ...string) *routing.Graph {
	g := &routing.Graph{Meta: service.Meta{Key: service.ParseKey(name)}, Nodes: map[string]routing.GraphNode{}}
	n := routing.GraphNode{Kind: routing.NodeSequence}
	for _, s := range services {
		n.Steps = append(n.Steps, routing.GraphStep{Service: s})
	}
	g.Nodes[routing.GraphRoot] = n
	return g
}

// TestGraphsAreFound by their host, and by their name where nothing else has it.
func TestGraphsAreFound(t *testing.T) {
	t1 := NewTable([]Entry{{Key: service.ParseKey("iris")}, {Key: service.ParseKey("same")}}, "", graphNamed("g"), graphNamed("same"), graphNamed("a/two"), graphNamed("b/two"))
	for _, tt := range []struct{ host, model, want string }{
		{"g.default.localhost:8080", "", "default/g"}, {"same.default.localhost", "", ""}, {"", "g", "default/g"}, {"", "default/g", "default/g"},
		{"", "same", ""}, {"", "two", ""}, {"", "a/two", "a/two"}, {"two.b.localhost", "two", "b/two"}, {"", "iris", ""}, {"iris.default.localhost", "g", ""}, {"", "", ""},
	} {
		got := ""
		if g := t1.Graph(Query{Host: tt.host, Model: tt.model}); g != nil {
			got = g.Key.String()
		}
		if got != tt.want {
			t.Errorf("host %q, model %q: %q, want %q", tt.host, tt.model, got, tt.want)
		}
	}
	if !t1.KnowsHost("g.default.localhost") {
		t.Error("its host is not known")
	}
}

// switched has the root take one of its steps.
func switched(g *routing.Graph) *routing.Graph {
	n := g.Nodes[routing.GraphRoot]
	n.Kind = routing.NodeSwitch
	for i := range n.Steps {
		n.Steps[i].Condition = "a"
	}
	g.Nodes[routing.GraphRoot] = n
	return g
}

func TestGraphStatus(t *testing.T) {
	services := []Member{{Key: service.ParseKey("iris")}}
	for _, tt := range []struct {
		graph                   *routing.Graph
		status, reason, message string
	}{
		{graphNamed("g", "iris", "iris"), "True", routing.ReasonRouted, "1 node, 2 steps"},
		{graphNamed("g", "iris", "irs"), "False", routing.ReasonBackendNotFound, "there is no service default/irs; did you mean iris?"},
		{switched(graphNamed("g", "iris", "irs")), "True", routing.ReasonDegraded, "there is no service default/irs; did you mean iris?"},
		{graphNamed("g", "irs"), "False", routing.ReasonBackendNotFound, "iris"},
	} {
		c := Statuses(services, []routing.Object{tt.graph}, nil)[routing.IDOf(tt.graph)].Ready()
		if c.Status != tt.status || c.Reason != tt.reason || !strings.Contains(c.Message, tt.message) {
			t.Errorf("%+v", c)
		}
	}
}

// TestChildrenAnswerAtTheirParentsHost: a service with a parent is named at its host.
func TestChildrenAnswerAtTheirParentsHost(t *testing.T) {
	table := NewTable([]Entry{{Key: service.ParseKey("mms")}, {Key: service.ParseKey("one"), Parent: "mms"}, {Key: service.ParseKey("other")}}, "")
	for model, want := range map[string]string{"one": "default/one", "default/one": "default/one", "mms": "default/mms", "other": "default/mms"} {
		got, err := table.Resolve(Query{Host: "mms.default.localhost", Model: model}, nil)
		if err != nil || got.Pool.Key.String() != want {
			t.Errorf("%s: %v %v, want %s", model, got.Pool, err, want)
		}
	}
}

// TestRepositoryKnowsItsModels: at the host of a service without a model of its own the
// names of its models lead somewhere, and no others.
func TestRepositoryKnowsItsModels(t *testing.T) {
	mms := Entry{Key: service.ParseKey("mms"), Repository: true}
	table := NewTable([]Entry{mms, {Key: service.ParseKey("two"), Parent: "mms"}, {Key: service.ParseKey("one"), Parent: "mms"}, {Key: service.ParseKey("other")}}, "")
	for model, want := range map[string]string{"one": "default/one", "default/two": "default/two", "": "default/mms"} {
		got, err := table.Resolve(Query{Host: "mms.default.localhost", Model: model}, nil)
		if err != nil || got.Pool.Key.String() != want {
			t.Errorf("%s: %v %v, want %s", model, got.Pool, err, want)
		}
	}
	for table, want := range map[*Table]string{
		table:                      `model "other" is not served by service default/mms; the models are one, two`,
		NewTable([]Entry{mms}, ""): `model "other" is not served by service default/mms, which has no model yet`,
	} {
		var none *NotFoundError
		if got, err := table.Resolve(Query{Host: "mms.default.localhost", Model: "other"}, nil); !errors.As(err, &none) || err.Error() != want {
			t.Errorf("another service's model: %v, %v, want %s", got.Pool, err, want)
		}
	}
}
