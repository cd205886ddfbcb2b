package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

var both = service.Key{Namespace: "default", Name: "both"}

// of is a service with these replicas and at most limit requests on each.
func of(name string, limit int, ids ...string) PoolConfig {
	p := pool1(limit, ready(ids...)...)
	p.Key.Name = name
	return p
}

// sharing is a pool over the replicas of services.
func sharing(members ...PoolConfig) PoolConfig {
	return PoolConfig{Key: both, Shared: true, Members: members}
}

// routed lets requests reach the pool "both".
func routed(d *Dispatcher) {
	d.SetObjects([]routing.Object{&routing.Pool{Meta: service.Meta{Key: both}}})
}

var toBoth = Request{Host: "both.default.localhost", Model: "m"}

func background(ctx context.Context, d *Dispatcher, r Request) <-chan admitted {
	c := make(chan admitted, 1)
	go func() {
		g, err := d.Admit(ctx, r)
		c <- admitted{g, err}
	}()
	return c
}

func grantOf(t *testing.T, d *Dispatcher, r Request) *Grant {
	t.Helper()
	g, err := d.Admit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func demandOf(t *testing.T, d *Dispatcher, name string, queued, running int, arrived uint64) {
	t.Helper()
	m := d.Demand(service.Key{Namespace: "default", Name: name})
	if m.Queued != queued || m.Running != running || m.Arrived != arrived || m.Arrived != m.Done+uint64(queued+running) {
		t.Errorf("%s: demand %+v, want %d queued, %d running, %d arrived", name, m, queued, running, arrived)
	}
}

// TestSharedPoolSharesPlaces: a replica's limit holds for all pools together,
// the demand is its service's, and a place that comes free in one pool is
// taken by who waits in another.
func TestSharedPoolSharesPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		a, b := of("a", 1, "a1"), of("b", 1, "b1")
		d.SetPools([]PoolConfig{a, b, sharing(a, b)})
		routed(d)
		own := grantOf(t, d, Request{Model: "a"}) // each may have one replica and has it
		g := grantOf(t, d, toBoth)
		if g.Replica() != "b1" || g.Pool().Key.Name != "b" || g.Service() != "pool default/both" {
			t.Fatalf("got %s of %s in %s, want b1: a1 is full", g.Replica(), g.Pool().Key, g.Service())
		}
		demandOf(t, d, "a", 0, 1, 1)
		demandOf(t, d, "b", 0, 1, 1)
		waiting := background(t.Context(), d, toBoth)
		other := background(t.Context(), d, Request{Model: "b"})
		synctest.Wait()
		demandOf(t, d, "a", 1, 1, 2) // the shared pool's first member stands for it
		demandOf(t, d, "b", 1, 1, 2)
		own.Done(Outcome{})
		x := <-waiting
		if x.err != nil || x.g.Replica() != "a1" {
			t.Fatalf("%v, %v: a1 came free in the pool of a", x.g, x.err)
		}
		demandOf(t, d, "a", 0, 1, 2)
		second := background(t.Context(), d, toBoth)
		synctest.Wait()
		g.Done(Outcome{})
		for range 2 { // which of them is first goes by turns; neither is lost
			var y admitted
			select {
			case y = <-other:
			case y = <-second:
			}
			if y.err != nil || y.g.Replica() != "b1" || y.g.Waited() != 0 {
				t.Fatal(y.err)
			}
			y.g.Done(Outcome{})
		}
		x.g.Done(Outcome{})
		if n := d.InFlight("a1") + d.InFlight("b1"); n != 0 {
			t.Errorf("%d in flight", n)
		}
		ma, mb := d.Demand(a.Key), d.Demand(b.Key)
		if ma.Arrived != ma.Done || mb.Arrived != mb.Done || ma.Queued+mb.Queued+ma.Running+mb.Running != 0 {
			t.Errorf("demands do not balance: %+v %+v", ma, mb)
		}
		s, ok := d.Status(routing.PoolRef(both))
		if !ok || s.Demand.Arrived != 3 || s.Demand.Done != 3 || s.Name != "default/both" {
			t.Errorf("the pool's own demand: %+v", s)
		}
	})
}

