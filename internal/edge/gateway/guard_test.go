package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// TestUnsafeRequests: what a replica may read otherwise than the gateway does
// reaches none.
func TestUnsafeRequests(t *testing.T) {
	r := newRig(t, nil)
	var asked atomic.Int32
	r.d.SetPool(pool("iris", replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
		asked.Add(1)
		echo(w, req)
	})))
	const body = `{"model":"iris"}`
	for _, c := range []struct {
		line string
		code int
	}{
		{"POST /v1/completions", 200},
		{"POST /v2/models/iris/infer", 200},
		{"POST /v2/models/iris/a.b/...", 200},
		{"POST /v1/../admin", 400},
		{"POST /v1/%2e%2E/admin", 400},
		{"POST /v1/./completions", 400},
		{"POST /v2/models/iris/../other/infer", 400},
		{"POST /v2/models/iris/..%2fother/infer", 400},
		{"POST /v2/models/iris/..%5cother/infer", 400},
		{"POST /v2/models/iris/versions/../../x/infer", 400},
		{"POST /v1/models/..:predict", 404}, // a name, and no model's
		{"POST /v1/comp%00letions", 400},
		{"POST /v1/completions%0d%0aX:%20y", 400},
		{"POST /v1/completions%7f", 400},
		{"CONNECT /v2/models/iris/x", 501},
		{"TRACE /v2/models/iris/x", 501},
	} {
		before := asked.Load()
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", c.line, len(body), body); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(c.line, err)
		}
		_ = resp.Body.Close()
		_ = conn.Close()
		if got := asked.Load() - before; resp.StatusCode != c.code || (got == 1) != (c.code == 200) {
			t.Errorf("%s: %d, and the replica was asked %d times; want %d", c.line, resp.StatusCode, got, c.code)
		}
	}
}

// TestNoContentHasNoLength: a client might wait for the bytes of one.
func TestNoContentHasNoLength(t *testing.T) {
	r := newRig(t, nil)
	r.d.SetPool(pool("iris", replicaServer(t, hijack("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello"))))
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	for range 2 {
		if _, err := fmt.Fprint(conn, "POST /v2/models/iris/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		for line := "x"; line != "\r\n"; {
			if line, err = in.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(line, "HTTP/1.1") && !strings.Contains(line, "204") || strings.HasPrefix(line, "Content-Length") {
				t.Errorf("got %q", line)
			}
		}
	}
}

// TestPagesOfOthersAreRefused: on loopback without keys neither a page whose
// name was made to resolve here nor one that posts here reaches a model.
func TestPagesOfOthersAreRefused(t *testing.T) {
	ask := func(r *rig, host string, header ...string) answer {
		return r.send("POST", "/v2/repository/models/iris/unload", "{}", append([]string{"Host", host, "Content-Type", "text/plain"}, header...)...)
	}
	r := newRig(t, func(c *Config, _ *dispatch.Config) {
		c.AllowedHosts, c.CORSOrigins = []string{"Models.Example.com"}, []string{"https://chat.example.com"}
	})
	routed := pool("iris")
	routed.Host = "iris.example.org"
	r.d.SetPool(routed)
	for _, tc := range []struct {
		host, origin, site string
		code               int
	}{
		{"127.0.0.1:8080", "", "", 200},
		{"127.0.0.1:8080", "", "cross-site", 403}, // an image's address, which has no origin
		{"127.0.0.1:8080", "", "same-site", 200},
		{"127.0.0.1:8080", "", "none", 200},
		{"localhost", "", "", 200},
		{"iris.default.localhost:8080", "", "", 200},
		{"[::1]:8080", "", "", 200},
		{"models.example.com:443", "", "", 200},
		{"iris.example.org", "", "", 200},
		{"evil.com", "", "", 403},
		{"evil.com:8080", "http://evil.com:8080", "same-origin", 403},
		{"localhost.evil.com", "", "", 403},
		{"192.0.2.1:8080", "", "", 403},
		{"127.0.0.1:8080", "http://evil.com", "cross-site", 403},
		{"127.0.0.1:8080", "null", "cross-site", 403},
		{"127.0.0.1:8080", "http://localhost.evil.com", "", 403},
		{"127.0.0.1:8080", "chrome-extension://abc", "", 403},
		{"127.0.0.1:8080", "http://localhost:3000", "same-site", 200},
		{"127.0.0.1:8080", "https://chat.example.com", "cross-site", 200},
		{"127.0.0.1:8080", "https://models.internal", "same-origin", 200}, // behind a proxy that names the address
		{"models.example.com", "https://models.example.com", "", 200},
	} {
		header := []string{}
		if tc.origin != "" {
			header = append(header, "Origin", tc.origin)
		}
		if tc.site != "" {
			header = append(header, "Sec-Fetch-Site", tc.site)
		}
		if a := ask(r, tc.host, header...); a.code != tc.code {
			t.Errorf("host %q, origin %q, site %q: %d %s, want %d", tc.host, tc.origin, tc.site, a.code, a.body, tc.code)
		}
	}
	if a := r.send("OPTIONS", "/v1/chat/completions", "", "Origin", "http://evil.com", "Access-Control-Request-Method", "POST"); a.code != 403 || a.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a browser's question ahead: %d %v", a.code, a.header)
	}
	routed.Access.ByPath = true
	r.d.SetPool(routed)
	for host, code := range map[string]int{"127.0.0.1:8080": 200, "evil.com": 403} {
		if a := r.send("GET", "/default/iris/v1/models", "", "Host", host); a.code != code {
			t.Errorf("host %q, below a service's path: %d %s, want %d", host, a.code, a.body, code)
		}
	}
	open := newRig(t, func(c *Config, _ *dispatch.Config) { c.AllowedHosts, c.Listen = nil, "0.0.0.0:8080" })
	open.d.SetPool(pool("iris"))
	if a := ask(open, "models.example.com"); a.code != 200 {
		t.Errorf("on a network its name is whatever its users call it: %d %s", a.code, a.body)
	}
}

