package gateway

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// certificate is a key pair that is read again when its files change.
type certificate struct {
	cert, key string
	log       *slog.Logger

	mu struct {
		sync.Mutex
		pair   *tls.Certificate
		stamp  string
		looked time.Time
		told   string // the last failure that was logged
	}
}

// certificateEvery is how often the files are looked at, at most: a handshake
// asks.
const certificateEvery = time.Second

// TLS serves the certificate in two PEM files, and the new one once they
// change. Files that cannot be read then leave the old one in place, and log is
// told why, once.
func TLS(certFile, keyFile string, log *slog.Logger) (*tls.Config, error) {
	c := &certificate{cert: certFile, key: keyFile, log: log}
	if err := c.load(time.Now()); err != nil {
		return nil, fmt.Errorf("TLS certificate: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get}, nil
}

func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.mu.looked) >= certificateEvery {
		c.report(c.load(now))
	}
	return c.mu.pair, nil
}

// report logs why the old certificate goes on. The caller holds the lock.
func (c *certificate) report(err error) {
	said := ""
	if err != nil {
		said = err.Error()
	}
	if said != "" && said != c.mu.told {
		c.log.Warn("the changed TLS certificate cannot be read; the one before it goes on", "cert", c.cert, "key", c.key, "error", err)
	}
	c.mu.told = said
}

// load reads the files if they have changed. The caller holds the lock, or is
// the only one.
func (c *certificate) load(now time.Time) error {
	c.mu.looked = now
	stamp := ""
	for _, f := range []string{c.cert, c.key} {
		info, err := os.Stat(f)
		if err != nil {
			return err
		}
		stamp += fmt.Sprint(info.ModTime().UnixNano(), info.Size(), " ")
	}
	if stamp == c.mu.stamp {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return err
	}
	c.mu.pair, c.mu.stamp = &pair, stamp
	return nil
}
