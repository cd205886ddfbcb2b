package dispatch

import (
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// endpoint is one replica as its pool sees it. The pool's mutex guards every
// field but failures.
type endpoint struct {
	id       string
	address  string // "host:port" of its HTTP surface
	grpc     string // "host:port" of its gRPC surface; "" when it has none
	phase    replica.Phase
	inFlight int // >= 0
	// draining stays set: a replica that drains never comes back.
	draining bool
	gone     bool // not among the facts any more; kept while inFlight > 0
	// failures counts failed requests since the last answer.
	failures     atomic.Int32
	suspectUntil time.Time     // zero when not suspected
	idle         chan struct{} // closed when inFlight falls to 0; nil when nobody waits
}

// update takes new facts. A process that has just become ready starts with a
// clean record.
func (e *endpoint) update(r replica.Replica) {
	if r.Serving() && (e.phase != r.Phase || e.address != r.HTTP) {
		e.failures.Store(0)
		e.suspectUntil = time.Time{}
	}
	e.phase, e.address, e.grpc, e.gone = r.Phase, r.HTTP, r.GRPC, false
}

// ready says whether the replica serves at all, busy or not.
func (e *endpoint) ready() bool {
	return e.phase == replica.Ready && !e.draining && !e.gone && e.address != ""
}

// alive says whether the replica serves or will.
func (e *endpoint) alive() bool {
	return e.phase != replica.Draining && !e.draining && !e.gone
}

// open says whether the replica can take one more request.
func (e *endpoint) open(limit int, now time.Time) bool {
	if !e.ready() || (limit > 0 && e.inFlight >= limit) {
		return false
	}
	return e.suspectUntil.IsZero() || !now.Before(e.suspectUntil)
}

// suspect notes a failure and returns for how long the replica is avoided.
func (e *endpoint) suspect(c Config, now time.Time) time.Duration {
	n := e.failures.Add(1)
	d := c.MaxSuspicion
	if n < 16 {
		d = min(d, c.Suspicion<<(n-1))
	}
	e.suspectUntil = now.Add(d)
	return d
}
