package dispatch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// jumpy is the machine's clock, set forward and back at random.
type jumpy struct {
	SystemClock
	offset atomic.Int64
}

func (j *jumpy) Now() time.Time { return time.Now().Add(time.Duration(j.offset.Load())) }

// TestStorm is TestChurn with everything at once: two services and a pool
// shared by both, priorities, prompts, sessions, subsets, deadlines, loads
// that come and go, replicas that are ejected, drained, killed while they are
// picked, pools that are emptied and removed under load, and a clock that
// jumps by hours. No place is given twice, nobody is forgotten, and at the end
// nothing is left.
func TestStorm(t *testing.T) {
	const limit, requests = 3, 2000
	cfg := DefaultConfig()
	cfg.Breaker.LostRest, cfg.Breaker.MaxLostRest, cfg.MaxQueue, cfg.WakeRetry = time.Millisecond, 4*time.Millisecond, 300, 5*time.Millisecond
	cfg.RetryRate, cfg.HoldAt, cfg.ReportEvery = 1e6, 2, 5*time.Millisecond
	clock := &jumpy{}
	d, err := New(cfg, &recorder{}, clock, nil)
	if err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	s := &storm{d: d, clock: clock, seen: &census{limit: limit}, limit: limit}
	s.objects()
	s.set(rand.New(rand.NewPCG(5, 5)), 3)
	stop, over := make(chan struct{}), make(chan struct{})
	go func() { defer close(over); s.blow(stop) }()

	var wg sync.WaitGroup
	var served, shed, left atomic.Int64
	var kinds outcomes
	for i := range requests {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(2, uint64(i)))
			pause(r.IntN(300_000))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if r.IntN(10) == 0 {
				time.AfterFunc(time.Duration(r.IntN(3000))*time.Microsecond, cancel)
			}
			switch err := s.request(ctx, r); {
			case err == nil:
				served.Add(1)
			case errors.Is(err, context.Canceled):
				left.Add(1)
			case errors.Is(err, ErrUnavailable), errors.Is(err, ErrBusy):
				shed.Add(1)
				kinds.add(err)
			default:
				t.Errorf("unexpected: %v", err)
			}
		})
	}
	wg.Wait()
	close(stop)
	<-over
	if n := s.seen.over.Load(); n > 0 {
		t.Errorf("%d times a replica had more than %d in flight", n, limit)
	}
	t.Logf("served %d, left %d, shed %d: %v", served.Load(), left.Load(), shed.Load(), kinds.n)
	if served.Load() < requests/20 || served.Load()+left.Load()+shed.Load() != requests {
		t.Errorf("served %d, left %d, shed %d of %d", served.Load(), left.Load(), shed.Load(), requests)
	}
	s.settled(t)
	for deadline := time.Now().Add(time.Minute); runtime.NumGoroutine() > before+2; {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
		pause(1000)
	}
}

// outcomes counts errors by admission's reasons.
type outcomes struct {
	mu sync.Mutex
	n  map[string]int
}

func (t *outcomes) add(err error) {
	var e *Error
	if !errors.As(err, &e) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == nil {
		t.n = map[string]int{}
	}
	key := string(e.Reason)
	if key == "" {
		key, _, _ = strings.Cut(e.Message, " ")
	}
	t.n[key]++
}

type storm struct {
	d     *Dispatcher
	clock *jumpy
	seen  *census
	limit int
	// serial makes the replicas' names change, as those of ended ones do.
	serial atomic.Int64
}

// replica is the name of one of six replicas of now.
func (s *storm) replica(i int) string { return fmt.Sprint("r", s.serial.Load()/10+int64(i)) }

func (s *storm) objects() {
	objects := []routing.Object{&routing.Pool{Meta: service.Meta{Key: both}},
		&routing.Objective{Meta: service.Meta{Key: service.Key{Namespace: "default", Name: "high"}}, Pool: both, Priority: 3},
		&routing.Objective{Meta: service.Meta{Key: service.Key{Namespace: "default", Name: "low"}}, Pool: both, Priority: -3}}
	s.d.SetObjects(objects)
}

