package http1

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// fed is a connection that gives bytes in pieces, then ends.
type fed struct {
	net.Conn
	left  []byte
	piece func() int
}

func (f *fed) Read(p []byte) (int, error) {
	if len(f.left) == 0 {
		return 0, io.EOF
	}
	n := copy(p, f.left[:min(len(f.left), max(1, f.piece()))])
	f.left = f.left[n:]
	return n, nil
}

func (f *fed) Close() error { return nil }

// outcome is what a client makes of an answer.
type outcome struct {
	status  int
	header  http.Header
	length  int64
	body    string
	trailer http.Header
	headErr error
	bodyErr error
}

// ours reads an answer with this package.
func ours(c *Client, method string, data []byte, piece func() int, room int) (o outcome) {
	x := &Response{conn: &conn{tcp: &fed{left: data, piece: piece}}, client: c, stop: func() bool { return true }}
	x.close = true // not for the pool
	if o.headErr = x.readHead(method); o.headErr != nil {
		return o
	}
	o.status, o.length, o.header = x.Status, x.Length, toHeader(x.Fields)
	var b []byte
	for p := make([]byte, room); o.bodyErr == nil; {
		var n int
		n, o.bodyErr = x.Read(p)
		b = append(b, p[:n]...)
	}
	if errors.Is(o.bodyErr, io.EOF) {
		o.bodyErr = nil
		o.trailer = toHeader(x.Trailer())
	}
	o.body = string(b)
	return o
}

func toHeader(fields []Field) http.Header {
	h := http.Header{}
	for _, f := range fields {
		h[f.Name] = append(h[f.Name], f.Value)
	}
	return h
}

// theirs reads it with net/http.
func theirs(method string, data []byte) (o outcome) {
	r := bufio.NewReader(bytes.NewReader(data))
	for range maxInterim + 1 {
		resp, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil {
			o.headErr = err
			return o
		}
		o.status, o.header, o.length = resp.StatusCode, resp.Header, resp.ContentLength
		if o.status/100 == 1 && o.status != 101 {
			continue
		}
		b, err := io.ReadAll(resp.Body)
		o.body, o.bodyErr = string(b), err
		o.trailer = resp.Trailer
		return o
	}
	o.headErr = errors.New("too many interim answers")
	return o
}

// withoutFraming leaves out the fields that net/http takes out of the header, or sorts into its
// other fields.
func withoutFraming(h http.Header) http.Header {
	h = maps.Clone(h)
	for _, name := range []string{"Transfer-Encoding", "Content-Length", "Trailer", "Connection"} {
		delete(h, name)
	}
	return h
}

// agree checks that what we accept means the same to net/http.
func agree(t *testing.T, data []byte, a, b outcome) {
	t.Helper()
	if a.headErr != nil {
		return
	}
	switch {
	case b.headErr != nil:
		t.Fatalf("%q: accepted, net/http says %v", data, b.headErr)
	case a.status != b.status:
		t.Fatalf("%q: status %d, net/http %d", data, a.status, b.status)
	case !maps.EqualFunc(withoutFraming(a.header), withoutFraming(b.header), slices.Equal):
		t.Fatalf("%q: header %q, net/http %q", data, a.header, b.header)
	case a.bodyErr == nil && b.bodyErr != nil:
		t.Fatalf("%q: body %q accepted, net/http %q and %v", data, a.body, b.body, b.bodyErr)
	case a.bodyErr == nil && a.body != b.body:
		t.Fatalf("%q: body %q, net/http %q", data, a.body, b.body)
	case a.bodyErr != nil && b.bodyErr == nil && !errors.Is(a.bodyErr, ErrMalformed):
		t.Fatalf("%q: body failed with %v, net/http takes it", data, a.bodyErr)
	case !strings.HasPrefix(a.body, b.body) && !strings.HasPrefix(b.body, a.body):
		t.Fatalf("%q: bodies %q and %q", data, a.body, b.body)
	}
}

