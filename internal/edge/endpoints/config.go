// Package endpoints finds the endpoints of pools over servers that run
// already: it looks up the names among a pool's addresses, again and again,
// and publishes what they stand for. A look-up that fails keeps the answer
// before.
package endpoints

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Config bounds how names are looked up. Start from DefaultConfig.
type Config struct {
	// Every is the time between two look-ups of a name: a resolver tells no
	// TTL. Of each wait up to a tenth is left out at random, so that names do
	// not march in step.
	Every time.Duration
	// Retry is the wait after a first failure; it doubles up to Every.
	Retry time.Duration
	// LookupTimeout bounds one look-up.
	LookupTimeout time.Duration
	// MaxAddresses is how many endpoints one pool's addresses may come to.
	MaxAddresses int
	// MaxLookups is how many names are looked up at once.
	MaxLookups int

	// Refuse is why requests may not go to an address, "" where they may; nil
	// refuses none. It is asked after names are looked up.
	Refuse func(netip.Addr) string
	// Resolver asks; nil is the machine's.
	Resolver Resolver
	// Random gives a number in [0, 1); nil is a seeded source.
	Random func() float64
	Log    *slog.Logger
}

// Resolver looks a name up. *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Sink is who is told. Calls come one at a time, in order, only when something
// has changed.
type Sink interface {
	// Endpoints makes these "ip:port" the ones of a pool's addresses, sorted,
	// without repetition. problem is what is wrong with them in one line, ""
	// for nothing.
	Endpoints(pool service.Key, addresses []string, problem string)
}

// DefaultConfig looks names up every 30 seconds.
func DefaultConfig() Config {
	return Config{Every: 30 * time.Second, Retry: time.Second, LookupTimeout: 5 * time.Second, MaxAddresses: 1024, MaxLookups: 16}
}

// Validate reports every field that is out of range.
func (c Config) Validate() error {
	var errs []error
	positive := func(field string, n int64) {
		if n <= 0 {
			errs = append(errs, fmt.Errorf("endpoints: %s must be more than 0, is %d", field, n))
		}
	}
	positive("Every", int64(c.Every))
	positive("Retry", int64(c.Retry))
	positive("LookupTimeout", int64(c.LookupTimeout))
	positive("MaxAddresses", int64(c.MaxAddresses))
	positive("MaxLookups", int64(c.MaxLookups))
	return errors.Join(errs...)
}

// Literals are those of addresses that need no look-up, as they are published.
func Literals(addresses []string) []string {
	var out []string
	for _, a := range addresses {
		if at, err := netip.ParseAddrPort(a); err == nil {
			out = append(out, endpoint(at.Addr(), at.Port()))
		}
	}
	return out
}

// endpoint writes an address the one way it is always written.
func endpoint(ip netip.Addr, port uint16) string {
	return netip.AddrPortFrom(ip.Unmap(), port).String()
}

// reason is what went wrong in a look-up, without the name it repeats.
func reason(err error) string {
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return "no such host"
	case errors.As(err, &dns) && dns.IsTimeout, errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	case errors.As(err, &dns):
		return dns.Err
	}
	return err.Error()
}
