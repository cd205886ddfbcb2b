package epp

import (
	"sync/atomic"
	"time"
)

// A picker that was silent so often, with no word in between, is left alone but
// for one request in a while: the others need not wait for it in vain, each for
// as long as it may take.
const (
	silentAfter = 3
	silentProbe = time.Second
)

// silence is how long a picker has said nothing.
type silence struct {
	times atomic.Int32 // in a row that it gave no answer in time
	probe atomic.Int64 // when the next request may ask, in Unix nanoseconds
}

// allows reports whether a request may ask now.
func (s *silence) allows(now time.Time) bool {
	if s.times.Load() < silentAfter {
		return true
	}
	at := s.probe.Load()
	return now.UnixNano() >= at && s.probe.CompareAndSwap(at, now.Add(silentProbe).UnixNano())
}

// note takes the end of one question.
func (s *silence) note(silent bool, now time.Time) {
	switch {
	case !silent && s.times.Load() != 0:
		s.times.Store(0)
	case silent:
		s.probe.Store(now.Add(silentProbe).UnixNano())
		s.times.Add(1)
	}
}
