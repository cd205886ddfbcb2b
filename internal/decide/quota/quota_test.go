package quota

import (
	"math/rand/v2"
	"testing"
	"time"
)

var start = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func TestBucket(t *testing.T) {
	b := New(60, start)
	for range 60 {
		if w := b.Wait(start); w != 0 {
			t.Fatalf("waits %v within the minute's worth", w)
		}
		b.Take(1, start)
	}
	if w := b.Wait(start); w != time.Second {
		t.Errorf("an empty bucket of 60 waits %v", w)
	}
	if w := b.Wait(start.Add(400 * time.Millisecond)); w != 600*time.Millisecond {
		t.Errorf("0.4 s later it waits %v", w)
	}
	b.Take(30, start.Add(400*time.Millisecond)) // overdrawn by 29.6
	if w := b.Wait(start.Add(400 * time.Millisecond)); w != 30600*time.Millisecond {
		t.Errorf("overdrawn it waits %v", w)
	}
	b.Take(-1000, start) // gives back, and time that went back does not count
	if b.level != 60 {
		t.Errorf("holds %v, more than it may", b.level)
	}
	var free Bucket
	free.Take(1e9, start)
	if free.Wait(start) != 0 {
		t.Error("no limit waits")
	}
	huge := New(1, start)
	huge.Take(1<<62, start)
	if huge.Wait(start) <= 0 {
		t.Error("an overflow opens the bucket")
	}
}

// TestNeverMoreThanAllowed takes at random moments: what was taken in a window
// of any length is at most a minute's worth and the window's share, when a unit
// is taken at a time.
func TestNeverMoreThanAllowed(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		limit := 1 + rng.Int64N(50)
		b, now := New(limit, start), start
		var taken []time.Time
		for range 300 {
			now = now.Add(time.Duration(rng.Int64N(int64(2 * time.Minute / time.Duration(limit)))))
			if b.Wait(now) == 0 {
				b.Take(1, now)
				taken = append(taken, now)
			}
		}
		for i := range taken {
			for j := i; j < len(taken); j++ {
				allowed := float64(limit)*(1+taken[j].Sub(taken[i]).Minutes()) + 1e-6
				if n := float64(j - i + 1); n > allowed {
					t.Fatalf("%v taken within %v of %d per minute", n, taken[j].Sub(taken[i]), limit)
				}
			}
		}
		if w := b.Wait(now); w > 0 && b.Wait(now.Add(w)) != 0 {
			t.Fatalf("after the stated wait %v it still waits %v", w, b.Wait(now.Add(w)))
		}
	}
}
