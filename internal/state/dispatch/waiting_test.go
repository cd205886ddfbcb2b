package dispatch

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// TestWaitingIsTold has a request wait through the phases of a start.
func TestWaitingIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		defer d.Close()
		set := func(phase replica.Phase, change func(*replica.Replica)) {
			r := inPhase("a", phase, "")
			r.HTTP = "a:80"
			if change != nil {
				change(&r)
			}
			p := pool1(0, r)
			p.Startup = 30 * time.Second
			d.SetPool(p)
		}
		none := pool1(0)
		none.Startup = 30 * time.Second
		d.SetPool(none)
		var said []string
		result := make(chan admitted, 1)
		go func() {
			g, err := d.Admit(t.Context(), Request{Model: "iris", Waiting: func(w Wait) time.Duration {
				said = append(said, w.String())
				return 2 * time.Second
			}})
			result <- admitted{g, err}
		}()
		step := func() { time.Sleep(2 * time.Second); synctest.Wait() }
		time.Sleep(time.Second)
		synctest.Wait()
		step()
		set(replica.Pending, func(r *replica.Replica) { r.Reason = replica.ReasonInsufficientGPUs })
		step()
		set(replica.Fetching, func(r *replica.Replica) { r.Progress = &replica.Progress{Done: 1, Total: 4} })
		step()
		set(replica.Starting, func(r *replica.Replica) { r.Started = time.Now() })
		step()
		set(replica.Failed, nil)
		step()
		set(replica.Ready, nil)
		got := <-result
		want := []string{"starting, 0 s of about 30 s", "starting, 2 s of about 30 s", "waiting for room, 4 s", "downloading 25 %, 6 s", "starting, 1 s of about 30 s", "restarting, 10 s"}
		if got.err != nil || !slices.Equal(said, want) {
			t.Errorf("%v; told\n%q, want\n%q", got.err, said, want)
		}
		got.g.Done(Outcome{})
	})
}

// TestNotToldTwiceWhereToldNever has Waiting ask for no further call.
func TestNotToldTwiceWhereToldNever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, func(c *Config) { c.MaxWait = time.Minute })
		defer d.Close()
		d.SetPool(pool1(0))
		n := 0
		_, err := d.Admit(t.Context(), Request{Model: "iris", Waiting: func(Wait) time.Duration { n++; return 0 }})
		if n != 1 || !errors.Is(err, ErrUnavailable) {
			t.Errorf("told %d times, %v", n, err)
		}
	})
}

// TestRetryAfterIsWhatIsLeftOfTheStart refuses requests while a replica starts.
func TestRetryAfterIsWhatIsLeftOfTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, func(c *Config) { c.MaxQueue = 1 })
		defer d.Close()
		p := pool1(0)
		p.Startup = 40 * time.Second
		d.SetPool(p)
		waiting := admit(t.Context(), d)
		synctest.Wait()
		refused := func() time.Duration {
			_, err := d.Admit(t.Context(), Request{Model: "iris"})
			var e *Error
			if !errors.As(err, &e) || !errors.Is(err, ErrBusy) {
				t.Fatalf("%v", err)
			}
			return e.RetryAfter
		}
		if got := refused(); got != 40*time.Second {
			t.Errorf("with no replica yet: %v", got)
		}
		r := inPhase("a", replica.Starting, "")
		r.Started = time.Now()
		p.Replicas = []replica.Replica{r}
		d.SetPool(p)
		for _, c := range []struct{ after, want time.Duration }{{15 * time.Second, 25 * time.Second}, {time.Minute, time.Second}} {
			time.Sleep(c.after)
			if got := refused(); got != c.want {
				t.Errorf("%v later: %v, want %v", c.after, got, c.want)
			}
		}
		p.Startup = 10 * time.Minute
		d.SetPool(p)
		if got := refused(); got != time.Minute {
			t.Errorf("of a long start: %v", got)
		}
		d.Close()
		<-waiting
	})
}
