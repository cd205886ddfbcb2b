package dispatch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// asker is an Asker that answers what it is told to.
type asker func(ctx context.Context, within func(string) bool) ([]string, error)

func (f asker) Ask(ctx context.Context, pool service.Key, within func(string) bool) ([]string, error) {
	if pool != both {
		return nil, fmt.Errorf("asked for pool %s", pool)
	}
	return f(ctx, within)
}

// says is an answer.
func says(addresses ...string) asker {
	return func(context.Context, func(string) bool) ([]string, error) { return addresses, nil }
}

var errSilent = errors.New("endpoint picker prod/epp was silent")

var silent asker = func(context.Context, func(string) bool) ([]string, error) { return nil, Unanswered(errSilent) }

// asked is a request to the pool whose picker is asked.
func asked(by asker) Request {
	r := toBoth
	r.Asker, r.Idempotent = by, true
	return r
}

// external is the pool "both", with a picker of its own.
func external(open bool, limit int, ids ...string) PoolConfig {
	p := PoolConfig{Key: both, Shared: true, External: External{Name: "epp", FailOpen: open}, Replicas: ready(ids...)}
	p.Limits.MaxConcurrency, p.Bounds.MaxConcurrency = limit, limit
	return p
}

// TestPickerDecides: requests go where the picker says, in its order; who
// cannot ask, and a pool without a picker, are served as ever.
func TestPickerDecides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPools([]PoolConfig{external(false, 1, "a", "b", "c")})
		routed(d)
		one := grantOf(t, d, asked(says("b:80", "c:80")))
		two := grantOf(t, d, asked(says("b:80", "c:80"))) // b is at its limit
		if one.Replica() != "b" || two.Replica() != "c" {
			t.Errorf("got %s and %s", one.Replica(), two.Replica())
		}
		// Both are full: it waits for one of the two, while a is free.
		waiting := background(t.Context(), d, asked(says("b:80", "c:80")))
		synctest.Wait()
		if s := d.AllEndpoints(); len(s) != 3 {
			t.Fatal(s)
		}
		two.Done(Outcome{})
		if got := <-waiting; got.err != nil || got.g.Replica() != "c" {
			t.Errorf("after waiting: %v", got.err)
		} else {
			got.g.Done(Outcome{})
		}
		one.Done(Outcome{})
		// Within tells endpoints that are ready from others.
		r := ready("a", "b")
		r[1].Phase = replica.Starting
		p := external(false, 0)
		p.Replicas = r
		d.SetPool(p)
		grantOf(t, d, asked(func(_ context.Context, within func(string) bool) ([]string, error) {
			if !within("a:80") || within("b:80") || within("c:80") || within("") {
				t.Error("within is wrong")
			}
			return []string{"a:80"}, nil
		})).Done(Outcome{})
		grantOf(t, d, toBoth).Done(Outcome{})
		p.External = External{}
		d.SetPool(p)
		grantOf(t, d, asked(func(context.Context, func(string) bool) ([]string, error) {
			t.Error("a pool without a picker was asked about")
			return nil, nil
		})).Done(Outcome{})
	})
}

// TestPickerFails: without an answer the failure mode decides; a refusal is the
// picker's own.
func TestPickerFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPools([]PoolConfig{external(false, 0, "a", "b")})
		routed(d)
		_, err := d.Admit(t.Context(), asked(silent))
		if x, err := d.Explain(toBoth); err != nil || !strings.Contains(x.String(), "endpoint picker: epp (FailClose) is asked") {
			t.Errorf("explained: %s %v", x, err)
		}
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, ErrUnavailable) || !errors.Is(err, errSilent) || e.RetryAfter == 0 || !strings.Contains(err.Error(), "failureMode is FailClose") {
			t.Errorf("closed: %v", err)
		}
		refused := errors.New("429")
		if _, err := d.Admit(t.Context(), asked(func(context.Context, func(string) bool) ([]string, error) { return nil, refused })); !errors.Is(err, refused) {
			t.Errorf("refused: %v", err)
		}
		d.SetPools([]PoolConfig{external(true, 0, "a", "b")})
		grantOf(t, d, asked(silent)).Done(Outcome{})
		if s, err := d.Resolve(toBoth); err != nil || s.Counts.PickedOpen != 1 {
			t.Errorf("%+v %v", s.Counts, err)
		}
		if _, err := d.Admit(t.Context(), asked(func(context.Context, func(string) bool) ([]string, error) { return nil, refused })); !errors.Is(err, refused) {
			t.Errorf("refused, open: %v", err)
		}
	})
}

// TestPickerRetry: a replica that fails is followed by the next that the picker
// named, and by none that it did not, unless the pool fails open.
func TestPickerRetry(t *testing.T) {
	broken := errors.New("reset")
	for _, open := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d, _ := start(t, nil)
			d.SetPools([]PoolConfig{external(open, 0, "a", "b", "c")})
			routed(d)
			g := grantOf(t, d, asked(says("c:80", "a:80")))
			defer g.Done(Outcome{})
			if g.Replica() != "c" {
				t.Fatal(g.Replica())
			}
			if err := g.Retry(t.Context(), broken); err != nil || g.Replica() != "a" {
				t.Fatal(g.Replica(), err)
			}
			err := g.Retry(t.Context(), broken)
			if open && (err != nil || g.Replica() != "b") || !open && !errors.Is(err, ErrUnavailable) {
				t.Errorf("open %v: %s %v", open, g.Replica(), err)
			}
		})
	}
}

