package dispatch

import (
	"context"
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
	"roundhouse.dev/roundhouse/internal/decide/breaker"
	"roundhouse.dev/roundhouse/internal/decide/retry"
)

// handledAs has requests for iris handled as h says.
func handledAs(d *Dispatcher, name string, h routing.Handling) {
	d.SetObjects([]routing.Object{&routing.Route{Meta: service.Meta{Key: service.Key{Namespace: "default", Name: name}}, Models: []string{"iris"},
		Targets: []routing.Target{{Ref: routing.Service(iris), Weight: 1}}, Handling: h}})
}

var enough = routing.RetryBudget{Percent: 100, PerSecond: 10}

// TestWhenToHedge: a second replica is asked where that helps, and not where requests
// wait already.
func TestWhenToHedge(t *testing.T) {
	for name, c := range map[string]struct {
		limit int // of each replica
		with  func(t *testing.T, d *Dispatcher, slow, other string)
		edit  func(*routing.Hedge)
		want  bool
	}{
		"another is free": {limit: 2, want: true},
		"no budget":       {limit: 2, edit: func(h *routing.Hedge) { h.Budget = routing.RetryBudget{} }},
		"the slow one's engine has a queue": {limit: 9, with: func(_ *testing.T, d *Dispatcher, slow, _ string) {
			d.SetLoad(slow, &replica.Load{At: d.clock.Now(), Waiting: 1})
		}},
		"it had one long ago": {limit: 9, want: true, with: func(_ *testing.T, d *Dispatcher, slow, _ string) {
			d.SetLoad(slow, &replica.Load{At: d.clock.Now().Add(-time.Hour), Waiting: 1})
		}},
		"it collects batches": {limit: 9, want: true, with: func(_ *testing.T, d *Dispatcher, slow, _ string) {
			d.SetLoad(slow, &replica.Load{At: d.clock.Now(), Waiting: 1, Batches: true})
		}},
		"the other has no place": {limit: 1, with: func(t *testing.T, d *Dispatcher, _, _ string) { mustAdmit(t, d) }},
		"requests wait": {limit: 1, with: func(t *testing.T, d *Dispatcher, slow, _ string) { // for the slow one alone
			go func() {
				if g, err := d.Admit(t.Context(), Request{Model: "iris", Subset: []string{slow + ":80"}}); err == nil {
					g.Done(Outcome{})
				}
			}()
			synctest.Wait()
		}},
		"the other fails": {limit: 2, with: func(t *testing.T, d *Dispatcher, slow, other string) {
			for d.Endpoints(routing.Service(iris))[0].Open && d.Endpoints(routing.Service(iris))[1].Open {
				g := mustAdmit(t, d)
				if g.Replica() == other {
					g.Judge(Answer{Result: breaker.Failed})
				}
				g.Done(Outcome{})
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, _ := start(t, func(c *Config) { c.Breaker = breaker.DefaultConfig() })
				d.SetPool(pool1(c.limit, ready("a", "b")...))
				h := routing.Hedge{After: time.Second, Budget: enough}
				if c.edit != nil {
					c.edit(&h)
				}
				handledAs(d, "r", routing.Handling{Hedge: &h})
				g := mustAdmit(t, d)
				other := map[string]string{"a": "b", "b": "a"}[g.Replica()]
				if c.with != nil {
					c.with(t, d, g.Replica(), other)
				}
				before := d.Demand(iris).Running
				twin := g.Hedge()
				if (twin != nil) != c.want {
					t.Fatalf("hedged: %v, want %v", twin != nil, c.want)
				}
				if twin != nil {
					if twin.Replica() != other || d.Demand(iris).Running != before+1 || d.InFlight(other) != 1 {
						t.Errorf("the hedge of %s is on %s, %d run", g.Replica(), twin.Replica(), d.Demand(iris).Running)
					}
					twin.Done(Outcome{})
				}
				g.Done(Outcome{})
				if twin != nil && (d.Demand(iris).Running != 0 || d.InFlight("a")+d.InFlight("b") != 0) {
					t.Errorf("what is left: %+v", d.Demand(iris))
				}
				d.Close()
			})
		})
	}
}

