package demand

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Certificates keep the controller's certificate, which it makes itself: in a
// Secret that all its pods share, and the authorities, for gateways, in a
// ConfigMap of the same name.
type Certificates struct {
	api     client.Client
	name    client.ObjectKey
	log     *slog.Logger
	now     func() time.Time
	current atomic.Pointer[tls.Certificate]
}

// NewCertificates keeps them in the Secret and ConfigMap of a name. The client
// must not be one that reads from a cache.
func NewCertificates(api client.Client, name client.ObjectKey, log *slog.Logger) *Certificates {
	return &Certificates{api: api, name: name, log: log, now: time.Now}
}

// Get is for tls.Config.GetCertificate.
func (c *Certificates) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if cert := c.current.Load(); cert != nil {
		return cert, nil
	}
	return nil, errors.New("no certificate yet")
}

// conflicts is how often somebody else may write in between.
const conflicts = 10

// Ensure reads the certificate, and makes a new one where that is due.
func (c *Certificates) Ensure(ctx context.Context) (err error) {
	for range conflicts {
		if err = c.ensure(ctx); !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("the certificate in Secret %s: %w", c.name, err)
	}
	return nil
}

func (c *Certificates) ensure(ctx context.Context) error {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: c.name.Namespace, Name: c.name.Name}, Type: corev1.SecretTypeOpaque}
	err := c.api.Get(ctx, c.name, s)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return err
	}
	due, err := renew(s.Data, c.now())
	if err != nil {
		return err
	}
	if due != nil {
		if s.Data = due; missing {
			err = c.api.Create(ctx, s)
		} else {
			err = c.api.Update(ctx, s)
		}
		if err != nil {
			return err
		}
		c.log.Info("made a certificate for gateways' reports", "secret", c.name.String())
	}
	if err := c.publish(ctx, string(s.Data[keyAuthorities])); err != nil {
		return err
	}
	cert, err := tls.X509KeyPair(s.Data[keyLeaf], s.Data[keyLeafKey])
	if err == nil {
		c.current.Store(&cert)
	}
	return err
}

// publish tells gateways the authorities.
func (c *Certificates) publish(ctx context.Context, authorities string) error {
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.name.Namespace, Name: c.name.Name}}
	err := c.api.Get(ctx, c.name, m)
	if err != nil && !apierrors.IsNotFound(err) || err == nil && m.Data[keyAuthorities] == authorities {
		return err
	}
	m.Data = map[string]string{keyAuthorities: authorities}
	if err != nil {
		return c.api.Create(ctx, m)
	}
	return c.api.Update(ctx, m)
}

// How often the certificate is looked at, and again after a failure. Renewal
// is due a month before the end.
const (
	checkEvery = 6 * time.Hour
	checkAgain = time.Minute
)

// Run keeps the certificate valid until ctx ends.
func (c *Certificates) Run(ctx context.Context) {
	for wait := checkEvery; ; {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		if wait = checkEvery; ctx.Err() == nil {
			if err := c.Ensure(ctx); err != nil {
				c.log.Error("the certificate was not looked at, will be tried again", "error", err)
				wait = checkAgain
			}
		}
	}
}

// Authorities are a gateway's view of what the controller published.
type Authorities struct {
	api  client.Reader
	name client.ObjectKey

	mu struct {
		sync.Mutex
		pool *x509.CertPool
		at   time.Time
	}
}

// NewAuthorities reads them from the ConfigMap of a name. The reader must not
// be one that reads from a cache.
func NewAuthorities(api client.Reader, name client.ObjectKey) *Authorities {
	return &Authorities{api: api, name: name}
}

// fresh is for how long authorities are taken as they were read.
const fresh = time.Minute

// Pool is what was last read. Where the API server does not answer the last
// one stands.
func (a *Authorities) Pool(ctx context.Context) (*x509.CertPool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.pool != nil && time.Since(a.mu.at) < fresh {
		return a.mu.pool, nil
	}
	var m corev1.ConfigMap
	err := a.api.Get(ctx, a.name, &m)
	if err == nil {
		var p *x509.CertPool
		if p, err = Pool([]byte(m.Data[keyAuthorities])); err == nil {
			a.mu.pool, a.mu.at = p, time.Now()
		}
	}
	if a.mu.pool == nil {
		return nil, fmt.Errorf("ConfigMap %s: %w: is the controller running?", a.name, err)
	}
	return a.mu.pool, nil
}
