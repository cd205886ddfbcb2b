package dispatch

import (
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/breaker"
)

// ask admits one request and ends it as the endpoint it came to does: bad
// answers at once, the others after a while.
func ask(t *testing.T, d *Dispatcher, bad string, a Answer, prompt string) (replica string, moved bool) {
	t.Helper()
	r := Request{Model: "iris"}
	if prompt != "" {
		r.Prompt = [][]byte{[]byte(prompt)}
	}
	g := grantOf(t, d, r)
	defer g.Done(Outcome{})
	replica = g.Replica()
	if replica == bad {
		moved = g.Answered(a)
	}
	g.FirstByte()
	return replica, moved
}

// TestFailingEndpointLosesItsTraffic: an endpoint that answers wrong at once is
// the least loaded all the time, and gets hardly any request all the same; when
// it is well again it gets its share by itself.
func TestFailingEndpointLosesItsTraffic(t *testing.T) {
	for _, status := range []int{500, 503, 429, 401, 404} {
		synctest.Test(t, func(t *testing.T) {
			d, err := New(DefaultConfig(), &recorder{}, nil, rand.New(rand.NewPCG(1, 2)).IntN)
			if err != nil {
				t.Fatal(err)
			}
			d.SetPool(pool1(0, ready("a", "b", "c")...))
			r := breaker.OfStatus(status)
			share := func(bad string, n int) map[string]int {
				got := map[string]int{}
				for range n {
					id, _ := ask(t, d, bad, Answer{Result: r}, "")
					got[id]++
					time.Sleep(10 * time.Millisecond)
				}
				return got
			}
			share("", 12) // all are well
			if got := share("b", 100); got["b"] > 10 {
				t.Errorf("%d: %v in the first second", status, got)
			}
			if got := share("b", 300); got["b"] > 6 {
				t.Errorf("%d: %v afterwards", status, got)
			}
			time.Sleep(30 * time.Second)
			if got := share("", 300); got["b"] < 95 {
				t.Errorf("%d: %v when it is well again", status, got)
			}
		})
	}
}

// TestRecoveredEndpointIsTriedForASecondFailure: of three endpoints one fails, is
// ejected for half a minute and recovers; then a second one fails. No more than half
// of a pool is ejected, so the second keeps its traffic only until the first has
// been tried.
func TestRecoveredEndpointIsTriedForASecondFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := New(DefaultConfig(), &recorder{}, nil, rand.New(rand.NewPCG(1, 2)).IntN)
		if err != nil {
			t.Fatal(err)
		}
		d.SetPool(pool1(0, ready("a", "b", "c")...))
		failures := func(bad string, n int) (failed int) {
			for range n {
				if id, _ := ask(t, d, bad, Answer{Result: breaker.Failed}, ""); id == bad {
					failed++
				}
				time.Sleep(10 * time.Millisecond)
			}
			return failed
		}
		failures("a", 6300) // until a's ejections last half a minute
		failures("b", 130)
		if got := failures("b", 1000); got > 10 {
			t.Errorf("%d of 1,000 requests failed although a was well", got)
		}
	})
}

// TestNoPromptSticksToAFailure: what an endpoint did not compute is not looked
// for there.
func TestNoPromptSticksToAFailure(t *testing.T) {
	prompt := strings.Repeat("the same prompt once more ", 100)
	for _, r := range []breaker.Result{breaker.Failed, breaker.Refused, breaker.Answered} {
		d, _ := start(t, nil)
		d.SetPool(pool1(0, ready("a", "b", "c")...))
		first, _ := ask(t, d, "", Answer{}, prompt[:300])
		for range 3 { // it has the beginning, and keeps it
			if id, _ := ask(t, d, "", Answer{}, prompt[:300]); id != first {
				t.Fatalf("%s after %s", id, first)
			}
		}
		blocks := blocksOf(d, first)
		ask(t, d, first, Answer{Result: r}, prompt)
		if now := blocksOf(d, first); r == breaker.Failed && now != 0 || r != breaker.Failed && now != blocks {
			t.Errorf("%v: %s is taken to hold %d blocks, of %d before", r, first, now, blocks)
		}
	}
}

func blocksOf(d *Dispatcher, id string) int {
	for _, e := range d.Endpoints(routing.Service(iris)) {
		if e.ID == id {
			return e.Blocks
		}
	}
	return -1
}