// TestSharedPoolWakesWhoCanStart: a sleeping pool wakes the first member that
// can start, and serves once any has a replica.
func TestSharedPoolWakesWhoCanStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		woken := make(chan string, 10)
		d.demand = &named{recorder: &recorder{}, woken: woken}
		a, b := of("a", 0), of("b", 0)
		a.Cause = Cause{Reason: "NoRuntime", Message: "vllm is not on PATH", Permanent: true}
		a.Replicas = []replica.Replica{inPhase("a1", replica.Failed, "vllm is not on PATH")}
		d.SetPools([]PoolConfig{a, b, sharing(a, b)})
		routed(d)
		c := background(t.Context(), d, toBoth)
		if name := <-woken; name != "default/b" {
			t.Fatalf("woke %s", name)
		}
		demandOf(t, d, "b", 1, 0, 1)
		demandOf(t, d, "a", 0, 0, 0)
		b = of("b", 0, "b1")
		d.SetPool(b)
		d.SetPool(sharing(a, b))
		x := <-c
		if x.err != nil || x.g.Replica() != "b1" || x.g.Pool().ServedName != "b" {
			t.Fatal(x.err)
		}
		x.g.Done(Outcome{})
		demandOf(t, d, "b", 0, 0, 1)

		// With nobody who can start there is no use in waiting.
		b = of("b", 0)
		b.Cause = a.Cause
		d.SetPool(sharing(a, b))
		if _, err := d.Admit(t.Context(), toBoth); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "not on PATH") {
			t.Errorf("got %v", err)
		}
	})
}

// TestQueuedDemandGoesToWhoCanGrow: requests that wait for a shared pool count
// for the first member that may have more replicas.
func TestQueuedDemandGoesToWhoCanGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		a, b := of("a", 1, "a1"), of("b", 1, "b1")
		b.Limits.Max = 2
		d.SetPools([]PoolConfig{a, b, sharing(a, b)})
		routed(d)
		g, h := grantOf(t, d, toBoth), grantOf(t, d, toBoth)
		c := background(t.Context(), d, toBoth)
		synctest.Wait()
		demandOf(t, d, "a", 0, 1, 1)
		demandOf(t, d, "b", 1, 1, 2)
		if g.Pool().Key.Name == "b" {
			g, h = h, g
		}
		g.Done(Outcome{})
		x := <-c
		demandOf(t, d, "a", 0, 1, 2) // it was a's place that came free
		demandOf(t, d, "b", 0, 1, 2)
		x.g.Done(Outcome{})
		h.Done(Outcome{})
		demandOf(t, d, "a", 0, 0, 2)
		demandOf(t, d, "b", 0, 0, 2)
	})
}

type named struct {
	*recorder
	woken chan string
}

func (n *named) Wake(_ context.Context, name string, _ int) error { n.woken <- name; return nil }

// TestStaticPool: servers that run already; when the last has gone there is
// nothing to wait for, and those in flight end in peace.
func TestStaticPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, rec := start(t, nil)
		static := func(addresses ...string) PoolConfig {
			p := sharing()
			p.Bounds.MaxConcurrency = 1
			p.Protocol = service.ProtocolOpenAI
			for _, a := range addresses {
				p.Replicas = append(p.Replicas, replica.Replica{ID: a, HTTP: a, Phase: replica.Ready})
			}
			return p
		}
		d.SetPool(static("10.0.0.1:8000"))
		routed(d)
		g := grantOf(t, d, toBoth)
		if g.Address() != "10.0.0.1:8000" || g.Model() != "" || g.Pool().Protocol != service.ProtocolOpenAI {
			t.Errorf("%s %q", g.Address(), g.Model())
		}
		c := background(t.Context(), d, toBoth)
		synctest.Wait()
		d.SetPool(static())
		if x := <-c; !errors.Is(x.err, ErrUnavailable) || !strings.Contains(x.err.Error(), "no endpoint") {
			t.Errorf("emptied: %v", x.err)
		}
		if _, err := d.Admit(t.Context(), toBoth); !errors.Is(err, ErrUnavailable) {
			t.Errorf("empty: %v", err)
		}
		if d.InFlight("10.0.0.1:8000") != 1 {
			t.Error("the request in flight was forgotten")
		}
		d.SetPool(static("10.0.0.1:8000", "10.0.0.2:8000"))
		h := grantOf(t, d, toBoth)
		if h.Address() != "10.0.0.2:8000" {
			t.Errorf("got %s, but the other is full", h.Address())
		}
		g.Done(Outcome{})
		h.Done(Outcome{})
		d.Remove(routing.PoolRef(both))
		if n := len(d.endpoints.byID); n != 0 {
			t.Errorf("%d endpoints are left", n)
		}
		if len(rec.woken()) != 0 || len(rec.told()) != 0 {
			t.Error("somebody was woken or told for servers nobody starts")
		}
	})
}

