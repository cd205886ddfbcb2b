package dispatch

import (
	"testing"
	"testing/synctest"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestNeeds: a transformer that is up takes no request while there is no engine
// behind it: the request wakes one, and waits until it is ready.
func TestNeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, rec := start(t, nil)
		facts := func(engines ...replica.Replica) PoolConfig {
			p := pool1(0, append(engines, ready("t")...)...)
			p.Replicas[len(engines)].Role = service.RoleTransformer
			p.Entry, p.Needs = service.RoleTransformer, []service.Role{service.RoleEngine}
			return p
		}
		d.SetPool(facts())
		if s, _ := d.Status(routing.Service(service.ParseKey("iris"))); s.State != StateAsleep {
			t.Errorf("without an engine the service is %s", s.State)
		}
		waiting := admit(t.Context(), d)
		synctest.Wait()
		if rec.mu.Lock(); len(rec.wakes) != 1 {
			t.Errorf("woken %v", rec.wakes)
		}
		rec.mu.Unlock()
		d.SetPool(facts(inPhase("e", replica.Starting, "loading")))
		synctest.Wait()
		if s, _ := d.Status(routing.Service(service.ParseKey("iris"))); s.State != StateLoading || s.Demand.Queued != 1 {
			t.Errorf("while the engine starts: %s, %d wait", s.State, s.Demand.Queued)
		}
		given := facts(ready("e")...)
		d.SetPool(given)
		a := <-waiting
		if a.err != nil || a.g.Replica() != "t" {
			t.Fatalf("%v", a.err)
		}
		// The engine goes in the middle of an answer: that is not disturbed.
		d.SetPool(facts(inPhase("e", replica.Draining, "")))
		if n := d.InFlight("t"); n != 1 {
			t.Errorf("%d in flight on the transformer", n)
		}
		a.g.Done(Outcome{})
		// Another that fails is no reason to wait for it while one is ready.
		d.SetPool(facts(append(ready("e"), inPhase("f", replica.Failed, "x"))...))
		for _, e := range d.Endpoints(routing.Service(iris)) {
			if e.ID != "t" || !e.Open {
				t.Errorf("%+v", e)
			}
		}
		if given.Replicas[1].Phase != replica.Ready {
			t.Error("the caller's replicas were changed")
		}
	})
}