// TestAnswersAreTriedElsewhere: a failure or a refusal for want of room is
// given to the client when no other replica can do better.
func TestAnswersAreTriedElsewhere(t *testing.T) {
	d, _ := start(t, nil)
	d.SetPool(pool1(0, ready("a", "b", "c")...))
	failed := Answer{Result: breaker.Failed, Retryable: true}
	g := mustAdmit(t, d)
	if g.Answered(Answer{Result: breaker.Failed}) {
		t.Error("moved without being allowed to")
	}
	g.FirstByte()
	g.Done(Outcome{})

	g = mustAdmit(t, d)
	first := g.Replica()
	if !g.Answered(failed) || g.Replica() == first {
		t.Fatalf("not moved from %s", first)
	}
	if d.InFlight(first) != 0 || d.InFlight(g.Replica()) != 1 {
		t.Error("its place has not moved")
	}
	if g.Answered(failed) {
		t.Error("a request that may not be repeated was sent a third time")
	}
	g.FirstByte()
	g.Done(Outcome{})
	balance(t, d, 0, 0, 2)

	again, err := d.Admit(t.Context(), Request{Model: "iris", Idempotent: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if moved := again.Answered(failed); moved != (i < 2) {
			t.Errorf("answer %d: moved %v", i+1, moved)
		}
	}
	again.FirstByte()
	again.Done(Outcome{})
	for _, id := range []string{"a", "b", "c"} {
		if d.InFlight(id) != 0 {
			t.Errorf("%s has %d in flight", id, d.InFlight(id))
		}
	}
}

// TestRefusedConnectionsWait: requests for the only replica, whose port is
// closed, wait until it is back: they cost nothing, however often they are
// tried, and only one of them tries at a time.
func TestRefusedConnectionsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPool(pool1(0, ready("a")...))
		var back atomic.Bool
		var tries atomic.Int64
		result := make(chan error, 100)
		for range 100 {
			go func() {
				g, err := d.Admit(t.Context(), Request{Model: "iris"})
				for err == nil && !back.Load() {
					tries.Add(1)
					err = g.Retry(t.Context(), Unsent(errors.New("connection refused")))
				}
				if err == nil {
					g.FirstByte()
					g.Done(Outcome{})
				}
				result <- err
			}()
			synctest.Wait()
		}
		time.Sleep(10 * time.Second)
		if n := tries.Load(); n > 20 {
			t.Errorf("%d tries of a replica that is down", n)
		}
		back.Store(true)
		d.SetPool(pool1(0, inPhase("a", replica.Failed, "killed")))
		time.Sleep(5 * time.Second)
		d.SetPool(pool1(0, ready("a")...))
		for range 100 {
			if err := <-result; err != nil {
				t.Fatal(err)
			}
		}
		balance(t, d, 0, 0, 100)
	})
}

// TestPlainServersAreNotJudged: a Kubernetes Service's answers tell its breaker nothing,
// and what it may have begun is not sent again unless its method may be repeated.
func TestPlainServersAreNotJudged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		at := routing.ServicePool(service.Key{Namespace: "default", Name: "echo"}, 80)
		p := pool1(0, ready("a", "b")...)
		p.Key, p.Shared = at.Key, true
		d.SetPool(p)
		for _, status := range []int{404, 429, 500, 503} {
			for range 20 {
				g, err := d.Admit(t.Context(), Request{To: at, Idempotent: true})
				if err != nil {
					t.Fatalf("%d: %v", status, err)
				}
				if j := g.Judge(Answer{Status: status, Result: breaker.OfStatus(status), RetryAfter: time.Hour, Retryable: true}); j.Again {
					t.Errorf("%d is sent again", status)
				}
				g.Done(Outcome{})
			}
		}
		for _, e := range d.Endpoints(at) {
			if !e.Open {
				t.Errorf("%s takes no requests: %s", e.ID, e.Ejected)
			}
		}
		for _, idempotent := range []bool{false, true} {
			g, err := d.Admit(t.Context(), Request{To: at, Idempotent: idempotent})
			if err != nil {
				t.Fatal(err)
			}
			if err := g.Retry(t.Context(), Lost(errors.New("EOF"))); (err == nil) != idempotent {
				t.Errorf("idempotent %v: %v", idempotent, err)
			}
			g.Done(Outcome{})
		}
	})
}

// TestKillersAreStopped: a request whose connection two replicas ended is sent
// to no third, also one that may be repeated.
func TestKillersAreStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, idempotent := range []bool{false, true} {
			d, _ := start(t, nil)
			d.SetPool(pool1(0, ready("a", "b", "c", "d")...))
			g, err := d.Admit(t.Context(), Request{Model: "iris", Idempotent: idempotent})
			if err != nil {
				t.Fatal(err)
			}
			killed := Lost(errors.New("EOF"))
			if err := g.Retry(t.Context(), killed); err != nil {
				t.Fatal(err)
			}
			if err := g.Retry(t.Context(), killed); err == nil || !strings.Contains(err.Error(), "the connection was closed 2 times") {
				t.Errorf("idempotent %v: %v", idempotent, err)
			}
			g.Done(Outcome{})
		}
		// Alone, it waits for the restart of what it may have ended, once.
		d, _ := start(t, nil)
		d.SetPool(pool1(0, ready("a")...))
		g := mustAdmit(t, d)
		if err := g.Retry(t.Context(), Lost(errors.New("EOF"))); err != nil || g.Waited() == 0 {
			t.Errorf("%v after %v", err, g.Waited())
		}
		if err := g.Retry(t.Context(), Lost(errors.New("EOF"))); err == nil {
			t.Error("sent to a third process")
		}
		g.Done(Outcome{})
	})
}