// TestDrainClosesForAllPools: a drain reaches a replica in every pool.
func TestDrainClosesForAllPools(t *testing.T) {
	d, _ := start(t, nil)
	a := of("a", 0, "a1", "a2")
	d.SetPools([]PoolConfig{a, sharing(a)})
	routed(d)
	if err := d.Drain(t.Context(), "a1"); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		for _, r := range []Request{toBoth, {Model: "a"}} {
			g := grantOf(t, d, r)
			if g.Replica() != "a2" {
				t.Fatalf("got %s", g.Replica())
			}
			defer g.Done(Outcome{})
		}
	}
	if ends := d.AllEndpoints(); len(ends) != 2 || ends[0].Open || ends[1].InFlight != 16 || ends[1].Service != a.Key {
		t.Errorf("%+v", ends)
	}
}

// TestAffinity: prompts and sessions meet the replica that knows them, and
// what is explained is what is done.
func TestAffinity(t *testing.T) {
	d, err := New(DefaultConfig(), &recorder{}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	d.SetPool(pool1(0, ready("a", "b", "c", "d")...))
	for i := range 20 {
		r := Request{Model: "iris", Prompt: [][]byte{[]byte(fmt.Sprint("prompt ", i)), []byte(strings.Repeat("x", 4096))}}
		if i%2 == 1 {
			r = Request{Model: "iris", Session: fmt.Sprint("session ", i)}
		}
		g := grantOf(t, d, r)
		first := g.Replica()
		g.Done(Outcome{})
		for range 3 {
			x, err := d.Explain(r)
			if err != nil || x.Pick.Replica != first {
				t.Fatalf("%v: %v", err, x)
			}
			g := grantOf(t, d, r)
			if g.Replica() != first {
				t.Errorf("request %d went to %s, then to %s", i, first, g.Replica())
			}
			g.Done(Outcome{})
		}
	}
}

func TestExplain(t *testing.T) {
	d, rec := start(t, nil)
	d.SetPool(pool1(1, ready("a")...))
	x, err := d.Explain(Request{Model: "iris"})
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(x)
	if err != nil || !strings.Contains(string(body), `"decision":"Admit"`) || !strings.Contains(string(body), `"replica":"a"`) {
		t.Errorf("%s %v", body, err)
	}
	if s := x.String(); !strings.Contains(s, "pool: default/iris (Ready)") || !strings.Contains(s, "admission: Admit, Available") {
		t.Error(s)
	}
	balance(t, d, 0, 0, 0)
	defer mustAdmit(t, d).Done(Outcome{})
	if x, _ := d.Explain(Request{Model: "iris"}); x.Decision != "Queue" || x.Because != "NoCapacity" {
		t.Errorf("full: %v", x)
	}
	if x, _ := d.Explain(Request{Model: "iris", Subset: []string{"elsewhere:80"}}); x.Decision != "Shed" || x.Refused == "" {
		t.Errorf("bound elsewhere: %v", x)
	}
	d.SetPool(pool1(1))
	if x, _ := d.Explain(Request{Model: "iris"}); x.Decision != "Queue" || x.Because != "Starting" || x.State != StateAsleep {
		t.Errorf("asleep: %v", x)
	}
	if len(rec.woken()) != 0 {
		t.Error("explaining woke somebody")
	}
	if _, err := d.Explain(Request{Model: "nobody"}); err == nil {
		t.Error("no error for a model nobody serves")
	}
	d.SetObjects([]routing.Object{&routing.Route{Meta: service.Meta{Key: service.Key{Namespace: "default", Name: "r"}}, Models: []string{"r"}, Targets: []routing.Target{{Ref: routing.Service(iris), Weight: 1}},
		Handling: routing.Handling{Timeout: 10 * time.Second, TryTimeout: 5 * time.Second, Mirrors: []routing.Mirror{{Ref: routing.PoolRef(service.ParseKey("sink")), PerMillion: routing.Whole}}}}})
	x, err = d.Explain(Request{Model: "r"})
	if s := x.String(); err != nil || !strings.Contains(s, "timeout: 10s for the whole answer\ntry timeout: 5s until a replica begins its answer\nmirror: 100 % of requests to pool default/sink\n") {
		t.Errorf("%v\n%s", err, s)
	}
}

func TestSubset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		p := pool1(1, ready("a", "b")...)
		p.Replicas[1].GRPC = "b:9000"
		d.SetPool(p)
		for _, subset := range [][]string{{}, {"c:80"}, {""}} {
			if _, err := d.Admit(t.Context(), Request{Model: "iris", Subset: subset}); !errors.Is(err, ErrUnavailable) {
				t.Errorf("%q: %v", subset, err)
			}
		}
		bound := Request{Model: "iris", Subset: []string{"c:80", "b:9000"}}
		g := grantOf(t, d, bound)
		if g.Replica() != "b" || g.GRPCAddress() != "b:9000" {
			t.Fatalf("got %s", g.Replica())
		}
		first := background(t.Context(), d, bound) // waits for b alone
		synctest.Wait()
		h := mustAdmit(t, d) // goes past it
		if h.Replica() != "a" {
			t.Fatalf("got %s", h.Replica())
		}
		second := background(t.Context(), d, Request{Model: "iris"})
		synctest.Wait()
		h.Done(Outcome{})
		y := <-second // not held up by who waits for b
		g.Done(Outcome{})
		x := <-first
		if x.err != nil || y.err != nil || x.g.Replica() != "b" || y.g.Replica() != "a" {
			t.Fatal(x.err, y.err)
		}
		x.g.Done(Outcome{})
		y.g.Done(Outcome{})
		balance(t, d, 0, 0, 4)
	})
}

