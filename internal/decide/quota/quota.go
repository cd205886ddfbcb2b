// Package quota decides whether one more request fits what is allowed per
// minute, with a token bucket: it holds a minute's worth, fills evenly, and may
// be overdrawn by what a request turns out to have cost; then it stays closed
// until that is made up for.
package quota

import (
	"math"
	"time"
)

// Bucket is one allowance. The zero Bucket allows everything. Times passed to
// its methods should not go back; one that does counts as no time.
type Bucket struct {
	perMinute float64 // 0: no limit
	level     float64 // at the time `at`; at most perMinute
	at        time.Time
}

// New is a full bucket of so many per minute; 0 is no limit.
func New(perMinute int64, now time.Time) Bucket {
	return Bucket{perMinute: float64(perMinute), level: float64(perMinute), at: now}
}

// Wait is how long until a unit may be taken: 0 at once.
func (b *Bucket) Wait(now time.Time) time.Duration {
	if b.perMinute <= 0 {
		return 0
	}
	b.fill(now)
	missing := 1 - b.level
	if missing <= 0 {
		return 0
	}
	d := math.Ceil(missing / b.perMinute * float64(time.Minute))
	if d > float64(math.MaxInt64/2) {
		return math.MaxInt64 / 2
	}
	return time.Duration(d)
}

// Take takes n whatever is there; a negative n gives back.
func (b *Bucket) Take(n int64, now time.Time) {
	if b.perMinute <= 0 {
		return
	}
	b.fill(now)
	b.level = min(b.level-float64(n), b.perMinute)
}

func (b *Bucket) fill(now time.Time) {
	if passed := now.Sub(b.at); passed > 0 {
		b.level = min(b.level+b.perMinute*passed.Minutes(), b.perMinute)
		b.at = now
	}
}
