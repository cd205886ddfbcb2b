//go:build kubernetes && linux

package node

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

const certDir = runDir + "/certificates"

// server is where the API server listens.
const server = "https://" + Address + ":6443"

// identity is a client or server of the control plane.
type identity struct {
	file, user string
	groups     []string
	names      []string
}

var identities = []identity{
	{file: "apiserver", user: "kube-apiserver", names: []string{"localhost", "kubernetes.default.svc", "kubernetes.default", "kubernetes", "127.0.0.1", "10.96.0.1", Address}},
	{file: "admin", user: "admin", groups: []string{"system:masters"}},
	{file: "controller-manager", user: "system:kube-controller-manager"},
	{file: "scheduler", user: "system:kube-scheduler"},
	{file: "proxy", user: "system:kube-proxy"},
	{file: "kubelet", user: "system:node:" + name, groups: []string{"system:nodes"}, names: []string{name, Address}},
	{file: "front-proxy", user: "front-proxy-client"},
	{file: Controller, user: Controller, groups: []string{"system:masters"}},
}

// Controller is the user of our controller where it runs outside the cluster.
// What it asks of the API server is audited.
const Controller = "roundhouse-controller"

// KubeconfigOf is the path of a user's kubeconfig.
func KubeconfigOf(user string) string { return certificate(user + ".kubeconfig") }

// certificate is the path of an identity's certificate or key.
func certificate(file string) string { return filepath.Join(certDir, file) }

// Kubeconfig is the path of the administrator's kubeconfig.
const Kubeconfig = certDir + "/admin.kubeconfig"

// writeCertificates makes an authority, everybody's certificates and
// kubeconfigs, and the key of service accounts.
func writeCertificates() error {
	if err := os.MkdirAll(certDir, 0o700); err != nil {
		return err
	}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	key, err := issue("ca", authority, authority, nil)
	if err != nil {
		return err
	}
	for i, id := range identities {
		c := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i) + 2), Subject: pkix.Name{CommonName: id.user, Organization: id.groups},
			KeyUsage:    x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		}
		for _, n := range id.names {
			if ip := net.ParseIP(n); ip != nil {
				c.IPAddresses = append(c.IPAddresses, ip)
			} else {
				c.DNSNames = append(c.DNSNames, n)
			}
		}
		if _, err := issue(id.file, c, authority, key); err != nil {
			return err
		}
		if err := writeKubeconfig(id.file); err != nil {
			return err
		}
	}
	accounts, err := issue("service-accounts", authority, authority, nil)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&accounts.PublicKey)
	if err != nil {
		return err
	}
	return writePEM("service-accounts.pub", "PUBLIC KEY", public)
}

// issue makes a key and a certificate for it, signed by by, or by itself if
// that is nil.
func issue(file string, c, authority *x509.Certificate, by *ecdsa.PrivateKey) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if by == nil {
		by = key
	}
	now := time.Now()
	c.NotBefore, c.NotAfter = now.Add(-time.Hour), now.Add(48*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, c, authority, &key.PublicKey, by)
	if err != nil {
		return nil, err
	}
	if err := writePEM(file+".crt", "CERTIFICATE", der); err != nil {
		return nil, err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, writePEM(file+".key", "EC PRIVATE KEY", private)
}

func writePEM(file, kind string, der []byte) error {
	return os.WriteFile(certificate(file), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

func writeKubeconfig(file string) error {
	return os.WriteFile(certificate(file+".kubeconfig"), fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "%s", certificate-authority: %s}}]
users: [{name: %[3]s, user: {client-certificate: %[4]s, client-key: %[5]s}}]
contexts: [{name: test, context: {cluster: test, user: %[3]s}}]
current-context: test
`, server, certificate("ca.crt"), file, certificate(file+".crt"), certificate(file+".key")), 0o600)
}