// TestExplainUnloadsNothing: a request that is only explained loads and unloads no
// model, by whatever path.
func TestExplainUnloadsNothing(t *testing.T) {
	r := newRig(t, nil)
	p := pool("iris", replicaServer(t, echo))
	p.Access.ByPath = true
	r.d.SetPool(p)
	for _, path := range []string{"/v2/repository/models/iris/unload", "/default/iris/v2/repository/models/iris/unload", "/default/iris/v2/repository/models/iris/load"} {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err = r.gw.Explain(q); err == nil || !strings.Contains(err.Error(), "loads and unloads nothing") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestHostOfHTTP2: a host that is none reaches no replica's X-Forwarded-Host.
func TestHostOfHTTP2(t *testing.T) {
	r := newRig(t, nil)
	r.d.SetPool(pool("iris", replicaServer(t, func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.WriteString(w, q.Header.Get("X-Forwarded-Host"))
	})))
	var h2 http.Protocols
	h2.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: &h2}
	t.Cleanup(tr.CloseIdleConnections)
	r.client = &http.Client{Transport: tr}
	r.send("GET", "/v2/models/iris", "", "Host", "iris.example.org").want(t, 200, "iris.example.org")
	a := r.send("GET", "/v2/models/iris", "", "Host", "x/../y")
	if a.code == 200 && strings.Contains(a.body, "..") {
		t.Errorf("passed on: %s", a.body)
	}
}

// TestReplicasAreNotToldOfPages: the gateway has judged the page that asks; a
// replica on loopback would take it for one that asks the replica.
func TestReplicasAreNotToldOfPages(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.CORSOrigins = []string{"https://chat.example.com"} })
	told := make(chan http.Header, 1)
	handler := func(w http.ResponseWriter, req *http.Request) {
		told <- req.Header
		echo(w, req)
	}
	r.d.SetPool(pool("iris", replicaServer(t, handler)))
	a := r.send("POST", "/v2/models/iris/infer", "{}", "Origin", "https://chat.example.com", "Sec-Fetch-Site", "cross-site", "X-Own", "1")
	if a.code != http.StatusOK {
		t.Fatalf("%d %s", a.code, a.body)
	}
	if h := <-told; h.Get("Origin") != "" || h.Get("Sec-Fetch-Site") != "" || h.Get("X-Own") != "1" {
		t.Errorf("the replica was told %v", h)
	}
}

// TestLoopsEnd: a pool that leads back to the gateway costs a request some rounds
// and no more.
func TestLoopsEnd(t *testing.T) {
	r := newRig(t, nil)
	r.d.SetPool(pool("iris", strings.TrimPrefix(r.url, "http://")))
	a := r.send("POST", "/v2/models/iris/infer", "{}")
	if a.code != http.StatusLoopDetected || !strings.Contains(a.body, "a pool leads back to this gateway") {
		t.Errorf("%d %s", a.code, a.body)
	}
}

// TestOneAnswerToTwoLengths: a request with a Content-Length beside chunks ends its
// connection, so that what a proxy took for its body is not answered as another.
func TestOneAnswerToTwoLengths(t *testing.T) {
	r := newRig(t, nil)
	r.d.SetPool(pool("iris", replicaServer(t, echo)))
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	const smuggled = "POST /v2/models/iris/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
	if _, err := fmt.Fprintf(conn, "POST /v2/models/iris/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n%s", 12+len(smuggled), smuggled); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(conn)
	if n := strings.Count(string(text), "HTTP/1.1 200 OK"); n != 1 || !strings.Contains(string(text), "Connection: close\r\n") {
		t.Errorf("%d answers, %v:\n%s", n, err, text)
	}
}
