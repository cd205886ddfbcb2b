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
	"roundhouse.dev/roundhouse/internal/decide/admission"
)

// ranked lets requests for "vip" and "spot" reach iris with priorities 1 and
// -1.
func ranked(d *Dispatcher) {
	way := func(name string, priority int32) routing.Object {
		return &routing.Route{Meta: service.Meta{Key: service.Key{Namespace: "default", Name: name}}, Models: []string{name},
			Targets: []routing.Target{{Ref: routing.Service(iris), Weight: 1}}, Priority: priority}
	}
	d.SetObjects([]routing.Object{way("vip", 1), way("spot", -1)})
}

func TestHigherPriorityGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, func(c *Config) { c.MaxQueue = 2 })
		d.SetPool(pool1(1, ready("a")...))
		ranked(d)
		g := mustAdmit(t, d)
		first, second := background(t.Context(), d, Request{Model: "iris"}), (<-chan admitted)(nil)
		synctest.Wait()
		second = background(t.Context(), d, Request{Model: "iris"})
		synctest.Wait()
		vip := background(t.Context(), d, Request{Model: "vip"})
		synctest.Wait()
		var e *Error
		if x := <-second; !errors.As(x.err, &e) || !errors.Is(e, ErrBusy) || e.Reason != admission.Evicted || e.RetryAfter < time.Second {
			t.Fatalf("the newest of the lowest priority: %v", x.err)
		}
		balance(t, d, 2, 1, 4)
		s, _ := d.Status(routing.Service(iris))
		if !slices.Equal(s.Queue, []admission.Band{{Priority: 1, Queued: 1, Flows: 1}, {Priority: 0, Queued: 1, Flows: 1}}) || s.Admission.Evicted != 1 {
			t.Errorf("%+v %+v", s.Queue, s.Admission)
		}
		g.Done(Outcome{Usage: Usage{Prompt: 7, Completion: 10, Cached: 2}})
		x := <-vip
		if x.err != nil || x.g.Priority() != 1 {
			t.Fatal(x.err)
		}
		x.g.Done(Outcome{Usage: Usage{Prompt: 1}})
		y := <-first
		y.g.Done(Outcome{})
		balance(t, d, 0, 0, 4)
		if s, _ := d.Status(routing.Service(iris)); s.Counts.Usage != (Usage{8, 10, 2}) {
			t.Errorf("%+v", s.Counts.Usage)
		}
	})
}

func TestSheddable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, rec := start(t, nil)
		d.SetPool(pool1(0))
		ranked(d)
		spot := Request{Model: "spot"}
		c := background(t.Context(), d, spot) // a sleeping pool is not saturated
		synctest.Wait()
		if len(rec.woken()) != 1 {
			t.Fatalf("wakes %v", rec.woken())
		}
		time.Sleep(5 * time.Second)
		if len(rec.woken()) != 3 {
			t.Errorf("wakes %v: a sheddable request keeps the wake going", rec.woken())
		}
		d.SetPool(pool1(0, ready("a", "b")...))
		x := <-c
		if x.err != nil {
			t.Fatal(x.err)
		}
		x.g.Done(Outcome{})

		full := &replica.Load{At: time.Now(), Waiting: 9, KV: 0.5}
		d.SetLoad("a", full)
		grantOf(t, d, spot).Done(Outcome{}) // b is idle
		d.SetLoad("b", full)
		var e *Error
		if _, err := d.Admit(t.Context(), spot); !errors.As(err, &e) || !errors.Is(e, ErrBusy) || e.Reason != admission.Saturated || e.RetryAfter < time.Second {
			t.Fatalf("saturated: %v", err)
		}
		if x, _ := d.Explain(spot); x.Decision != admission.Shed || x.Because != admission.Saturated || x.Saturation != 1.8 {
			t.Errorf("%v", x)
		}
		time.Sleep(20 * time.Second) // what they said is too old
		grantOf(t, d, spot).Done(Outcome{})

		// Without a word from the replicas their places count.
		d.SetPool(pool1(1, ready("c")...))
		g := mustAdmit(t, d)
		if _, err := d.Admit(t.Context(), spot); !errors.Is(err, ErrBusy) {
			t.Errorf("every place is taken: %v", err)
		}
		g.Done(Outcome{})
	})
}