// TestPickerOfSleepers: a service that sleeps is woken before its pool's picker
// is asked, and requests count as waiting until they have a place.
func TestPickerOfSleepers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, rec := start(t, nil)
		a := of("a", 0)
		pool := sharing(a)
		pool.External = External{Name: "epp"}
		d.SetPools([]PoolConfig{a, pool})
		routed(d)
		answer := make(chan []string)
		got := background(t.Context(), d, asked(func(context.Context, func(string) bool) ([]string, error) { return <-answer, nil }))
		synctest.Wait()
		if len(rec.woken()) != 1 {
			t.Fatalf("wakes %v", rec.woken())
		}
		demandOf(t, d, "a", 1, 0, 1)
		a = of("a", 0, "a1", "a2")
		pool.Members = []PoolConfig{a}
		d.SetPools([]PoolConfig{a, pool})
		synctest.Wait()
		demandOf(t, d, "a", 1, 0, 1) // its picker is being asked
		if d.InFlight("a1")+d.InFlight("a2") != 0 {
			t.Error("a place is held while the picker is asked")
		}
		answer <- []string{"a2:80"}
		one := <-got
		if one.err != nil || one.g.Replica() != "a2" {
			t.Fatal(one.err)
		}
		demandOf(t, d, "a", 0, 1, 1)
		one.g.Done(Outcome{})
		demandOf(t, d, "a", 0, 0, 1)
	})
}

// TestPickedEndpointGoes: a request that waits for what its picker named does
// not wait for ever, once that is gone.
func TestPickedEndpointGoes(t *testing.T) {
	for _, open := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d, _ := start(t, nil)
			d.SetPools([]PoolConfig{external(open, 1, "a", "b")})
			routed(d)
			first := grantOf(t, d, asked(says("a:80")))
			defer first.Done(Outcome{})
			waiting := background(t.Context(), d, asked(says("a:80")))
			synctest.Wait()
			d.SetPool(external(open, 1, "b"))
			got := <-waiting
			switch {
			case open && (got.err != nil || got.g.Replica() != "b"):
				t.Errorf("open: %v", got.err)
			case !open && !errors.Is(got.err, ErrUnavailable):
				t.Errorf("closed: %v", got.err)
			}
			if got.g != nil {
				got.g.Done(Outcome{})
			}
		})
	}
}

// TestPickerStorm: whatever pickers answer while endpoints come and go, nothing
// is left in flight, waiting or uncounted.
func TestPickerStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, func(c *Config) { c.MaxWait = 2 * time.Second })
		a, b := of("a", 2, "a1", "a2"), of("b", 2, "b1")
		set := func(r *rand.Rand) {
			one, two := a, b
			one.Replicas, two.Replicas = ready([]string{"a1", "a2"}[:r.IntN(3)]...), ready([]string{"b1"}[:r.IntN(2)]...)
			pool := sharing(one, two)
			pool.External = External{Name: "epp", FailOpen: r.IntN(2) == 0}
			if r.IntN(8) == 0 {
				pool.External = External{}
			}
			d.SetPools([]PoolConfig{one, two, pool})
		}
		set(rand.New(rand.NewPCG(1, 1)))
		routed(d)
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				r := rand.New(rand.NewPCG(7, uint64(i)))
				for range 50 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(4000))*time.Millisecond)
					g, err := d.Admit(ctx, asked(func(ctx context.Context, _ func(string) bool) ([]string, error) {
						select {
						case <-time.After(time.Duration(r.IntN(300)) * time.Millisecond):
						case <-ctx.Done():
							return nil, ctx.Err()
						}
						if r.IntN(4) == 0 {
							return nil, Unanswered(errSilent)
						}
						out := []string{"b1:80", "a2:80", "a1:80", "z:80"}
						r.Shuffle(4, func(i, k int) { out[i], out[k] = out[k], out[i] })
						return out[:1+r.IntN(3)], nil
					}))
					if err == nil {
						time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
						if r.IntN(3) == 0 {
							_ = g.Retry(ctx, errors.New("reset"))
						}
						g.Done(Outcome{})
					}
					cancel()
				}
			})
		}
		stop := make(chan struct{})
		var setting sync.WaitGroup
		setting.Go(func() {
			r := rand.New(rand.NewPCG(9, 9))
			for {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Millisecond):
					set(r)
				}
			}
		})
		all.Wait()
		close(stop)
		setting.Wait()
		for _, id := range []string{"a1", "a2", "b1"} {
			if n := d.InFlight(id); n != 0 {
				t.Errorf("%s: %d in flight", id, n)
			}
		}
		for _, name := range []string{"a", "b"} {
			m := d.Demand(service.Key{Namespace: "default", Name: name})
			if m.Queued != 0 || m.Running != 0 || m.Arrived != m.Done || m.Arrived == 0 {
				t.Errorf("%s: %+v", name, m)
			}
		}
		if s, err := d.Resolve(toBoth); err != nil || s.Demand.Queued+s.Demand.Running != 0 || s.Demand.Arrived != s.Demand.Done {
			t.Errorf("the pool: %+v %v", s.Demand, err)
		}
	})
}

// TestPickerPanics: a request that ends in its question is counted no longer, as
// it would keep its replica for ever.
func TestPickerPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPools([]PoolConfig{external(false, 1, "a")})
		routed(d)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic is lost")
				}
			}()
			_, _ = d.Admit(t.Context(), asked(func(context.Context, func(string) bool) ([]string, error) { panic("no") }))
		}()
		if s, err := d.Resolve(toBoth); err != nil || s.Demand.Queued+s.Demand.Running != 0 || s.Demand.Arrived != s.Demand.Done || s.Demand.Done != 1 {
			t.Errorf("%+v, %v", s.Demand, err)
		}
	})
}