// TestRouteBudget: a route's retries and hedges share its budget, which outlives changes
// of the objects and goes with the route.
func TestRouteBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPool(pool1(0, ready("a", "b", "c")...))
		h := routing.Handling{Retry: &routing.Retry{Attempts: 2, Budget: routing.RetryBudget{Percent: 10}}, Hedge: &routing.Hedge{After: time.Second, Budget: routing.RetryBudget{Percent: 10}}}
		handledAs(d, "r", h)
		retried := func() bool {
			g := mustAdmit(t, d)
			defer g.Done(Outcome{})
			return g.Answered(Answer{Result: breaker.Busy, Retryable: true})
		}
		count := func(n int) (moved int) {
			for range n {
				if retried() {
					moved++
				}
			}
			return moved
		}
		if got := count(30); got != 3 {
			t.Errorf("%d of 30 requests are retried, want 3", got)
		}
		handledAs(d, "r", h) // as a change of another object does
		for range 9 {
			mustAdmit(t, d).Done(Outcome{})
		}
		if got := count(1); got != 1 {
			t.Errorf("after 40 requests %d retries more", got)
		}
		g := mustAdmit(t, d)
		if g.Hedge() != nil {
			t.Error("a hedge beyond the budget")
		}
		g.Done(Outcome{})
		if got := len(d.routes.byID); got != 1 {
			t.Errorf("%d routes are known", got)
		}
		handledAs(d, "other", routing.Handling{})
		if got := len(d.routes.byID); got != 0 {
			t.Errorf("%d routes that are gone are known", got)
		}
		d.Close()
	})
}

// TestRouteAttempts: a route's attempts bound connections that fail, too.
func TestRouteAttempts(t *testing.T) {
	d, _ := start(t, nil)
	d.SetPool(pool1(0, ready("a", "b", "c")...))
	for attempts := range 3 {
		handledAs(d, "r", routing.Handling{Retry: &routing.Retry{Attempts: attempts, Budget: enough}})
		g, err := d.Admit(t.Context(), Request{Model: "iris", Idempotent: true})
		tries := 0
		for ; err == nil; tries++ {
			err = g.Retry(context.Background(), errors.New("broken"))
		}
		if tries != attempts+1 || !strings.Contains(err.Error(), fmt.Sprintf("%d tries failed", attempts+1)) {
			t.Errorf("%d attempts: %d tries, %v", attempts, tries, err)
		}
		g.Done(Outcome{})
		d.SetPool(pool1(0))
		d.SetPool(pool1(0, ready("a", "b", "c")...)) // as new
	}
}

// TestUnheardAnswerIsNone: a replica that has not begun its answer within its route's time
// is not taken for one that answers.
func TestUnheardAnswerIsNone(t *testing.T) {
	for name, c := range map[string]struct {
		between Answer
		open    bool
	}{
		"an answer": {Answer{Status: 504}, true},
		"unheard":   {Answer{Status: 504, Unheard: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, _ := start(t, func(c *Config) { c.Breaker = breaker.DefaultConfig() })
				d.SetPool(pool1(0, ready("a", "b", "c")...))
				handledAs(d, "r", routing.Handling{Retry: &routing.Retry{Attempts: 1, Codes: []int{503}, Budget: enough}})
				on := func(id string, a *Answer) {
					g := grantOf(t, d, Request{Model: "iris", Subset: []string{id + ":80"}})
					if a == nil {
						g.FirstByte()
					} else if j := g.Judge(*a); j.Again || j.Why != retry.Answered {
						t.Errorf("a route that does not name %d: %+v", a.Status, j)
					}
					g.Done(Outcome{})
				}
				on("b", nil)
				on("c", nil)
				failed := &Answer{Status: 500, Result: breaker.Failed}
				for range breaker.DefaultConfig().Failures - 1 {
					on("a", failed)
				}
				on("a", &c.between)
				on("a", failed)
				if got := d.Endpoints(routing.Service(iris))[0]; got.ID != "a" || got.Open != c.open {
					t.Errorf("open: %v, want %v: %+v", got.Open, c.open, got)
				}
				d.Close()
			})
		})
	}
}

