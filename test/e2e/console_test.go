package e2e

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"strings"
	"testing"
)

// browser is what a page of the console sends.
type browser struct {
	t    *testing.T
	base string
	csrf string
	http.Client
}

// signIn follows a link of the console.
func signIn(t *testing.T, link string) *browser {
	t.Helper()
	base, token, ok := strings.Cut(link, "/#sign-in=")
	if !ok {
		t.Fatalf("%q is no link that signs in", link)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{t: t, base: base, Client: http.Client{Jar: jar}}
	var session struct{ CSRF string }
	text, status := b.send(http.MethodPost, "/session", `{"token":"`+token+`"}`)
	if err := json.Unmarshal([]byte(text), &session); err != nil || status != 200 {
		t.Fatal(status, text, err)
	}
	b.csrf = session.CSRF
	return b
}

func (b *browser) send(method, path, body string) (string, int) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.base+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("X-Roundhouse-Csrf", b.csrf)
	req.Header.Set("Content-Type", "application/json")
	resp, err := b.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return string(text), resp.StatusCode
}

// TestConsole does what the console's page does, without a browser: signs in by a
// link, starts a service and watches it become ready, asks it, and previews a change.
func TestConsole(t *testing.T) {
	t.Parallel()
	n := startNode(t, "-f", "examples/quickstart")
	b := signIn(t, strings.TrimSpace(n.do("console")))
	if page, status := b.send(http.MethodGet, "/", ""); status != 200 || !strings.Contains(page, "/console.js") {
		t.Fatal(status, page)
	}
	if text, status := b.send(http.MethodPost, "/api/v1/services/default/iris/actions", `{"do":"start"}`); status != 200 {
		t.Fatal(status, text)
	}
	resp, err := b.Get(b.base + "/api/v1/watch?kinds=service")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	for lines := bufio.NewScanner(resp.Body); ; {
		if !lines.Scan() {
			t.Fatal("the stream ended before iris was ready: ", lines.Err())
		}
		if line := lines.Text(); strings.Contains(line, `"key":"service/default/iris"`) && strings.Contains(line, `"phase":"Ready"`) {
			break
		}
	}
	if text, status := b.send(http.MethodPost, "/api/v1/infer/v2/models/iris/infer", irisTensor); status != 200 || !strings.Contains(text, `"outputs"`) {
		t.Error(status, text)
	}
	manifest, err := json.Marshal(map[string]any{"files": []map[string]string{{"name": "a.yaml", "data": "apiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: chat}\nspec: {model: {format: {name: simulator}}}\n"}}})
	if err != nil {
		t.Fatal(err)
	}
	if text, status := b.send(http.MethodPost, "/api/v1/apply?dry-run", string(manifest)); status != 200 || !strings.Contains(text, `"action":"configured"`) || !strings.Contains(text, `maxReplicas: 2`) {
		t.Error(status, text)
	}
	if before := n.do("get", "chat", "-o", "yaml"); !strings.Contains(before, "maxReplicas: 2") {
		t.Error("a preview changes: ", before)
	}

	viewer := signIn(t, strings.TrimSpace(n.do("console", "--read-only")))
	if text, status := viewer.send(http.MethodDelete, "/api/v1/services/default/iris", ""); status != http.StatusForbidden {
		t.Error("a viewer deletes: ", status, text)
	}
	if text, status := viewer.send(http.MethodGet, "/api/v1/services", ""); status != 200 || !strings.Contains(text, "iris") {
		t.Error("a viewer reads: ", status, text)
	}
}
