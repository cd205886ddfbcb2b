// Package dispatch owns the live picture: which replicas can take a request
// now, what is in flight on each, and who waits. It admits a request to a
// replica, or lets it wait within bounds while one starts, and tells whoever
// decides the counts what is demanded.
//
// A request is admitted once (Admit), may move to another replica until its
// answer begins (Grant.Retry, Grant.FirstByte), and is settled once
// (Grant.Done). For every pool, at every moment,
//
//	Arrived == Done + Queued + Running
//
// and no replica has more in flight than its limit.
package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/autoscale"
)

// Config bounds what a Dispatcher holds. Start from DefaultConfig.
type Config struct {
	// MaxQueue is how many requests may wait for one service.
	MaxQueue int
	// MaxQueueBytes is how many body bytes the waiting requests of one service
	// may hold in memory.
	MaxQueueBytes int64
	// MaxWait is the longest a request waits for a replica; a service's
	// startup timeout shortens it.
	MaxWait time.Duration
	// MaxTries is how many replicas a request is sent to at most.
	MaxTries int
	// ReportEvery is the least time between two reports of one pool's demand;
	// the first waiting request is reported at once.
	ReportEvery time.Duration
	// WakeTimeout bounds one call of Demand.Wake, WakeRetry is the time until
	// the next while nothing starts.
	WakeTimeout, WakeRetry time.Duration
	// Suspicion is how long a replica that failed a request gets no other; it
	// doubles with every failure in a row up to MaxSuspicion.
	Suspicion, MaxSuspicion time.Duration
	// Domain ends the hosts of services ("name.namespace.domain").
	Domain string
}

// DefaultConfig is 1,000 requests or 256 MiB waiting per service, for at most
// 10 minutes.
func DefaultConfig() Config {
	return Config{
		MaxQueue:      1000,
		MaxQueueBytes: 256 << 20,
		MaxWait:       10 * time.Minute,
		MaxTries:      3,
		ReportEvery:   time.Second,
		WakeTimeout:   30 * time.Second,
		WakeRetry:     2 * time.Second,
		Suspicion:     100 * time.Millisecond,
		MaxSuspicion:  2 * time.Second,
	}
}

// Validate reports every field that is out of range.
func (c Config) Validate() error {
	var errs []error
	positive := func(field string, n int64) {
		if n <= 0 {
			errs = append(errs, fmt.Errorf("dispatch: %s must be more than 0, is %d", field, n))
		}
	}
	positive("MaxQueue", int64(c.MaxQueue))
	positive("MaxQueueBytes", c.MaxQueueBytes)
	positive("MaxWait", int64(c.MaxWait))
	positive("MaxTries", int64(c.MaxTries))
	positive("ReportEvery", int64(c.ReportEvery))
	positive("WakeTimeout", int64(c.WakeTimeout))
	positive("WakeRetry", int64(c.WakeRetry))
	positive("Suspicion", int64(c.Suspicion))
	if c.MaxSuspicion < c.Suspicion {
		errs = append(errs, fmt.Errorf("dispatch: MaxSuspicion (%v) must not be less than Suspicion (%v)", c.MaxSuspicion, c.Suspicion))
	}
	return errors.Join(errs...)
}

// Demand is who decides the counts. Pools are named "namespace/name".
type Demand interface {
	// Wake asks for at least atLeast replicas of a pool that has none. It
	// returns when the request is heard, not when replicas are ready.
	Wake(ctx context.Context, pool string, atLeast int) error
	// Sleep asks for no replica until the next request.
	Sleep(ctx context.Context, pool string) error
	// Report tells the demand of a pool. Reports of one pool never overlap and
	// come in order. While requests wait or run they keep coming, at least
	// every Config.ReportEvery.
	Report(pool string, d autoscale.Demand)
}

// Clock is the time a Dispatcher lives by.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f in a goroutine of its own after d, unless stop is
	// called before.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

// SystemClock is the machine's clock.
type SystemClock struct{}

// Now is time.Now.
func (SystemClock) Now() time.Time { return time.Now() }

// AfterFunc is time.AfterFunc.
func (SystemClock) AfterFunc(d time.Duration, f func()) func() bool {
	return time.AfterFunc(d, f).Stop
}