// answers are whole ones, and what is wrong with others.
var answers = []struct {
	name, raw string
	refused   bool
}{
	{"length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Type: text/plain\r\n\r\nhello", false},
	{"lower case, no reason, bare LF", "HTTP/1.1 404\ncontent-length:2\nx-a:\t b \nx-a: c\n\nhi", false},
	{"chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;ext=1\r\nhello\r\nA\r\n0123456789\r\n0\r\n\r\n", false},
	{"trailer", "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nTrailer: X-Sum\r\n\r\n1\r\nx\r\n0\r\nX-Sum: 7\r\nx-late: 8\r\n\r\n", false},
	{"until close", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall of it", false},
	{"old", "HTTP/1.0 200 OK\r\n\r\nold", false},
	{"empty", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false},
	{"no content", "HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n", false},
	{"not modified", "HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\n\r\n", false},
	{"interim", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", false},
	{"same length twice", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", false},

	{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxy", true},
	{"list of lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\nx", true},
	{"signed length", "HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\nx", true},
	{"negative length", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nx", true},
	{"hex length", "HTTP/1.1 200 OK\r\nContent-Length: 0x1\r\n\r\nx", true},
	{"long length", "HTTP/1.1 200 OK\r\nContent-Length: 9999999999999999999\r\n\r\nx", true},
	{"empty length", "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nx", true},
	{"length and chunks", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", true},
	{"chunks and length", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n", true},
	{"chunks twice", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", true},
	{"gzip, chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", true},
	{"chunks in 1.0", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", true},
	{"folded", "HTTP/1.1 200 OK\r\nX-A: 1\r\n 2\r\nContent-Length: 0\r\n\r\n", true},
	{"space before colon", "HTTP/1.1 200 OK\r\nContent-Length : 1\r\n\r\nx", true},
	{"no colon", "HTTP/1.1 200 OK\r\nContent-Length\r\n\r\nx", true},
	{"no name", "HTTP/1.1 200 OK\r\n: 1\r\n\r\nx", true},
	{"NUL", "HTTP/1.1 200 OK\r\nX-A: a\x00b\r\n\r\nx", true},
	{"bare CR", "HTTP/1.1 200 OK\r\nX-A: a\rb\r\n\r\nx", true},
	{"switch", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", true},
	{"many interim", strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 6) + "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true},
	{"HTTP/2", "HTTP/2 200 OK\r\n\r\n", true},
	{"HTTP/1.2", "HTTP/1.2 200 OK\r\n\r\n", true},
	{"two digits", "HTTP/1.1 20 OK\r\n\r\n", true},
	{"status 099", "HTTP/1.1 099 OK\r\n\r\n", true},
	{"four digits", "HTTP/1.1 2000 OK\r\n\r\n", true},
	{"no status", "hello\r\n\r\n", true},
	{"huge header", "HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("a", 300<<10) + "\r\n\r\n", true},
	{"many fields", "HTTP/1.1 200 OK\r\n" + strings.Repeat("X-A: a\r\n", maxFields+1) + "\r\n", true},
}

// brokenBodies begin well.
var brokenBodies = map[string]string{
	"short":              "Content-Length: 5\r\n\r\nhell",
	"no chunk":           "Transfer-Encoding: chunked\r\n\r\n",
	"half a chunk":       "Transfer-Encoding: chunked\r\n\r\n5\r\nhel",
	"no last chunk":      "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
	"no trailer's end":   "Transfer-Encoding: chunked\r\n\r\n0\r\n",
	"size of LF":         "Transfer-Encoding: chunked\r\n\r\n1\nx\r\n0\r\n\r\n",
	"size with CR":       "Transfer-Encoding: chunked\r\n\r\n1\r;\r\nx\r\n0\r\n\r\n",
	"long chunk":         "Transfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n0\r\n\r\n",
	"hex prefix":         "Transfer-Encoding: chunked\r\n\r\n0x1\r\nx\r\n0\r\n\r\n",
	"negative size":      "Transfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n0\r\n\r\n",
	"overflowing size":   "Transfer-Encoding: chunked\r\n\r\n10000000000000001\r\nx\r\n0\r\n\r\n",
	"empty size":         "Transfer-Encoding: chunked\r\n\r\n;x\r\nx\r\n0\r\n\r\n",
	"long extension":     "Transfer-Encoding: chunked\r\n\r\n1;" + strings.Repeat("x", 600) + "\r\nx\r\n0\r\n\r\n",
	"trailer of no name": "Transfer-Encoding: chunked\r\n\r\n0\r\nnothing\r\n\r\n",
	"long trailer":       "Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + strings.Repeat("x", 5000) + "\r\n\r\n",
	"large trailer":      "Transfer-Encoding: chunked\r\n\r\n0\r\n" + strings.Repeat("X: "+strings.Repeat("x", 1000)+"\r\n", 20) + "\r\n",
}

func TestAnswers(t *testing.T) {
	c := client(t)
	for _, a := range answers {
		for _, piece := range []int{1, 3, 1 << 20} {
			o, std := ours(c, "POST", []byte(a.raw), func() int { return piece }, 64), theirs("POST", []byte(a.raw))
			agree(t, []byte(a.raw), o, std)
			if (o.headErr != nil) != a.refused || a.refused && !errors.Is(o.headErr, ErrMalformed) {
				t.Errorf("%s, in pieces of %d: %v", a.name, piece, o.headErr)
			}
			if !a.refused && (std.headErr != nil || o.bodyErr != nil || std.bodyErr != nil || o.body != std.body || o.length != std.length) {
				t.Errorf("%s: %+v, net/http %+v", a.name, o, std)
			}
			if a.name == "trailer" && (o.trailer.Get("X-Sum") != "7" || o.trailer.Get("X-Late") != "8") {
				t.Errorf("trailer %q", o.trailer)
			}
		}
	}
	for name, raw := range brokenBodies {
		raw = "HTTP/1.1 200 OK\r\n" + raw
		o := ours(c, "POST", []byte(raw), func() int { return 7 }, 64)
		agree(t, []byte(raw), o, theirs("POST", []byte(raw)))
		if o.headErr != nil || o.bodyErr == nil {
			t.Errorf("%s: %+v", name, o)
		}
	}
	o := ours(c, "HEAD", []byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"), func() int { return 9 }, 64)
	if o.headErr != nil || o.bodyErr != nil || o.length != 5 || o.body != "" {
		t.Errorf("HEAD: %+v", o)
	}
}

// FuzzAnswer: what is accepted means what it means to net/http, however it
// comes.
func FuzzAnswer(f *testing.F) {
	for _, a := range answers {
		if len(a.raw) < 1000 {
			f.Add([]byte(a.raw), uint64(1), false)
		}
	}
	for _, raw := range brokenBodies {
		f.Add([]byte("HTTP/1.1 200 OK\r\n"+raw), uint64(2), false)
	}
	c, err := New(DefaultConfig())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte, seed uint64, isHead bool) {
		method := "POST"
		if isHead {
			method = "HEAD"
		}
		rnd := rand.New(rand.NewPCG(seed, 1))
		piece, room := func() int { return rnd.IntN(20) }, 1+rnd.IntN(3*bufferSize)
		if seed%2 == 0 {
			piece = func() int { return 1 << 20 }
		}
		agree(t, data, ours(c, method, data, piece, room), theirs(method, data))
	})
}

// TestWellFormed makes answers by the rules: each is accepted.
func TestWellFormed(t *testing.T) {
	c := client(t)
	rnd := rand.New(rand.NewPCG(8, 8))
	for range 3000 {
		body := strings.Repeat("a\r\nb", rnd.IntN(4000))
		var b strings.Builder
		_, _ = fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", 200+rnd.IntN(4), []string{"OK", "", "Not So Bad"}[rnd.IntN(3)])
		for i := range rnd.IntN(20) {
			_, _ = fmt.Fprintf(&b, "x-h%d:%s%s\r\n", i, strings.Repeat(" ", rnd.IntN(3)), strings.Repeat("v", rnd.IntN(400)))
		}
		b204 := strings.Contains(b.String()[:13], "204")
		switch kind := rnd.IntN(3); {
		case kind == 0 || b204:
			_, _ = fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(body), body)
		case kind == 1:
			b.WriteString("transfer-encoding: chunked\r\n\r\n")
			for rest := body; rest != ""; {
				n := 1 + rnd.IntN(len(rest))
				_, _ = fmt.Fprintf(&b, "%s\r\n%s\r\n", strconv.FormatInt(int64(n), 16), rest[:n])
				rest = rest[n:]
			}
			b.WriteString("0\r\n\r\n")
		default:
			b.WriteString("\r\n" + body)
		}
		o := ours(c, "GET", []byte(b.String()), func() int { return 1 + rnd.IntN(9000) }, 1+rnd.IntN(9000))
		if o.headErr != nil || o.bodyErr != nil || !b204 && o.body != body {
			t.Fatalf("%.300q: %v %v, %d of %d bytes", b.String(), o.headErr, o.bodyErr, len(o.body), len(body))
		}
	}
}

// TestCutsAndSplits compares the whole client with net/http's transport over
// TCP: a server sends answers in two parts, and cuts them at every byte.
func TestCutsAndSplits(t *testing.T) {
	scripts := []string{answers[0].raw, answers[1].raw, answers[2].raw, answers[3].raw, answers[4].raw, answers[7].raw, answers[9].raw}
	address := script(t, func(_ int, c net.Conn, r *bufio.Reader) {
		said, err := request(r)
		if err != nil {
			return
		}
		var which, at int
		var cut bool
		if _, err := fmt.Sscanf(said, "POST /x?y=1 %d %d %t", &which, &at, &cut); err != nil {
			t.Error(err)
			return
		}
		raw := scripts[which]
		_, _ = io.WriteString(c, raw[:at])
		if !cut {
			_, _ = io.WriteString(c, raw[at:])
		}
	})
	c := client(t)
	std := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	for which, raw := range scripts {
		for at := range len(raw) + 1 {
			for _, cut := range []bool{true, false} {
				said := fmt.Sprintf("%d %d %t", which, at, cut)
				q := post(address, said)
				var a outcome
				x, err := c.Do(t.Context(), q)
				if err == nil {
					b, readErr := io.ReadAll(x)
					a = outcome{status: x.Status, header: toHeader(x.Fields), body: string(b), bodyErr: readErr}
					_ = x.Close()
				}
				a.headErr = err
				req, _ := http.NewRequestWithContext(t.Context(), "POST", "http://"+address+"/x?y=1", strings.NewReader(said))
				var o outcome
				resp, err := std.RoundTrip(req)
				if err == nil {
					b, readErr := io.ReadAll(resp.Body)
					o = outcome{status: resp.StatusCode, header: resp.Header, body: string(b), bodyErr: readErr}
					_ = resp.Body.Close()
				}
				o.headErr = err
				if (a.headErr == nil) != (o.headErr == nil) || (a.bodyErr == nil) != (o.bodyErr == nil) || a.status != o.status || a.body != o.body {
					t.Fatalf("%q at %d, cut %v: %+v, net/http %+v", raw, at, cut, a, o)
				}
			}
		}
	}
}

// TestSlowAndSilent: a server that dribbles is read; one that stops is given up
// on.
func TestSlowAndSilent(t *testing.T) {
	release := make(chan struct{})
	address := script(t, func(n int, c net.Conn, r *bufio.Reader) {
		if _, err := request(r); err != nil {
			return
		}
		for _, b := range []byte(answers[3].raw) {
			_, _ = c.Write([]byte{b})
			if n == 1 && b == ':' {
				<-release
				return
			}
		}
	})
	c := client(t)
	x, err := c.Do(t.Context(), get(address))
	if err != nil || body(t, x) != "x" {
		t.Fatalf("%v", err)
	}
	q := get(address)
	q.Timeout = 300 * time.Millisecond
	var failed *Error
	if _, err := c.Do(t.Context(), q); !errors.Is(err, ErrTimeout) || !errors.As(err, &failed) || failed.Unsent {
		t.Errorf("a silent server: %v", err)
	}
	close(release)
}
