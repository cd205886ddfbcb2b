package route

import (
	"errors"
	"slices"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

func at(namespace, name string) service.Key { return service.Key{Namespace: namespace, Name: name} }

// adapterWorld: llama of two namespaces has an adapter sql; in b two services
// have the adapter chat; and names that adapters share with others.
func adapterWorld() *Table {
	return NewTable([]Entry{
		{Key: at("a", "llama"), Adapters: []string{"sql", "tldr", "taken", "routed"}},
		{Key: at("a", "taken")},
		{Key: at("b", "llama"), Adapters: []string{"sql", "chat"}},
		{Key: at("b", "mistral"), Host: "mistral.example.com", Adapters: []string{"chat"}},
		{Key: at("a", "llama").Canary(), Host: "canary.example.com", Adapters: []string{"sql", "fresh"}},
	}, "", &routing.Route{Meta: service.Meta{Key: at("a", "r")}, Models: []string{"routed"},
		Targets: []routing.Target{{Ref: routing.Service(at("a", "taken")), Weight: 1}}},
		&routing.Route{Meta: service.Meta{Key: at("a", "other")}, Models: []string{"stable"},
			Targets: []routing.Target{{Ref: routing.Service(at("a", "llama")), Model: "tldr", Weight: 1}}},
		&routing.HTTPRoute{Meta: service.Meta{Key: at("b", "h")}, Hostnames: []string{"www.example.com"}, Rules: []routing.HTTPRule{{
			Matches:  []routing.HTTPMatch{{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: "/"}}},
			Backends: []routing.Backend{{Ref: routing.Service(at("b", "llama")), Weight: 1}}}}})
}

func TestAdapterNames(t *testing.T) {
	table := adapterWorld()
	for name, tc := range map[string]struct {
		q    Query
		want Target
		why  string
	}{
		"the only one":          {Query{Model: "tldr"}, Target{Pool: routing.Service(at("a", "llama")), Adapter: "tldr"}, "adapter tldr → service a/llama"},
		"with its namespace":    {Query{Model: "b/sql"}, Target{Pool: routing.Service(at("b", "llama")), Adapter: "sql", Model: "sql"}, "adapter sql → service b/llama → model sql"},
		"a service's name":      {Query{Model: "taken"}, Target{Pool: routing.Service(at("a", "taken")), Named: true}, "by its name → service a/taken"},
		"a route's name":        {Query{Model: "routed"}, Target{Pool: routing.Service(at("a", "taken")), Named: true}, "Route a/r → service a/taken"},
		"hidden, by host":       {Query{Model: "taken", Host: "llama.a.localhost:8080"}, Target{Pool: routing.Service(at("a", "llama")), Adapter: "taken"}, "adapter taken → service a/llama"},
		"in full, by host":      {Query{Model: "b/chat", Host: "mistral.example.com"}, Target{Pool: routing.Service(at("b", "mistral")), Adapter: "chat", Model: "chat"}, "adapter chat → service b/mistral → model chat"},
		"a route's target":      {Query{Model: "stable"}, Target{Pool: routing.Service(at("a", "llama")), Adapter: "tldr", Model: "tldr"}, "Route a/other → service a/llama → model tldr"},
		"by an HTTPRoute":       {Query{Model: "b/sql", Host: "www.example.com"}, Target{Pool: routing.Service(at("b", "llama")), Adapter: "sql", Model: "sql"}, "HTTPRoute b/h, rule 1 → service b/llama → model sql"},
		"none, by an HTTPRoute": {Query{Model: "else", Host: "www.example.com"}, Target{Pool: routing.Service(at("b", "llama"))}, "HTTPRoute b/h, rule 1 → service b/llama"},
		"unknown, by host":      {Query{Model: "else", Host: "mistral.example.com"}, Target{Pool: routing.Service(at("b", "mistral"))}, "by its host → service b/mistral"},
		"the service, by host":  {Query{Model: "b/mistral", Host: "mistral.example.com"}, Target{Pool: routing.Service(at("b", "mistral")), Named: true}, "by its name → service b/mistral"},
		"a canary's, by host":   {Query{Model: "fresh", Host: "canary.example.com"}, Target{Pool: routing.Service(at("a", "llama").Canary()), Adapter: "fresh"}, "adapter fresh → service a/llama~canary"},
		"the canary, by host":   {Query{Model: "llama", Host: "canary.example.com"}, Target{Pool: routing.Service(at("a", "llama").Canary()), Named: true}, "by its name → service a/llama~canary"},
		"a canary's own name":   {Query{Model: "llama~canary", Host: "canary.example.com"}, Target{Pool: routing.Service(at("a", "llama").Canary()), Named: true}, "by its name → service a/llama~canary"},
		"and its full one":      {Query{Model: "a/llama~canary", Host: "canary.example.com"}, Target{Pool: routing.Service(at("a", "llama").Canary()), Named: true}, "by its name → service a/llama~canary"},
	} {
		got, err := table.Resolve(tc.q, nil)
		why := got.Why()
		if got.by = (reasons{}); err != nil || got != tc.want || why != tc.why {
			t.Errorf("%s: %+v (%s), %v", name, got, why, err)
		}
	}
	got, err := table.ResolveIn(routing.Service(at("b", "llama")), Query{Model: "b/sql"}, nil)
	if err != nil || got.Adapter != "sql" || got.Model != "sql" || got.Named {
		t.Errorf("settled before: %+v, %v", got, err)
	}

	var ambiguous *AmbiguousError
	if _, err := table.Resolve(Query{Model: "sql"}, nil); !errors.As(err, &ambiguous) || !slices.Equal(ambiguous.Candidates, []string{"a/sql", "b/sql"}) {
		t.Errorf("of two namespaces: %v", err)
	}
	_, err = table.Resolve(Query{Model: "chat"}, nil)
	if want := `model "chat" is an adapter of 2 services; send the request to the host of one: llama.b.localhost, mistral.example.com`; err == nil || err.Error() != want {
		t.Errorf("of two services: %v", err)
	}
	var missing *NotFoundError
	if _, err := table.Resolve(Query{Model: "tldrr"}, nil); !errors.As(err, &missing) || !slices.Equal(missing.Near, []string{"tldr"}) {
		t.Errorf("misspelt: %v", err)
	}
	if _, err := table.Resolve(Query{Model: "fresh"}, nil); !errors.As(err, &missing) {
		t.Errorf("a canary's alone: %v", err)
	}

	want := []Adapter{{"a/sql", "sql", at("a", "llama")}, {"b/sql", "sql", at("b", "llama")}, {"tldr", "tldr", at("a", "llama")}}
	if got := table.Adapters(); !slices.Equal(got, want) {
		t.Errorf("the names are %v", got)
	}
	for _, n := range table.Names() {
		if n.Model != "routed" && n.Model != "stable" {
			t.Errorf("a routing object gives the name %q", n.Model)
		}
	}
}

