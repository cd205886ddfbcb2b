package http1

import (
	"bufio"
	"io"
	"net"
	"testing"
)

// TestLateBodyOfABodilessAnswer: a server that sends a body with an answer that
// has none, and late, does not answer the next request with it.
func TestLateBodyOfABodilessAnswer(t *testing.T) {
	const evil = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
	for _, c := range []struct{ name, method, head string }{
		{"HEAD", "HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 42\r\n\r\n"},
		{"HEAD in chunks", "HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"},
		{"204", "GET", "HTTP/1.1 204 No Content\r\nContent-Length: 42\r\n\r\n"},
		{"204 in chunks", "GET", "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n"},
		{"304", "GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 42\r\n\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			address := many(t, func(n int, conn net.Conn, r *bufio.Reader) {
				for asked := 0; ; asked++ {
					if _, err := request(r); err != nil {
						return
					}
					answer := ok
					switch {
					case n == 0 && asked == 0:
						answer = c.head
					case n == 0:
						answer = evil + ok
					}
					_, _ = io.WriteString(conn, answer)
				}
			})
			client, err := New(DefaultConfig())
			if err != nil {
				t.Fatal(err)
			}
			defer client.CloseIdle()
			q := post(address, "")
			q.Method = c.method
			if b, err := ask(t, client, q); b != "" || err != nil {
				t.Fatal(b, err)
			}
			if b, err := ask(t, client, post(address, "x")); b != "ok" || err != nil {
				t.Errorf("the next request was answered %q, %v", b, err)
			}
		})
	}
}
