package gateway

import (
	"bufio"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// rawServer answers every request with 1 KB, at hardly any cost.
func rawServer(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = l.Close() })
	body := strings.Repeat("x", 1000)
	answer := []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n" + body)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				r := bufio.NewReader(c)
				for {
					n := 0
					for {
						line, err := r.ReadSlice('\n')
						if err != nil {
							return
						}
						if len(line) == 2 {
							break
						}
						if v, ok := strings.CutPrefix(string(line), "Content-Length: "); ok {
							n, _ = strconv.Atoi(strings.TrimSpace(v))
						}
					}
					if _, err := r.Discard(n); err != nil {
						return
					}
					if _, err := c.Write(answer); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// BenchmarkForward is one 2.2 KB request for 1 KB over 64 connections. Client
// and upstream run beside, and allocate next to nothing.
func BenchmarkForward(b *testing.B) {
	r := newRig(b, nil)
	r.d.SetPool(pool("bench", rawServer(b)))
	body := `{"model":"bench","messages":[{"role":"user","content":"` + strings.Repeat("word and ", 240) + `"}]}`
	request := fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	var group sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for i := range 64 {
		group.Go(func() {
			c, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
			if err != nil {
				b.Error(err)
				return
			}
			defer func() { _ = c.Close() }()
			answers := bufio.NewReader(c)
			for range b.N/64 + min(1, max(0, b.N%64-i)) {
				if _, err := c.Write(request); err != nil {
					b.Error(err)
					return
				}
				for {
					line, err := answers.ReadSlice('\n')
					if err != nil {
						b.Error(err)
						return
					}
					if len(line) == 2 {
						break
					}
				}
				if _, err := answers.Discard(1000); err != nil {
					b.Error(err)
				}
			}
		})
	}
	group.Wait()
}
