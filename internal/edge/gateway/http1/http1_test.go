package http1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func client(t testing.TB) *Client {
	t.Helper()
	c, err := New(DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdle)
	return c
}

// get is a request without a body, post one with one.
func get(address string) *Request {
	return &Request{Address: address, Host: address, Method: "GET", Target: "/x?y=1", Timeout: 10 * time.Second}
}

func post(address string, parts ...string) *Request {
	q := get(address)
	q.Method = "POST"
	for _, s := range parts {
		q.Body = append(q.Body, []byte(s))
		q.Length += int64(len(s))
	}
	return q
}

// script accepts connections and has serve talk on each.
func script(t testing.TB, serve func(n int, c net.Conn, r *bufio.Reader)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(n, c, bufio.NewReader(c))
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().String()
}

// request reads one request whole.
func request(r *bufio.Reader) (string, error) {
	q, err := http.ReadRequest(r)
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(q.Body)
	return q.Method + " " + q.RequestURI + " " + string(b), err
}

func echo(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	w.Header().Set("X-Seen", r.Header.Get("X-Asked"))
	_, _ = io.WriteString(w, r.Method+" "+r.RequestURI+" "+string(b))
}

func body(t testing.TB, x *Response) string {
	t.Helper()
	b, err := io.ReadAll(x)
	if err != nil {
		t.Fatalf("body: %v after %q", err, b)
	}
	return string(b)
}

func TestRequests(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(echo))
	defer s.Close()
	address := s.Listener.Addr().String()
	c := client(t)
	long := strings.Repeat("0123456789", 100_000)
	for _, k := range []struct {
		name string
		q    *Request
		want string
	}{
		{"get", get(address), "GET /x?y=1 "},
		{"post in parts", post(address, "a", "", "b", "c"), "POST /x?y=1 abc"},
		{"empty post", post(address), "POST /x?y=1 "},
		{"long", post(address, "a", long), "POST /x?y=1 a" + long},
		{"streamed", &Request{Address: address, Host: "h", Method: "PUT", Target: "/t", Body: [][]byte{[]byte("head ")},
			Tail: strings.NewReader(long), Length: int64(5 + len(long)), Timeout: time.Minute}, "PUT /t head " + long},
		{"chunked", &Request{Address: address, Host: "h", Method: "PUT", Target: "/t", Body: [][]byte{[]byte("head "), []byte("and ")},
			Tail: strings.NewReader(long), Length: -1, Timeout: time.Minute}, "PUT /t head and " + long},
		{"chunked, nothing held", &Request{Address: address, Host: "h", Method: "PUT", Target: "/t",
			Tail: strings.NewReader("tail"), Length: -1, Timeout: time.Minute}, "PUT /t tail"},
	} {
		k.q.Fields = AppendField(nil, "X-Asked", "a\r\nb")
		x, err := c.Do(t.Context(), k.q)
		if err != nil {
			t.Fatalf("%s: %v", k.name, err)
		}
		if got := body(t, x); got != k.want || x.Status != 200 {
			t.Errorf("%s: %d %.100q, want %.100q", k.name, x.Status, got, k.want)
		}
		seen := ""
		for _, f := range x.Fields {
			if f.Name == "X-Seen" {
				seen = f.Value
			}
		}
		if seen != "a  b" {
			t.Errorf("%s: field %q", k.name, seen)
		}
	}
}

func TestCancel(t *testing.T) {
	arrived := make(chan struct{})
	address := script(t, func(_ int, c net.Conn, r *bufio.Reader) {
		_, _ = request(r)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\npart")
		arrived <- struct{}{}
		_, _ = io.Copy(io.Discard, r) // until the client closes
	})
	ctx, cancel := context.WithCancel(t.Context())
	x, err := client(t).Do(ctx, get(address))
	if err != nil {
		t.Fatal(err)
	}
	<-arrived
	cancel()
	if b, err := io.ReadAll(x); !errors.Is(err, context.Canceled) {
		t.Errorf("%q %v", b, err)
	}
}
