package dispatch

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/admission"
)

// TestSaturatedEngineIsHeldByPriorityAndTurns: with no setting at all, requests
// for a saturated engine wait here. They go on as fast as it works, by priority,
// then by turns, and not all at its first word of capacity.
func TestSaturatedEngineIsHeldByPriorityAndTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPool(pool1(0, ready("a")...))
		urgent := routing.Service(iris)
		d.SetObjects([]routing.Object{&routing.Route{Meta: service.Meta{Key: service.Key{Namespace: "default", Name: "ten"}}, Models: []string{"ten"},
			Targets: []routing.Target{{Ref: urgent, Weight: 1}}, Priority: 10}})
		d.SetLoad("a", &replica.Load{At: time.Now(), Waiting: 50, Running: 8, KV: 0.99})
		order := make(chan string, 100)
		grants := make(chan *Grant, 100)
		ask := func(name string, r Request) {
			go func() {
				g, err := d.Admit(t.Context(), r)
				if err != nil {
					t.Error(err)
					return
				}
				order <- name
				grants <- g
			}()
			synctest.Wait()
		}
		for range 40 {
			ask("x", Request{Model: "iris", FairnessID: "x"})
		}
		ask("y", Request{Model: "iris", FairnessID: "y"})
		ask("ten", Request{Model: "ten"})
		balance(t, d, 42, 0, 42)
		if x, _ := d.Explain(Request{Model: "iris"}); x.Decision != admission.Queue || x.Because != admission.Paced || x.Saturation != 10 {
			t.Errorf("%v", x)
		}

		d.SetLoad("a", &replica.Load{At: time.Now(), Running: 2})
		synctest.Wait()
		var went []string
		for len(order) > 0 {
			went = append(went, <-order)
		}
		slices.Sort(went)
		if !slices.Equal(went, []string{"ten", "x", "x", "x", "y"}) {
			t.Fatalf("went on: %v, want the urgent one, one of each id, and no more than fill a queue", went)
		}
		(<-grants).Done(Outcome{}) // what ends makes room for one more
		synctest.Wait()
		if balance(t, d, 36, 5, 42); len(order) != 1 {
			t.Errorf("%d more went on, want 1", len(order))
		}
		for range 60 {
			d.SetLoad("a", &replica.Load{At: time.Now(), Running: 5})
			synctest.Wait()
			for len(grants) > 0 {
				(<-grants).Done(Outcome{})
			}
			synctest.Wait()
		}
		balance(t, d, 0, 0, 42)
		// Nobody is held any more: a burst goes on at once.
		var all []*Grant
		for range 40 {
			all = append(all, mustAdmit(t, d))
		}
		for _, g := range all {
			g.Done(Outcome{})
		}
	})
}

// TestUnknownLoadHoldsNobody: an engine whose metrics are absent, or stale, is
// sent requests as they come.
func TestUnknownLoadHoldsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPool(pool1(0, ready("a")...))
		burst := func() {
			var all []*Grant
			for range 50 {
				all = append(all, mustAdmit(t, d))
			}
			for _, g := range all {
				if g.Waited() > 0 {
					t.Errorf("waited %v", g.Waited())
				}
				g.Done(Outcome{})
			}
		}
		burst()
		d.SetLoad("a", &replica.Load{At: time.Now(), Waiting: 50, Running: 1, KV: 1})
		time.Sleep(11 * time.Second)
		burst()
		d.SetLoad("a", &replica.Load{At: time.Now(), KV: 1}) // of what has ended, cached
		mustAdmit(t, d).Done(Outcome{})
	})
}

