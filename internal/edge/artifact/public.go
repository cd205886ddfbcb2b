package artifact

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"roundhouse.dev/roundhouse/internal/core/network"
)

// InternalError says that a URI leads to an address that nothing is read from,
// see [Config.PublicOnly].
type InternalError struct {
	// Host is what leads there, a name or an address.
	Host string
}

// Error says what to do.
func (e *InternalError) Error() string {
	return e.Host + " is an internal address, and models are read from public ones alone: name a store inside by its endpoint " +
		"(S3_ENDPOINT, AWS_ENDPOINT_URL, HF_ENDPOINT, STORAGE_EMULATOR_HOST), or have the controller started with --allow-internal-models"
}

// namedKey marks the context of what is asked of a host that the URI names, or
// that such a host leads to.
type namedKey struct{}

// named marks a context where a source asks the host that the URI names; those
// of buckets and of the Hub ask an endpoint of their own.
func named(ctx context.Context, src source) context.Context {
	switch src.(type) {
	case *httpSource, *ociSource:
		return context.WithValue(ctx, namedKey{}, true)
	}
	return ctx
}

// publicOnly refuses internal addresses to requests that are marked by [named],
// redirects included, and after names are resolved: a name that changes between
// two looks gains nothing. A proxy resolves names itself, so through one only
// what an address says of itself counts.
type publicOnly struct{ open, public *http.Transport }

func newPublicOnly(t *http.Transport) *publicOnly {
	public := t.Clone()
	d := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second, Control: refuseInternal}
	public.DialContext, public.Proxy = d.DialContext, nil
	return &publicOnly{t, public}
}

// RoundTrip implements http.RoundTripper.
func (p *publicOnly) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Context().Value(namedKey{}) == nil {
		return p.open.RoundTrip(req)
	}
	if host := req.URL.Hostname(); network.InternalHost(host) {
		return nil, &InternalError{host}
	}
	if proxy, err := p.open.Proxy(req); err == nil && proxy != nil {
		return p.open.RoundTrip(req)
	}
	return p.public.RoundTrip(req)
}

// CloseIdleConnections does what http.Client's asks for.
func (p *publicOnly) CloseIdleConnections() {
	p.open.CloseIdleConnections()
	p.public.CloseIdleConnections()
}

func refuseInternal(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%s: not an address: %w", address, err)
	}
	if network.Internal(at.Addr()) {
		return &InternalError{at.Addr().String()}
	}
	return nil
}
