package gateway

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

func TestCORS(t *testing.T) {
	r, _ := newKeyRig(t, func(c *Config, _ *dispatch.Config) { c.CORSOrigins = []string{"https://chat.example.com"} })
	r.d.SetPool(pool("chat", replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Access-Control-Allow-Credentials", "true")
		w.Header().Set("Vary", "Accept")
		echo(w, req)
	})))
	if _, _, err := r.gw.cfg.Keys.Create("x", noLimits, time.Time{}); err != nil {
		t.Fatal(err)
	}
	const good, bad = "https://chat.example.com", "https://evil.example.com"
	// The question carries no key.
	a := r.send("OPTIONS", "/v1/chat/completions", "", "Origin", good, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,content-type")
	a.want(t, 204)
	for k, v := range map[string]string{"Access-Control-Allow-Origin": good, "Access-Control-Allow-Headers": "authorization,content-type",
		"Access-Control-Allow-Methods": "GET, HEAD, POST, OPTIONS", "Access-Control-Max-Age": "600", "Vary": "Origin"} {
		if a.header.Get(k) != v {
			t.Errorf("%s is %q, want %q", k, a.header.Get(k), v)
		}
	}
	a = r.send("OPTIONS", "/v1/chat/completions", "", "Origin", bad, "Access-Control-Request-Method", "POST")
	if a.want(t, 204); a.header.Get("Access-Control-Allow-Origin") != "" || a.header.Get("Access-Control-Allow-Methods") != "" {
		t.Errorf("another page is allowed: %v", a.header)
	}
	// A refusal can be read by the page as well.
	a = r.send("POST", "/v1/chat/completions", ask, "Origin", good)
	if a.want(t, 401); a.header.Get("Access-Control-Allow-Origin") != good {
		t.Errorf("the refusal cannot be read: %v", a.header)
	}
	_, secret, err := r.gw.cfg.Keys.Create("x", noLimits, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	for origin, want := range map[string]string{good: good, bad: "", "": ""} {
		header := []string{"X-Api-Key", secret}
		if origin != "" {
			header = append(header, "Origin", origin)
		}
		a := r.send("POST", "/v1/chat/completions", ask, header...)
		a.want(t, 200)
		if got := a.header["Access-Control-Allow-Origin"]; strings.Join(got, ",") != want || a.header.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("Origin %q: %v", origin, a.header)
		}
		if vary := strings.Join(a.header["Vary"], ", "); vary != "Accept, Origin" {
			t.Errorf("Origin %q: Vary %q", origin, vary)
		}
	}
	all := newRig(t, func(c *Config, _ *dispatch.Config) { c.CORSOrigins = []string{"*"} })
	if a := all.send("GET", "/v1/models", "", "Origin", bad); a.header.Get("Access-Control-Allow-Origin") != "*" || a.header.Get("Access-Control-Expose-Headers") == "" {
		t.Errorf("every page: %v", a.header)
	}
	off := newRig(t, nil)
	off.d.SetPool(pool("chat", replicaServer(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Access-Control-Allow-Origin", "*") })))
	if a := off.send("POST", "/v1/chat/completions", ask); a.code != 200 || a.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a replica lets pages in that the gateway was not told of: %d %v", a.code, a.header)
	}
	if a := off.send("OPTIONS", "/v1/models", "", "Origin", bad, "Access-Control-Request-Method", "GET"); a.code != 403 || a.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("off: %d %v", a.code, a.header)
	}
	c := DefaultConfig()
	c.CORSOrigins = []string{"chat.example.com", "https://x/y"}
	if err := c.Validate(); err == nil || strings.Count(err.Error(), "CORS") != 2 {
		t.Errorf("Validate: %v", err)
	}
}

// writeCert writes a certificate for 127.0.0.1 and its key.
func writeCert(t *testing.T, cert, key, name string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	for path, b := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// lockedBuffer may be written by several.
type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestTLS: HTTP/1.1 and HTTP/2 over TLS, and a renewed certificate without a
// restart.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if _, err := TLS(cert, key, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "cert.pem") {
		t.Errorf("no files: %v", err)
	}
	writeCert(t, cert, key, "first")
	var said lockedBuffer
	settings, err := TLS(cert, key, slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.TLS = settings })
	r.url = "https" + strings.TrimPrefix(r.url, "http")
	headers := make(chan http.Header, 1)
	r.d.SetPool(pool("chat", replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
		headers <- req.Header
		stream(events, 7)(w, req)
	})))
	name := func(h2 bool) (cn, proto string) {
		t.Helper()
		tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: h2} // its own certificate
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr}).Post(r.url+"/v1/completions", "application/json", strings.NewReader(`{"model":"chat"}`))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if b, err := io.ReadAll(resp.Body); err != nil || string(b) != events {
			t.Errorf("got %q %v", b, err)
		}
		if h := <-headers; h.Get("X-Forwarded-Proto") != "https" {
			t.Errorf("replica got %v", h)
		}
		return resp.TLS.PeerCertificates[0].Subject.CommonName, resp.Proto
	}
	if cn, proto := name(false); cn != "first" || proto != "HTTP/1.1" {
		t.Error(cn, proto)
	}
	if cn, proto := name(true); cn != "first" || proto != "HTTP/2.0" {
		t.Error(cn, proto)
	}
	writeCert(t, cert, key, "second, and longer")
	until(t, func() bool { cn, _ := name(true); return cn == "second, and longer" })
	if err := os.WriteFile(cert, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	pair := &certificate{cert: cert, key: key}
	if err := pair.load(time.Now()); err == nil {
		t.Error("took half a certificate")
	}
	if cn, _ := name(false); cn != "second, and longer" {
		t.Errorf("a broken file took the certificate away: %s", cn)
	}
	until(t, func() bool { _, _ = name(false); return strings.Contains(said.String(), "cannot be read") })
	if strings.Count(said.String(), "cannot be read") != 1 {
		t.Errorf("said %s", said.String())
	}
}

