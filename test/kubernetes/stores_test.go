//go:build kubernetes && linux

package kubernetes

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"roundhouse.dev/roundhouse/test/kubernetes/node"
)

// authority makes an authority and a certificate by it, for names of the node.
func authority(t *testing.T, names ...string) (roots string, leaf tls.Certificate) {
	t.Helper()
	fail := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	make := func(serial int64, parent *x509.Certificate, by *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey, *x509.Certificate) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		fail(err)
		c := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "test " + strconv.FormatInt(serial, 10)},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature}
		if parent == nil {
			c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
			parent, by = c, key
		} else {
			c.DNSNames, c.IPAddresses = names, []net.IP{net.ParseIP(node.Address)}
		}
		der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
		fail(err)
		return der, key, c
	}
	root, rootKey, rootCert := make(1, nil, nil)
	der, key, _ := make(2, rootCert, rootKey)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root})), tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// serveAt answers at the node's address until the test ends; port 0 is any.
func serveAt(t *testing.T, port int, leaf *tls.Certificate, h http.Handler) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(node.Address, strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	address = l.Addr().String()
	if leaf != nil {
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{*leaf}, MinVersion: tls.VersionTLS12})
	}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: h}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return address
}

// webStore has the model over HTTPS for whoever sends a token; and over HTTP
// slowly, half of it once release is closed, or by what leads elsewhere.
type webStore struct {
	url, authority, plain string
	release               chan struct{}
}

func openWeb(t *testing.T, model []byte) *webStore {
	t.Helper()
	roots, leaf := authority(t)
	address := serveAt(t, 0, &leaf, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer right" {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(model))
	}))
	release := make(chan struct{})
	plain := serveAt(t, 0, nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow.ubj" {
			half := len(model) / 2
			w.Header().Set("Content-Length", strconv.Itoa(len(model)))
			_, _ = w.Write(model[:half])
			_ = http.NewResponseController(w).Flush()
			select {
			case <-release:
			case <-r.Context().Done():
			}
			_, _ = w.Write(model[half:])
			return
		}
		http.Redirect(w, r, "http://10.96.0.1"+r.URL.Path, http.StatusFound)
	}))
	return &webStore{"https://" + address, roots, "http://" + plain, release}
}

// Keys of the S3 store, and where it is.
const (
	s3Key       = "AKIDOFTESTS"
	s3SecretKey = "theRightSecretOfTests"
	s3Region    = "eu-1"
)

// objectStore is a real S3 server, which checks signatures: at an address in the
// clear, and at another with a certificate that its authority vouches for.
type objectStore struct{ address, secure, authority string }

func openS3(t *testing.T) *objectStore {
	t.Helper()
	program := filepath.Join(node.Binaries(), "versitygw")
	if _, err := os.Stat(program); err != nil {
		t.Skipf("no S3 server: %v: `make bin/k8s/versitygw` builds one", err)
	}
	dir := t.TempDir()
	for _, d := range []string{"data/models", "side"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := &objectStore{address: net.JoinHostPort(node.Address, "7070")}
	var log bytes.Buffer
	cmd := exec.Command(program, "--port", s.address, "--region", s3Region, "--health", "/health", "posix", "--sidecar", filepath.Join(dir, "side"), filepath.Join(dir, "data"))
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+s3Key, "ROOT_SECRET_KEY="+s3SecretKey)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		<-ended
		if t.Failed() {
			t.Logf("the S3 server:\n%s", log.String())
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for listens := false; !listens; {
		res, err := http.Get("http://" + s.address + "/health")
		if err == nil {
			_ = res.Body.Close()
			listens = true
			continue
		}
		select {
		case <-time.After(50 * time.Millisecond): // it tells nobody when it listens
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
	roots, leaf := authority(t)
	front := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = "http", s.address
		r.Out.Host = r.In.Host // it is signed
	}}
	s.secure, s.authority = serveAt(t, 0, &leaf, front), roots
	return s
}

// put stores an object of the bucket models, as any client of S3 does.
func (s *objectStore) put(t *testing.T, key string, content []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+s.address+"/models/"+key, bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(content))
	req.Header.Set("X-Amz-Content-Sha256", sum)
	if err := v4.NewSigner().SignHTTP(t.Context(), aws.Credentials{AccessKeyID: s3Key, SecretAccessKey: s3SecretKey}, req, sum, "s3", s3Region, time.Now()); err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("put %s: %v, %v", key, res, err)
	}
	_ = res.Body.Close()
}

// googleStore answers the two calls that reading takes: at its own name, for
// whoever has a token of its own, which is given for what the account's key
// signed; and to everybody as an emulator.
type googleStore struct {
	emulator, authority string
	key                 *rsa.PrivateKey

	mu      sync.Mutex
	objects map[string][]byte
	tokens  map[string]bool
}

func openGoogle(t *testing.T) *googleStore {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	g := &googleStore{key: key, objects: map[string][]byte{}, tokens: map[string]bool{}}
	roots, leaf := authority(t, "storage.googleapis.com", "oauth2.googleapis.com")
	g.authority = roots
	serveAt(t, 443, &leaf, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			g.token(w, r)
			return
		}
		g.mu.Lock()
		known := g.tokens[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
		g.mu.Unlock()
		if !known {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error": {"message": "Anonymous caller does not have storage.objects.list access."}}`))
			return
		}
		g.read(w, r)
	}))
	g.emulator = "http://" + serveAt(t, 0, nil, http.HandlerFunc(g.read))
	return g
}

func (g *googleStore) put(name string, content []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.objects[name] = content
}

// read lists the bucket models, or sends an object of it.
func (g *googleStore) read(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	rest, found := strings.CutPrefix(r.URL.Path, "/storage/v1/b/models/o")
	if content, ok := g.objects[strings.TrimPrefix(rest, "/")]; found && ok {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
		return
	}
	if !found || rest != "" {
		http.Error(w, `{"error":{"message":"Not Found"}}`, http.StatusNotFound)
		return
	}
	items := []map[string]string{}
	for name, content := range g.objects {
		if strings.HasPrefix(name, r.URL.Query().Get("prefix")) {
			items = append(items, map[string]string{"name": name, "size": strconv.Itoa(len(content)), "generation": "1"})
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"items": items})
}

// token gives a token for an assertion that the account's key signed.
func (g *googleStore) token(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.PostFormValue("assertion"), ".")
	if len(parts) != 3 {
		http.Error(w, `{"error":"invalid_grant"}`, http.StatusBadRequest)
		return
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err == nil {
		err = rsa.VerifyPKCS1v15(&g.key.PublicKey, crypto.SHA256, sum[:], signature)
	}
	if err != nil {
		http.Error(w, `{"error":"invalid_grant","error_description":"Invalid JWT Signature."}`, http.StatusBadRequest)
		return
	}
	g.mu.Lock()
	value := "token-" + strconv.Itoa(len(g.tokens))
	g.tokens[value] = true
	g.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer","expires_in":3600}`, value)
}

// file is that of a service account: with its key, or with another's.
func (g *googleStore) file(t *testing.T, right bool) string {
	t.Helper()
	key := g.key
	if !right {
		var err error
		if key, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
			t.Fatal(err)
		}
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(map[string]string{"type": "service_account", "client_email": "models@tests.iam.gserviceaccount.com", "private_key_id": "1",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "token_uri": "https://oauth2.googleapis.com/token"})
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
