package admin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/history"
	"roundhouse.dev/roundhouse/internal/edge/admin/console"
	"roundhouse.dev/roundhouse/internal/state/fleet"
	"roundhouse.dev/roundhouse/internal/state/journal"
)

// served is a server with everything that a console asks for.
type served struct {
	*httptest.Server
	t      *testing.T
	admin  *Server
	live   *Live
	events *journal.Events
	asked  chan *http.Request // by the playground
}

func serveConsole(t *testing.T, change ...func(*Config)) *served {
	t.Helper()
	s := &served{t: t, asked: make(chan *http.Request, 1)}
	events, err := journal.OpenEvents(journal.Config{Store: nothing{}})
	if err != nil {
		t.Fatal(err)
	}
	requests := journal.NewRequests()
	none := func(context.Context, service.Key) (fleet.ServiceState, error) { return fleet.ServiceState{}, nil }
	s.live, err = NewLive(LiveConfig{Get: none, Demand: func(service.Key) autoscale.Demand { return autoscale.Demand{} }, Pace: requests.Pace})
	if err != nil {
		t.Fatal(err)
	}
	s.events = events
	s.admin = newServer(t, outside{}, func(c *Config) {
		c.Live, c.Events, c.Requests, c.ViewerToken, c.Port = s.live, events, requests, "the-viewers", 8090
		c.Infer = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { s.asked <- r })
		for _, f := range change {
			f(c)
		}
	})
	s.Server = httptest.NewServer(s.admin.Handler())
	t.Cleanup(s.Close)
	return s
}

// ask sends a request with headers, given as pairs.
func (s *served) ask(method, path, body string, headers ...string) *http.Response {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.URL+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	if h := req.Header.Get("Host"); h != "" {
		req.Host = h
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	_ = resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(data))
	return resp
}

// signIn returns the cookie and the token for changes of a new session.
func (s *served) signIn(token string) (cookie, csrf string) {
	s.t.Helper()
	resp := s.ask("POST", "/session", `{"token":"`+token+`"}`)
	var is struct{ CSRF string }
	if err := json.NewDecoder(resp.Body).Decode(&is); err != nil || resp.StatusCode != http.StatusOK || len(resp.Cookies()) != 1 {
		s.t.Fatal(resp.Status, err, resp.Cookies())
	}
	return resp.Cookies()[0].Name + "=" + resp.Cookies()[0].Value, is.CSRF
}

func (s *served) link(role console.Role) string {
	_, token, _ := strings.Cut(s.admin.Link(role), "=")
	return token
}

