package dispatch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// census counts what is in flight on each replica as the clients see it.
type census struct {
	limit int64
	n     sync.Map // address → *atomic.Int64
	over  atomic.Int64
}

func (c *census) enter(address string) func() {
	v, _ := c.n.LoadOrStore(address, new(atomic.Int64))
	n := v.(*atomic.Int64)
	if n.Add(1) > c.limit {
		c.over.Add(1)
	}
	return func() { n.Add(-1) }
}

// TestChurn sends 1,000 requests at once while replicas come, go, fail and
// drain at random: no replica is ever over its limit, no grant is lost or
// given twice, and the counters balance at the end.
func TestChurn(t *testing.T) {
	const limit, requests = 3, 1000
	d, _ := start(t, func(c *Config) {
		c.Breaker.LostRest, c.Breaker.MaxLostRest, c.MaxQueue = time.Millisecond, 4*time.Millisecond, 2*requests
	})
	d.SetPool(pool1(limit))
	seen := &census{limit: limit}
	stop, churned := make(chan struct{}), make(chan struct{})
	go func() { defer close(churned); churn(d, limit, stop) }()

	var wg sync.WaitGroup
	var served, refused, left atomic.Int64
	for i := range requests {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if r.IntN(10) == 0 {
				time.AfterFunc(time.Duration(r.IntN(3000))*time.Microsecond, cancel)
			}
			switch err := oneRequest(ctx, d, seen, r); {
			case err == nil:
				served.Add(1)
			case errors.Is(err, context.Canceled):
				left.Add(1)
			case errors.Is(err, ErrUnavailable):
				refused.Add(1)
			default:
				t.Errorf("unexpected: %v", err)
			}
		})
	}
	wg.Wait()
	close(stop)
	<-churned
	if n := seen.over.Load(); n > 0 {
		t.Errorf("%d times a replica had more than %d in flight", n, limit)
	}
	if served.Load() == 0 || served.Load()+left.Load()+refused.Load() != requests {
		t.Errorf("served %d, left %d, refused %d of %d", served.Load(), left.Load(), refused.Load(), requests)
	}
	s, _ := d.Status(routing.Service(iris))
	if m := s.Demand; m.Queued != 0 || m.Running != 0 || m.Arrived != m.Done {
		t.Errorf("counters do not balance: %+v", m)
	}
	for id, n := range s.InFlight {
		if n != 0 {
			t.Errorf("%s has %d in flight", id, n)
		}
	}
}

// oneRequest does what the gateway does, with failures thrown in.
func oneRequest(ctx context.Context, d *Dispatcher, seen *census, r *rand.Rand) error {
	g, err := d.Admit(ctx, Request{Model: "iris", Bytes: int64(r.IntN(1000))})
	if err != nil {
		return err
	}
	defer g.Done(Outcome{})
	for r.IntN(6) == 0 {
		failed := errors.New("reset")
		if r.IntN(2) == 0 {
			failed = Unsent(failed)
		}
		if err := g.Retry(ctx, failed); err != nil {
			return err
		}
	}
	leave := seen.enter(g.Address())
	defer func() { leave() }()
	g.FirstByte()
	pause(r.IntN(200))
	if r.IntN(20) == 0 {
		leave()
		leave = func() {}
		g.Done(Outcome{Failed: errors.New("cut")})
	}
	return nil
}

// pause keeps a place for a while, as work does.
func pause(microseconds int) {
	<-time.After(time.Duration(microseconds) * time.Microsecond)
}

// churn changes the replicas until stop, and leaves one ready at the end.
func churn(d *Dispatcher, limit int, stop <-chan struct{}) {
	r := rand.New(rand.NewPCG(7, 7))
	phases := []replica.Phase{replica.Ready, replica.Ready, replica.Ready, replica.Starting, replica.Failed, replica.Draining}
	for serial := 0; ; serial++ {
		var rs []replica.Replica
		for i := range r.IntN(6) {
			id := fmt.Sprintf("r%d", serial/4+i)
			rs = append(rs, replica.Replica{ID: id, HTTP: id, Role: service.RoleEngine, Phase: phases[r.IntN(len(phases))]})
		}
		d.SetPool(pool1(limit, rs...))
		if len(rs) > 0 && r.IntN(4) == 0 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			_ = d.Drain(ctx, rs[0].ID) // a drain may be given up; the replica stays closed
			cancel()
		}
		select {
		case <-stop:
			return
		case <-time.After(200 * time.Microsecond):
		}
	}
}
