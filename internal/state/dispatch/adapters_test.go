package dispatch

import (
	"math/rand/v2"
	"slices"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// lora is iris with adapters.
func lora(names ...string) PoolConfig {
	p := pool1(0, ready("a", "b", "c")...)
	for _, n := range names {
		p.Adapters = append(p.Adapters, Adapter{Name: n, URI: "hf://org/" + n})
	}
	return p
}

// TestAdaptersStay: requests for an adapter go to the replica that had the first
// of them, however often another is as idle. The manifest's word that it is one
// is enough.
func TestAdaptersStay(t *testing.T) {
	d, err := New(DefaultConfig(), &recorder{}, nil, rand.New(rand.NewPCG(1, 2)).IntN)
	if err != nil {
		t.Fatal(err)
	}
	d.SetPool(lora("sql", "chat"))
	seen := map[string]map[string]bool{}
	for range 20 {
		for _, model := range []string{"sql", "default/sql", "chat", "iris"} {
			g := grantOf(t, d, Request{Model: model})
			to := g.Model()
			if want := map[string]string{"iris": "iris", "default/sql": "sql"}[model]; to != want {
				t.Fatalf("%s: the replica is asked for %q, want %q", model, to, want)
			}
			name := model
			if to != "" {
				name = to
			}
			if seen[name] == nil {
				seen[name] = map[string]bool{}
			}
			seen[name][g.Replica()] = true
			g.Done(Outcome{})
		}
	}
	if len(seen["sql"]) != 1 || len(seen["chat"]) != 1 || len(seen["iris"]) < 2 {
		t.Errorf("replicas by model: %v", seen)
	}
	// In a shared pool, too, to which the name is not its own.
	d.SetPool(sharing(lora("sql")))
	routed(d)
	seen = map[string]map[string]bool{"sql": {}, "m": {}}
	for range 20 {
		for model := range seen {
			g := grantOf(t, d, Request{Host: toBoth.Host, Model: model})
			seen[model][g.Replica()] = true
			g.Done(Outcome{})
		}
	}
	if len(seen["sql"]) != 1 || len(seen["m"]) < 2 {
		t.Errorf("in a shared pool: %v", seen)
	}
}

// TestAdaptersAreModels: they are listed and found while the service has them.
func TestAdaptersAreModels(t *testing.T) {
	d, _ := start(t, nil)
	names := func(namespaces ...string) (out []string) {
		for _, s := range d.ModelsWithin(namespaces) {
			name := s.Name
			if s.Adapter != nil {
				name += " at " + s.Adapter.URI + " of " + d.Name(s.Pool.Key, namespaces)
			}
			out = append(out, name)
		}
		return out
	}
	d.SetPool(lora("sql", "other"))
	d.SetPool(of("other", 0, "x"))
	far := lora("sql")
	far.Key = service.Key{Namespace: "far", Name: "iris"}
	d.SetPool(far)
	if got, want := names(), []string{"default/iris", "default/sql at hf://org/sql of default/iris", "far/iris", "far/sql at hf://org/sql of far/iris", "other"}; !slices.Equal(got, want) {
		t.Errorf("models are %q, want %q", got, want)
	}
	if got, want := names("far"), []string{"iris", "sql at hf://org/sql of iris"}; !slices.Equal(got, want) {
		t.Errorf("to those of one namespace models are %q, want %q", got, want)
	}
	s, err := d.Resolve(Request{Model: "far/sql"})
	if err != nil || s.Adapter == nil || s.Adapter.Name != "sql" || s.Pool.Key != far.Key {
		t.Errorf("far/sql is %+v, %v", s, err)
	}
	if s, err := d.Resolve(Request{Model: "other"}); err != nil || s.Adapter != nil || s.Pool.Key.Name != "other" {
		t.Errorf("other is %+v, %v", s, err)
	}
	d.SetPool(pool1(0, ready("a")...))
	if _, err := d.Resolve(Request{Model: "default/sql"}); err == nil {
		t.Error("an adapter is found that is not there any more")
	}
	if k, err := d.Key(Request{Model: "sql"}); err != nil || k != far.Key {
		t.Errorf("the only one left is %v, %v", k, err)
	}
}

// TestAdapterOfOneRevision: a canary without an adapter takes no requests for it.
func TestAdapterOfOneRevision(t *testing.T) {
	d, _ := start(t, nil) // every draw is the canary's
	stable := lora("sql", "chat")
	stable.CanaryPercent = 50
	canary := lora("chat")
	canary.Key, canary.Replicas = iris.Canary(), ready("z")
	d.SetPool(stable)
	d.SetPool(canary)
	for model, canary := range map[string]bool{"sql": false, "chat": true, "iris": true} {
		g := grantOf(t, d, Request{Model: model})
		if got := g.Replica() == "z"; got != canary {
			t.Errorf("%s goes to %s", model, g.Replica())
		}
		g.Done(Outcome{})
	}
}

// TestAdapterByTheReplicasName: the replica is asked for an adapter as its
// engine knows it, by whatever name the request found it; a replica whose
// service has no such adapter, and the engine's own name, stay as they are. A name
// that is none is refused, because such an engine answers it by the model.
func TestAdapterByTheReplicasName(t *testing.T) {
	d, _ := start(t, nil)
	d.SetPool(lora("sql")) // before its runtime is chosen
	p := lora("sql")
	p.Adapters[0].ServedName = "iris:sql"
	d.SetPool(p)
	for model, want := range map[string]string{"sql": "iris:sql", "default/sql": "iris:sql", "iris": "iris", "default/iris": "iris"} {
		if g := grantOf(t, d, Request{Model: model}); g.Model() != want {
			t.Errorf("%s is asked for as %q, not %q", model, g.Model(), want)
		}
	}
	for model, want := range map[string]string{"sql": "iris:sql", "iris:sql": ""} {
		if g := grantOf(t, d, Request{To: routing.Service(p.Key), Model: model}); g.Model() != want {
			t.Errorf("%s at the service is asked for as %q, not %q", model, g.Model(), want)
		}
	}
	if _, err := d.Resolve(Request{To: routing.Service(p.Key), Model: "other"}); err == nil {
		t.Error("a name that is none is taken")
	}
}

// TestAdapterWakes: a service that sleeps is woken by its adapter's name.
func TestAdapterWakes(t *testing.T) {
	d, rec := start(t, nil)
	asleep := lora("sql")
	asleep.Replicas = nil
	d.SetPool(asleep)
	waits := background(t.Context(), d, Request{Model: "sql"})
	for len(rec.woken()) == 0 {
		pause(100)
	}
	d.SetPool(lora("sql"))
	if a := <-waits; a.err != nil {
		t.Error(a.err)
	} else {
		a.g.Done(Outcome{})
	}
}