// TestHold: without any setting, requests wait here while every endpoint is
// saturated, and go on by priority when the load falls, or is too old to be
// believed.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPool(pool1(0, ready("a")...))
		ranked(d)
		full := func() *replica.Load { return &replica.Load{At: time.Now(), Waiting: 5} }
		d.SetLoad("a", full())
		first := background(t.Context(), d, Request{Model: "iris"})
		synctest.Wait()
		vip := background(t.Context(), d, Request{Model: "vip"})
		synctest.Wait()
		if _, err := d.Admit(t.Context(), Request{Model: "spot"}); !errors.Is(err, ErrBusy) {
			t.Errorf("what can be shed: %v", err)
		}
		balance(t, d, 2, 0, 2)
		d.SetLoad("a", &replica.Load{At: time.Now(), Waiting: 4})
		urgent := <-vip // the one place that is left
		synctest.Wait()
		balance(t, d, 1, 1, 2)
		urgent.g.Done(Outcome{})
		(<-first).g.Done(Outcome{})
		d.SetLoad("a", full())
		begin := time.Now()
		mustAdmit(t, d).Done(Outcome{}) // no word comes any more
		if waited := time.Since(begin); waited < 5*time.Second || waited > 7*time.Second {
			t.Errorf("held for %v, want what makes a load stale", waited)
		}
	})
}

// TestFairnessByTokens: callers of a pool that shares by tokens get as many of those,
// not as many requests.
func TestFairnessByTokens(t *testing.T) {
	for fairness, want := range map[service.Fairness][2]int{service.FairTokens: {1, 3}, service.FairRequests: {10, 12}} {
		synctest.Test(t, func(t *testing.T) {
			d, _ := start(t, nil)
			p := pool1(1, ready("a")...)
			p.Bounds.Fairness = fairness
			d.SetPool(p)
			first := mustAdmit(t, d)
			granted := make(chan *Grant, 40)
			for range 20 {
				for _, tokens := range []int{10_000, 1000} {
					r := Request{Model: "iris", FairnessID: fmt.Sprint(tokens), Prompt: [][]byte{make([]byte, tokens*bytesPerToken)}}
					go func() {
						if g, err := d.Admit(t.Context(), r); err == nil {
							granted <- g
						}
					}()
				}
			}
			synctest.Wait()
			first.Done(Outcome{})
			n := 0
			for i := range 40 {
				g := <-granted
				if g.tokens == 10_000 && i < 22 {
					n++
				}
				g.FirstByte()
				g.Done(Outcome{Usage: Usage{Prompt: g.tokens, Completion: 10}})
			}
			if n < want[0] || n > want[1] {
				t.Errorf("sharing by %s, %d of the first 22 were large, want %d to %d", fairness, n, want[0], want[1])
			}
		})
	}
}

// TestSaturationOfAPool: a pool may state from when on an endpoint has no capacity.
func TestSaturationOfAPool(t *testing.T) {
	d, _ := start(t, nil)
	p := pool1(0, ready("a")...)
	p.Bounds.Saturation = service.Saturation{QueueDepth: 50, KVUsage: 0.95}
	d.SetPool(p)
	ranked(d)
	d.SetLoad("a", &replica.Load{At: time.Now(), Waiting: 40, Running: 9, KV: 0.9})
	g, err := d.Admit(t.Context(), Request{Model: "spot"})
	if err != nil {
		t.Fatal(err)
	}
	g.Done(Outcome{})
	d.SetLoad("a", &replica.Load{At: time.Now(), Waiting: 50})
	if _, err := d.Admit(t.Context(), Request{Model: "spot"}); !errors.Is(err, ErrBusy) {
		t.Errorf("with 50 waiting: %v", err)
	}
}

func TestDeadlineOfTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPool(pool1(1, ready("a")...))
		g := mustAdmit(t, d)
		begin := time.Now()
		r := Request{Model: "iris", Deadline: begin.Add(3 * time.Second)}
		long := admit(t.Context(), d)
		synctest.Wait()
		if _, err := d.Admit(t.Context(), r); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "3s") || time.Since(begin) != 3*time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		if _, err := d.Admit(t.Context(), r); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "deadline") {
			t.Errorf("too late: %v", err)
		}
		g.Done(Outcome{})
		(<-long).g.Done(Outcome{})
		balance(t, d, 0, 0, 3)
	})
}

func TestLoadSteersThePick(t *testing.T) {
	d, _ := start(t, nil)
	d.SetPool(pool1(0, ready("a", "b", "c")...))
	for id, waiting := range map[string]int{"a": 40, "b": 0, "c": 40} {
		d.SetLoad(id, &replica.Load{At: time.Now(), Waiting: waiting, Running: waiting})
	}
	for range 10 {
		g := mustAdmit(t, d)
		defer g.Done(Outcome{})
		if g.Replica() != "b" {
			t.Fatalf("picked %s, which has a queue", g.Replica())
		}
	}
}

// TestAdapters: an adapter's requests go where it is loaded, idle or not; a
// name that no endpoint calls an adapter is the base model's and sticks nowhere.
func TestAdapters(t *testing.T) {
	d, _ := start(t, nil)
	d.SetPool(pool1(0, ready("a", "b", "c")...))
	say := func(id string, running ...string) {
		d.SetLoad(id, &replica.Load{At: time.Now(), Adapters: &replica.Adapters{Running: running, Max: 1}})
	}
	for _, id := range []string{"a", "b", "c"} {
		say(id)
	}
	say("c", "sql")
	say("c")
	base := map[string]int{}
	for range 9 {
		g := grantOf(t, d, Request{To: routing.Service(iris), Model: "base"})
		defer g.Done(Outcome{})
		base[g.Replica()]++
	}
	if base["a"] != 3 || base["b"] != 3 || base["c"] != 3 {
		t.Errorf("the base model's requests: %v", base)
	}
	for range 2 {
		g := grantOf(t, d, Request{To: routing.Service(iris), Model: "sql"})
		if g.Replica() != "c" {
			t.Errorf("sql went to %s", g.Replica())
		}
		g.Done(Outcome{})
	}
}

// TestBackAgain: a busy replica that leaves the facts and comes back is one
// endpoint still, and its places are found when they come free.
func TestBackAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPool(pool1(1, ready("a")...))
		g := mustAdmit(t, d)
		d.SetPool(pool1(1, inPhase("b", replica.Starting, "")))
		d.SetPool(pool1(1, append([]replica.Replica{inPhase("b", replica.Starting, "")}, ready("a")...)...))
		next := admit(t.Context(), d)
		synctest.Wait()
		balance(t, d, 1, 1, 2)
		g.Done(Outcome{})
		x := <-next
		if x.err != nil || x.g.Waited() != 0 {
			t.Fatal(x.err, x.g.Waited())
		}
		x.g.Done(Outcome{})
		balance(t, d, 0, 0, 2)
	})
}

