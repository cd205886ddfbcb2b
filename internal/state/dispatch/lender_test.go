package dispatch

import (
	"slices"
	"testing"
	"testing/synctest"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestLender: a service with another's replicas has the other woken, counts as its demand,
// and goes to those alone that serve it too.
func TestLender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, rec := start(t, nil)
		lender := of("host", 0)
		guest := of("guest", 0)
		guest.Lender = lender.Key
		d.SetPool(lender)
		d.SetPool(guest)
		waits := background(t.Context(), d, Request{Model: "guest"})
		synctest.Wait()
		if !slices.Equal(rec.asked, []string{"default/host"}) {
			t.Fatalf("woken: %q", rec.asked)
		}
		demandOf(t, d, "host", 1, 0, 1)
		lender.Replicas = ready("x", "y")
		guest.Replicas = []replica.Replica{lender.Replicas[0], inPhase("y", replica.Starting, "is being loaded")}
		guest.Replicas[0].Phase = replica.Starting
		d.SetPool(lender)
		d.SetPool(guest)
		synctest.Wait()
		select {
		case a := <-waits:
			t.Fatalf("sent to a replica without the model: %+v", a)
		default:
		}
		guest.Replicas = slices.Clone(guest.Replicas)
		guest.Replicas[0].Phase = replica.Ready
		d.SetPool(guest)
		a := <-waits
		if a.err != nil || a.g.Replica() != "x" {
			t.Fatalf("%+v", a)
		}
		demandOf(t, d, "host", 0, 1, 1)
		if n := d.InFlight("x"); n != 1 {
			t.Errorf("%d in flight", n)
		}
		// The host's own requests see what the guest's are on.
		if g := grantOf(t, d, Request{Model: "host"}); g.Replica() != "y" {
			t.Errorf("the host's request went to the busy %s", g.Replica())
		} else {
			g.Done(Outcome{})
		}
		for _, e := range d.Endpoints(routing.Service(guest.Key)) {
			if e.Service != (service.Key{Namespace: "default", Name: "host"}) {
				t.Errorf("%s is of %s", e.ID, e.Service)
			}
		}
		a.g.Done(Outcome{})
		demandOf(t, d, "host", 0, 0, 2)
	})
}
