package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// certificate is one for a client or an authority, and its key.
func certificate(t testing.TB) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)},
		&x509.Certificate{SerialNumber: big.NewInt(1)}, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})
}

func write(t testing.TB, dir, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestWordsOfKubeconfigs: what is wrong is named by file and field.
func TestWordsOfKubeconfigs(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ cluster, user, says string }{
		"no server":     {"{}", "{}", "clusters[c].cluster.server: is missing"},
		"no address":    {"{server: 'a:b:c'}", "{}", "invalid port"},
		"no CA":         {"{server: 'https://a', certificate-authority: ca.pem}", "{}", "unable to read certificate-authority " + dir + "/ca.pem for c"},
		"no base64":     {"{server: 'https://a', certificate-authority-data: '%%'}", "{}", "illegal base64 data"},
		"auth provider": {"{server: 'https://a'}", "{auth-provider: {name: gcp}}", "gke-gcloud-auth-plugin"},
		"no key":        {"{server: 'https://a'}", "{client-certificate-data: ''}", ""},
		"old plugin":    {"{server: 'https://a'}", "{exec: {apiVersion: client.authentication.k8s.io/v1alpha1, command: x, interactiveMode: Never}}", "client.authentication.k8s.io/v1alpha1"},
		"old words":     {"{server: 'https://a'}", "{exec: {apiVersion: client.authentication.k8s.io/v1, command: x}}", "interactiveMode must be specified for u"},
		"token file":    {"{server: 'https://a'}", "{tokenFile: nothing}", dir + "/nothing: no such file"},
		"not a mapping": {"[]", "{}", "cannot unmarshal array"},
	} {
		text := fmt.Sprintf("clusters: [{name: c, cluster: %s}]\nusers: [{name: u, user: %s}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n", c.cluster, c.user)
		file := write(t, dir, "config", []byte(text))
		a, err := Load(Options{Kubeconfig: file, Context: "x"})
		if err == nil {
			_, err = New(a, "test")
		}
		if c.says == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", name, err)
		}
	}
	file := write(t, dir, "config", []byte("contexts: [{name: x, context: {cluster: c, user: u}}]"))
	for o, says := range map[Options]string{
		{Kubeconfig: file}:                                        "no current-context: name one with --context: x",
		{Kubeconfig: file, Context: "y"}:                          `no context "y": there is x`,
		{Kubeconfig: file, Context: "x"}:                          `contexts[x].context.cluster: no cluster "c"`,
		{Kubeconfig: filepath.Join(dir, "missing")}:               "missing: no such file",
		{Kubeconfig: write(t, dir, "bad", []byte("contexts: {"))}: "bad",
	} {
		if _, err := Load(o); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestInPod: the account of a pod, where there is no kubeconfig.
func TestInPod(t *testing.T) {
	dir := t.TempDir()
	defer func(before string) { account = before }(account)
	account = dir
	t.Setenv("KUBECONFIG", filepath.Join(dir, "none"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	if _, err := Load(Options{Context: InCluster}); err == nil {
		t.Error("an account without a token is taken")
	}
	write(t, dir, "token", []byte("secret\n"))
	write(t, dir, "ca.crt", []byte("ca"))
	write(t, dir, "namespace", []byte("team"))
	for _, name := range []string{"", InCluster} {
		a, err := Load(Options{Context: name})
		if err != nil || a.Config.Host != "https://[fd00::1]:443" || a.Config.BearerTokenFile != filepath.Join(dir, "token") || a.Namespace != "team" || a.Config.CAFile != filepath.Join(dir, "ca.crt") {
			t.Errorf("%+v, %v", a, err)
		}
	}
	if _, err := Load(Options{Context: "other"}); err == nil {
		t.Error("a context that is not there is taken for the pod's own")
	}
}
