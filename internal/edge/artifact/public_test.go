package artifact

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
)

// inside makes a store that heeds PublicOnly, by a client of its own.
func inside(t *testing.T, through *url.URL) *Store {
	t.Helper()
	s, err := New(Config{Dir: filepath.Join(t.TempDir(), "store"), PublicOnly: true}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := s.requests.client.Transport.(*publicOnly)
	p.open.Proxy = http.ProxyURL(through)
	t.Cleanup(s.requests.client.CloseIdleConnections)
	return s
}

// TestPublicOnly refuses what a URI names, at once and however it is spelt, and
// asks the endpoints of the environment.
func TestPublicOnly(t *testing.T) {
	o := newOrigin(t, []byte("x"))
	s := inside(t, nil)
	port := mustURL(t, o.URL).Port()
	for _, uri := range []string{
		o.URL + "/m", "http://localhost:" + port + "/m", "http://[::1]:" + port + "/m", "http://127.1:" + port + "/m", "http://2130706433:" + port + "/m",
		"oci://127.0.0.1:" + port + "/m", "http://minio:9000/m", "https://minio.team.svc.cluster.local/m", "http://169.254.169.254/latest/user-data",
	} {
		_, err := s.Fetch(t.Context(), Request{URI: uri}, nil)
		_, perr := s.Peek(t.Context(), Request{URI: uri})
		for _, err := range []error{err, perr} {
			if refused := (*InternalError)(nil); !errors.As(err, &refused) || errors.Is(err, errUnreachable) {
				t.Errorf("%s: %v", uri, err)
			}
		}
	}
	if n := o.count(); n > 0 {
		t.Errorf("it was asked %d times", n)
	}
	eachBucket(t, func(t *testing.T, b *bucketServer) {
		b.put("m", []byte("x"))
		if _, err := inside(t, nil).Fetch(t.Context(), Request{URI: b.scheme + "://bucket/m"}, nil); err != nil {
			t.Error(err)
		}
	})
}

// TestPublicOnlyAfterNames: what a name or a redirect leads to counts, at the
// connection.
func TestPublicOnlyAfterNames(t *testing.T) {
	if err := refuseInternal("tcp", "10.0.0.1:80", nil); err == nil {
		t.Error("a private address is connected to")
	}
	if err := refuseInternal("tcp", "[2001:4860:4860::8888]:80", nil); err != nil {
		t.Error(err)
	}
	if err := refuseInternal("tcp", "nonsense", nil); err == nil {
		t.Error("no address is connected to")
	}
	// A proxy on loopback stands for the world: it leads back inside.
	o := newOrigin(t, []byte("x"))
	asked := 0
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if r.URL.Path == "/here" {
			_, _ = w.Write([]byte("x"))
			return
		}
		http.Redirect(w, r, o.URL+"/m", http.StatusFound)
	}))
	defer proxy.Close()
	s := inside(t, mustURL(t, proxy.URL))
	if _, err := s.Fetch(t.Context(), Request{URI: "http://models.example.com/here"}, nil); err != nil || asked != 1 {
		t.Errorf("through a proxy: %v, asked %d times", err, asked)
	}
	_, err := s.Fetch(t.Context(), Request{URI: "http://models.example.com/away"}, nil)
	wantError(t, err, "127.0.0.1 is an internal address", "--allow-internal-models")
	if o.count() > 0 {
		t.Error("a redirect led inside")
	}
}

func mustURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestKServeKeys: keys under the names of KServe's secrets sign, unless AWS's
// own are there.
func TestKServeKeys(t *testing.T) {
	b := newS3(t)
	b.put("m", []byte("x"))
	t.Setenv("awsAccessKeyID", "KSERVE")
	t.Setenv("awsSecretAccessKey", "secret")
	for _, c := range []struct{ own, want string }{{"AKID", "Credential=AKID/"}, {"", "Credential=KSERVE/"}} {
		t.Setenv("AWS_ACCESS_KEY_ID", c.own)
		if _, err := newStore(t, nil).Fetch(t.Context(), Request{URI: "s3://bucket/m"}, nil); err != nil {
			t.Fatal(err)
		}
		all := b.requests()
		if got := all[len(all)-1].Header.Get("Authorization"); !strings.Contains(got, c.want) {
			t.Errorf("with AWS_ACCESS_KEY_ID=%q: %s", c.own, got)
		}
	}
}

