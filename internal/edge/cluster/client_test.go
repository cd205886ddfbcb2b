package cluster

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// server is an API server as far as a test needs one, over TLS.
func server(t *testing.T, h http.HandlerFunc) *Access {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		h(w, r)
	}))
	t.Cleanup(s.Close)
	cfg := &rest.Config{Host: s.URL}
	cfg.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	return &Access{Context: "test", Origin: "config: users[u].user", Namespace: "default", Config: cfg}
}

// with is an access of which the configuration is changed.
func with(a *Access, change func(*rest.Config)) *Access {
	b := *a
	b.Config = rest.CopyConfig(a.Config)
	change(b.Config)
	return &b
}

func newClient(t *testing.T, a *Access) *Client {
	t.Helper()
	c, err := New(a, "test/1")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// ask lists pods.
func ask(t *testing.T, c *Client) error {
	t.Helper()
	_, err := c.list(t.Context(), podsAt, "default", metav1.ListOptions{})
	return err
}

const nothing = `{"apiVersion":"v1","kind":"PodList","items":[]}`

func TestWhoAsks(t *testing.T) {
	var got http.Header
	a := server(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header
		_, _ = io.WriteString(w, nothing)
	})
	for name, c := range map[string]struct {
		change func(*rest.Config)
		header string
		want   string
	}{
		"token":       {func(c *rest.Config) { c.BearerToken = "t" }, "Authorization", "Bearer t"},
		"password":    {func(c *rest.Config) { c.Username, c.Password = "u", "p" }, "Authorization", "Basic dTpw"},
		"nobody":      {func(*rest.Config) {}, "Authorization", ""},
		"agent":       {func(*rest.Config) {}, "User-Agent", "test/1"},
		"impersonate": {func(c *rest.Config) { c.Impersonate = rest.ImpersonationConfig{UserName: "x", Groups: []string{"g"}} }, "Impersonate-User", "x"},
	} {
		if err := ask(t, newClient(t, with(a, c.change))); err != nil || got.Get(c.header) != c.want {
			t.Errorf("%s: %v: %q", name, err, got.Get(c.header))
		}
	}
}

func TestPages(t *testing.T) {
	var asked []string
	a := server(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Query().Get("limit")+" "+r.URL.Query().Get("continue"))
		next := map[string]string{"": "a", "a": "b", "b": ""}[r.URL.Query().Get("continue")]
		_, _ = fmt.Fprintf(w, `{"apiVersion":"v1","kind":"PodList","metadata":{"continue":%q},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}`, next)
	})
	items, err := newClient(t, a).list(t.Context(), podsAt, "default", metav1.ListOptions{LabelSelector: "x"})
	if err != nil || len(items) != 6 || strings.Join(asked, ",") != "500 ,500 a,500 b" {
		t.Errorf("%v, %v, %q", items, err, asked)
	}
}

// TestRefusals: what an API server refuses is said with what was tried and what
// to do.
func TestRefusals(t *testing.T) {
	status := http.StatusOK
	body := ""
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("a redirect is followed, with %q", r.Header.Get("Authorization"))
	}))
	t.Cleanup(elsewhere.Close)
	a := server(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", elsewhere.URL)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
	c := newClient(t, with(a, func(c *rest.Config) { c.BearerToken = "secret" }))
	for _, x := range []struct {
		status int
		body   string
		says   []string
	}{
		{403, `{"apiVersion":"v1","kind":"Status","status":"Failure","code":403,"message":"pods is forbidden: User \"u\" cannot list"}`, []string{"list pods in namespace default: not allowed", `User "u" cannot list`, `the verb "list"`}},
		{401, `{"apiVersion":"v1","kind":"Status","status":"Failure","code":401,"message":"Unauthorized"}`, []string{"does not take the credential of config: users[u].user", "expired"}},
		{502, "<html>", []string{"502 Bad Gateway", "is that an API server"}},
		{200, "<html>", []string{"does not answer as an API server"}},
		{302, "", []string{"302 Found"}},
		{200, `{"apiVersion":"v1","kind":"PodList","x":"` + strings.Repeat("x", maxAnswer) + `"}`, []string{"list pods in namespace default: the answer is over 67108864 bytes"}},
	} {
		status, body = x.status, x.body
		err := ask(t, c)
		for _, s := range x.says {
			if err == nil || !strings.Contains(err.Error(), s) {
				t.Errorf("%d: %v does not say %q", x.status, err, s)
			}
		}
	}
}

