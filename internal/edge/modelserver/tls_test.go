package modelserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// certificate writes a self-signed certificate of loopback and its key.
func certificate(t *testing.T, folder string, serial int64) (c TLSConfig, pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	c = TLSConfig{CertFile: filepath.Join(folder, "cert.pem"), KeyFile: filepath.Join(folder, "key.pem")}
	write(t, folder, map[string]string{
		"cert.pem": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		"key.pem":  string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})),
	})
	pool = x509.NewCertPool()
	pool.AddCert(mustParse(t, der))
	return c, pool
}

func mustParse(t *testing.T, der []byte) *x509.Certificate {
	t.Helper()
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// TestTLS serves with a certificate and, after it was renewed, with the new
// one.
func TestTLS(t *testing.T) {
	folder := t.TempDir()
	files, first := certificate(t, folder, 1)
	s := newSite(t, map[string]string{"m.fake": "fake double"}, func(c *Config) { c.TLS = files })
	url, _, _ := running(t, s)
	ask := func(pool *x509.CertPool) error {
		client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}}
		response, err := client.Get(strings.Replace(url, "http:", "https:", 1) + "/v2/health/live")
		if err == nil {
			err = response.Body.Close()
		}
		return err
	}
	if err := ask(first); err != nil {
		t.Fatal(err)
	}
	response, err := http.Get(url + "/v2/health/live")
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("plain text: %s", response.Status)
	}
	_, second := certificate(t, folder, 2)
	if err := os.Chtimes(files.CertFile, time.Time{}, time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := ask(second); err != nil {
		t.Errorf("after renewal: %v", err)
	}
	write(t, folder, map[string]string{"cert.pem": "half a certif"})
	if err := ask(second); err != nil {
		t.Errorf("in the middle of a renewal: %v", err)
	}
}

func TestTLSErrors(t *testing.T) {
	folder := t.TempDir()
	files, _ := certificate(t, folder, 1)
	for _, test := range []struct {
		files TLSConfig
		says  string
	}{
		{TLSConfig{CertFile: files.CertFile}, "TLS needs both"},
		{TLSConfig{CertFile: files.CertFile, KeyFile: filepath.Join(folder, "none")}, "no such file"},
		{TLSConfig{CertFile: files.KeyFile, KeyFile: files.KeyFile}, "TLS: "},
	} {
		c := DefaultConfig()
		c.TLS = test.files
		if _, err := New(c, Single{}, nil, nil); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("error %v does not say %q", err, test.says)
		}
	}
}
