package admission

import "time"

// budgetWindow is the time over which a Budget is kept.
const budgetWindow = 10 * time.Second

// Budget bounds retries to a share of the recent requests, so that a pool that
// fails is not asked many times over. The bound is on the last 5 to 10
// seconds. The zero Budget allows none.
type Budget struct {
	// Ratio is how many retries one request pays for, Rate how many a second
	// are allowed beside.
	Ratio, Rate float64

	since             time.Time  // of the present half window
	requests, retries [2]float64 // in the present half and the one before
}

// Request notes a request that was admitted.
func (b *Budget) Request(now time.Time) {
	b.turn(now)
	b.requests[0]++
}

// Take notes a retry and says whether there is one left; if not, nothing is
// noted.
func (b *Budget) Take(now time.Time) bool {
	if !b.Allows(now) {
		return false
	}
	b.retries[0]++
	return true
}

// Allows reports whether there is a retry left.
func (b *Budget) Allows(now time.Time) bool {
	b.turn(now)
	return b.retries[0]+b.retries[1]+1 <= b.Ratio*(b.requests[0]+b.requests[1])+b.Rate*budgetWindow.Seconds()
}

func (b *Budget) turn(now time.Time) {
	const half = budgetWindow / 2
	switch d := now.Sub(b.since); {
	case d < half: // a clock that goes back stays in the half
	case d < 2*half:
		b.since = b.since.Add(half)
		b.requests = [2]float64{0, b.requests[0]}
		b.retries = [2]float64{0, b.retries[0]}
	default:
		b.since = now
		b.requests, b.retries = [2]float64{}, [2]float64{}
	}
}