// TestPlainHTTP2: HTTP/2 without TLS, with prior knowledge; many requests share
// a connection, and a broken answer is not taken for a whole one.
func TestPlainHTTP2(t *testing.T) {
	r := newRig(t, nil)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: &protocols}
	r.client = &http.Client{Transport: tr}
	t.Cleanup(tr.CloseIdleConnections)
	r.d.SetPools([]dispatch.PoolConfig{pool("chat", replicaServer(t, stream(events, 5))), pool("cut", replicaServer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})), pool("slow", replicaServer(t, func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body) // then it notices that its client leaves
		<-req.Context().Done()
	}))})
	done := make(chan answer, 20)
	for range 20 {
		go func() { done <- r.send("POST", "/v1/completions", `{"model":"chat"}`) }()
	}
	for range 20 {
		(<-done).want(t, 200, "[DONE]")
	}
	if a := r.send("POST", "/v1/completions", `{"model":"cut"}`); a.err == nil {
		t.Errorf("half an answer passed for a whole one: %+v", a)
	}
	// A client that leaves ends its stream, and its request at the replica.
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", r.url+"/v1/completions", strings.NewReader(`{"model":"slow"}`))
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan error, 1)
	go func() {
		resp, err := r.client.Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		left <- err
	}()
	until(t, func() bool {
		s, _ := r.d.Status(routing.Service(service.ParseKey("default/slow")))
		return s.Demand.Running == 1
	})
	leave()
	if err := <-left; err == nil {
		t.Error("a request that was left has an answer")
	}
	waitIdle(r)
	// The bounds of headers hold.
	a := r.send("POST", "/v1/completions", `{}`, "X-Long", strings.Repeat("x", 100<<10))
	if a.err == nil && a.code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a long header: %d %v", a.code, a.err)
	}
}
