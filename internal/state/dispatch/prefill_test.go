package dispatch

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestPrefillAndDecode: the answer is the decoder's; an engine computes the
// prompt when much of it is new, until the answer begins.
func TestPrefillAndDecode(t *testing.T) {
	d, _ := start(t, func(c *Config) { c.PrefillTokens = 100 })
	p := pool1(0, ready("e1", "e2", "d1")...)
	p.Replicas[2].Role = service.RoleDecoder
	c := service.Components{Engine: &service.Component{}, Decoder: &service.Component{}}
	p.Entry = EntryRole(c)
	d.SetPool(p)
	long := Request{Model: "iris", Prompt: [][]byte{[]byte(strings.Repeat("once ", 200))}}
	x, err := d.Explain(long)
	if err != nil || x.Pick.Replica != "d1" || x.Prefill == nil {
		t.Fatalf("%v\n%v", err, x)
	}
	g := grantOf(t, d, long)
	if g.Replica() != "d1" || g.Prefill() != x.Prefill.Address || g.Prefill() == "" {
		t.Errorf("decode %s, prefill %q, explained %s", g.Replica(), g.Prefill(), x.Prefill.Address)
	}
	one := d.InFlight("e1") + d.InFlight("e2")
	g.FirstByte()
	if one != 1 || d.InFlight("e1")+d.InFlight("e2") != 0 || d.InFlight("d1") != 1 {
		t.Errorf("%d on engines before the answer, then %d and %d", one, d.InFlight("e1")+d.InFlight("e2"), d.InFlight("d1"))
	}
	g.Done(Outcome{})
	h := grantOf(t, d, long)
	if h.Prefill() != "" {
		t.Errorf("prefill %q for a prompt the decoder knows", h.Prefill())
	}
	h.Done(Outcome{})
	short := grantOf(t, d, Request{Model: "iris", Prompt: [][]byte{[]byte("hello")}})
	if short.Prefill() != "" {
		t.Errorf("prefill %q for a short prompt", short.Prefill())
	}
	short.Done(Outcome{})
	p.Bounds.PrefillTokens = 10_000
	d.SetPool(p)
	own := grantOf(t, d, Request{Model: "iris", Prompt: [][]byte{[]byte(strings.Repeat("upon ", 200))}})
	if own.Prefill() != "" {
		t.Errorf("prefill %q for a prompt shorter than what the pool states", own.Prefill())
	}
	own.Done(Outcome{})
	for _, e := range d.Endpoints(routing.Service(iris)) {
		if e.InFlight != 0 || e.Tokens != 0 {
			t.Errorf("%+v", e)
		}
		if want := map[string]service.Role{"d1": service.RoleDecoder, "e1": service.RoleEngine, "e2": service.RoleEngine}[e.ID]; e.Role != want {
			t.Errorf("%s is %s", e.ID, e.Role)
		}
	}
}

// TestPrefilled: a prefill replica's place ends with its part, one that failed
// is avoided and another found, as often as may be tried; engines that cannot
// do without have one for short prompts too.
func TestPrefilled(t *testing.T) {
	d, _ := start(t, func(c *Config) {
		c.PrefillTokens, c.MaxTries, c.Breaker.LostRest, c.Breaker.MaxLostRest = 100, 3, time.Hour, time.Hour
	})
	p := pool1(0, ready("e1", "e2", "d1")...)
	p.Replicas[2].Role = service.RoleDecoder
	p.Entry = service.RoleDecoder
	d.SetPool(p)
	busy := func() int { return d.InFlight("e1") + d.InFlight("e2") }
	ask := func(text string) *Grant {
		return grantOf(t, d, Request{Model: "iris", Prompt: [][]byte{[]byte(strings.Repeat(text, 200))}})
	}
	g := ask("once ")
	if g.Prefilled(nil); busy() != 0 || d.InFlight("d1") != 1 {
		t.Errorf("%d on engines after the prompt, %d on the decoder", busy(), d.InFlight("d1"))
	}
	g.Done(Outcome{})
	g.Prefilled(nil) // late: nothing

	alone := p
	alone.Disaggregation = service.DisaggregationSGLang
	d.SetPool(alone)
	short := grantOf(t, d, Request{Model: "iris", Prompt: [][]byte{[]byte("hi")}})
	if short.Prefill() == "" || busy() != 1 {
		t.Error("SGLang's decoders answer nothing alone")
	}
	short.Done(Outcome{})
	d.SetPool(p)

	g = ask("twice ")
	first := g.Prefill()
	g.Prefilled(errors.New("broken"))
	if busy() != 0 {
		t.Errorf("%d on engines after a failure", busy())
	}
	if !g.RetryPrefill() || g.Prefill() == first || g.Prefill() == "" {
		t.Errorf("after %s failed: %q", first, g.Prefill())
	}
	g.Prefilled(errors.New("broken"))
	if g.RetryPrefill() || g.Prefill() != "" || busy() != 0 {
		t.Errorf("both have failed: %q, %d on engines", g.Prefill(), busy())
	}
	g.FirstByte()
	if g.RetryPrefill() {
		t.Error("a prefill replica for an answer that has begun")
	}
	g.Done(Outcome{})
	for _, e := range d.Endpoints(routing.Service(iris)) {
		if e.InFlight != 0 || e.Tokens != 0 {
			t.Errorf("%+v", e)
		}
	}
}

