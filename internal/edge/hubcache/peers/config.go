package peers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// Config lists the nodes. The zero Config is no ring; start from DefaultConfig.
type Config struct {
	// Self is the origin by which the other nodes know this one.
	Self string
	// Peers are the origins of the nodes; whether Self is among them does not
	// matter. All nodes must be told of the same.
	Peers []string
	// DNS is HOST:PORT: the addresses of HOST are nodes too, at that port. Self
	// must be by address then.
	DNS string
	// Secrets are known to all nodes. The first signs, all are accepted, so
	// that one can be replaced node by node.
	Secrets []string

	// AnswerTimeout is how long a node may be silent before it is pinged, and
	// how long it may take to answer the ping.
	AnswerTimeout time.Duration
	// StallTimeout is how long a node that answers pings may take for 64 KiB.
	StallTimeout time.Duration
	// LookupEvery is the time between two look-ups of DNS.
	LookupEvery time.Duration
	// FirstPause is how long a node that failed is ejected; it doubles up to
	// MostPause. A node that sent wrong content is ejected for WrongPause.
	FirstPause, MostPause, WrongPause time.Duration
	// MaxNodes bounds the ring; of more, the first by name are used.
	MaxNodes int
	// MaxSkew is how far the clocks of two nodes may be apart.
	MaxSkew time.Duration
	// MaxNonces bounds the requests of 2×MaxSkew that are remembered; more are
	// refused.
	MaxNonces int

	Transport http.RoundTripper // nil: connections of its own, past any proxy
	Resolver  Resolver          // nil: the machine's
	Changed   func(State)       // nil: nobody; called one at a time, also once in the beginning
	Log       *slog.Logger      // nil: silent
}

// Resolver looks a name up. *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// DefaultConfig is no ring yet: Self, Secrets, and Peers or DNS are missing.
func DefaultConfig() Config {
	return Config{
		AnswerTimeout: 2 * time.Second,
		StallTimeout:  8 * time.Second, // clients of the Hub give up after 10
		LookupEvery:   5 * time.Second,
		FirstPause:    time.Second,
		MostPause:     30 * time.Second,
		WrongPause:    10 * time.Minute,
		MaxNodes:      256,
		MaxSkew:       time.Minute,
		MaxNonces:     200000,
	}
}

// Enabled reports whether there is a ring.
func (c Config) Enabled() bool { return c.Self != "" || len(c.Peers) > 0 || c.DNS != "" }

// minSecret is the minimum length of a secret.
const minSecret = 16

// Validate reports every field that cannot be used.
func (c Config) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("peers: "+field+": "+format, args...))
	}
	self, err := Origin(c.Self)
	if err != nil {
		bad("self", "%w", err)
	}
	for i, p := range c.Peers {
		if _, err := Origin(p); err != nil {
			bad(fmt.Sprintf("peers[%d]", i), "%w", err)
		}
	}
	if len(c.Peers) == 0 && c.DNS == "" {
		bad("peers", "there are none; name them, or a DNS name for them")
	}
	if c.DNS != "" {
		host, port, err := net.SplitHostPort(c.DNS)
		if err != nil || host == "" || port == "" {
			bad("dns", "%q is not HOST:PORT", c.DNS)
		}
		if u, err := url.Parse(self); err == nil && self != "" && !isAddress(u.Hostname()) {
			bad("self", "is %q; with a DNS name it must be the address that the name has for this node, as in http://10.0.0.7:8083", c.Self)
		}
	}
	if len(c.Secrets) == 0 {
		bad("secrets", "there are none; nodes know each other by one")
	}
	for i, s := range c.Secrets {
		if len(s) < minSecret {
			bad(fmt.Sprintf("secrets[%d]", i), "has %d bytes; at least %d are needed, 32 random ones are good", len(s), minSecret)
		}
	}
	for field, v := range map[string]int64{
		"answerTimeout": int64(c.AnswerTimeout), "stallTimeout": int64(c.StallTimeout), "lookupEvery": int64(c.LookupEvery), "firstPause": int64(c.FirstPause),
		"mostPause": int64(c.MostPause), "wrongPause": int64(c.WrongPause), "maxNodes": int64(c.MaxNodes), "maxSkew": int64(c.MaxSkew), "maxNonces": int64(c.MaxNonces),
	} {
		if v <= 0 {
			bad(field, "is %d; it must be above 0", v)
		}
	}
	return errors.Join(errs...)
}

func isAddress(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

// Origin reads "http://HOST[:PORT]" and writes it the one way that all nodes
// write it.
func Origin(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil ||
		u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q is no origin: want http://HOST[:PORT]", s)
	}
	host, port := strings.ToLower(u.Hostname()), u.Port()
	if a, err := netip.ParseAddr(host); err == nil {
		host = a.Unmap().String()
	}
	if port == "" || u.Scheme == "http" && port == "80" || u.Scheme == "https" && port == "443" {
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		return u.Scheme + "://" + host, nil
	}
	return u.Scheme + "://" + net.JoinHostPort(host, port), nil
}