// TestDeadAddressesAreNotWaitedFor: nobody starts a server that runs already.
func TestDeadAddressesAreNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		p := sharing()
		for _, a := range []string{"10.0.0.1:80", "10.0.0.2:80"} {
			p.Replicas = append(p.Replicas, replica.Replica{ID: a, HTTP: a, Phase: replica.Ready})
		}
		d.SetPool(p)
		routed(d)
		g := grantOf(t, d, toBoth)
		refused := Unsent(errors.New("connection refused"))
		if err := g.Retry(t.Context(), refused); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if err := g.Retry(t.Context(), refused); err == nil || time.Since(begun) > time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		g.Done(Outcome{})
	})
}

// TestHangingEndpointLosesItsTraffic: an endpoint that takes requests and
// answers none gets one request in a while, however its clients wait, until it
// answers again. Where all take long alike, none is to blame.
func TestHangingEndpointLosesItsTraffic(t *testing.T) {
	hung := func(t *testing.T) (share func(bad string, n int, patience time.Duration) map[string]int, release func()) {
		d, err := New(DefaultConfig(), &recorder{}, nil, rand.New(rand.NewPCG(1, 2)).IntN)
		if err != nil {
			t.Fatal(err)
		}
		d.SetPool(pool1(0, ready("a", "b", "c")...))
		var open []*Grant
		return func(bad string, n int, patience time.Duration) map[string]int {
				got := map[string]int{}
				for range n {
					g := grantOf(t, d, Request{Model: "iris"})
					got[g.Replica()]++
					switch {
					case g.Replica() != bad && bad != "all":
						time.AfterFunc(2*time.Second, func() {
							g.FirstByte()
							g.Done(Outcome{})
						})
					case patience > 0:
						time.AfterFunc(patience, func() { g.Done(Outcome{}) })
					default:
						open = append(open, g)
					}
					time.Sleep(100 * time.Millisecond)
				}
				return got
			}, func() {
				for _, g := range open {
					g.FirstByte()
					g.Done(Outcome{})
				}
				open = nil
			}
	}
	synctest.Test(t, func(t *testing.T) {
		share, release := hung(t)
		share("", 30, 0)
		share("b", 310, 0) // over its silence
		if got := share("b", 1200, 0); got["b"] > 8 {
			t.Errorf("it hangs: %v in two minutes", got)
		}
		release()
		if got := share("", 300, 0); got["b"] < 95 {
			t.Errorf("it answers again: %v", got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		share, release := hung(t)
		share("", 30, 0)
		share("b", 400, 20*time.Second) // clients that give up before
		if got := share("b", 1200, 20*time.Second); got["b"] > 20 {
			t.Errorf("it hangs, and clients leave: %v in two minutes", got)
		}
		release()
	})
	synctest.Test(t, func(t *testing.T) {
		share, release := hung(t)
		share("all", 1200, 0)
		if got := share("all", 30, 0); got["b"] < 9 {
			t.Errorf("all take long: %v", got)
		}
		release()
	})
}

// TestRecord: an endpoint tells what became of the requests that it was sent, and how
// long its answers took to begin.
func TestRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := New(DefaultConfig(), &recorder{}, nil, rand.New(rand.NewPCG(1, 2)).IntN)
		if err != nil {
			t.Fatal(err)
		}
		d.SetPool(pool1(0, ready("a")...))
		for _, after := range []time.Duration{20 * time.Millisecond, 40 * time.Millisecond} {
			g := grantOf(t, d, Request{Model: "iris"})
			time.Sleep(after)
			g.FirstByte()
			g.Done(Outcome{})
		}
		g := grantOf(t, d, Request{Model: "iris"})
		g.Answered(Answer{Result: breaker.Failed})
		g.FirstByte() // of the answer that says so, which is none of a request done
		g.Done(Outcome{})
		g = grantOf(t, d, Request{Model: "iris"})
		g.FirstByte()
		g.Done(Outcome{Failed: errors.New("the connection ended")})

		got := d.AllEndpoints()[0].Record
		if r := got.Results; len(r) != 3 || r["answered"] != 3 || r["failed"] != 1 || r["lost"] != 1 {
			t.Errorf("results: %v", r)
		}
		if got.FirstBytes != 3 || got.Latency() != 20*time.Millisecond || got.Failures() != 2 {
			t.Errorf("%+v: %v to the first byte, %d failures", got, got.Latency(), got.Failures())
		}
	})
}