// TestBackoffHoldsNoPlace: while a request waits to be sent again, its place is another's;
// it is sent again only where there is a place for it, and counts once.
func TestBackoffHoldsNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPool(pool1(1, ready("a", "b")...))
		handledAs(d, "r", routing.Handling{Retry: &routing.Retry{Attempts: 2, Codes: []int{409}, Backoff: time.Second, Budget: enough}})
		g, other := mustAdmit(t, d), mustAdmit(t, d)
		first := g.Replica()
		waiting := admit(t.Context(), d)
		synctest.Wait()
		if j := g.Judge(Answer{Status: 409, Retryable: true}); !j.Again || j.After == 0 {
			t.Fatalf("%+v", j)
		}
		g.Pause()
		x := <-waiting
		if x.err != nil || x.g.Replica() != first {
			t.Fatalf("%v, %v: the place of the request that waits was not given", x.g, x.err)
		}
		other.Done(Outcome{})
		if !g.Move() || g.Replica() == first {
			t.Fatalf("it was not sent to the other replica: %s", g.Replica())
		}
		if j := g.Judge(Answer{Status: 409, Retryable: true}); !j.Again {
			t.Fatalf("%+v", j)
		}
		g.Pause()
		if g.Move() {
			t.Error("it was sent to a replica that has failed it")
		}
		g.FirstByte()
		g.Done(Outcome{})
		x.g.Done(Outcome{})
		if m := d.Demand(iris); m.Arrived != 3 || m.Done != 3 || m.Left != 0 || m.Queued+m.Running != 0 || d.InFlight("a")+d.InFlight("b") != 0 {
			t.Errorf("%+v, %d and %d in flight", m, d.InFlight("a"), d.InFlight("b"))
		}
	})
}

// TestBackoffIsNoSilence: a replica whose answer is retried after a long wait has answered.
func TestBackoffIsNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, func(c *Config) { c.Breaker = breaker.DefaultConfig() })
		d.SetPool(pool1(0, ready("a", "b")...))
		handledAs(d, "r", routing.Handling{Retry: &routing.Retry{Attempts: 1, Codes: []int{409}, Backoff: retry.MaxBackoff, Budget: enough}})
		g := grantOf(t, d, Request{Model: "iris", Subset: []string{"a:80"}})
		j := g.Judge(Answer{Status: 409, Retryable: true})
		if !j.Again || j.After <= breaker.DefaultConfig().Silence {
			t.Fatalf("%+v", j)
		}
		for begun := time.Now(); time.Since(begun) < j.After; time.Sleep(time.Second) {
			other := grantOf(t, d, Request{Model: "iris", Subset: []string{"b:80"}})
			other.FirstByte()
			other.Done(Outcome{})
		}
		if got := d.Endpoints(routing.Service(iris))[0]; got.ID != "a" || got.Record.Failures() != 0 {
			t.Errorf("the replica that answered is taken for silent: %+v", got)
		}
		g.Done(Outcome{})
		d.Close()
	})
}

// TestHedgeGoesOn: a hedge that becomes the request's has waited as long, and counts the
// slow replica as tried.
func TestHedgeGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPool(pool1(1, ready("a", "b", "c")...))
		for attempts, why := range map[int]retry.Reason{1: retry.Exhausted, 2: retry.Retried} {
			handledAs(d, "r", routing.Handling{Hedge: &routing.Hedge{After: time.Second, Budget: enough}, Retry: &routing.Retry{Attempts: attempts, Codes: []int{409}, Budget: enough}})
			before := []*Grant{mustAdmit(t, d), mustAdmit(t, d), mustAdmit(t, d)}
			last := admit(t.Context(), d)
			synctest.Wait()
			time.Sleep(3 * time.Second)
			for _, g := range before {
				g.Done(Outcome{})
			}
			g := (<-last).g
			h := g.Hedge()
			if h.Waited() != 3*time.Second {
				t.Errorf("the hedge has waited %v", h.Waited())
			}
			tried := []string{g.Replica(), h.Replica()}
			g.Done(Outcome{}) // its place is free again
			j := h.Judge(Answer{Status: 409, Retryable: true})
			if j.Why != why {
				t.Errorf("%d attempts after a hedge: %s, want %s", attempts, j.Why, why)
			}
			if j.Again && (!h.Move() || slices.Contains(tried, h.Replica())) {
				t.Errorf("after %v it is sent to %s", tried, h.Replica())
			}
			h.Done(Outcome{})
		}
		d.Close()
	})
}
