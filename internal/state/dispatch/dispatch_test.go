package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
)

// recorder is a Demand that remembers what it was told.
type recorder struct {
	mu      sync.Mutex
	wakes   []int
	asked   []string
	sleeps  int
	reports []autoscale.Demand
	err     error
	onWake  func()
}

func (r *recorder) Wake(_ context.Context, service string, n int) error {
	r.mu.Lock()
	r.wakes, r.asked = append(r.wakes, n), append(r.asked, service)
	err, f := r.err, r.onWake
	r.mu.Unlock()
	if f != nil {
		f()
	}
	return err
}

func (r *recorder) Sleep(context.Context, string) error { r.sleeps++; return nil }

func (r *recorder) Report(_ string, d autoscale.Demand) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports = append(r.reports, d)
}

// woken is what each call of Wake asked for.
func (r *recorder) woken() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.wakes)
}

func (r *recorder) told() []autoscale.Demand {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.reports)
}

func last(ds []autoscale.Demand) autoscale.Demand { return ds[len(ds)-1] }

var iris = service.Key{Namespace: "default", Name: "iris"}

func ready(ids ...string) (out []replica.Replica) {
	for _, id := range ids {
		out = append(out, replica.Replica{ID: id, Service: iris, Role: service.RoleEngine, Phase: replica.Ready, HTTP: id + ":80"})
	}
	return out
}

func inPhase(id string, ph replica.Phase, message string) replica.Replica {
	return replica.Replica{ID: id, Service: iris, Role: service.RoleEngine, Phase: ph, Message: message}
}

// pool1 is iris with these replicas and at most limit requests on each.
func pool1(limit int, rs ...replica.Replica) PoolConfig {
	l := service.Scaling{}.Settled()
	l.MaxConcurrency = limit
	return PoolConfig{Key: iris, Limits: l, Replicas: rs}
}

func start(t *testing.T, mutate func(*Config)) (*Dispatcher, *recorder) {
	t.Helper()
	cfg, rec := DefaultConfig(), &recorder{}
	if mutate != nil {
		mutate(&cfg)
	}
	d, err := New(cfg, rec, nil, func(int) int { return 0 })
	if err != nil {
		t.Fatal(err)
	}
	return d, rec
}

// admitted is the result of an Admit in the background.
type admitted struct {
	g   *Grant
	err error
}

func admit(ctx context.Context, d *Dispatcher) <-chan admitted {
	c := make(chan admitted, 1)
	go func() {
		g, err := d.Admit(ctx, Request{Model: "iris", Bytes: 10})
		c <- admitted{g, err}
	}()
	return c
}

func mustAdmit(t *testing.T, d *Dispatcher) *Grant {
	t.Helper()
	g, err := d.Admit(t.Context(), Request{Model: "iris"})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func balance(t *testing.T, d *Dispatcher, queued, running int, arrived uint64) {
	t.Helper()
	s, _ := d.Status(routing.Service(iris))
	m := s.Demand
	if m.Queued != queued || m.Running != running || m.Arrived != arrived || m.Arrived != m.Done+uint64(queued+running) {
		t.Errorf("demand %+v, want %d queued, %d running, %d arrived", m, queued, running, arrived)
	}
}

// TestAccessChanges: a pool is reached as its configuration says last.
func TestAccessChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		p := pool1(0, ready("a")...)
		for _, name := range []string{"one", "two"} {
			p.Access = service.Access{Names: []string{name}}
			d.SetPool(p)
			g, err := d.Admit(t.Context(), Request{Model: name})
			if err != nil {
				t.Fatalf("as %s: %v", name, err)
			}
			g.Done(Outcome{})
		}
		if _, err := d.Admit(t.Context(), Request{Model: "one"}); err == nil {
			t.Error("it is still reached by the name before")
		}
	})
}

func TestWakeFromZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, rec := start(t, nil)
		d.SetPool(pool1(0))
		a, b := admit(t.Context(), d), admit(t.Context(), d)
		synctest.Wait()
		if !slices.Equal(rec.woken(), []int{1}) || len(rec.told()) == 0 || rec.told()[0].Queued == 0 {
			t.Fatalf("wakes %v, reports %+v; want one wake and an immediate report", rec.woken(), rec.told())
		}
		time.Sleep(3 * time.Second) // nothing appears: ask again
		if len(rec.woken()) != 2 {
			t.Errorf("%v wakes after WakeRetry, want 2", rec.woken())
		}
		d.SetPool(pool1(0, inPhase("r1", replica.Starting, "")))
		time.Sleep(10 * time.Second)
		if len(rec.woken()) != 2 {
			t.Errorf("%v wakes while a replica starts, want 2", rec.woken())
		}
		balance(t, d, 2, 0, 2)
		d.SetPool(pool1(0, ready("r1")...))
		x, y := <-a, <-b
		if x.err != nil || y.err != nil || x.g.Address() != "r1:80" || x.g.Waited() != 13*time.Second {
			t.Fatalf("%v %v %v %v", x.err, y.err, x.g.Address(), x.g.Waited())
		}
		balance(t, d, 0, 2, 2)
		time.Sleep(time.Second)
		x.g.Done(Outcome{})
		x.g.Done(Outcome{})
		y.g.Done(Outcome{})
		balance(t, d, 0, 0, 2)
		time.Sleep(5 * time.Second)
		if m := last(rec.told()); m.Done != 2 || m.LoadSeconds != 28 || m.Queued+m.Running != 0 {
			t.Errorf("last report %+v, want 2 done and 28 load seconds", m)
		}
		n := len(rec.told())
		time.Sleep(time.Hour)
		if len(rec.told()) != n {
			t.Error("an idle pool goes on reporting")
		}
	})
}

func TestReportsArePacedAndKeepComingWhileBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, rec := start(t, nil)
		d.SetPool(pool1(0, ready("r1")...))
		for range 500 {
			mustAdmit(t, d).Done(Outcome{})
			time.Sleep(10 * time.Millisecond)
		}
		if n := len(rec.told()); n < 5 || n > 6 {
			t.Errorf("%d reports in 5 s, want one each second", n)
		}
		g := mustAdmit(t, d)
		time.Sleep(10 * time.Second)
		if n := len(rec.told()); n < 14 {
			t.Errorf("%d reports, want one a second while a request runs", n)
		}
		g.Done(Outcome{})
	})
}

func TestLeastRequestRotatesTies(t *testing.T) {
	d, _ := start(t, nil)
	d.SetPool(pool1(0, ready("a", "b", "c")...))
	var order []string
	var grants []*Grant
	for range 6 {
		g := mustAdmit(t, d)
		order, grants = append(order, g.Replica()), append(grants, g)
	}
	if got := strings.Join(order, ""); got != "abcabc" {
		t.Errorf("picked %s, want abcabc", got)
	}
	grants[1].Done(Outcome{})
	if g := mustAdmit(t, d); g.Replica() != "b" {
		t.Errorf("picked %s, want b, which has fewest", g.Replica())
	}
	for _, g := range grants[:1] {
		g.Done(Outcome{})
		if h := mustAdmit(t, d); h.Replica() != "a" {
			t.Errorf("picked %s, want a", h.Replica())
		}
	}
}

func TestQueueIsFIFOAndBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, func(c *Config) { c.MaxQueue, c.MaxQueueBytes = 3, 25 })
		d.SetPool(pool1(1, ready("r1")...))
		g := mustAdmit(t, d)
		a := admit(t.Context(), d)
		synctest.Wait()
		b := admit(t.Context(), d)
		synctest.Wait()
		var full *Error
		if r := <-admit(t.Context(), d); !errors.Is(r.err, ErrBusy) || !errors.As(r.err, &full) || full.RetryAfter < time.Second {
			t.Fatalf("over the bytes: %v", r.err)
		}
		c := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, err := d.Admit(ctx, Request{Model: "iris"}); c <- err }()
		synctest.Wait()
		if _, err := d.Admit(ctx, Request{Model: "iris"}); !errors.Is(err, ErrBusy) {
			t.Fatalf("over the count: %v", err)
		}
		cancel()
		if err := <-c; !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled: %v", err)
		}
		balance(t, d, 2, 1, 4)
		g.Done(Outcome{})
		x := <-a
		select {
		case <-b:
			t.Fatal("the second was let in with the first")
		default:
		}
		x.g.Done(Outcome{})
		(<-b).g.Done(Outcome{})
		balance(t, d, 0, 0, 4)
	})
}

