package incluster

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"

	"github.com/spf13/pflag"
)

// frontDefaults are the options as no flags leave them.
func frontDefaults() (o front.Options) {
	o.Flags(pflag.NewFlagSet("test", pflag.PanicOnError))
	return o
}

// TestFirstRequestWakes: a request for a service at zero raises its count, is
// answered as soon as the new pod answers, before any EndpointSlice says so,
// and never lowers a count that somebody else has raised.
func TestFirstRequestWakes(t *testing.T) {
	r := newRig(t)
	m := newModel(t)
	m.starting.Store(true)
	iris := r.serve("iris", m.port(), 0)
	g := r.gateway(nil)
	type answer struct {
		status int
		body   string
		err    error
		at     time.Time
	}
	answers := make(chan answer, 1)
	began := time.Now()
	go func() {
		status, body, err := g.ask(t.Context(), "iris", "")
		answers <- answer{status, body, err, time.Now()}
	}()
	kubetest.Eventually(t, func() string {
		if r.replicas(iris) == 1 {
			return ""
		}
		return "the count is not raised"
	})
	t.Logf("count raised at most %s after the request", time.Since(began).Round(time.Millisecond))
	es := r.endpoint(iris, "iris-engine-1", m.port(), false)
	kubetest.Eventually(t, func() string {
		if m.probed.Load() >= 3 {
			return ""
		}
		return "the starting pod is not probed"
	})
	m.starting.Store(false)
	ready := time.Now()
	a := <-answers
	if a.err != nil || a.status != http.StatusOK {
		t.Fatalf("%+v", a)
	}
	t.Logf("answered %s after the pod was ready, which no EndpointSlice has said", a.at.Sub(ready).Round(time.Millisecond))
	if r.replicas(iris) != 1 {
		t.Errorf("count %d", r.replicas(iris))
	}
	// By its host, and under no other name.
	for _, c := range []struct {
		name, host string
		status     int
	}{{"iris", "iris." + r.ns + ".models.test", 200}, {"iris", "IRIS." + r.ns + ".models.test:8080", 200}, {"tulip", "", 404}, {r.ns + "%2Firis", "", 200}} {
		if status, body, err := g.ask(t.Context(), c.name, c.host); err != nil || status != c.status {
			t.Errorf("%+v: %d %s %v", c, status, body, err)
		}
	}
	// The slice says so, then that it is not: the slice counts.
	es.Endpoints[0].Conditions.Ready = ptr(true)
	r.update(es)
	es.Endpoints[0].Conditions.Ready = ptr(false)
	r.update(es)
	kubetest.Eventually(t, func() string {
		for _, e := range g.traffic.Dispatcher.Endpoints(routing.Service(iris)) {
			if e.Open {
				return "an endpoint that is ready no more takes requests"
			}
		}
		return ""
	})
	// A higher count stays.
	busy := r.serve("busy", m.port(), 3)
	kubetest.Eventually(t, func() string {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if status, _, err := g.ask(ctx, "busy", ""); err == nil {
			return "answered " + http.StatusText(status)
		}
		return ""
	})
	if err := g.waker.Wake(t.Context(), busy); err != nil || r.replicas(busy) != 3 {
		t.Errorf("%v, count %d", err, r.replicas(busy))
	}
}

func (r *rig) update(o client.Object) {
	r.t.Helper()
	if err := r.api.Update(r.t.Context(), o); err != nil {
		r.t.Fatal(err)
	}
}

// TestEndpointChangeIsKnownSoon measures from the API server's answer to an
// EndpointSlice's change until requests go by it.
func TestEndpointChangeIsKnownSoon(t *testing.T) {
	r := newRig(t)
	m := newModel(t)
	k := r.serve("iris", m.port(), 2)
	es := r.endpoint(k, "iris-engine-1", m.port(), false)
	g := r.gateway(nil)
	var took, all []time.Duration
	for i := range 40 {
		open := i%2 == 0
		es.Endpoints[0].Conditions.Ready = &open
		asked := time.Now()
		r.update(es)
		began := time.Now()
		for {
			now := g.traffic.Dispatcher.Endpoints(routing.Service(k))
			if len(now) == 1 && now[0].Open == open {
				break
			}
			if time.Since(began) > time.Minute {
				t.Fatalf("never: %+v", now)
			}
			time.Sleep(50 * time.Microsecond)
		}
		took, all = append(took, time.Since(began)), append(all, time.Since(asked))
	}
	slices.Sort(took)
	slices.Sort(all)
	t.Logf("with the write itself %s at the median, %s at most", all[len(all)/2].Round(10*time.Microsecond), all[len(all)-1].Round(10*time.Microsecond))
	t.Logf("an EndpointSlice's change is known after %s at the median, %s at most", took[len(took)/2].Round(10*time.Microsecond), took[len(took)-1].Round(10*time.Microsecond))
}

