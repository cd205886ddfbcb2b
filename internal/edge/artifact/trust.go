package artifact

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"sync"
)

// maxTrusts bounds how many sets of authorities have connections that are kept.
const maxTrusts = 64

// trusts are the transports that take the authorities of a store beside those of this
// machine, by the authorities.
type trusts struct {
	transport  *http.Transport
	publicOnly bool

	mu   sync.Mutex
	kept map[string]http.RoundTripper
}

// authoritiesKey is the key of a context with authorities in PEM.
type authoritiesKey struct{}

// trusting marks a context where the authorities of l's store count.
func (l location) trusting(ctx context.Context) context.Context {
	if c := l.credentials; c != nil && c.Authorities != "" {
		return context.WithValue(ctx, authoritiesKey{}, c.Authorities)
	}
	return ctx
}

// of is the client for a context: c itself, or one that trusts the authorities that the
// context names too.
func (t *trusts) of(ctx context.Context, c *http.Client) (*http.Client, error) {
	pem, _ := ctx.Value(authoritiesKey{}).(string)
	if pem == "" || t == nil {
		return c, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	rt := t.kept[pem]
	if rt == nil {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM([]byte(pem)) {
			return nil, errNoAuthorities
		}
		own := t.transport.Clone()
		if own.TLSClientConfig == nil {
			own.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		own.TLSClientConfig.RootCAs = pool
		if rt = own; t.publicOnly {
			rt = newPublicOnly(own)
		}
		if t.kept == nil || len(t.kept) >= maxTrusts {
			t.kept = map[string]http.RoundTripper{} // connections of the others end when they are idle
		}
		t.kept[pem] = rt
	}
	out := *c
	out.Transport = rt
	return &out, nil
}

var errNoAuthorities = errors.New("the authorities that are given for the store are not certificates in PEM: correct the ConfigMap or the secret that has them")

// Distrusted reports whether nobody vouches for the certificate of the server that an
// error is of.
func Distrusted(err error) bool { return distrusted(err) }

// distrusted reports whether nobody vouches for the certificate of a server.
func distrusted(err error) bool {
	var cert *tls.CertificateVerificationError
	return errors.As(err, &cert)
}