// TestCapacityAnywhereServesSheddable: what can be shed is served while any
// endpoint has capacity, however saturated the others are.
func TestCapacityAnywhereServesSheddable(t *testing.T) {
	loads := func(d *Dispatcher, all map[string]replica.Load) {
		for id, l := range all {
			l.At, l.Running = time.Now(), 1
			d.SetLoad(id, &l)
		}
	}
	for preset, critical := range map[string]admission.Decision{"": admission.Queue, "least-request": admission.Queue, "seed-50": admission.Admit, "v0.3-128": admission.Admit} {
		d, _ := start(t, nil)
		p := pool1(0, ready("a", "b", "c")...)
		p.Picker.Preset = preset
		d.SetPool(p)
		ranked(d)
		loads(d, map[string]replica.Load{"a": {Waiting: 6, KV: 0.85}, "b": {Waiting: 4, KV: 0.75}, "c": {Waiting: 7, KV: 0.60}})
		g, err := d.Admit(t.Context(), Request{Model: "spot"})
		if err != nil || g.Replica() != "b" && preset != "least-request" {
			t.Errorf("preset %q: %v, %v", preset, g, err)
		}
		loads(d, map[string]replica.Load{"a": {Waiting: 100, KV: 1}, "b": {}, "c": {}})
		if _, err := d.Admit(t.Context(), Request{Model: "spot"}); err != nil {
			t.Errorf("preset %q, beside one that is overwhelmed: %v", preset, err)
		}
		if _, err := d.Admit(t.Context(), Request{Model: "spot", Subset: []string{"a:80"}}); !errors.Is(err, ErrBusy) && preset != "least-request" {
			t.Errorf("preset %q, bound to the one that is overwhelmed: %v", preset, err)
		}
		loads(d, map[string]replica.Load{"a": {Waiting: 100, KV: 1}, "b": {Waiting: 6}, "c": {KV: 0.9}})
		if _, err := d.Admit(t.Context(), Request{Model: "spot"}); !errors.Is(err, ErrBusy) {
			t.Errorf("preset %q, no capacity anywhere: %v", preset, err)
		}
		// The trees send a critical request all the same; others are held.
		if x, _ := d.Explain(Request{Model: "vip"}); x.Decision != critical {
			t.Errorf("preset %q, critical: %v", preset, x)
		}
	}
}

// TestBoundWaitersBlockNobody: any number of requests that wait for a busy
// endpoint, of whatever priority and id, leave an idle one to others.
func TestBoundWaitersBlockNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPool(pool1(1, ready("a", "b")...))
		ranked(d)
		busy, other := grantOf(t, d, Request{Model: "iris", Subset: []string{"a:80"}}), grantOf(t, d, Request{Model: "iris", Subset: []string{"b:80"}})
		var bound []<-chan admitted
		for i := range 300 {
			bound = append(bound, background(t.Context(), d, Request{Model: "vip", FairnessID: fmt.Sprint("x", i%2), Subset: []string{"a:80", "gone:80"}}))
			synctest.Wait()
		}
		free := background(t.Context(), d, Request{Model: "iris", FairnessID: "y"})
		synctest.Wait()
		other.Done(Outcome{})
		x := <-free
		if x.err != nil || x.g.Replica() != "b" || x.g.Waited() != 0 {
			t.Fatal(x.err)
		}
		x.g.Done(Outcome{})
		mustAdmit(t, d).Done(Outcome{}) // one that comes now
		busy.Done(Outcome{})
		for _, c := range bound {
			x := <-c
			if x.err != nil || x.g.Replica() != "a" {
				t.Fatal(x.err)
			}
			x.g.Done(Outcome{})
		}
	})
}

// TestRetryWhileOthersAreHeld: a request whose replica fails moves to another
// although requests are held: it has been admitted.
func TestRetryWhileOthersAreHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPool(pool1(0, ready("a", "b")...))
		g := mustAdmit(t, d)
		for _, id := range []string{"a", "b"} {
			d.SetLoad(id, &replica.Load{At: time.Now(), Waiting: 9, Running: 1})
		}
		held := admit(t.Context(), d)
		synctest.Wait()
		if err := g.Retry(t.Context(), errors.New("reset")); err != nil {
			t.Fatal(err)
		}
		g.Done(Outcome{})
		balance(t, d, 1, 0, 2)
		d.SetLoad("b", &replica.Load{At: time.Now()})
		(<-held).g.Done(Outcome{})
	})
}

// TestEjectedEndpointHasNoCapacity: requests are held while the endpoints that
// get any are saturated, beside an idle one that gets none for having failed.
func TestEjectedEndpointHasNoCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPool(pool1(0, ready("a", "b")...))
		g := mustAdmit(t, d)
		failed := g.Replica()
		if err := g.Retry(t.Context(), errors.New("refused")); err != nil {
			t.Fatal(err)
		}
		d.SetLoad(g.Replica(), &replica.Load{At: time.Now(), Waiting: 9, Running: 1})
		d.SetLoad(failed, &replica.Load{At: time.Now()})
		if x, _ := d.Explain(Request{Model: "iris"}); x.Because != admission.Paced {
			t.Errorf("%v", x)
		}
		g.Done(Outcome{})
	})
}
