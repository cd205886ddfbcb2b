package gateway

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
)

// narrow listens with a receive buffer so small that a long body waits for its
// reader.
func narrow(t *testing.T) net.Listener {
	t.Helper()
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 2048) // the kernel's minimum does as well
		})
	}}
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// TestBodyMadeLongByItsName: a body that only the replica's longer name makes
// too long to be written at once is not overwritten by other requests' while a
// replica that has begun to answer still reads it.
func TestBodyMadeLongByItsName(t *testing.T) {
	r := newRig(t, nil)
	l, goOn, got := narrow(t), make(chan struct{}), make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		in := bufio.NewReaderSize(c, 16)
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
		<-goOn
		b, _ := io.ReadAll(req.Body) // what came is compared
		got <- string(b)
		_, _ = io.WriteString(c, "0\r\n\r\n")
	}()
	renamed := pool("first", l.Addr().String())
	renamed.ServedName = "a-name-that-is-longer-than-the-one-that-was-asked-for"
	r.d.SetPool(renamed)
	r.d.SetPool(pool("second", replicaServer(t, echo)))

	body := func(model, fill string) string {
		b := `{"model":"` + model + `","prompt":"`
		return b + strings.Repeat(fill, http1.InlineBytes-len(b)-2) + `"}`
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/v1/completions", strings.NewReader(body("first", "a")))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.ReadFull(resp.Body, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		r.send("POST", "/v1/completions", body("second", "b")).want(t, 200)
	}
	close(goOn)
	if b, want := <-got, strings.Replace(body("first", "a"), "first", renamed.ServedName, 1); b != want {
		t.Errorf("the replica got %d bytes, %d of them another request's", len(b), strings.Count(b, "b")-strings.Count(want, "b"))
	}
}

// deadlines is a ResponseWriter that counts them.
type deadlines struct {
	http.ResponseWriter
	set int
}

func (d *deadlines) SetReadDeadline(time.Time) error { d.set++; return nil }

// TestReaderLeavesTheNextRequestAlone: what reads a body past its answer does
// not set the deadline of the connection's next request.
func TestReaderLeavesTheNextRequestAlone(t *testing.T) {
	d := &deadlines{}
	p := &patientReader{rc: http.NewResponseController(d), from: strings.NewReader("body"), timeout: time.Second}
	if n, err := p.Read(make([]byte, 2)); n != 2 || err != nil || d.set != 1 {
		t.Fatal(n, err, d.set)
	}
	p.stop()
	if n, err := p.Read(make([]byte, 2)); n != 0 || !errors.Is(err, http.ErrBodyReadAfterClose) || d.set != 1 {
		t.Errorf("%d bytes, %v, %d deadlines", n, err, d.set)
	}
}
