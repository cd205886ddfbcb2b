package demand

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// How long certificates are valid, and how long before their end they are
// replaced. An authority is renewed alone, and signs when the certificate is due
// itself: gateways then know the authority long before they see a certificate of
// it.
const (
	authorityLife  = 10 * 365 * 24 * time.Hour
	authorityRenew = 365 * 24 * time.Hour
	leafLife       = 90 * 24 * time.Hour
	leafRenew      = 30 * 24 * time.Hour
	clockSkew      = time.Hour
	maxAuthorities = 4
)

// Keys of a Secret's data.
const (
	keyAuthorities  = "ca.crt" // the newest first
	keyAuthorityKey = "ca.key" // of the newest
	keyLeaf         = "tls.crt"
	keyLeafKey      = "tls.key"
)

// renew returns what a Secret should hold, given what it holds, which may be
// empty or malformed. It returns nil if nothing is due.
func renew(data map[string][]byte, now time.Time) (map[string][]byte, error) {
	out := map[string][]byte{}
	for k, v := range data {
		out[k] = v
	}
	authorities := parse(data[keyAuthorities])
	authority, key, err := pair(data[keyAuthorities], data[keyAuthorityKey])
	first := err != nil || !authority.IsCA || now.Before(authority.NotBefore) || now.After(authority.NotAfter.Add(-leafLife))
	due := first || now.After(authority.NotAfter.Add(-authorityRenew))
	if due {
		if authority, key, err = newAuthority(now); err != nil {
			return nil, err
		}
		if err := store(out, keyAuthorities, keyAuthorityKey, authority, key); err != nil {
			return nil, err
		}
		for i, old := range authorities {
			if i < maxAuthorities-1 && now.Before(old.NotAfter) {
				out[keyAuthorities] = append(out[keyAuthorities], encode("CERTIFICATE", old.Raw)...)
			}
		}
	}
	if due && !first {
		return out, nil // gateways do not know the new authority yet
	}
	if leafDue(out, now) {
		leaf, leafKey, err := newLeaf(authority, key, now)
		if err != nil {
			return nil, err
		}
		if err := store(out, keyLeaf, keyLeafKey, leaf, leafKey); err != nil {
			return nil, err
		}
	} else if !due {
		return nil, nil
	}
	return out, nil
}

// leafDue reports whether the certificate is missing, is signed by none of the
// authorities, or is near its end.
func leafDue(data map[string][]byte, now time.Time) bool {
	leaf, _, err := pair(data[keyLeaf], data[keyLeafKey])
	if err != nil || now.After(leaf.NotAfter.Add(-leafRenew)) {
		return true
	}
	_, err = leaf.Verify(x509.VerifyOptions{Roots: pool(data[keyAuthorities]), DNSName: ServerName, CurrentTime: now})
	return err != nil
}

func newAuthority(now time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	t := &x509.Certificate{Subject: pkix.Name{CommonName: ServerName + "-ca"}, NotBefore: now.Add(-clockSkew), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign}
	return sign(t, nil, nil)
}

func newLeaf(authority *x509.Certificate, key *ecdsa.PrivateKey, now time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	t := &x509.Certificate{Subject: pkix.Name{CommonName: ServerName}, DNSNames: []string{ServerName}, NotBefore: now.Add(-clockSkew), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	return sign(t, authority, key)
}

// sign makes a certificate with a key of its own. Without a parent it is self-signed.
func sign(t, parent *x509.Certificate, by *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if t.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, nil, err
	}
	if parent == nil {
		parent, by = t, key
	}
	raw, err := x509.CreateCertificate(rand.Reader, t, parent, &key.PublicKey, by)
	if err != nil {
		return nil, nil, err
	}
	made, err := x509.ParseCertificate(raw)
	return made, key, err
}

func store(data map[string][]byte, certName, keyName string, cert *x509.Certificate, key *ecdsa.PrivateKey) error {
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	data[certName], data[keyName] = encode("CERTIFICATE", cert.Raw), encode("PRIVATE KEY", raw)
	return nil
}

func encode(kind string, raw []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw})
}

// parse reads all certificates of a PEM text.
func parse(text []byte) (out []*x509.Certificate) {
	for len(out) < maxAuthorities {
		var b *pem.Block
		if b, text = pem.Decode(text); b == nil {
			return out
		}
		if c, err := x509.ParseCertificate(b.Bytes); err == nil && b.Type == "CERTIFICATE" {
			out = append(out, c)
		}
	}
	return out
}

// pair reads the first certificate of text and its key.
func pair(text, key []byte) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	both, err := tls.X509KeyPair(text, key)
	if err != nil {
		return nil, nil, err
	}
	k, ok := both.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, nil, errors.New("the key is not of an elliptic curve")
	}
	c, err := x509.ParseCertificate(both.Certificate[0])
	return c, k, err
}

func pool(text []byte) *x509.CertPool {
	p := x509.NewCertPool()
	p.AppendCertsFromPEM(text)
	return p
}

// Pool reads the authorities that a controller has published.
func Pool(text []byte) (*x509.CertPool, error) {
	if len(parse(text)) == 0 {
		return nil, fmt.Errorf("no certificate among %d bytes", len(bytes.TrimSpace(text)))
	}
	return pool(text), nil
}

// Certificates keeps the controller's certificate, which the controller makes
// itself. The certificate is in a Secret that all controller pods share. The
// authorities are in a ConfigMap of the same name, for gateways.
type Certificates struct {
	api     client.Client
	name    client.ObjectKey
	log     *slog.Logger
	now     func() time.Time
	current atomic.Pointer[tls.Certificate]
}

// NewCertificates keeps the certificate in the Secret and the ConfigMap of a
// name. The client must not read from a cache.
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

// conflicts is how often a write is tried again because another client wrote meanwhile.
const conflicts = 10

// Ensure reads the certificate, and makes a new one if that is due.
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

// publish writes the authorities for gateways.
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

// How often the certificate is checked, normally and after a failure. Renewal is
// due a month before its end.
const (
	checkEvery   = 6 * time.Hour
	recheckEvery = time.Minute
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
				wait = recheckEvery
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

// NewAuthorities reads the authorities from the ConfigMap of a name. The reader
// must not read from a cache.
func NewAuthorities(api client.Reader, name client.ObjectKey) *Authorities {
	return &Authorities{api: api, name: name}
}

// fresh is how long authorities are used before they are read again.
const fresh = time.Minute

// Pool returns the authorities. If the API server does not answer, these are the
// ones that were last read.
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