func TestUnreachable(t *testing.T) {
	a := server(t, func(http.ResponseWriter, *http.Request) {})
	for says, change := range map[string]func(*rest.Config){
		"connection refused":          func(c *rest.Config) { c.Host = "https://127.0.0.1:1" },
		"see certificate-authority":   func(c *rest.Config) { c.CAData, _ = certificate(t) },
		"see tls-server-name":         func(c *rest.Config) { c.ServerName = "other.test" },
		"unable to load root":         func(c *rest.Config) { c.CAData = []byte("x") },
		"failed to find any PEM data": func(c *rest.Config) { c.CertData, c.KeyData = []byte("x"), []byte("y") },
	} {
		c, err := New(with(a, change), "test")
		if err == nil {
			err = ask(t, c)
			var un *UnreachableError
			if !errors.As(err, &un) {
				t.Errorf("%s: %T", says, err)
			}
		}
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not say %q", err, says)
		}
	}
}

// TestPlugin: a credential plugin is run once for a credential that counts, and
// again when the server does not take it any more.
func TestPlugin(t *testing.T) {
	dir := t.TempDir()
	runs := filepath.Join(dir, "runs")
	script := write(t, dir, "login", []byte(`#!/bin/sh
echo $KUBERNETES_EXEC_INFO >> `+runs+`
n=$(wc -l < `+runs+`)
echo "{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{\"token\":\"$WORD-$((n))\"}}"
`))
	if err := os.Chmod(script, 0o700); err != nil {
		t.Fatal(err)
	}
	var good atomic.Value
	good.Store("word-1")
	a := server(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+good.Load().(string) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, nothing)
	})
	config := write(t, dir, "config", fmt.Appendf(nil, `
clusters:
- {name: c, cluster: {server: %q, certificate-authority-data: %q, extensions: [{name: client.authentication.k8s.io/exec, extension: {audience: x}}]}}
users:
- name: u
  user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: ./login, interactiveMode: Never, provideClusterInfo: true, env: [{name: WORD, value: word}]}}
contexts: [{name: x, context: {cluster: c, user: u}}]
`, a.Config.Host, base64.StdEncoding.EncodeToString(a.Config.CAData)))
	a, err := Load(Options{Kubeconfig: config, Context: "x"})
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(t, a)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			if err := ask(t, c); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	good.Store("word-2") // the first has expired
	if err := ask(t, c); err != nil {
		t.Fatal(err)
	}
	raw, _ := os.ReadFile(runs)
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	if len(lines) != 2 {
		t.Fatalf("ran %d times", len(lines))
	}
	var told struct {
		Spec struct {
			Cluster struct {
				Server string
				Config struct{ Audience string }
			}
		}
	}
	if err := json.Unmarshal([]byte(lines[0]), &told); err != nil || told.Spec.Cluster.Server != a.Config.Host || told.Spec.Cluster.Config.Audience != "x" {
		t.Errorf("%v: told %s", err, lines[0])
	}
	good.Store("never")
	var refused *StatusError
	if err := ask(t, c); !errors.As(err, &refused) || refused.Code != 401 {
		t.Errorf("%v", err)
	}
}

func TestPluginsThatFail(t *testing.T) {
	a := server(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, nothing) })
	head := `{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential"`
	for says, c := range map[string]struct{ command, script string }{
		"exit code 3":                      {"sh", "exit 3"},
		"decoding stdout":                  {"sh", "echo hello"},
		"didn't return a token":            {"sh", "echo '" + head + `,"status":{}}'`},
		"returned only certificate or key": {"sh", "echo '" + head + `,"status":{"clientCertificateData":"x"}}'`},
		"plugin is configured to use":      {"sh", `echo '{"apiVersion":"client.authentication.k8s.io/v1beta1","kind":"ExecCredential"}'`},
		"do: brew":                         {"no-such-login-program", ""},
	} {
		err := ask(t, newClient(t, with(a, func(cfg *rest.Config) {
			cfg.ExecProvider = &clientcmdapi.ExecConfig{APIVersion: "client.authentication.k8s.io/v1", Command: c.command, Args: []string{"-c", c.script}, InteractiveMode: clientcmdapi.NeverExecInteractiveMode, InstallHint: "do: brew"}
		})))
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "config: users[u].user.exec: ") {
			t.Errorf("%q: %v", says, err)
		}
	}
}

