package cluster

import (
	"bufio"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// server is an API server as far as a test needs one, over TLS.
func server(t *testing.T, h http.HandlerFunc) *Access {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	return &Access{Context: "test", Origin: "config: users[u].user", Namespace: "default", Server: s.URL, CA: ca}
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
	_, err := list[json.RawMessage](t.Context(), c, podsAt, "default", nil)
	return err
}

const nothing = `{"items":[]}`

func TestWhoAsks(t *testing.T) {
	var got http.Header
	a := server(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header
		_, _ = io.WriteString(w, nothing)
	})
	for name, c := range map[string]struct {
		change func(*Access)
		header string
		want   string
	}{
		"token":       {func(a *Access) { a.Token = "t" }, "Authorization", "Bearer t"},
		"password":    {func(a *Access) { a.Username, a.Password = "u", "p" }, "Authorization", "Basic dTpw"},
		"nobody":      {func(*Access) {}, "Authorization", ""},
		"agent":       {func(*Access) {}, "User-Agent", "test/1"},
		"impersonate": {func(a *Access) { a.Impersonate = impersonation{User: "x", Groups: []string{"g"}} }, "Impersonate-User", "x"},
	} {
		b := *a
		c.change(&b)
		if err := ask(t, newClient(t, &b)); err != nil || got.Get(c.header) != c.want {
			t.Errorf("%s: %v: %q", name, err, got.Get(c.header))
		}
	}
}

func TestPages(t *testing.T) {
	var asked []string
	a := server(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Query().Get("limit")+" "+r.URL.Query().Get("continue"))
		next := map[string]string{"": "a", "a": "b", "b": ""}[r.URL.Query().Get("continue")]
		_, _ = fmt.Fprintf(w, `{"metadata":{"continue":%q},"items":[1,2]}`, next)
	})
	items, err := list[int](t.Context(), newClient(t, a), podsAt, "default", url.Values{"labelSelector": {"x"}})
	if err != nil || len(items) != 6 || strings.Join(asked, ",") != "500 ,500 a,500 b" {
		t.Errorf("%v, %v, %q", items, err, asked)
	}
}

// TestRefusals: what an API server refuses is said with what was tried and what
// to do.
func TestRefusals(t *testing.T) {
	status := http.StatusOK
	body := ""
	a := server(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
	c := newClient(t, a)
	for _, x := range []struct {
		status int
		body   string
		says   []string
	}{
		{403, `{"kind":"Status","message":"pods is forbidden: User \"u\" cannot list"}`, []string{"list pods in namespace default: not allowed", `User "u" cannot list`, `the verb "list"`}},
		{401, `{"kind":"Status","message":"Unauthorized"}`, []string{"does not take the credential of config: users[u].user", "expired"}},
		{502, "<html>", []string{"502 Bad Gateway", "is that an API server"}},
		{200, "<html>", []string{"does not answer as an API server"}},
		{302, "", []string{"302 Found"}},
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
	for says, change := range map[string]func(*Access){
		"connection refused":               func(a *Access) { a.Server = "https://127.0.0.1:1" },
		"see certificate-authority":        func(a *Access) { a.CA, _ = certificate(t) },
		"see tls-server-name":              func(a *Access) { a.ServerName = "other.test" },
		"there is no certificate in it":    func(a *Access) { a.CA = []byte("x") },
		"users[u].user.client-certificate": func(a *Access) { a.Cert, a.Key = []byte("x"), []byte("y") },
	} {
		b := *a
		change(&b)
		c, err := New(&b, "test")
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
echo "$KUBERNETES_EXEC_INFO" >> `+runs+`
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
	e := &execConfig{APIVersion: execV1, Command: "./login", InteractiveMode: "Never", ProvideClusterInfo: true}
	e.Env = append(e.Env, struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}{"WORD", "word"})
	e.cluster.Extensions = []namedExtension{{Name: "client.authentication.k8s.io/exec", Extension: map[string]any{"audience": "x"}}}
	if err := e.validate(filepath.Join(dir, "config"), "config: users[u].user.exec"); err != nil {
		t.Fatal(err)
	}
	a.Exec = e
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
	var told execCredential
	if err := json.Unmarshal([]byte(lines[0]), &told); err != nil || told.Spec.Cluster == nil || told.Spec.Cluster.Server != a.Server || fmt.Sprint(told.Spec.Cluster.Config) != "map[audience:x]" {
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
		"exit status 3":              {"sh", "exit 3"},
		"printed no ExecCredential":  {"sh", "echo hello"},
		"neither a token":            {"sh", "echo '" + head + `,"status":{}}'`},
		"without its key":            {"sh", "echo '" + head + `,"status":{"clientCertificateData":"x"}}'`},
		"write in apiVersion":        {"sh", `echo '{"apiVersion":"client.authentication.k8s.io/v1beta1","kind":"ExecCredential"}'`},
		"is not installed: do: brew": {"no-such-login-program", ""},
		"wrote over":                 {"sh", "head -c 2000000 /dev/zero"},
	} {
		b := *a
		b.Exec = &execConfig{APIVersion: execV1, Command: c.command, Args: []string{"-c", c.script}, InteractiveMode: "Never", InstallHint: "do: brew\x1b[31m", at: "config: users[u].user.exec"}
		err := ask(t, newClient(t, &b))
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "config: users[u].user.exec: ") || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q: %v", says, err)
		}
	}
}

// TestGateway: requests go through the API server to the gateway, their key in
// a header of its own, and answers come as they are written.
func TestGateway(t *testing.T) {
	more := make(chan string)
	services := `{"items":[{"metadata":{"namespace":"sys","name":"rh-gateway"},"spec":{"ports":[{"name":"http"},{"name":"grpc"}]}},
		{"metadata":{"namespace":"sys","name":"rh-gateway-metrics"},"spec":{"ports":[{"name":"metrics"}]}}]}`
	a := server(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/v1/services":
			_, _ = io.WriteString(w, services)
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
	a.Token = "mine"
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