// TestPairs: in a pool of two services a prompt is computed by an engine of the
// service whose decoder answers; and decoders that cannot do without an engine
// wait for one.
func TestPairs(t *testing.T) {
	d, _ := start(t, func(c *Config) { c.PrefillTokens = 1 })
	shared := PoolConfig{Key: service.ParseKey("both"), Shared: true}
	for _, name := range []string{"a", "b"} {
		m := PoolConfig{Key: service.ParseKey(name), Limits: service.Scaling{}.Settled(), Entry: service.RoleDecoder}
		for i, role := range []service.Role{service.RoleEngine, service.RoleDecoder} {
			m.Replicas = append(m.Replicas, replica.Replica{ID: name + string(role), Service: m.Key, Role: role, Phase: replica.Ready, HTTP: fmt.Sprintf("%s:%d", name, i)})
		}
		shared.Members = append(shared.Members, m)
	}
	d.SetPool(shared)
	for i := range 40 {
		ask := Request{To: shared.Ref(), Prompt: [][]byte{[]byte(strings.Repeat(fmt.Sprint("text ", i), 50))}}
		x, err := d.Explain(ask)
		if err != nil || x.Pick == nil || x.Prefill == nil || x.Pick.Address[:1] != x.Prefill.Address[:1] {
			t.Fatalf("%v\n%v", err, x)
		}
		g := grantOf(t, d, ask)
		if g.Prefill() == "" || g.Address()[:1] != g.Prefill()[:1] {
			t.Errorf("decode at %s, prefill at %q", g.Address(), g.Prefill())
		}
		g.Done(Outcome{})
	}

	alone := shared.Members[0]
	alone.Disaggregation = service.DisaggregationSGLang
	starting := alone
	starting.Replicas = slices.Clone(alone.Replicas)
	starting.Replicas[0].Phase = replica.Starting
	d.SetPool(starting)
	if s, ok := d.Status(routing.Service(service.ParseKey("default/a"))); !ok || s.State != StateLoading {
		t.Errorf("a decoder without an engine is %s", s.State)
	}
	got := make(chan *Grant, 1)
	go func() {
		g, err := d.Admit(t.Context(), Request{Model: "a"})
		if err != nil {
			t.Error(err)
		}
		got <- g
	}()
	for queued := 0; queued == 0; runtime.Gosched() {
		s, _ := d.Status(routing.Service(service.ParseKey("default/a")))
		queued = s.Demand.Queued
	}
	d.SetPool(alone)
	g := <-got
	if g == nil {
		return
	}
	if g.Prefill() != "a:0" || starting.Replicas[1].Phase != replica.Ready {
		t.Errorf("prefill at %q; the caller's replica is %s", g.Prefill(), starting.Replicas[1].Phase)
	}
	g.Done(Outcome{})
}

// TestRouterPairsByItself: before a router no prefill replica is chosen, also
// of engines that answer nothing alone.
func TestRouterPairsByItself(t *testing.T) {
	d, _ := start(t, nil)
	p := pool1(0, ready("r1")...)
	p.Entry, p.Disaggregation = service.RoleRouter, service.DisaggregationSGLang
	p.Replicas[0].Role = service.RoleRouter
	d.SetPools([]PoolConfig{p})
	g := mustAdmit(t, d)
	if how := g.Pool().Disaggregation; how != "" || g.Prefill() != "" {
		t.Errorf("replicas are to be brought together by %q, prefill at %q", how, g.Prefill())
	}
	g.Done(Outcome{})
}

// TestPrefillOfAPool: servers of a pool that run already have roles too: those that
// compute prompts, or pictures, answer nothing.
func TestPrefillOfAPool(t *testing.T) {
	d, _ := start(t, func(c *Config) { c.PrefillTokens = 100 })
	p := PoolConfig{Key: service.Key{Namespace: "default", Name: "gpu-room"}, Shared: true, Replicas: ready("p1", "d1", "e1")}
	p.Replicas[0].Role, p.Replicas[2].Role = service.RolePrefill, service.RoleEncode
	d.SetPool(p)
	d.SetObjects([]routing.Object{&routing.Pool{Meta: service.Meta{Key: p.Key}}})
	long := Request{To: routing.PoolRef(p.Key), Prompt: [][]byte{[]byte(strings.Repeat("once ", 200))}}
	for i := range 4 {
		g := grantOf(t, d, long)
		if want := []string{"p1:80", "", "", ""}[i]; g.Replica() != "d1" || g.Prefill() != want {
			t.Errorf("request %d: %s answers, %q computes the prompt", i, g.Replica(), g.Prefill())
		}
		g.FirstByte()
		g.Done(Outcome{})
	}
	p.Replicas = ready("p1")
	p.Replicas[0].Role = service.RolePrefill
	d.SetPool(p)
	if _, err := d.Admit(t.Context(), long); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a pool of servers that compute prompts alone: %v", err)
	}
}
