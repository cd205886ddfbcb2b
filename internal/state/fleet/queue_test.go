package fleet

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestQueueKeepsKeysApart: one key is never worked on twice at once, and what
// is added while it is worked on comes again, once.
func TestQueueKeepsKeysApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		a, b := service.ParseKey("a"), service.ParseKey("b")
		q.add(a)
		q.add(a)
		q.add(b)
		if k, _ := q.next(); k != a {
			t.Fatalf("first is %v", k)
		}
		q.add(a)
		q.add(a)
		if k, _ := q.next(); k != b {
			t.Fatalf("while a is worked on, next is %v", k)
		}
		var again service.Key
		go func() { again, _ = q.next() }()
		synctest.Wait()
		if again != (service.Key{}) {
			t.Fatalf("%v was handed out twice at once", again)
		}
		q.done(a, 0, 0)
		synctest.Wait()
		if again != a {
			t.Fatalf("given back, next is %v", again)
		}
		q.done(a, 0, 0)
		q.done(b, 0, 0)
		q.close()
		if k, ok := q.next(); ok {
			t.Errorf("closed, next is %v", k)
		}
	})
}

// TestQueueComesAgain: a key comes after its delay, or at once when it is
// added before, and then not a second time.
func TestQueueComesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		a := service.ParseKey("a")
		var mu sync.Mutex
		var at []time.Duration
		start := time.Now()
		go func() {
			for again := 10 * time.Second; ; again = 0 {
				k, ok := q.next()
				if !ok {
					return
				}
				mu.Lock()
				at = append(at, time.Since(start))
				mu.Unlock()
				q.done(k, again, 0)
			}
		}()
		q.add(a)
		time.Sleep(time.Minute) // of the bubble's clock
		q.add(a)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if want := []time.Duration{0, 10 * time.Second, time.Minute}; len(at) != 3 || at[0] != want[0] || at[1] != want[1] || at[2] != want[2] {
			t.Errorf("came at %v, want %v", at, want)
		}
		q.close()
	})
}

// TestQueueRests: a key that failed, and of which something changes all the
// time, comes once in its rest, whether the change comes before it is given
// back or after; once it did not fail it comes at every change.
func TestQueueRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		a := service.ParseKey("a")
		const every = 10 * time.Millisecond
		ctx, end := context.WithCancel(t.Context())
		go func() {
			for ctx.Err() == nil {
				q.add(a)
				time.Sleep(every)
			}
			q.close()
		}()
		came := func(during, rest time.Duration) (n int) {
			for began := time.Now(); time.Since(began) < during; n++ {
				k, _ := q.next()
				time.Sleep(3 * every) // it changes while it is worked on
				q.done(k, time.Hour, rest)
			}
			return n
		}
		if n := came(time.Minute, time.Second); n < 50 || n > 61 {
			t.Errorf("came %d times in a minute, resting for a second", n)
		}
		came(2*time.Second, 0)
		if n := came(time.Minute, 0); n < 1000 {
			t.Errorf("came %d times in a minute, without a rest", n)
		}
		end()
		synctest.Wait()
		for k, ok := q.next(); ok; k, ok = q.next() {
			q.done(k, 0, 0)
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		if len(q.mu.rests) != 0 {
			t.Errorf("%d rests are kept", len(q.mu.rests))
		}
	})
}