// TestDeniedSaysWhy: S3's own words for a refusal become what to do.
func TestDeniedSaysWhy(t *testing.T) {
	b := newS3(t)
	for code, words := range map[string]string{
		"SignatureDoesNotMatch": "AWS_SECRET_ACCESS_KEY is not the secret of AWS_ACCESS_KEY_ID",
		"InvalidAccessKeyId":    "does not know AWS_ACCESS_KEY_ID",
		"ExpiredToken":          "expired",
		"AccessDenied":          "set AWS_ACCESS_KEY_ID",
	} {
		b.edit = func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte("<Error><Code>" + code + "</Code></Error>"))
			return true
		}
		_, err := newStore(t, nil).Fetch(t.Context(), Request{URI: "s3://bucket/m"}, nil)
		wantError(t, err, code, words)
	}
}

// TestKServeHeaders: a secret of KServe's names a host and its headers.
func TestKServeHeaders(t *testing.T) {
	o := newOrigin(t, []byte("x"))
	t.Setenv("headers", `{"Authorization":"Bearer t"}`)
	for host, want := range map[string]string{"127.0.0.1": "Bearer t", "models.example.com": ""} {
		t.Setenv("https-host", host)
		if _, err := newStore(t, nil).Fetch(t.Context(), Request{URI: o.URL + "/m.bin"}, nil); err != nil {
			t.Fatal(err)
		}
		if got := o.last().Header.Get("Authorization"); got != want {
			t.Errorf("https-host %s: Authorization %q", host, got)
		}
	}
}

// TestDistrust: a certificate that nobody vouches for says what is to be done.
func TestDistrust(t *testing.T) {
	srv := httptest.NewTLSServer(http.NotFoundHandler())
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	defer srv.Close()
	_, err := newStore(t, func(c *Config) { c.Attempts = 1 }).Fetch(t.Context(), Request{URI: srv.URL + "/m"}, nil)
	wantError(t, err, "unknown authority", "SSL_CERT_FILE")
}

// TestAuthorities: certificates that come with the credentials vouch for the store of
// these alone, also where internal addresses are refused.
func TestAuthorities(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "tree") }))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	defer srv.Close()
	authority := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true}, &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true}, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		by     Credentials
		public bool
		says   []string
	}{
		{"by its authority", Credentials{Authorities: authority}, false, nil},
		{"internal", Credentials{Authorities: authority}, true, []string{"internal"}},
		{"by another", Credentials{Authorities: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: stranger}))}, false, []string{"unknown authority", "do not vouch for it"}},
		{"by none", Credentials{}, false, []string{"unknown authority", "ca_bundle or cabundle_configmap"}},
		{"unverified", Credentials{Unverified: true}, false, []string{"unknown authority", "verify_ssl has no effect"}},
		{"no certificate", Credentials{Authorities: "-----BEGIN CERTIFICATE-----"}, false, []string{"are not certificates in PEM"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t, func(cfg *Config) { cfg.Attempts, cfg.PublicOnly = 1, c.public })
			_, err := s.Fetch(t.Context(), Request{URI: srv.URL + "/m.bin", Credentials: &c.by}, nil)
			if c.says == nil {
				if err != nil {
					t.Fatal(err)
				}
				if _, err := s.Fetch(t.Context(), Request{URI: srv.URL + "/n.bin"}, nil); err == nil {
					t.Error("it vouches for others too")
				}
				return
			}
			wantError(t, err, c.says...)
		})
	}
}

// TestGoogleTokenRefused: what the token's server says is in the error, and
// nothing of what it was sent.
func TestGoogleTokenRefused(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/token") {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprintf(w, `{"error":"invalid_grant","error_description":"Invalid JWT Signature.","echo":%q}`, r.PostFormValue("assertion"))
	}))
	defer tokens.Close()
	file := filepath.Join(t.TempDir(), "account.json")
	raw, err := json.Marshal(map[string]string{"type": "service_account", "client_email": "models@x.iam.gserviceaccount.com", "token_uri": tokens.URL + "/token",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))})
	if err != nil {
		t.Fatal(err)
	}
	mustWrite(t, file, string(raw))
	t.Setenv("STORAGE_EMULATOR_HOST", "")
	for _, by := range []map[string]string{{"GOOGLE_APPLICATION_CREDENTIALS": file, googleVariable: "other"}, {"GOOGLE_APPLICATION_CREDENTIALS": "", googleVariable: string(raw)}} {
		for k, v := range by {
			t.Setenv(k, v)
		}
		s := newStore(t, func(c *Config) { c.Attempts = 1 })
		s.requests.client.Transport = redirected{mustURL(t, tokens.URL)}
		_, err = s.Fetch(t.Context(), Request{URI: "gs://bucket/m"}, nil)
		wantError(t, err, "give no token: invalid_grant Invalid JWT Signature.")
		if strings.Contains(err.Error(), "eyJ") || !Denied(err) {
			t.Errorf("%v", err)
		}
	}
}
