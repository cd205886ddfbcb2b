package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A part is a small server of the gateway's chapter, run as a process of its
// own: `bench part NAME LISTEN [TARGET]`; those of the models' chapter serve a
// file, or read one and end.
func part(args []string) error {
	usage := errors.New("usage: bench part upstream LISTEN | relay LISTEN TARGET | reverseproxy LISTEN TARGET | hub LISTEN FILE | file LISTEN FILE | raw warm|cold FILE | tensors warm|cold FILE")
	if len(args) < 2 || args[0] != "upstream" && len(args) < 3 {
		return usage
	}
	if args[0] == "raw" || args[0] == "tensors" {
		return readPart(args[0], args[2], args[1] == "cold")
	}
	l, err := net.Listen("tcp", args[1])
	if err != nil {
		return err
	}
	switch args[0] {
	case "upstream":
		return accept(l, serveUpstream)
	case "relay":
		return accept(l, func(c net.Conn) { relay(c, args[2]) })
	case "reverseproxy":
		return http.Serve(l, reverseProxy(args[2]))
	case "hub":
		return serveHub(l, args[2])
	case "file":
		return serveFile(l, args[2])
	}
	return usage
}

func accept(l net.Listener, serve func(net.Conn)) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			serve(c)
			_ = c.Close() // the client sees it
		}()
	}
}

// relay copies bytes both ways: the least that anything between costs in Go.
func relay(c net.Conn, target string) {
	up, err := net.Dial("tcp", target)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	var both sync.WaitGroup
	pass := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // ends with either connection
		_ = to.(*net.TCPConn).CloseWrite()
	}
	both.Go(func() { pass(up, c) })
	both.Go(func() { pass(c, up) })
	both.Wait()
	_ = up.Close()
}

// pooledBuffers are httputil's copy buffers.
type pooledBuffers struct{ sync.Pool }

func (p *pooledBuffers) Get() []byte  { return *p.Pool.Get().(*[]byte) }
func (p *pooledBuffers) Put(b []byte) { p.Pool.Put(&b) }

// reverseProxy is net/http/httputil's with what is known to make it faster:
// connections enough, pooled buffers, no compression.
func reverseProxy(target string) http.Handler {
	to := &url.URL{Scheme: "http", Host: target}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: &http.Transport{MaxIdleConns: 4096, MaxIdleConnsPerHost: 4096, IdleConnTimeout: time.Minute,
			DisableCompression: true},
		BufferPool: &pooledBuffers{sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Else an answer that begins before the request's end was read closes the
		// request's body under the transport, which then cuts the answer.
		_ = http.NewResponseController(w).EnableFullDuplex()
		proxy.ServeHTTP(w, r)
	})
}

// How the upstream answers is said by the first bytes of a request's body.
const (
	wantEvents = `{"stream":true` // an event every eventPause, eventCount of them
	wantHold   = `{"stream":1`    // one event, then silence until the client leaves
	eventPause = 2 * time.Millisecond
	eventCount = 300
)

// answerOfOneKB is an answer of about 1 KB.
var answerOfOneKB = func() []byte {
	body := `{"id":"x","object":"chat.completion","model":"bench","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"` +
		strings.Repeat("an answer ", 80) + `"}}],"usage":{"prompt_tokens":500,"completion_tokens":200,"total_tokens":700}}`
	return fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}()

const eventsHeader = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"

// serveUpstream answers as a model server does, at the least cost: it should
// not matter beside what is measured.
func serveUpstream(c net.Conn) {
	r := bufio.NewReaderSize(c, 8<<10)
	for {
		length := 0
		for {
			line, err := r.ReadSlice('\n')
			if err != nil {
				return
			}
			if len(line) <= 2 {
				break
			}
			if name, value, ok := bytes.Cut(line, []byte(":")); ok && bytes.EqualFold(name, []byte("content-length")) {
				length, _ = strconv.Atoi(string(bytes.TrimSpace(value))) // 0 shows as a wrong answer
			}
		}
		start, _ := r.Peek(min(length, len(wantEvents)))
		events, hold := string(start) == wantEvents, strings.HasPrefix(string(start), wantHold)
		if _, err := r.Discard(length); err != nil {
			return
		}
		var err error
		switch {
		case hold:
			_, _ = io.WriteString(c, eventsHeader+"10\r\ndata: {\"n\":1}\n\n\r\n")
			_, _ = r.ReadByte() // until the client leaves
			return
		case events:
			err = sendEvents(c)
		default:
			_, err = c.Write(answerOfOneKB)
		}
		if err != nil {
			return
		}
	}
}

// sendEvents sends events that say when they were sent, in nanoseconds since
// 1970.
func sendEvents(c net.Conn) error {
	if _, err := io.WriteString(c, eventsHeader); err != nil {
		return err
	}
	tick := time.NewTicker(eventPause)
	defer tick.Stop()
	for range eventCount {
		<-tick.C
		event := fmt.Sprintf("data: {\"sent\":%d,\"delta\":\"%s\"}\n\n", time.Now().UnixNano(), strings.Repeat("token ", 10))
		if _, err := fmt.Fprintf(c, "%x\r\n%s\r\n", len(event), event); err != nil {
			return err
		}
	}
	_, err := io.WriteString(c, "0\r\n\r\n")
	return err
}
