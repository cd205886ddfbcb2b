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

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/admission"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/breaker"
	"roundhouse.dev/roundhouse/internal/decide/picker"
)

// Config bounds what a Dispatcher holds. Start from DefaultConfig.
type Config struct {
	// Config bounds each pool's queue.
	admission.Config
	// Index sizes each pool's memory of prompts.
	Index picker.IndexConfig
	// MaxWait is the longest a request waits for a replica; a service's
	// startup timeout shortens it.
	MaxWait time.Duration
	// MaxTries is how many replicas a request is sent to at most.
	MaxTries int
	// RetryRatio is how many retries each recent request of a pool allows,
	// RetryRate how many more a second the pool may have.
	RetryRatio, RetryRate float64
	// PrefillTokens is how many tokens of a prompt a decode replica must lack
	// for a prefill replica to compute them.
	PrefillTokens int64
	// ReportEvery is the least time between two reports of one pool's demand;
	// the first waiting request is reported at once.
	ReportEvery time.Duration
	// WakeTimeout bounds one call of Demand.Wake, WakeRetry is the time until
	// the next while nothing starts.
	WakeTimeout, WakeRetry time.Duration
	// Breaker is when failed requests eject a replica.
	Breaker breaker.Config
	// Asked is told of every request's pool, before a replica is picked, and now
	// and then of one that holds requests; nil tells nobody. It must not block.
	Asked func(pool routing.Ref)
	// Lost is told the id of a replica that could not be reached, or that ended
	// a request's connection before it answered; nil tells nobody.
	Lost func(id string)
	// Tokenize asks the engine at an address for the tokens of the prompt of a
	// request to a path, and then calls done. It must not block; it returns false
	// where it does not ask. nil asks nobody.
	Tokenize func(address, path string, body []byte, done func(tokens []uint32)) bool
	// Sent is told that an endpoint began to answer a prompt of these blocks; nil
	// tells nobody. It must neither block nor keep blocks.
	Sent func(endpoint string, blocks []uint64)
	// Domain ends the hosts of services ("name.namespace.domain").
	Domain string
}

// DefaultConfig is 1,000 requests or 256 MiB waiting per service, for at most
// 10 minutes.
func DefaultConfig() Config {
	return Config{
		Config:        admission.DefaultConfig(),
		Index:         picker.DefaultIndexConfig(),
		MaxWait:       10 * time.Minute,
		MaxTries:      3,
		RetryRatio:    0.2,
		RetryRate:     10,
		PrefillTokens: 256,
		ReportEvery:   time.Second,
		WakeTimeout:   30 * time.Second,
		WakeRetry:     2 * time.Second,
		Breaker:       breaker.DefaultConfig(),
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
	errs = append(errs, c.Config.Validate())
	if err := c.Index.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("dispatch: Index: %w", err))
	}
	positive("MaxWait", int64(c.MaxWait))
	positive("MaxTries", int64(c.MaxTries))
	positive("ReportEvery", int64(c.ReportEvery))
	positive("WakeTimeout", int64(c.WakeTimeout))
	positive("WakeRetry", int64(c.WakeRetry))
	if err := c.Breaker.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("dispatch: Breaker: %w", err))
	}
	if !(c.RetryRatio >= 0 && c.RetryRate >= 0) {
		errs = append(errs, fmt.Errorf("dispatch: RetryRatio (%v) and RetryRate (%v) must be 0 or more", c.RetryRatio, c.RetryRate))
	}
	if c.PrefillTokens < 0 {
		errs = append(errs, fmt.Errorf("dispatch: PrefillTokens must be 0 or more, is %d", c.PrefillTokens))
	}
	return errors.Join(errs...)
}

// Demand is who decides the counts. Services are named "namespace/name".
type Demand interface {
	// Wake asks for at least atLeast replicas of a service that has none. It
	// returns when the request is heard, not when replicas are ready.
	Wake(ctx context.Context, service string, atLeast int) error
	// Sleep asks for no replica until the next request.
	Sleep(ctx context.Context, service string) error
	// Report tells the demand of a service, through its own pool and shared
	// ones. Reports of one service never overlap and come in order. While
	// requests wait or run they keep coming, at least every
	// Config.ReportEvery.
	Report(service string, d autoscale.Demand)
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
