package modelserver

import (
	"crypto/tls"
	"sync"
	"time"
)

// keyPair is a certificate that is read again when its files change.
type keyPair struct {
	files TLSConfig

	mu struct {
		sync.Mutex
		pair    *tls.Certificate
		changed time.Time
	}
}

// get is tls.Config.GetCertificate. Files that cannot be read, as in the
// middle of a renewal, leave the certificate as it is.
func (k *keyPair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	changed, err := k.files.changed()
	if err == nil && k.mu.pair != nil && changed.Equal(k.mu.changed) {
		return k.mu.pair, nil
	}
	if err == nil {
		var pair tls.Certificate
		if pair, err = tls.LoadX509KeyPair(k.files.CertFile, k.files.KeyFile); err == nil {
			k.mu.pair, k.mu.changed = &pair, changed
		}
	}
	if k.mu.pair != nil {
		return k.mu.pair, nil
	}
	return nil, err
}
