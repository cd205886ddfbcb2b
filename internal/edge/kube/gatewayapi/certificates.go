package gatewayapi

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Pair is the certificate in a Secret.
func (w *Watch) Pair(ctx context.Context, k service.Key) (*tls.Certificate, error) {
	if !w.cfg.Secrets {
		return nil, errors.New("Secrets are not read: set gateway.https.enabled of the chart")
	}
	var s corev1.Secret
	err := w.cache.Get(ctx, client.ObjectKey{Namespace: k.Namespace, Name: k.Name}, &s, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("there is no Secret %s of type %s", k, corev1.SecretTypeTLS)
	case err != nil:
		return nil, fmt.Errorf("Secret %s: %w", k, err)
	}
	pair, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, fmt.Errorf("Secret %s has no certificate: %w", k, err)
	}
	return &pair, nil
}

// Certificates are those that HTTPS is served with, by host. It is safe for concurrent
// use.
type Certificates struct {
	served atomic.Pointer[map[string]*tls.Certificate]
}

// Set replaces them: Secrets by host or wildcard, and "" for all other hosts. One that
// cannot be read is left out.
func (c *Certificates) Set(ctx context.Context, w *Watch, secrets map[string]service.Key) {
	pairs := make(map[string]*tls.Certificate, len(secrets))
	for host, k := range secrets {
		if pair, err := w.Pair(ctx, k); err == nil {
			pairs[host] = pair
		}
	}
	c.served.Store(&pairs)
}

// Config serves them. A client that names no host gets that for all others.
func (c *Certificates) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get}
}

func (c *Certificates) get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	all := c.served.Load()
	if all == nil || len(*all) == 0 {
		return nil, errors.New("no listener for HTTPS is served")
	}
	host := strings.ToLower(hello.ServerName)
	for at := host; ; {
		if pair := (*all)[at]; pair != nil {
			return pair, nil
		}
		_, rest, more := strings.Cut(strings.TrimPrefix(at, "*."), ".")
		if !more {
			break
		}
		at = "*." + rest
	}
	if pair := (*all)[""]; pair != nil {
		return pair, nil
	}
	return nil, fmt.Errorf("no listener for HTTPS has the host %s", cmp.Or(host, "of a client that names none"))
}