// TestOuterGateway: somebody else has settled the pool and forwards by itself,
// to an alternative where the endpoint does not answer.
func TestOuterGateway(t *testing.T) {
	d, _ := start(t, nil)
	a := of("a", 2, "a1", "a2", "a3")
	d.SetPools([]PoolConfig{a, of("b", 0, "b1"), sharing(a)})
	g := grantOf(t, d, Request{To: routing.PoolRef(both), Model: "whatever", Subset: []string{"a1:80", "a2:80"}})
	others := g.Alternatives(5)
	if len(others) != 1 || others[0] == g.Address() || !slices.Contains([]string{"a1:80", "a2:80"}, others[0]) {
		t.Fatalf("%s, else %q", g.Address(), others)
	}
	first := g.Replica()
	g.Served("elsewhere:80") // no endpoint of ours: the place stays
	g.Served(others[0])
	if g.Address() != others[0] || d.InFlight(first) != 0 || d.InFlight(g.Replica()) != 1 {
		t.Errorf("%s has %d, %s has %d", first, d.InFlight(first), g.Replica(), d.InFlight(g.Replica()))
	}
	demandOf(t, d, "a", 0, 1, 1)
	g.FirstByte()
	g.Done(Outcome{})
	g.Served(others[0])
	if n := g.Alternatives(5); n != nil {
		t.Errorf("alternatives %q after the end", n)
	}
	demandOf(t, d, "a", 0, 0, 1)
	for _, e := range d.AllEndpoints() {
		if e.InFlight != 0 || e.Tokens != 0 {
			t.Errorf("%+v", e)
		}
	}
	h := grantOf(t, d, Request{To: routing.Service(a.Key), Model: "an adapter"})
	if h.Named() || h.Model() != "" || len(h.Alternatives(1)) != 1 {
		t.Errorf("%v %q", h.Named(), h.Model())
	}
	h.Done(Outcome{})
	if _, err := d.Admit(t.Context(), Request{To: routing.PoolRef(iris)}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

func TestEndpoints(t *testing.T) {
	d, _ := start(t, nil)
	p := pool1(5, ready("a", "b")...)
	p.Protocol = service.ProtocolOpenAI
	d.SetPool(p)
	l := &replica.Load{At: time.Now(), Waiting: 3}
	d.SetLoad("b", l)
	d.SetLoad("nobody", l)
	g := mustAdmit(t, d)
	defer g.Done(Outcome{})
	ends := d.Endpoints(routing.Service(iris))
	if len(ends) != 2 || ends[0].ID != "a" || ends[0].InFlight != 1 || ends[0].Limit != 5 || !ends[0].Open ||
		ends[1].Load != l || ends[1].Address != "b:80" || ends[1].Protocol != service.ProtocolOpenAI || ends[1].Service != iris {
		t.Errorf("%+v", ends)
	}
	if all := d.AllEndpoints(); !slices.EqualFunc(all, ends, func(a, b Endpoint) bool { return a.ID == b.ID }) {
		t.Errorf("%+v", all)
	}
	if d.Endpoints(routing.PoolRef(iris)) != nil {
		t.Error("endpoints of a pool that is not there")
	}
}
