package gateway

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
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