func TestRetryBudget(t *testing.T) {
	d, _ := start(t, func(c *Config) { c.RetryRatio, c.RetryRate = 0.5, 0 })
	d.SetPool(pool1(0, ready("a", "b", "c")...))
	boom := errors.New("reset")
	refused := 0
	for range 20 {
		g := mustAdmit(t, d)
		if err := g.Retry(t.Context(), boom); err != nil {
			if !errors.Is(err, ErrUnavailable) || !errors.Is(err, boom) || !strings.Contains(err.Error(), "retry budget is used up") {
				t.Fatal(err)
			}
			refused++
		}
		g.Done(Outcome{})
		for _, id := range []string{"a", "b", "c"} { // as if none had failed
			d.endpoints.get(id).breaker.reset()
		}
		d.endpoints.get("a").notifyPools()
		d.SetPool(pool1(0, ready("a", "b", "c")...))
	}
	s, _ := d.Status(routing.Service(iris))
	if refused != 10 || s.Counts.Retries != 10 || s.Counts.RetriesRefused != 10 {
		t.Errorf("%d refused, %+v", refused, s.Counts)
	}
}

// TestPolicies: a pool's own policy is obeyed, and one that is not there leaves
// the default and says so.
func TestPolicies(t *testing.T) {
	d, _ := start(t, nil)
	p := pool1(0, ready("a", "b")...)
	p.Picker.Preset = "round-robin"
	d.SetPool(p)
	var order []string
	for range 4 {
		g := mustAdmit(t, d)
		order = append(order, g.Replica())
		g.Done(Outcome{})
	}
	if got := strings.Join(order, ""); got != "abab" {
		t.Errorf("by turns: %s", got)
	}
	// seed-50 drops what is not critical when no replica has room.
	p.Picker.Preset = "seed-50"
	d.SetPool(p)
	ranked(d)
	for _, id := range []string{"a", "b"} {
		d.SetLoad(id, &replica.Load{At: time.Now(), Waiting: 6})
	}
	if _, err := d.Admit(t.Context(), Request{Model: "iris"}); !errors.Is(err, ErrBusy) {
		t.Errorf("standard: %v", err)
	}
	if x, _ := d.Explain(Request{Model: "iris"}); x.Decision != admission.Shed || x.Pick == nil {
		t.Errorf("%v", x)
	}
	grantOf(t, d, Request{Model: "vip"}).Done(Outcome{})
	p.Picker.Preset, p.Bounds.MaxQueue = "least-reqest", -1
	d.SetPool(p)
	mustAdmit(t, d).Done(Outcome{})
	if s, _ := d.Status(routing.Service(iris)); !strings.Contains(s.Fault, "MaxQueue") || !strings.Contains(s.Fault, "least-request") || s.Counts.Dropped != 1 {
		t.Errorf("fault %q, %+v", s.Fault, s.Counts)
	}
	p.Bounds.MaxQueue = 0
	d.SetPool(p)
	if s, _ := d.Status(routing.Service(iris)); !strings.Contains(s.Fault, "least-request") || strings.Contains(s.Fault, "MaxQueue") {
		t.Errorf("fault %q", s.Fault)
	}
	p.Picker.Preset = ""
	d.SetPool(p)
	if s, _ := d.Status(routing.Service(iris)); s.Fault != "" {
		t.Errorf("fault %q", s.Fault)
	}
}

// TestAbandonedPlaceGoesOn: a client that leaves frees its place in the queue
// and, if it was given one just then, on the replica.
func TestAbandonedPlaceGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, func(c *Config) { c.MaxQueue = 1 })
		d.SetPool(pool1(1, ready("a")...))
		g := mustAdmit(t, d)
		ctx, cancel := context.WithCancel(t.Context())
		gone := background(ctx, d, Request{Model: "iris", Bytes: 5})
		synctest.Wait()
		cancel()
		if x := <-gone; !errors.Is(x.err, context.Canceled) {
			t.Fatal(x.err)
		}
		next := admit(t.Context(), d) // there is room for it
		synctest.Wait()
		g.Done(Outcome{})
		(<-next).g.Done(Outcome{})
		s, _ := d.Status(routing.Service(iris))
		if s.Admission.Abandoned != 1 || s.Admission.Shed != 0 {
			t.Errorf("%+v", s.Admission)
		}
		balance(t, d, 0, 0, 3)
	})
}
