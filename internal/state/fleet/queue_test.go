package fleet

import (
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
		q.done(a, 0)
		synctest.Wait()
		if again != a {
			t.Fatalf("given back, next is %v", again)
		}
		q.done(a, 0)
		q.done(b, 0)
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
				q.done(k, again)
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
