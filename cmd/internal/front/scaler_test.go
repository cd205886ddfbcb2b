package front

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	pb "roundhouse.dev/roundhouse/api/externalscaler"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// four is a fleet that wants four of everything.
type four struct{}

func (four) Desired(service.Key, service.Role) (int, bool) { return 4, true }

// selfSigned writes a certificate that is its own authority.
func selfSigned(t *testing.T, name string) (cert, key string, pair tls.Certificate, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, of, of, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	b, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	certPEM, keyPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: b})
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if err := os.WriteFile(cert, certPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(key, keyPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	if pair, err = tls.X509KeyPair(certPEM, keyPEM); err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)
	return cert, key, pair, pool
}

// TestScalerAsksForCertificates: over TLS only clients with a certificate of the
// authority are answered.
func TestScalerAsksForCertificates(t *testing.T) {
	cert, key, _, roots := selfSigned(t, "server")
	clients, _, known, _ := selfSigned(t, "keda")
	_, _, stranger, _ := selfSigned(t, "stranger")
	o := ScalerOptions{listen: "127.0.0.1:0", cert: cert, key: key, clients: clients}
	s, err := o.Open(four{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	ask := func(c ...tls.Certificate) (float64, error) {
		conn, err := grpc.NewClient(s.listener.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, Certificates: c, MinVersion: tls.VersionTLS12})))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		var out pb.GetMetricsResponse
		err = conn.Invoke(ctx, "/"+pb.ServiceName+"/GetMetrics", &pb.GetMetricsRequest{ScaledObjectRef: &pb.ScaledObjectRef{Name: "a", Namespace: "b"}}, &out)
		if err != nil {
			return 0, err
		}
		return out.GetMetricValues()[0].GetMetricValueFloat(), nil
	}
	if n, err := ask(known); err != nil || n != 4 {
		t.Errorf("a known client: %v, %v", n, err)
	}
	for name, c := range map[string][]tls.Certificate{"nobody": nil, "a stranger": {stranger}} {
		if n, err := ask(c...); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v, %v", name, n, err)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestScalerOptions(t *testing.T) {
	for _, c := range []struct {
		args []string
		err  string
	}{
		{nil, ""},
		{[]string{"--external-scaler-listen", "127.0.0.1:0"}, ""},
		{[]string{"--external-scaler-listen", ":0"}, "on a network it needs"},
		{[]string{"--external-scaler-listen", "127.0.0.1:0", "--external-scaler-tls-cert", "a"}, "go together"},
		{[]string{"--external-scaler-tls-cert", "a", "--external-scaler-tls-key", "b", "--external-scaler-client-ca", "c"}, "no effect without --external-scaler-listen"},
	} {
		var o ScalerOptions
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.Flags(f)
		if err := f.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		s, err := o.Open(four{}, slog.New(slog.DiscardHandler))
		s.Close()
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%v: %v, want %q", c.args, err, c.err)
		}
		if (s != nil) != (c.err == "" && c.args != nil) {
			t.Errorf("%v: %v", c.args, s)
		}
	}
}
