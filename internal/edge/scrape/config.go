// Package scrape reads engines' metrics: from Prometheus' text format, under
// the names that each engine has for them, to replica.Load.
//
// How often adapts to the traffic. While requests of ours are on a server it
// is read every Config.Fast; else the pause doubles up to Config.Slow; and when
// its pools have had no request for Config.IdleAfter nothing is read and
// nothing runs, until Wake tells of the next request. A server that takes long
// to answer is read less often, so that reading takes at most Config.MaxShare
// of its time: in some engines metrics are written by the same loop that
// serves. A server that fails is left alone for longer each time, and gets no
// more than a part of the workers, so that it holds up nobody else.
//
// No server has a goroutine of its own: a heap holds what is due, one timer
// waits for its head, and at most Config.Workers goroutines read, with a buffer
// each. Kept connections have those of net/http until they are closed, after
// four times Config.Slow without use.
package scrape

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// Sink is told what servers say of themselves. Calls for one server come in
// order; a value is never changed after it was given.
type Sink interface {
	SetLoad(id string, l *replica.Load)
}

// Traffic is how many requests of ours a server works on now. It is asked
// after every reading.
type Traffic interface {
	InFlight(id string) int
}

// Clock is the time a Scraper lives by.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f in a goroutine of its own after d, unless stop is
	// called before.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

// Config bounds what a Scraper does. Start from DefaultConfig; the parts may
// be nil, Sink apart.
type Config struct {
	// Fast is the pause between two readings of a server that works for us,
	// Slow the longest while its pool has traffic.
	Fast, Slow time.Duration
	// IdleAfter is how long after the last request of its pools a server is
	// still read.
	IdleAfter time.Duration
	// MaxShare is the part of a server's time that readings may take, 0 to 1.
	MaxShare float64
	// Timeout bounds one reading, MaxBackoff the pause after failures.
	Timeout, MaxBackoff time.Duration
	// MaxBytes is the longest answer that is read.
	MaxBytes int64
	// Workers is how many servers are read at once; those whose last reading
	// failed get a quarter of them.
	Workers int
	// MaxTargets is how many servers may be read in all.
	MaxTargets int

	Sink      Sink
	Traffic   Traffic           // nil: none of ours anywhere
	Clock     Clock             // nil: the machine's
	Random    func() float64    // in [0, 1); nil: a seeded source
	Transport http.RoundTripper // nil: connections of its own
	Log       *slog.Logger      // nil: silent
}

// DefaultConfig reads every 100 ms to 1 s.
func DefaultConfig() Config {
	return Config{
		Fast:       100 * time.Millisecond,
		Slow:       time.Second,
		IdleAfter:  10 * time.Second,
		MaxShare:   0.05,
		Timeout:    time.Second,
		MaxBackoff: 30 * time.Second,
		MaxBytes:   4 << 20,
		Workers:    64,
		MaxTargets: 10_000,
	}
}

// Validate reports every field that is out of range.
func (c Config) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		n    int64
	}{
		{"Fast", int64(c.Fast)}, {"Slow", int64(c.Slow)}, {"IdleAfter", int64(c.IdleAfter)}, {"Timeout", int64(c.Timeout)},
		{"MaxBackoff", int64(c.MaxBackoff)}, {"MaxBytes", c.MaxBytes}, {"Workers", int64(c.Workers)}, {"MaxTargets", int64(c.MaxTargets)},
	} {
		if f.n <= 0 {
			errs = append(errs, fmt.Errorf("scrape: %s must be more than 0, is %d", f.name, f.n))
		}
	}
	if c.Slow < c.Fast {
		errs = append(errs, fmt.Errorf("scrape: Slow (%v) must not be less than Fast (%v)", c.Slow, c.Fast))
	}
	if !(c.MaxShare > 0 && c.MaxShare <= 1) {
		errs = append(errs, fmt.Errorf("scrape: MaxShare must be more than 0 and at most 1, is %v", c.MaxShare))
	}
	if c.Sink == nil {
		errs = append(errs, errors.New("scrape: Sink is nil: nobody would be told"))
	}
	return errors.Join(errs...)
}

// settle fills in the parts that are nil.
func (c *Config) settle() {
	if c.Clock == nil {
		c.Clock = systemClock{}
	}
	if c.Random == nil {
		c.Random = rand.Float64
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Transport == nil {
		c.Transport = &http.Transport{
			DialContext:            (&net.Dialer{Timeout: c.Timeout}).DialContext,
			TLSHandshakeTimeout:    c.Timeout,
			MaxIdleConns:           c.MaxTargets,
			MaxIdleConnsPerHost:    1,
			IdleConnTimeout:        4 * c.Slow,
			DisableCompression:     true, // unpacking costs more than a local network
			MaxResponseHeaderBytes: maxHeader,
			ReadBufferSize:         32 << 10,
		}
	}
}

// maxHeader bounds the header of an answer.
const maxHeader = 64 << 10

// systemClock is the machine's clock.
type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) AfterFunc(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }
