package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// certificate writes one for 127.0.0.1 and its key, and returns who trusts it.
func certificate(t *testing.T, cert, key string) *x509.CertPool {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for path, data := range map[string][]byte{cert: certPEM, key: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)
	return pool
}

// secure asks a gateway over TLS.
type secure struct {
	n      *node
	client *http.Client
}

func (s secure) post(path, body, key string, header ...string) answer {
	s.n.t.Helper()
	req, err := http.NewRequestWithContext(s.n.t.Context(), http.MethodPost, s.n.gateway+path, strings.NewReader(body))
	if err != nil {
		s.n.t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := s.client.Do(req)
	if err != nil {
		s.n.t.Fatalf("%s: %v", path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		s.n.t.Fatalf("%s: %v", path, err)
	}
	return answer{resp.StatusCode, resp.Header, string(raw)}
}

// TestKeysTLSAndMetrics: `up` with TLS, keys made while it runs, what they
// allow, what metrics and the access log say, and all of it after a restart.
func TestKeysTLSAndMetrics(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key, logFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "access.log")
	pool := certificate(t, cert, key)
	n := newNode(t)
	args := []string{"-f", "examples/quickstart", "--tls-cert", cert, "--tls-key", key, "--access-log", logFile, "--cors-origin", "https://chat.example.com"}
	n.up(args...)
	if !strings.HasPrefix(n.gateway, "https://127.0.0.1:") {
		t.Fatalf("up says it answers at %s", n.gateway)
	}
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true, DisableKeepAlives: true}
	s := secure{n, &http.Client{Transport: tr}}
	const infer = "/v2/models/iris/infer"
	if a := s.post(infer, irisTensor, ""); a.status != 200 {
		t.Fatalf("without keys: %s", a)
	}
	// From the first key on every request needs one.
	iris := strings.TrimSpace(n.do("keys", "create", "ci", "--models", "iris", "--requests-per-minute", "3"))
	all := strings.TrimSpace(n.do("keys", "create", "everything"))
	if !strings.HasPrefix(iris, "rh-") || iris == all {
		t.Fatalf("keys %q and %q", iris, all)
	}
	id := iris[3:11]
	a := s.post(infer, irisTensor, "", "Origin", "https://chat.example.com")
	if a.status != 401 || a.header.Get("Www-Authenticate") == "" || a.header.Get("Access-Control-Allow-Origin") != "https://chat.example.com" {
		t.Errorf("without a key: %s %v", a, a.header)
	}
	if a := s.post("/v1/messages", chatRequest+"}", "rh-wrong"); a.status != 401 || !strings.HasPrefix(a.body, `{"type":"error","error":{"type":"authentication_error"`) {
		t.Errorf("a wrong key in Anthropic's words: %s", a)
	}
	if a := s.post(infer, irisTensor, iris); a.status != 200 {
		t.Errorf("with its key: %s", a)
	}
	if a := s.post("/v1/chat/completions", chatRequest+"}", iris); a.status != 403 || !strings.Contains(a.body, "model_not_allowed") {
		t.Errorf("another model: %s", a)
	}
	for range 2 { // the refused one did not count
		if a := s.post(infer, irisTensor, iris); a.status != 200 {
			t.Errorf("within the limit: %s", a)
		}
	}
	if a := s.post(infer, irisTensor, iris); a.status != 429 || a.header.Get("Retry-After") == "" {
		t.Errorf("the fourth of its requests in a minute: %s", a)
	}
	contains(t, n.do("requests", "iris"), "  key ci\n")
	whole := s.post("/v1/chat/completions", chatRequest+"}", all)
	stream := s.post("/v1/chat/completions", chatRequest+`,"stream":true,"stream_options":{"include_usage":true}}`, all)
	if whole.status != 200 || stream.status != 200 {
		t.Fatalf("chat: %s %s", whole, stream)
	}
	t.Run("metrics", func(t *testing.T) {
		for _, want := range []string{
			`roundhouse_gateway_requests_total{code="401",service=""} 2`,
			`roundhouse_gateway_refused_total{reason="limit"} 1`,
			`roundhouse_gateway_refused_total{reason="model"} 1`,
			`roundhouse_gateway_tokens_total{service="default/chat",type="completion"} 48`,
			`gen_ai_client_token_usage_count{gen_ai_operation_name="chat",gen_ai_provider_name="openai",gen_ai_request_model="chat",gen_ai_token_type="output"} 2`,
			`gen_ai_server_time_to_first_token_seconds_count{gen_ai_operation_name="chat",gen_ai_provider_name="openai",gen_ai_request_model="chat"} 1`,
			`gen_ai_server_request_duration_seconds_count{error_type="",gen_ai_operation_name="chat",gen_ai_provider_name="openai",gen_ai_request_model="chat"} 2`,
		} {
			var got string
			eventually(t, "metrics say "+want, func() (bool, string) {
				got = n.on(t).get(n.admin + "/metrics").body
				return strings.Contains(got, want), got
			})
		}
	})
	t.Run("list", func(t *testing.T) {
		out := n.on(t).do("keys", "list")
		matches(t, out, `(?m)^`+id+` +ci +valid +iris +3 +- +- +`)
		if strings.Contains(out, iris[12:]) {
			t.Errorf("the list tells a key: %s", out)
		}
	})
	if out := n.do("keys", "revoke", all[3:11]); !strings.Contains(out, "everything revoked") {
		t.Errorf("revoke says %q", out)
	}
	if a := s.post(infer, irisTensor, all); a.status != 401 {
		t.Errorf("a revoked key: %s", a)
	}
	if code := n.signal(syscall.SIGTERM); code != 0 {
		t.Errorf("up ended with %d", code)
	}
	t.Run("access log", func(t *testing.T) {
		text := read(t, logFile)
		if strings.Contains(text, iris[12:]) || strings.Contains(text, all[12:]) || strings.Contains(text, "Hello") {
			t.Errorf("the access log tells secrets: %s", text)
		}
		counts := map[float64]int{}
		for line := range strings.Lines(text) {
			var e struct {
				Status float64
				Key    string
				Tokens int `json:"completion_tokens"`
				Model  string
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			counts[e.Status]++
			if e.Status == 429 && e.Key != id || e.Model == "chat" && e.Status == 200 && e.Tokens != 24 {
				t.Errorf("entry %s", line)
			}
		}
		if counts[200] != 6 || counts[401] != 3 || counts[403] != 1 || counts[429] != 1 {
			t.Errorf("requests by status: %v in %s", counts, text)
		}
	})
	file := filepath.Join(n.dir, "api-keys.yaml")
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 || strings.Contains(read(t, file), iris[12:]) {
		t.Errorf("the file of keys: %v %v", info, err)
	}
	n.up(args...)
	if a := s.post(infer, irisTensor, ""); a.status != 401 {
		t.Errorf("after a restart, without a key: %s", a)
	}
	if a := s.post(infer, irisTensor, iris); a.status != 200 {
		t.Errorf("after a restart, with its key: %s", a)
	}
}

// TestKeysFile: keys in a file of their own, which a running up follows; the
// command line's own requests carry a key.
func TestKeysFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "keys.yaml")
	n := newNode(t)
	n.launch("--api-keys", file)
	if code := n.wait(); code != 1 || !strings.Contains(n.logs.String(), "roundhouse keys create NAME --file "+file) {
		t.Fatalf("without the file: %d %s", code, n.logs)
	}
	first := strings.TrimSpace(n.do("keys", "create", "first", "--file", file))
	n.up("-f", "examples/quickstart", "--api-keys", file)
	if a := n.post("/v2/models/iris/infer", irisTensor); a.status != 401 {
		t.Errorf("without a key: %s", a)
	}
	if r := n.run("infer", "iris", "-d", irisTensor); r.code != 1 || !strings.Contains(r.err, "an API key is needed") {
		t.Errorf("infer without a key: %s", r)
	}
	second := strings.TrimSpace(n.do("keys", "create", "second", "--file", file))
	eventually(t, "the second key is good", func() (bool, string) {
		a := n.post("/v2/models/iris/infer", irisTensor, "X-Api-Key", second)
		return a.status == 200, a.String()
	})
	n.do("keys", "revoke", first[3:11], "--file", file)
	eventually(t, "the first key is of no use", func() (bool, string) {
		a := n.post("/v2/models/iris/infer", irisTensor, "X-Api-Key", first)
		return a.status == 401, a.String()
	})
	n.env = append(n.env, "ROUNDHOUSE_API_KEY="+second)
	if out := n.do("infer", "iris", "-d", irisTensor); !strings.Contains(out, `"outputs"`) {
		t.Errorf("infer with a key: %s", out)
	}
}

// TestLostKeyFileLocks: keys stay required when their file is lost, over a
// restart too, until somebody makes a key or says that none is needed.
func TestLostKeyFileLocks(t *testing.T) {
	t.Parallel()
	n := startNode(t, "-f", "examples/quickstart")
	if a := n.get(n.gateway + "/v1/models"); a.status != 200 {
		t.Fatalf("without keys: %s", a)
	}
	n.do("keys", "create", "first")
	file, marker := filepath.Join(n.dir, "api-keys.yaml"), filepath.Join(n.dir, "api-keys.required")
	// A data directory of before has no marker: the next start writes it.
	for _, lost := range [][]string{{marker}, {file}} {
		n.signal(syscall.SIGTERM)
		for _, f := range lost {
			if err := os.Remove(f); err != nil {
				t.Fatal(err)
			}
		}
		n.up()
		if a := n.get(n.gateway + "/v1/models"); a.status != 401 {
			t.Errorf("after a start without %s: %s", lost, a)
		}
	}
	eventually(t, "up says what is lost and what to do", func() (bool, string) {
		said := n.logs.String()
		return strings.Contains(said, "every request is refused") && strings.Contains(said, marker), said
	})
	second := strings.TrimSpace(n.do("keys", "create", "second"))
	if a := n.post("/v2/models/iris/infer", irisTensor, "X-Api-Key", second); a.status != 200 {
		t.Errorf("with a new key: %s", a)
	}
	n.signal(syscall.SIGTERM)
	if err := errors.Join(os.Remove(file), os.Remove(marker)); err != nil {
		t.Fatal(err)
	}
	n.up()
	if a := n.get(n.gateway + "/v1/models"); a.status != 200 {
		t.Errorf("after both files were deleted: %s", a)
	}
}

// TestWebPagesCannotAsk: a page that a browser on this machine shows cannot
// unload a model, neither by posting here nor by a name made to resolve here.
func TestWebPagesCannotAsk(t *testing.T) {
	t.Parallel()
	n := startNode(t, "-f", "examples/quickstart", "--allowed-hosts", "models.example.com")
	const unload = "/v2/repository/models/iris/unload"
	for _, tc := range []struct {
		header []string
		status int
	}{
		{[]string{"Content-Type", "text/plain", "Origin", "http://evil.com"}, 403},
		{[]string{"Content-Type", "text/plain", "Host", "evil.com"}, 403},
		{[]string{"Host", "models.example.com"}, 200},
		{[]string{"Host", "iris.default.localhost"}, 200},
		{[]string{"Origin", "http://localhost:3000"}, 200},
		{nil, 200},
	} {
		if a := n.post(unload, "{}", tc.header...); a.status != tc.status {
			t.Errorf("%v: %s, want %d", tc.header, a, tc.status)
		}
	}
}