// request does what a gateway does, with failures thrown in.
func (s *storm) request(ctx context.Context, r *rand.Rand) error {
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	q := Request{Host: pick("a.default.localhost", "b.default.localhost", "both.default.localhost", "both.default.localhost"), Model: "m",
		Bytes: int64(r.IntN(1000)), Objective: pick("", "high", "low"), FairnessID: pick("", "x", "y", "z"), Session: pick("", "", "s", "t")}
	if r.IntN(2) == 0 {
		prompt := make([]byte, 1024+r.IntN(2000))
		q.Prompt = [][]byte{prompt[:r.IntN(len(prompt))], prompt}
	}
	if r.IntN(8) == 0 {
		q.Subset = []string{s.replica(r.IntN(6)), s.replica(r.IntN(6))}
	}
	if r.IntN(8) == 0 {
		q.Deadline = s.clock.Now().Add(time.Duration(r.IntN(20)) * time.Millisecond)
	}
	g, err := s.d.Admit(ctx, q)
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
	leave := s.seen.enter(g.Replica())
	defer func() { leave() }()
	pause(r.IntN(100))
	g.FirstByte()
	pause(r.IntN(300))
	if r.IntN(20) == 0 {
		leave()
		leave = func() {}
		g.Done(Outcome{Failed: errors.New("cut")})
	}
	return nil
}

// set gives each service up to n replicas of a few, in some phase or other.
func (s *storm) set(r *rand.Rand, n int) {
	phases := []replica.Phase{replica.Ready, replica.Ready, replica.Ready, replica.Starting, replica.Failed, replica.Draining}
	s.serial.Add(1)
	a, b := of("a", s.limit), of("b", s.limit)
	for i, p := range []*PoolConfig{&a, &b} {
		for k := range n {
			id := s.replica(3*i + k)
			p.Replicas = append(p.Replicas, replica.Replica{ID: id, HTTP: id, Role: service.RoleEngine, Phase: phases[r.IntN(len(phases))]})
		}
	}
	shared := sharing(a, b)
	switch r.IntN(12) {
	case 0:
		s.d.Remove(routing.PoolRef(both))
	case 1:
		s.d.SetPools([]PoolConfig{a, b})
	case 2:
		shared.Members = nil
	}
	s.d.SetPools([]PoolConfig{a, b, shared})
}

// blow changes everything until stop, and leaves replicas that are ready.
func (s *storm) blow(stop <-chan struct{}) {
	r := rand.New(rand.NewPCG(9, 9))
	for {
		switch r.IntN(20) {
		case 0:
			s.clock.offset.Store(int64(r.IntN(7200)-3600) * int64(time.Second))
		case 1, 2, 3, 4, 5, 6:
			s.d.SetLoad(s.replica(r.IntN(6)), &replica.Load{At: s.clock.Now(), Waiting: r.IntN(12), KV: r.Float64(),
				Adapters: &replica.Adapters{Running: []string{"m"}, Max: 2}})
		case 7:
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			_ = s.d.Drain(ctx, s.replica(r.IntN(6))) // it may be given up
			cancel()
		default:
			s.set(r, r.IntN(4))
		}
		_, _ = s.d.Explain(Request{Host: "both.default.localhost"}) // nothing to explain while it is removed
		select {
		case <-stop:
			return
		case <-time.After(100 * time.Microsecond):
		}
	}
}

// settled checks that nothing is left of all the requests.
func (s *storm) settled(t *testing.T) {
	for _, st := range s.d.Pools() {
		if m := st.Demand; m.Queued != 0 || m.Running != 0 || m.Arrived != m.Done {
			t.Errorf("%s: demand does not balance: %+v", st.Name, m)
		}
		if c := st.Admission; c.Arrived+c.Returned != c.Admitted+c.Shed+c.Evicted+c.Overdue+c.Abandoned || len(st.Queue) > 0 {
			t.Errorf("%s: admission does not balance: %+v", st.Name, c)
		}
	}
	for _, e := range s.d.AllEndpoints() {
		if e.InFlight != 0 || e.Tokens != 0 {
			t.Errorf("%s has %d in flight, %d tokens", e.ID, e.InFlight, e.Tokens)
		}
	}
	s.d.SetPools(nil)
	if n := len(s.d.endpoints.byID); n != 0 {
		t.Errorf("%d endpoints are left", n)
	}
}
