package wakeup

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A sleep ends by a ring, by its time or by its context, whichever is first; a ring before
// it counts, and several are one.
func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		slept := func(ctx context.Context, until time.Time) time.Duration {
			began := time.Now()
			b.Sleep(ctx, until)
			return time.Since(began)
		}
		want := func(what string, got, want time.Duration) {
			t.Helper()
			if got != want {
				t.Errorf("%s: slept %v, want %v", what, got, want)
			}
		}
		want("until a time", slept(t.Context(), time.Now().Add(time.Minute)), time.Minute)
		want("until a time that is over", slept(t.Context(), time.Now().Add(-time.Minute)), 0)
		b.Ring()
		b.Ring()
		want("rung before", slept(t.Context(), time.Time{}), 0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		want("until its context ends", slept(ctx, time.Now().Add(time.Hour)), time.Second)
		go func() {
			time.Sleep(2 * time.Second)
			b.Ring()
		}()
		want("until rung", slept(t.Context(), time.Time{}), 2*time.Second)
	})
}
