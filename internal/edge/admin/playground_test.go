package admin

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/admin/console"
)

// TestPlayground: a request to a model has nothing of the session.
func TestPlayground(t *testing.T) {
	s := serveConsole(t)
	cookie, csrf := s.signIn(token)
	s.ask("POST", "/api/v1/infer/v1/models/a%2Fb:predict?x=1", "{}", "Cookie", cookie, console.HeaderCSRF, csrf, "X-Roundhouse-Key", "rh-key", "Origin", s.URL, "Upgrade", "h2c")
	got := <-s.asked
	if got.URL.EscapedPath() != "/v1/models/a%2Fb:predict" || got.URL.RawQuery != "x=1" || got.Header.Get("Authorization") != "Bearer rh-key" {
		t.Errorf("%s %v", got.URL, got.Header)
	}
	for _, name := range []string{"Cookie", "Origin", "Upgrade", console.HeaderCSRF, "X-Roundhouse-Key"} {
		if got.Header.Get(name) != "" {
			t.Errorf("the model gets %s", name)
		}
	}
}

// TestHostileAnswers: what a model answers with does nothing at the console's origin.
func TestHostileAnswers(t *testing.T) {
	for stated, want := range map[string]string{
		"text/html; charset=utf-8":           "application/octet-stream",
		"application/javascript":             "application/octet-stream",
		"image/svg+xml":                      "application/octet-stream",
		"multipart/x-mixed-replace;boundary": "application/octet-stream",
		"":                                   "application/octet-stream",
		"text/plain, text/html":              "application/octet-stream",
		"Application/JSON;charset=utf-7":     "application/json; charset=utf-8",
		"text/event-stream":                  "text/event-stream; charset=utf-8",
	} {
		w := httptest.NewRecorder()
		h := &harmless{w: w, header: http.Header{}}
		for name, value := range map[string]string{"Content-Type": stated, "Set-Cookie": "roundhouse-8090=planted", "Content-Security-Policy": "default-src *", "X-Content-Type-Options": "off",
			"Location": "https://evil.example", "Refresh": "0; url=https://evil.example", "Clear-Site-Data": `"*"`, "Service-Worker-Allowed": "/", "Access-Control-Allow-Origin": "*",
			"Link": "</x>; rel=preload", "Www-Authenticate": "Basic", "Cross-Origin-Resource-Policy": "cross-origin", "X-Request-Id": "7", "Retry-After": "3", http.TrailerPrefix + "Set-Cookie": "a=b"} {
			h.Header().Set(name, value)
		}
		h.WriteHeader(http.StatusEarlyHints)
		h.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(h, "<script>alert(1)</script>")
		h.Header().Set("Set-Cookie", "late=1")
		if err := http.NewResponseController(h).Flush(); err != nil {
			t.Error(err)
		}
		if _, _, err := http.NewResponseController(h).Hijack(); err == nil {
			t.Error("a model takes over the connection")
		}
		got := w.Result()
		if got.StatusCode != http.StatusTeapot || got.Header.Get("Content-Type") != want || got.Header.Get("X-Request-Id") != "7" || got.Header.Get("Retry-After") != "3" {
			t.Errorf("%q: %s %v", stated, got.Status, got.Header)
		}
		if p := got.Header.Values("Content-Security-Policy"); len(p) != 1 || !strings.HasPrefix(p[0], "sandbox;") || got.Header.Get("X-Content-Type-Options") != "nosniff" || got.Header.Get("Cross-Origin-Resource-Policy") != "same-origin" {
			t.Errorf("%q: %v", stated, got.Header)
		}
		for _, name := range []string{"Set-Cookie", "Location", "Refresh", "Clear-Site-Data", "Service-Worker-Allowed", "Access-Control-Allow-Origin", "Link", "Www-Authenticate"} {
			if v := got.Header.Get(name); v != "" || got.Trailer.Get(name) != "" {
				t.Errorf("%q: %s: %s", stated, name, v)
			}
		}
	}
}