// TestAPIServerGone: requests flow without one, and what changed meanwhile is
// known when it is back.
func TestAPIServerGone(t *testing.T) {
	r := newRig(t)
	m := newModel(t)
	k := r.serve("iris", m.port(), 1)
	es := r.endpoint(k, "iris-engine-1", m.port(), true)
	g := r.gateway(nil)
	answered := func(when string) {
		t.Helper()
		for range 20 {
			if status, body, err := g.ask(t.Context(), "iris", ""); err != nil || status != http.StatusOK {
				t.Fatalf("%s: %d %s %v", when, status, body, err)
			}
		}
	}
	answered("before")
	r.wire.set(true)
	answered("without an API server")
	if !g.ready() {
		t.Error("not ready without an API server")
	}
	es.Endpoints[0].Conditions.Ready = ptr(false)
	r.update(es)
	answered("the API server knows better and cannot be heard")
	r.wire.set(false)
	kubetest.Eventually(t, func() string {
		for _, e := range g.traffic.Dispatcher.Endpoints(routing.Service(k)) {
			if e.Open {
				return "the change is not known"
			}
		}
		return ""
	})
}

// TestRollingUpgrade: while one gateway is replaced by another under load, no
// request fails.
func TestRollingUpgrade(t *testing.T) {
	r := newRig(t)
	m := newModel(t)
	k := r.serve("iris", m.port(), 1)
	r.endpoint(k, "iris-engine-1", m.port(), true)
	// Who leaves takes requests for as long as the others may need to hear of it.
	old := r.gateway(func(o *Options) { o.Leave = 5 * time.Second })
	next := r.gateway(nil)
	// balance is what kube-proxy does: it hears of a gateway that is not ready
	// any more after a while, and existing connections stay.
	var mu sync.Mutex
	current := old
	pick := func() *running { mu.Lock(); defer mu.Unlock(); return current }
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var failed []string
	count := 0
	for range 8 {
		all.Go(func() {
			for ctx.Err() == nil {
				g := pick()
				status, body, err := g.ask(t.Context(), "iris", "")
				mu.Lock()
				if count++; err != nil || status != http.StatusOK {
					failed = append(failed, strings.TrimSpace(http.StatusText(status)+" "+body)+" "+errText(err))
				}
				mu.Unlock()
			}
		})
	}
	wait := func(n int) {
		kubetest.Eventually(t, func() string {
			mu.Lock()
			defer mu.Unlock()
			if count >= n {
				return ""
			}
			return "requests"
		})
	}
	wait(200)
	stopped := make(chan struct{})
	began := time.Now()
	go func() { old.stop(); close(stopped) }()
	kubetest.Eventually(t, func() string {
		if old.ready() {
			return "it still says that it is ready"
		}
		return ""
	})
	mu.Lock()
	at := count
	mu.Unlock()
	wait(at + 100) // still to the one that leaves
	mu.Lock()
	current = next
	mu.Unlock()
	<-stopped
	took := time.Since(began)
	mu.Lock()
	at = count
	mu.Unlock()
	wait(at + 200)
	cancel()
	all.Wait()
	if len(failed) > 0 {
		t.Errorf("%d of %d requests failed: %s", len(failed), count, failed[0])
	}
	t.Logf("%d requests, %d failed; the old gateway was gone %s after it was asked to", count, len(failed), took.Round(time.Millisecond))
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestRecordsAndFailures: what the controller writes reaches the request path.
func TestRecordsAndFailures(t *testing.T) {
	r := newRig(t)
	g := r.gateway(nil)
	kubetest.Apply(t, r.api, r.ns, "apiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: lost}\nspec: {model: {uri: \"https://models.test/x\", format: {name: unheard}}}\n")
	u := kubetest.Parse(t, "apiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: lost}\n")[0]
	if err := r.api.Get(t.Context(), client.ObjectKey{Namespace: r.ns, Name: "lost"}, u); err != nil {
		t.Fatal(err)
	}
	u.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "False", "reason": "NoSupportingRuntime",
		"message": "no runtime reads unheard", "lastTransitionTime": "2026-01-01T00:00:00Z"}}}
	if err := r.api.Status().Update(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, func() string {
		status, body, err := g.ask(t.Context(), "lost", "")
		if err != nil || status != http.StatusServiceUnavailable || !strings.Contains(body, "no runtime reads unheard") {
			return http.StatusText(status) + body + errText(err)
		}
		return ""
	})
	if err := r.api.Delete(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, func() string {
		if status, body, _ := g.ask(t.Context(), "lost", ""); status != http.StatusNotFound {
			return http.StatusText(status) + body
		}
		return ""
	})
}