func TestDeadlineTellsTheCause(t *testing.T) {
	for _, c := range []struct {
		name string
		pool PoolConfig
		err  error
		want string
	}{
		{"pending", pool1(0, inPhase("r1", replica.Pending, "needs 2 GPUs, 1 is free")), nil, "Pending: needs 2 GPUs, 1 is free"},
		{"failed", pool1(0, inPhase("r1", replica.Failed, "exit code 1: no such file")), nil, "Failed: exit code 1: no such file"},
		{"wake failed", pool1(0), errors.New("the platform is gone"), "could not be started: the platform is gone"},
		{"nothing", pool1(0), nil, "no replica has appeared"},
		{"limit", pool1(1, ready("r1")...), nil, "maxConcurrency 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, rec := start(t, nil)
				rec.err = c.err
				timeout := 90 * time.Second
				c.pool.Limits.StartupTimeout = timeout
				d.SetPool(c.pool)
				if c.name == "limit" {
					defer mustAdmit(t, d).Done(Outcome{})
				}
				begin := time.Now()
				_, err := d.Admit(t.Context(), Request{Model: "iris"})
				kind := ErrUnavailable
				if c.name == "limit" { // a replica is there, and works for others
					kind = ErrBusy
				}
				if !errors.Is(err, kind) || !strings.Contains(fmt.Sprint(err), c.want) || !strings.Contains(err.Error(), "1m30s") {
					t.Errorf("got %v, want %q", err, c.want)
				}
				if waited := time.Since(begin); waited != timeout {
					t.Errorf("waited %v, want %v", waited, timeout)
				}
			})
		})
	}
}

func TestPermanentCauseIsTheAnswerAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, rec := start(t, nil)
		d.SetPool(pool1(0))
		a := admit(t.Context(), d)
		synctest.Wait()
		bad := pool1(0)
		bad.Cause = Cause{Reason: "NoSupportingRuntime", Message: "vllm is not on PATH: pip install vllm", Permanent: true}
		d.SetPool(bad)
		for _, err := range []error{(<-a).err, (<-admit(t.Context(), d)).err} {
			if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "pip install vllm") {
				t.Errorf("got %v", err)
			}
		}
		if len(rec.woken()) != 1 {
			t.Errorf("%v wakes", rec.woken())
		}
		// What still serves an older revision goes on serving.
		bad.Replicas = ready("r1")
		d.SetPool(bad)
		mustAdmit(t, d).Done(Outcome{})
		balance(t, d, 0, 0, 2)
	})
}

func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPool(pool1(0, ready("a", "b")...))
		boom := errors.New("connection reset")
		g := mustAdmit(t, d)
		if err := g.Retry(t.Context(), boom); err != nil || g.Replica() != "b" {
			t.Fatalf("retry: %v on %s", err, g.Replica())
		}
		if h := mustAdmit(t, d); h.Replica() != "b" {
			t.Errorf("picked %s, want b: a has just failed", h.Replica())
		} else {
			h.Done(Outcome{})
		}
		// A sent request has nowhere to go; it does not wait for b to return.
		err := g.Retry(t.Context(), boom)
		if !errors.Is(err, ErrUnavailable) || !errors.Is(err, boom) {
			t.Fatalf("second retry: %v", err)
		}
		g.Done(Outcome{})
		balance(t, d, 0, 0, 2)

		// An unsent one waits until the suspicion is over.
		time.Sleep(time.Minute)
		g = mustAdmit(t, d)
		first := g.Replica()
		if err := g.Retry(t.Context(), Unsent(boom)); err != nil || g.Replica() == first {
			t.Fatalf("retry: %v on %s", err, g.Replica())
		}
		if err := g.Retry(t.Context(), Unsent(boom)); err != nil {
			t.Fatalf("waiting retry: %v", err)
		}
		if g.Waited() == 0 {
			t.Error("it did not wait")
		}
		for range 5 { // what was never sent may be tried again
			if err := g.Retry(t.Context(), Unsent(boom)); err != nil {
				t.Fatalf("waiting retry: %v", err)
			}
		}
		g.Done(Outcome{})
		balance(t, d, 0, 0, 3)
	})
}