func TestSignIn(t *testing.T) {
	s := serveConsole(t)
	link := s.link(console.Owner)
	resp := s.ask("POST", "/session", `{"token":"`+link+`"}`)
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	c := resp.Cookies()[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Name != "roundhouse-8090" || c.Path != "/" {
		t.Errorf("cookie %+v", c)
	}
	for name, token := range map[string]string{"a link that was used": link, "no token": "", "another": "ABC", "a long one": strings.Repeat("A", 4000)} {
		if resp := s.ask("POST", "/session", `{"token":"`+token+`"}`); resp.StatusCode != http.StatusUnauthorized || len(resp.Cookies()) > 0 {
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
	for _, token := range []string{token, "the-viewers"} {
		if resp := s.ask("POST", "/session", `{"token":"`+token+`"}`); resp.StatusCode != http.StatusOK {
			t.Errorf("a token that is kept: %s", resp.Status)
		}
	}
	for name, headers := range map[string][]string{
		"another site":         {"Origin", "https://evil.example"},
		"another port":         {"Origin", "http://127.0.0.1:9"},
		"another site, hidden": {"Sec-Fetch-Site", "cross-site"},
		"another host":         {"Host", "evil.example"},
	} {
		if resp := s.ask("POST", "/session", `{"token":"`+s.link(console.Owner)+`"}`, headers...); resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
	if resp := s.ask("POST", "/session", strings.Repeat(" ", 5000)); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("a long body: %s", resp.Status)
	}
}

func TestSessions(t *testing.T) {
	s := serveConsole(t)
	cookie, csrf := s.signIn(s.link(console.Owner))
	viewer, viewerCSRF := s.signIn(s.link(console.Viewer))
	del := "/api/v1/services/default/none"
	for _, test := range []struct {
		name         string
		method, path string
		want         int
		headers      []string
	}{
		{"reads", "GET", "/api/v1/services", 200, []string{"Cookie", cookie}},
		{"changes", "DELETE", del, 404, []string{"Cookie", cookie, console.HeaderCSRF, csrf}},
		{"no token for changes", "DELETE", del, 403, []string{"Cookie", cookie}},
		{"that of another session", "DELETE", del, 403, []string{"Cookie", cookie, console.HeaderCSRF, viewerCSRF}},
		{"a page of another port", "DELETE", del, 403, []string{"Cookie", cookie, console.HeaderCSRF, csrf, "Origin", "http://localhost:1"}},
		{"a page of another port that reads", "GET", "/api/v1/services", 403, []string{"Cookie", cookie, "Sec-Fetch-Site", "same-site"}},
		{"a cookie that was changed", "GET", "/api/v1/services", 401, []string{"Cookie", changed(cookie)}},
		{"no cookie", "GET", "/api/v1/services", 401, nil},
		{"a wrong bearer beside a cookie", "GET", "/api/v1/services", 401, []string{"Cookie", cookie, "Authorization", "Bearer x"}},
		{"a viewer reads", "GET", "/api/v1/services", 200, []string{"Cookie", viewer}},
		{"a viewer asks why", "POST", "/api/v1/explain-request", 404, []string{"Cookie", viewer, console.HeaderCSRF, viewerCSRF}}, // this server does not explain
		{"a viewer changes", "DELETE", del, 403, []string{"Cookie", viewer, console.HeaderCSRF, viewerCSRF}},
		{"a viewer looks for files", "GET", "/api/v1/readable?path=/etc/passwd", 403, []string{"Cookie", viewer}},
		{"a viewer starts models", "GET", "/api/v1/infer/v2/models/x", 403, []string{"Cookie", viewer}},
		{"a viewer makes a link", "POST", "/api/v1/console", 403, []string{"Authorization", "Bearer the-viewers"}},
		{"a viewer's program reads", "GET", "/api/v1/services", 200, []string{"Authorization", "Bearer the-viewers"}},
		{"a viewer's program changes", "DELETE", del, 403, []string{"Authorization", "Bearer the-viewers"}},
		{"the owner's program", "POST", "/api/v1/console", 200, []string{"Authorization", "Bearer " + token}},
	} {
		if resp := s.ask(test.method, test.path, "", test.headers...); resp.StatusCode != test.want {
			text, _ := io.ReadAll(resp.Body)
			t.Errorf("%s: %s, want %d: %s", test.name, resp.Status, test.want, text)
		}
	}
	if out := s.ask("DELETE", "/session", "", "Cookie", cookie, "Sec-Fetch-Site", "same-site"); out.StatusCode != http.StatusForbidden {
		t.Errorf("a page of another port signs out: %s", out.Status)
	}
	stream, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/api/v1/watch", nil)
	if err != nil {
		t.Fatal(err)
	}
	stream.Header.Set("Cookie", cookie)
	told, err := http.DefaultClient.Do(stream)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = told.Body.Close() }()
	out := s.ask("DELETE", "/session", "", "Cookie", cookie)
	if c := out.Cookies(); len(c) != 1 || c[0].MaxAge >= 0 {
		t.Errorf("signed out: %v", c)
	}
	if _, err := io.Copy(io.Discard, told.Body); err != nil {
		t.Errorf("the stream of one who signed out: %v", err) // it ends, or this test does not
	}
	for _, path := range []string{"/session", "/api/v1/services"} {
		if resp := s.ask("GET", path, "", "Cookie", cookie, console.HeaderCSRF, csrf); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("a copy of the cookie gets %s after the sign-out: %s", path, resp.Status)
		}
	}
	if resp := s.ask("GET", "/session", "", "Cookie", viewer); resp.StatusCode != http.StatusOK {
		t.Errorf("another session ended: %s", resp.Status)
	}
}

// TestViewersSeeNoManifests: a manifest may hold secrets.
func TestViewersSeeNoManifests(t *testing.T) {
	s := serveConsole(t)
	body := applyBody(t, File{Name: "a.yaml", Data: "apiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: iris}\nspec: {model: {uri: \"https://user:hunter2@models.invalid/m\", format: {name: xgboost}}}\n---\napiVersion: roundhouse.dev/v1alpha1\nkind: Pool\nmetadata: {name: p, labels: {x: hunter2}}\nspec: {addresses: [\"127.0.0.1:1\"]}\n---\napiVersion: serving.kserve.io/v1alpha1\nkind: LLMInferenceServiceConfig\nmetadata: {name: base}\nspec: {template: {containers: [{name: main, env: [{name: X, value: hunter2}]}]}}\n---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: sa}\nsecrets: [{name: hunter2}]\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {hunter2: hunter2}\n"})
	if resp := s.ask("POST", "/api/v1/apply", body, "Authorization", "Bearer "+token); resp.StatusCode != 200 {
		text, _ := io.ReadAll(resp.Body)
		t.Fatalf("%s %s", resp.Status, text)
	}
	// The owner's cookie without the token, as a server on another port may see it.
	stolen, _ := s.signIn(s.link(console.Owner))
	if resp := s.ask("GET", "/session", "", "Cookie", stolen); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	} else if text, _ := io.ReadAll(resp.Body); !strings.Contains(string(text), `"csrf":""`) {
		t.Errorf("the token is told again: %s", text)
	}
	for _, path := range []string{"/api/v1/services?rendered", "/api/v1/services/default/iris", "/api/v1/routing", "/api/v1/models", "/api/v1/runtimes", "/api/v1/bases", "/api/v1/serviceaccounts", "/api/v1/secrets", "/api/v1/services/default/iris/explain"} {
		for _, as := range [][]string{{"Authorization", "Bearer the-viewers"}, {"Cookie", stolen}} {
			resp := s.ask("GET", path, "", as...)
			text, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != 200 || strings.Contains(string(text), "hunter2") {
				t.Errorf("%s: %s %v %s", path, resp.Status, err, text)
			}
		}
	}
}

