package ring

import "time"

// Breaker reports whether a node is worth asking. The zero Breaker asks it.
//
// A node that failed is left alone for First, then tried by one who asks nothing
// of importance; each failure doubles the time, up to Most. Only a try brings it
// back: answers to what was asked before the failure say nothing of now.
type Breaker struct {
	until  time.Time     // when it may be tried; zero: it is in use
	pause  time.Duration // how long it was left alone last
	trying bool
}

// Pauses are how long a node is left alone: after its first failure, and at
// most.
type Pauses struct{ First, Most time.Duration }

// Usable reports whether to ask the node.
func (b *Breaker) Usable() bool { return b.until.IsZero() }

// Failed notes that the node did not answer as it should. Failures of what was
// asked before it was left alone change nothing.
func (b *Breaker) Failed(p Pauses, now time.Time) {
	if !b.Usable() && !b.trying {
		return
	}
	b.pause = min(max(2*b.pause, p.First), p.Most)
	b.until, b.trying = now.Add(b.pause), false
}

// Bar leaves the node alone for at least d, whatever it did before.
func (b *Breaker) Bar(d time.Duration, now time.Time) {
	if until := now.Add(d); until.After(b.until) {
		b.until = until
	}
	b.trying = false
}

// Try reports whether to try the node now. Who is told so must report Failed, Bar or
// Back; nobody else is told so meanwhile.
func (b *Breaker) Try(now time.Time) bool {
	if b.Usable() || b.trying || now.Before(b.until) {
		return false
	}
	b.trying = true
	return true
}

// Back notes that a try went well: the node is in use again. The next failure's
// pause begins from the first only when one asked it with success (Worked).
func (b *Breaker) Back() {
	if b.trying {
		b.until, b.trying = time.Time{}, false
	}
}

// Worked notes that the node did as it should.
func (b *Breaker) Worked() {
	if b.Usable() {
		b.pause = 0
	}
}