// TestControllerVersion: the release of the controller is what its Deployment says,
// else the tag of its image.
func TestControllerVersion(t *testing.T) {
	one := func(label, image string) string {
		return `{"metadata":{"namespace":"sys","name":"c","labels":{"app.kubernetes.io/version":"` + label + `"}},"spec":{"template":{"spec":{"containers":[{"image":"` + image + `"}]}}}}`
	}
	for items, want := range map[string]string{
		"":                                     " has no controller of Roundhouse",
		one("1.2.0", "a:9"):                    "1.2.0",
		one("", "a.test:5000/b/roundhouse:v9"): "v9",
		one("", "a.test:5000/roundhouse"):      "its image no tag: a.test:5000/roundhouse",
		one("", "roundhouse:1@sha256:0"):       "its image no tag: roundhouse:1@sha256:0",
		one("2", "") + "," + one("1", "") + "," + one("2", ""): "1, 2",
	} {
		a := server(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/apis/apps/v1/deployments" || r.URL.Query().Get("labelSelector") != controllerLabel {
				http.NotFound(w, r)
				return
			}
			_, _ = io.WriteString(w, `{"apiVersion":"apps/v1","kind":"DeploymentList","items":[`+items+`]}`)
		})
		got, err := newClient(t, a).ControllerVersion(t.Context())
		if err != nil {
			got = err.Error()
		}
		if got != want && (err == nil || !strings.HasSuffix(got, want)) {
			t.Errorf("%s: %s", items, got)
		}
	}
}

// TestGateway: requests go through the API server to the gateway, their key in
// a header of its own, and answers come as they are written.
func TestGateway(t *testing.T) {
	more := make(chan string)
	services := `{"apiVersion":"v1","kind":"ServiceList","items":[{"metadata":{"namespace":"sys","name":"rh-gateway"},"spec":{"ports":[{"name":"http"},{"name":"grpc"}]}},
		{"metadata":{"namespace":"sys","name":"rh-gateway-metrics"},"spec":{"ports":[{"name":"metrics"}]}}]}`
	a := server(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/v1/services":
			_, _ = io.WriteString(w, services)
		case "/api/v1/namespaces/sys/services/rh-gateway:http/proxy/away":
			http.Redirect(w, r, "https://elsewhere.test/", http.StatusTemporaryRedirect)
		case "/api/v1/namespaces/sys/services/rh-gateway:http/proxy/v1/chat/completions":
			_, _ = fmt.Fprintf(w, "%s %s\n", r.Header.Get("Authorization"), r.Header.Get("X-Api-Key"))
			for line := range more {
				_, _ = fmt.Fprintln(w, line)
				w.(http.Flusher).Flush()
			}
		default:
			http.NotFound(w, r)
		}
	})
	a.Config.BearerToken = "mine"
	c := newClient(t, a)
	base, err := c.Gateway(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/v1/chat/completions", strings.NewReader("{}"))
	req.Header.Set("Authorization", "Bearer rh-key")
	done := make(chan struct{})
	go func() { defer close(done); more <- "one" }()
	resp, err := (&http.Client{Transport: c.Transport(), Timeout: 20 * time.Second}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	if !lines.Scan() || lines.Text() != "Bearer mine rh-key" {
		t.Errorf("the gateway saw %q", lines.Text())
	}
	<-done
	go func() { more <- "two" }() // only now: what came was not held back
	for _, want := range []string{"one", "two"} {
		if !lines.Scan() || lines.Text() != want {
			t.Errorf("%q, want %q", lines.Text(), want)
		}
		if want == "two" {
			close(more)
		}
	}
	if away, err := (&http.Client{Transport: c.Transport()}).Get(base + "/away"); err == nil || !strings.Contains(err.Error(), "away from the API server") {
		t.Errorf("credentials went with a redirect: %v", err)
		_ = away.Body.Close()
	}
	if at, err := c.Gateway(t.Context(), "https:other/gw:8443"); err != nil || !strings.HasSuffix(at, "/api/v1/namespaces/other/services/https:gw:8443/proxy") {
		t.Errorf("%s, %v", at, err)
	}
	if _, err := c.Gateway(t.Context(), "alone"); err == nil || !strings.Contains(err.Error(), "NAMESPACE/NAME") {
		t.Errorf("%v", err)
	}
	services = strings.ReplaceAll(services, "metrics\"}]", "http\"}]")
	if _, err := c.Gateway(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "several gateways: name one with --gateway-service: sys/rh-gateway, sys/rh-gateway-metrics") {
		t.Errorf("%v", err)
	}
}
