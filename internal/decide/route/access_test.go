package route

import (
	"testing"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// reached are services with names, paths and groups of their own, as KServe's
// LLMInferenceServices have them.
func reached() *Table {
	at := func(name string, a service.Access) Entry {
		return Entry{Key: service.Key{Namespace: "default", Name: name}, Access: a, Adapters: []string{name + "-lora"}}
	}
	return NewTable([]Entry{
		at("tiny", service.Access{Names: []string{"Acme/Tiny", "publishers/default/models/Acme/Tiny"}, ByPath: true, Paths: []string{"/publishers/default/models/Acme/Tiny"}, Priority: routing.PriorityCritical}),
		at("blue", service.Access{Names: []string{"Acme/Both"}, Group: "both", Weight: 3, ByPath: true}),
		at("green", service.Access{Names: []string{"Acme/Both"}, Group: "both", Weight: 1}),
		at("twin-a", service.Access{Names: []string{"Acme/Twin"}}),
		at("twin-b", service.Access{Names: []string{"Acme/Twin"}}),
		at("plain", service.Access{}),
		at("thief", service.Access{Names: []string{"plain"}}),
	}, "")
}

func TestAccessByName(t *testing.T) {
	table := reached()
	for _, c := range []struct {
		model, pool, named string
		priority           int32
	}{
		{"Acme/Tiny", "tiny", "named", routing.PriorityCritical},
		{"default/Acme/Tiny", "tiny", "named", routing.PriorityCritical},
		{"publishers/default/models/Acme/Tiny", "tiny", "named", routing.PriorityCritical},
		{"tiny", "tiny", "named", routing.PriorityCritical},
		{"tiny-lora", "tiny", "", routing.PriorityCritical},
		{"plain", "plain", "named", 0}, // no name takes a service's own away
	} {
		got, err := table.Resolve(Query{Model: c.model}, func(int) int { return 0 })
		if err != nil || got.Pool.Name != c.pool || got.Named != (c.named != "") || got.Priority != c.priority {
			t.Errorf("%s goes to %+v, %v; want %+v", c.model, got, err, c)
		}
	}
	if got, err := table.Resolve(Query{Model: "Acme/Twin"}, nil); err == nil {
		t.Errorf("a name of two services without a group goes to %v", got.Pool)
	}
	if got, err := table.Resolve(Query{Host: "tiny.default.localhost", Model: "Acme/Tiny"}, nil); err != nil || !got.Named {
		t.Errorf("at its host the name gives %+v, %v", got, err)
	}
	listed := map[string]bool{}
	for _, n := range table.Names() {
		listed[n.Model] = true
	}
	if !listed["Acme/Tiny"] || !listed["Acme/Both"] || listed["publishers/default/models/Acme/Tiny"] {
		t.Errorf("listed are %v", listed)
	}
}

func TestAccessByGroup(t *testing.T) {
	table, counts := reached(), map[string]int{}
	for i := range 4 {
		got, err := table.Resolve(Query{Model: "Acme/Both"}, func(int) int { return i })
		if err != nil || !got.Named {
			t.Fatalf("%+v, %v", got, err)
		}
		counts[got.Pool.Name]++
	}
	if counts["blue"] != 3 || counts["green"] != 1 {
		t.Errorf("of four requests they have %v", counts)
	}
	if got, err := table.Resolve(Query{Model: "green"}, nil); err != nil || got.Pool.Name != "green" {
		t.Errorf("its own name gives %+v, %v", got, err)
	}
}

func TestAccessBelowAPath(t *testing.T) {
	table := reached()
	for _, c := range []struct{ path, name, rest string }{
		{"/default/tiny/v1/models", "tiny", "/v1/models"},
		{"/default/tiny/", "tiny", "/"},
		{"/default/tiny", "tiny", "/"},
		{"/default/blue/v1/chat/completions", "blue", "/v1/chat/completions"},
		{"/publishers/default/models/Acme/Tiny/v1/completions", "tiny", "/v1/completions"},
		{"/default/tinyer/v1", "", ""},
		{"/default/green/v1", "", ""},
		{"/default/plain/v1", "", ""},
		{"/other/tiny/v1", "", ""},
		{"/", "", ""}, {"", "", ""}, {"//default/tiny/v1", "", ""},
	} {
		k, rest, ok := table.Below(Query{Path: c.path})
		if k.Name != c.name || ok != (c.name != "") || ok && rest != c.rest {
			t.Errorf("%q is %v, %q, %v; want %+v", c.path, k, rest, ok, c)
		}
	}
	taken := NewTable([]Entry{{Key: service.Key{Namespace: "default", Name: "tiny"}, Access: service.Access{ByPath: true}}}, "",
		&routing.HTTPRoute{Meta: service.Meta{Key: service.Key{Namespace: "default", Name: "r"}}, Rules: []routing.HTTPRule{{
			Matches: []routing.HTTPMatch{{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: "/default"}}}}}})
	if k, _, ok := taken.Below(Query{Path: "/default/tiny/v1"}); ok {
		t.Errorf("an HTTPRoute asks for the path, and %v has it", k)
	}
}