// TestAdapterNamesChangeNothing: services, routes and pools resolve as they do
// where nobody has adapters of their names.
func TestAdapterNamesChangeNothing(t *testing.T) {
	keys := []service.Key{at("a", "x"), at("a", "y"), at("b", "x"), at("c", "z")}
	all := []string{"x", "y", "z", "sql"}
	var plain, adapted []Entry
	for i, k := range keys {
		plain = append(plain, Entry{Key: k})
		var names []string
		for j, n := range all {
			if n != k.Name && (i+j)%2 == 0 {
				names = append(names, n)
			}
		}
		adapted = append(adapted, Entry{Key: k, Adapters: names})
	}
	a, b := NewTable(plain, ""), NewTable(adapted, "")
	for _, k := range keys {
		one, err1 := a.Resolve(Query{Model: k.String()}, nil)
		two, err2 := b.Resolve(Query{Model: k.String()}, nil)
		if one.Pool != two.Pool || !two.Named || err1 != nil || err2 != nil {
			t.Errorf("%s: %+v became %+v (%v, %v)", k, one, two, err1, err2)
		}
	}
}

// TestNamesThatWouldBeAnsweredByTheBaseModel: a service whose replicas answer any
// name by the model without an adapter takes its own name and its adapters'
// alone, at its host and from a route.
func TestNamesThatWouldBeAnsweredByTheBaseModel(t *testing.T) {
	k := service.ParseKey("llama")
	for _, loose := range []bool{false, true} {
		e := Entry{Key: k, Adapters: []string{"sql", "chat"}}
		if loose {
			e.Served = []string{"llama:sql", "llama:chat", "llama"}
		}
		table := NewTable([]Entry{e}, "")
		for model, known := range map[string]bool{"": true, "llama": true, "default/llama": true, "sql": true, "default/chat": true, "slq": false, "llama:sql": true, "llama:none": false} {
			_, err := table.Resolve(Query{Host: "llama.default.localhost", Model: model}, nil)
			if (err == nil) != (known || !loose) {
				t.Errorf("answers any %v, %q: %v", loose, model, err)
			}
			if _, in := table.ResolveIn(routing.Service(k), Query{Model: model}, nil); (in == nil) != (err == nil) {
				t.Errorf("answers any %v, %q: %v, but settled %v", loose, model, err, in)
			}
		}
		if _, err := table.Resolve(Query{Host: "llama.default.localhost", Model: "slq"}, nil); loose && err.Error() != `model "slq" is not served by service default/llama; the models are llama, sql, chat` {
			t.Error(err)
		}
	}
}