// TestConsoleFiles: the page's files need no session, and their policy lets nothing
// else run.
func TestConsoleFiles(t *testing.T) {
	s := serveConsole(t)
	for path, kind := range map[string]string{"/": "text/html; charset=utf-8", "/console.js": "text/javascript; charset=utf-8", "/console.css": "text/css; charset=utf-8", "/icon.svg": "image/svg+xml"} {
		resp := s.ask("GET", path, "")
		h := resp.Header
		if resp.StatusCode != 200 || h.Get("Content-Type") != kind || h.Get("Content-Security-Policy") != console.Policy || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("ETag") == "" {
			t.Errorf("%s: %s %v", path, resp.Status, h)
		}
		if again := s.ask("GET", path, "", "If-None-Match", h.Get("ETag")); again.StatusCode != http.StatusNotModified {
			t.Errorf("%s again: %s", path, again.Status)
		}
	}
	for _, word := range []string{"unsafe", "http:", "https:", "*"} {
		if strings.Contains(console.Policy, word) {
			t.Errorf("the policy has %q", word)
		}
	}
	if resp := s.ask("GET", "/", "", "Host", "evil.example"); resp.StatusCode != http.StatusForbidden {
		t.Errorf("for another host: %s", resp.Status)
	}
	if resp := s.ask("GET", "/nothing.js", "", "Authorization", "Bearer "+token); resp.StatusCode != http.StatusNotFound {
		t.Errorf("a file that is not there: %s", resp.Status)
	}
}

// blocks reads a stream up to a line.
func blocks(t *testing.T, s *served, path, until string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var b strings.Builder
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		b.WriteString(lines.Text() + "\n")
		if strings.HasPrefix(lines.Text(), until) {
			return b.String()
		}
	}
	t.Fatalf("%s ended: %s", path, b.String())
	return ""
}

func (s *served) service(name string, generation int64) {
	s.live.Observe(fleet.ServiceState{Object: fleet.Object{Object: dialect.Object{Key: service.Key{Namespace: "default", Name: name}, Service: &service.Service{}}}, Generation: generation})
}

// TestWatch: who watches is told everything, then what changes; who returns goes on
// where it was, and forgets what it knew if that cannot be.
func TestWatch(t *testing.T) {
	s := serveConsole(t)
	s.service("a", 1)
	s.service("b", 1)
	s.events.Tell(history.Event{Reason: "First", Message: "</script>\n\ndata: x"})
	first := blocks(t, s, "/api/v1/watch", "id: ")
	for _, want := range []string{"event: reset\n", `"key":"service/default/a"`, `"key":"service/default/b"`, `"reason":"First"`, `\u003c/script\u003e\n\ndata: x`} {
		if !strings.Contains(first, want) {
			t.Errorf("not told %q:\n%s", want, first)
		}
	}
	place := first[strings.LastIndex(first, "id: ")+4 : len(first)-1]
	s.service("a", 2)
	s.live.Forget(service.Key{Namespace: "default", Name: "b"})
	second := blocks(t, s, "/api/v1/watch?after="+place, "id: ")
	if strings.Contains(second, "reset") || strings.Contains(second, "First") || !strings.Contains(second, `"generation":2`) || !strings.Contains(second, "event: gone\ndata: \"service/default/b\"") {
		t.Errorf("resumed after %s:\n%s", place, second)
	}
	if other := blocks(t, s, "/api/v1/watch?after=5-1-0", "id: "); !strings.HasPrefix(other, "event: reset\n") {
		t.Errorf("from another process:\n%s", other)
	}
	if only := blocks(t, s, "/api/v1/watch?kinds=event", "id: "); strings.Contains(only, "event: service") || !strings.Contains(only, "First") {
		t.Errorf("events alone:\n%s", only)
	}
	for _, query := range []string{"after=x", "after=1-2", "after=1-2-3x", "kinds=secrets"} {
		if resp := s.ask("GET", "/api/v1/watch?"+query, "", "Authorization", "Bearer "+token); resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s", query, resp.Status)
		}
	}
}

// changed is a cookie with another character in its middle: the bits of the last one may
// not all count.
func changed(cookie string) string {
	at, other := len(cookie)-8, "A"
	if cookie[at] == 'A' {
		other = "B"
	}
	return cookie[:at] + other + cookie[at+1:]
}
