// Package outside is the client of servers that manifests name and that are none of the
// gateway's own: those of loggers, and of the steps of graphs.
package outside

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"roundhouse.dev/roundhouse/internal/core/network"
)

// Reach returns where the server of a URL is reached that a manifest of a namespace
// names: an address in place of the URL's host, or "" for that host, which must have a
// public address then. The error is why nothing is sent there.
type Reach func(namespace, url string) (address string, err error)

// Config of a Client.
type Config struct {
	// Reach is asked about every request; nil sends to the URL's host, wherever it is.
	Reach Reach
	// Dial bounds the time to connect, Answer that until an answer begins, Whole a
	// request as a whole; 0 is no bound.
	Dial, Answer, Whole time.Duration
	// Idle is how many idle connections are kept per server.
	Idle int
}

// Client sends requests. It follows no redirects, which would lead elsewhere than what
// was asked about.
type Client struct {
	reach  Reach
	named  *http.Client
	inside *http.Client // for the addresses of reach
}

// New makes a client.
func New(c Config) *Client {
	inside := c.client(false)
	inside.Transport.(*http.Transport).Proxy = nil // a pod's address is reached as it is
	return &Client{reach: c.Reach, named: c.client(c.Reach != nil), inside: inside}
}

// client is one that connects to public addresses alone, or to all. A name may lead to an
// internal one after all: so a public client resolves it itself, and uses no proxy.
func (c Config) client(public bool) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost, transport.ResponseHeaderTimeout = c.Idle, c.Answer
	dialer := &net.Dialer{Timeout: c.Dial}
	if public {
		transport.Proxy, dialer.Control = nil, refuseInternal
	}
	transport.DialContext = dialer.DialContext
	return &http.Client{Transport: transport, Timeout: c.Whole,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func refuseInternal(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || network.Internal(at.Addr()) {
		return fmt.Errorf("%s is an internal address: name a Service of the namespace by http://NAME, or have the gateway started with --allow-internal-addresses", address)
	}
	return nil
}

// Do sends a request to a server that a manifest of a namespace names.
func (c *Client) Do(r *http.Request, namespace string) (*http.Response, error) {
	if c.reach == nil {
		return c.named.Do(r)
	}
	address, err := c.reach(namespace, r.URL.String())
	if err != nil {
		return nil, err
	}
	if address == "" {
		return c.named.Do(r)
	}
	to := r.Clone(r.Context())
	to.Host, to.URL.Host = r.URL.Host, address
	return c.inside.Do(to)
}
