package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// dial opens a bare connection to the gateway.
func (n *node) dial(t *testing.T) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(n.gateway, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// raw is one answer as it was read from a connection.
type raw struct {
	status int
	header http.Header
	body   string
}

// readAnswer reads one answer to a request of that method.
func readAnswer(t *testing.T, from *bufio.Reader, method string) raw {
	t.Helper()
	resp, err := http.ReadResponse(from, &http.Request{Method: method})
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("half an answer: %v", err)
	}
	_ = resp.Body.Close()
	return raw{resp.StatusCode, resp.Header, string(body)}
}

// chunked is a body in chunks of that many bytes.
func chunked(body string, size int) string {
	var b strings.Builder
	for len(body) > 0 {
		n := min(size, len(body))
		fmt.Fprintf(&b, "%X;ext=\"a b\"\r\n%s\r\n", n, body[:n])
		body = body[n:]
	}
	return b.String() + "0\r\nX-Trailer: 1\r\n\r\n"
}

// TestSockets speaks HTTP/1.1 to the gateway byte by byte: whatever way a
// request is written, it is answered as curl's would be, and what is none is
// refused and ends the connection.
func TestSockets(t *testing.T) {
	t.Parallel()
	n := startNode(t, "-f", "examples/quickstart")
	iris, err := os.ReadFile(root + "/examples/quickstart/iris-request.json")
	if err != nil {
		t.Fatal(err)
	}
	want := n.post("/v2/models/iris/infer", string(iris))
	outputs := func(body string) string { _, after, _ := strings.Cut(body, `"outputs"`); return after }
	if want.status != 200 || outputs(want.body) == "" {
		t.Fatalf("%s", want)
	}
	const line = "POST /v2/models/iris/infer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
	length := "Content-Length: " + strconv.Itoa(len(iris)) + "\r\n\r\n"
	whole := line + length + string(iris)
	answers := func(t *testing.T, got raw) {
		t.Helper()
		if got.status != 200 || outputs(got.body) != outputs(want.body) {
			t.Errorf("%d %s, want %s", got.status, got.body, want.body)
		}
	}
	on := func(name string, f func(t *testing.T, c *net.TCPConn, r *bufio.Reader)) {
		t.Run(name, func(t *testing.T) {
			c := n.dial(t)
			f(t, c, bufio.NewReader(c))
		})
	}
	say := func(t *testing.T, c net.Conn, text string) {
		t.Helper()
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
	}
	on("byte by byte", func(t *testing.T, c *net.TCPConn, r *bufio.Reader) {
		for i := range len(whole) {
			say(t, c, whole[i:i+1])
		}
		answers(t, readAnswer(t, r, "POST"))
	})
	on("kept alive", func(t *testing.T, c *net.TCPConn, r *bufio.Reader) {
		for range 5 {
			say(t, c, whole)
			answers(t, readAnswer(t, r, "POST"))
		}
	})
	on("pipelined", func(t *testing.T, c *net.TCPConn, r *bufio.Reader) {
		say(t, c, whole+"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"+whole)
		answers(t, readAnswer(t, r, "POST"))
		if got := readAnswer(t, r, "GET"); got.body != "ok\n" {
			t.Errorf("%v", got)
		}
		answers(t, readAnswer(t, r, "POST"))
	})
	for _, size := range []int{1, 7, 1 << 20} {
		on(fmt.Sprintf("chunks of %d", size), func(t *testing.T, c *net.TCPConn, r *bufio.Reader) {
			say(t, c, line+"Transfer-Encoding: chunked\r\nTrailer: X-Trailer\r\n\r\n"+chunked(string(iris), size))
			answers(t, readAnswer(t, r, "POST"))
			if rest, err := io.ReadAll(r); len(rest) > 0 || err != nil { // a Content-Length beside them would have ended it elsewhere
				t.Errorf("the connection goes on with %q, %v", rest, err)
			}
		})
	}
	on("100-continue", func(t *testing.T, c *net.TCPConn, r *bufio.Reader) {
		say(t, c, line+"Expect: 100-continue\r\n"+length)
		if status, err := r.ReadString('\n'); err != nil || !strings.HasPrefix(status, "HTTP/1.1 100 ") {
			t.Fatalf("%q %v", status, err)
		}
		if _, err := r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		say(t, c, string(iris))
		answers(t, readAnswer(t, r, "POST"))
	})
	on("HTTP/1.0", func(t *testing.T, c *net.TCPConn, r *bufio.Reader) {
		say(t, c, strings.Replace(whole, "HTTP/1.1", "HTTP/1.0", 1))
		answers(t, readAnswer(t, r, "POST"))
		if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("the connection stays: %v", err)
		}
	})
	on("half closed", func(t *testing.T, c *net.TCPConn, r *bufio.Reader) {
		say(t, c, "GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		got := readAnswer(t, r, "GET")
		if got.status != 200 || !strings.Contains(got.body, `"ready":true`) {
			t.Errorf("%v", got)
		}
	})
	on("HEAD", func(t *testing.T, c *net.TCPConn, r *bufio.Reader) {
		for _, path := range []string{"/v2/models/iris", "/v1/models", "/v2/models/iris/ready", "/healthz"} {
			say(t, c, "HEAD "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n")
			if got := readAnswer(t, r, "HEAD"); got.status != 200 || got.body != "" {
				t.Errorf("%s: %v", path, got)
			}
		}
	})
	on("absolute target", func(t *testing.T, c *net.TCPConn, r *bufio.Reader) {
		say(t, c, "GET http://iris.default.localhost/v2/models/iris HTTP/1.1\r\nHost: ignored\r\n\r\n")
		if got := readAnswer(t, r, "GET"); got.status != 200 || !strings.Contains(got.body, `"xgboost"`) {
			t.Errorf("%v", got)
		}
	})
	on("events", func(t *testing.T, c *net.TCPConn, r *bufio.Reader) {
		body := `{"model":"chat","stream":true,"max_tokens":6,"messages":[{"role":"user","content":"Hello"}]}`
		say(t, c, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body)
		got := readAnswer(t, r, "POST")
		events := strings.Split(strings.TrimSuffix(got.body, "\n\n"), "\n\n")
		if got.status != 200 || !strings.HasPrefix(got.header.Get("Content-Type"), "text/event-stream") || len(events) < 6 || events[len(events)-1] != "data: [DONE]" {
			t.Errorf("%d %v %q", got.status, got.header, got.body)
		}
		say(t, c, whole) // the connection goes on
		answers(t, readAnswer(t, r, "POST"))
	})
	on("left in mid-stream", func(t *testing.T, c *net.TCPConn, r *bufio.Reader) {
		body := `{"model":"chat","stream":true,"max_tokens":100000,"messages":[{"role":"user","content":"Hello"}]}`
		say(t, c, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body)
		if _, err := r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		_ = c.SetLinger(0)
		_ = c.Close()
		eventually(t, "the replica is idle again", func() (bool, string) {
			m := n.get(n.admin + "/metrics").body
			return strings.Contains(m, `roundhouse_gateway_in_flight{service="default/chat"} 0`), m
		})
	})
	for name, bad := range map[string]string{
		"no HTTP":                "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
		"both lengths":           line + "Content-Length: 5\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
		"two lengths":            line + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
		"length with a sign":     line + "Content-Length: +5\r\n\r\nabcde",
		"unknown coding":         line + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"space before the colon": "GET /healthz HTTP/1.1\r\nHost : x\r\n\r\n",
		"no Host":                "GET /healthz HTTP/1.1\r\n\r\n",
		"two Hosts":              "GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
		"control in a header":    "GET /healthz HTTP/1.1\r\nHost: localhost\r\nA: b\x00c\r\n\r\n",
		"folded header":          "GET /healthz HTTP/1.1\r\nHost: localhost\r\n folded: y\r\n\r\n",
		"header too large":       "GET /healthz HTTP/1.1\r\nHost: localhost\r\nA: " + strings.Repeat("a", 100<<10) + "\r\n\r\n",
	} {
		on(name, func(t *testing.T, c *net.TCPConn, r *bufio.Reader) {
			_, _ = io.WriteString(c, bad+whole) // what follows must not be taken for a request
			refused := 0
			for {
				resp, err := http.ReadResponse(r, &http.Request{Method: "GET"})
				if err != nil {
					break
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode < 400 {
					t.Errorf("answered %d", resp.StatusCode)
				}
				refused++
			}
			if refused > 1 {
				t.Errorf("%d answers to one request", refused)
			}
		})
	}
	t.Run("bad chunk", func(t *testing.T) {
		c := n.dial(t)
		r := bufio.NewReader(c)
		say(t, c, line+"Transfer-Encoding: chunked\r\n\r\n5\r\n{\"inp\r\nnothex\r\n\r\n")
		if resp, err := http.ReadResponse(r, &http.Request{Method: "POST"}); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode < 400 {
				t.Errorf("answered %d", resp.StatusCode)
			}
		}
	})
	if got := n.post("/v2/models/iris/infer", string(iris)); got.status != 200 {
		t.Errorf("after all that: %s", got)
	}
}
