// Package wakeup has a loop sleep until there is something to do: something has changed, or
// a time has come.
package wakeup

import (
	"context"
	"time"
)

// Bell wakes the one who sleeps at it. It is safe for concurrent use.
type Bell struct{ rung chan struct{} }

// New makes a bell.
func New() Bell { return Bell{make(chan struct{}, 1)} }

// Ring ends a sleep, or the next one where nobody sleeps. It never waits; several rings
// before a sleep are one.
func (b Bell) Ring() {
	select {
	case b.rung <- struct{}{}:
	default:
	}
}

// Rung is received from in place of a sleep.
func (b Bell) Rung() <-chan struct{} { return b.rung }

// Sleep returns once the bell has been rung, a time has come, or ctx has ended. A zero time
// is never.
func (b Bell) Sleep(ctx context.Context, until time.Time) {
	var due <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-b.rung:
	case <-due:
	case <-ctx.Done():
	}
}
