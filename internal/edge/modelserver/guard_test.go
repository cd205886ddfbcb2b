package modelserver

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestPagesOfOthersAreRefused: on loopback neither a page whose name was made to
// resolve here nor one that posts here reaches a model or the metrics.
func TestPagesOfOthersAreRefused(t *testing.T) {
	ask := func(h http.Handler, path, host, origin, site string) int {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Host = host
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		if site != "" {
			r.Header.Set("Sec-Fetch-Site", site)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	pattern := `https://.*\.example\.com`
	s := loaded(t, batching("gather", ""), func(c *Config) {
		c.AllowedHosts = []string{"Models.Example.com"}
		c.HTTP.CORS = &CORS{AllowOrigins: []string{"https://chat.example.org"}, AllowOriginRegex: &pattern, AllowMethods: []string{"GET"}}
	})
	for _, c := range []struct {
		host, origin, site string
		status             int
	}{
		{"127.0.0.1:8080", "", "", 200},
		{"localhost", "", "none", 200},
		{"[::1]:8080", "", "same-site", 200},
		{"models.example.com:443", "", "", 200},
		{"127.0.0.1:8080", "http://localhost:3000", "same-site", 200},
		{"127.0.0.1:8080", "https://chat.example.org", "cross-site", 200},
		{"127.0.0.1:8080", "https://a.example.com", "cross-site", 200},
		{"evil.com:8080", "", "", 403},
		{"evil.com:8080", "http://evil.com:8080", "same-origin", 403},
		{"192.0.2.1:8080", "", "", 403},
		{"127.0.0.1:8080", "", "cross-site", 403},
		{"127.0.0.1:8080", "http://evil.com", "cross-site", 403},
		{"127.0.0.1:8080", "null", "", 403},
	} {
		for path, h := range map[string]http.Handler{"/v2/models/m": s.handler, "/metrics": newMetricsHandler(s.config)} {
			if got := ask(h, path, c.host, c.origin, c.site); got != c.status {
				t.Errorf("%s, host %q, origin %q, site %q: %d, want %d", path, c.host, c.origin, c.site, got, c.status)
			}
		}
	}
	open := loaded(t, batching("gather", ""), func(c *Config) { c.Host = "0.0.0.0" })
	if got := ask(open.handler, "/v2/models/m", "models.example.net", "http://page.example.net", "cross-site"); got != 200 {
		t.Errorf("on a network its name is whatever its users call it: %d", got)
	}
}

// TestOneAnswerToTwoLengths: a request with a Content-Length beside chunks ends its
// connection, so that what a proxy took for its body is not answered as another.
func TestOneAnswerToTwoLengths(t *testing.T) {
	s := loaded(t, map[string]string{"m.fake": "fake double"})
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	const smuggled = "GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n"
	if _, err := fmt.Fprintf(conn, "POST /v2/models/only/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n%s", len(ask), ask, smuggled); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(conn)
	if n := strings.Count(string(text), "HTTP/1.1 200 OK"); n != 1 || !strings.Contains(string(text), "Connection: close\r\n") {
		t.Errorf("%d answers, %v:\n%s", n, err, text)
	}
}