func TestRetryAfterFirstByteIsRefused(t *testing.T) {
	d, _ := start(t, nil)
	d.SetPool(pool1(0, ready("a", "b")...))
	g := mustAdmit(t, d)
	g.FirstByte()
	if err := g.Retry(t.Context(), errors.New("x")); !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	balance(t, d, 0, 1, 1)
	g.Done(Outcome{Failed: errors.New("x")})
	balance(t, d, 0, 0, 1)
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, rec := start(t, nil)
		d.SetPool(pool1(0, ready("a")...))
		g := mustAdmit(t, d)
		drained := make(chan error, 1)
		go func() { drained <- d.Drain(t.Context(), "a") }()
		synctest.Wait()
		next := admit(t.Context(), d) // must not go to a, although the facts still say Ready
		synctest.Wait()
		if d.InFlight("a") != 1 || len(rec.woken()) != 1 {
			t.Fatalf("in flight %d, wakes %v", d.InFlight("a"), rec.woken())
		}
		d.SetPool(pool1(0))             // the facts forget it before it is idle
		d.Remove(routing.Service(iris)) // and so does everybody else
		if r := <-next; !errors.Is(r.err, ErrUnavailable) {
			t.Fatalf("waiting for a deleted service: %v", r.err)
		}
		if d.InFlight("a") != 1 {
			t.Error("the request in flight was forgotten")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := d.Drain(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("second drain: %v", err)
		}
		g.Done(Outcome{})
		if err := <-drained; err != nil {
			t.Error(err)
		}
		if err := d.Drain(t.Context(), "nobody"); err != nil {
			t.Error(err)
		}
	})
}

// TestBurstIsToldAtOnce: that a burst calls for several replicas is told while
// it comes, not at the pace of reports.
func TestBurstIsToldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, rec := start(t, nil)
		asleep := pool1(0)
		asleep.Limits.Target, asleep.Limits.Max = 10, 5
		d.SetPool(asleep)
		ctx, leave := context.WithCancel(t.Context())
		begun := time.Now()
		var waiting []<-chan admitted
		one := func() {
			waiting = append(waiting, admit(ctx, d))
			synctest.Wait()
		}
		one()
		starting := asleep
		starting.Replicas = []replica.Replica{inPhase("r", replica.Starting, "")}
		d.SetPool(starting)
		for range 24 {
			one()
		}
		if got := last(rec.told()); time.Since(begun) > 0 || got.Queued < 21 {
			t.Errorf("after %v the last report was %+v, want one of at least 21 that wait", time.Since(begun), got)
		}
		leave()
		for _, w := range waiting {
			<-w
		}
		time.Sleep(2 * time.Second)
		if got := last(rec.told()); got.Queued != 0 || got.Done == 0 || got.Left != got.Done || !got.LastDone.IsZero() {
			t.Errorf("after all clients left: %+v, want none that waits and none that was answered", got)
		}
	})
}

// TestDeniedHearsWhenToAskAgain: those that wait are let go with the cause and
// a time when the service can get no replica, and those that come are as well.
func TestDeniedHearsWhenToAskAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		p := pool1(0, inPhase("r", replica.Pending, "needs 8 GPUs, 0 of 3 free"))
		d.SetPool(p)
		waits := admit(t.Context(), d)
		synctest.Wait()
		p.Cause = Cause{Reason: replica.ReasonUnschedulable, Message: "needs 8 GPUs, 0 of 3 free", Permanent: true, RetryAfter: 30 * time.Second}
		d.SetPool(p)
		for i, err := range []error{(<-waits).err, (<-admit(t.Context(), d)).err} {
			var refused *Error
			if !errors.As(err, &refused) || !errors.Is(err, ErrUnavailable) || refused.RetryAfter != 30*time.Second || !strings.Contains(refused.Message, "needs 8 GPUs") {
				t.Errorf("request %d: %+v", i, err)
			}
		}
		p.Cause, p.Replicas = Cause{}, ready("r")
		d.SetPool(p)
		mustAdmit(t, d).Done(Outcome{})
	})
}
