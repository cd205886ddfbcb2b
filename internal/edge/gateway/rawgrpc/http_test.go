package rawgrpc

import (
	"bytes"
	compress "compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// TestMessageBounds: a message over the bound is refused, however it is written.
func TestMessageBounds(t *testing.T) {
	atEveryPort(t, func(c *Config, _ *dispatch.Config) { c.MaxMessageBytes = 10_000 }, func(t *testing.T, r *rig, conn *grpc.ClientConn) {
		e := startEcho(t, "a")
		r.route("test.v1.Echo", routing.Handling{}, r.plainPool("echo", e.address))
		for _, o := range [][]grpc.CallOption{{atHost(host)}, {atHost(host), grpc.UseCompressor(gzip.Name)}} {
			err := conn.Invoke(t.Context(), methodUnary, text(strings.Repeat("x", 10_001)), &wrapperspb.StringValue{}, o...)
			want(t, err, codes.ResourceExhausted)
			if err := conn.Invoke(t.Context(), methodUnary, text(strings.Repeat("x", 9_900)), &wrapperspb.StringValue{}, o...); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestBombs: what a client's messages unpack to counts as it grows, for the client first,
// and before a replica has them.
func TestBombs(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.MaxMessageBytes, c.MaxBufferedBytes = 1<<20, 1<<20 })
	e := startEcho(t, "a")
	r.route("test.v1.Echo", routing.Handling{}, r.plainPool("echo", e.address))
	bomb := text(strings.Repeat("x", 900_000))
	for _, o := range [][]grpc.CallOption{{atHost(host)}, {atHost(host), grpc.UseCompressor(gzip.Name)}} {
		var trailer metadata.MD
		err := overHTTP(t, r, false).Invoke(t.Context(), methodUnary, bomb, &wrapperspb.StringValue{}, append(o, grpc.Trailer(&trailer))...)
		want(t, err, codes.ResourceExhausted, "client's calls fill its share")
		if len(trailer[keyRetryAfter]) == 0 {
			t.Errorf("no %s in %v", keyRetryAfter, trailer)
		}
		// Half of it fits, and no more once others have the rest.
		half := text(strings.Repeat("x", 400_000))
		if err := overHTTP(t, r, false).Invoke(t.Context(), methodUnary, half, &wrapperspb.StringValue{}, o...); err != nil {
			t.Error(err)
		}
		until(t, func() bool { return r.server.buffered.Used() == 0 })
		r.server.buffered.Add(700_000)
		err = overHTTP(t, r, false).Invoke(t.Context(), methodUnary, half, &wrapperspb.StringValue{}, o...)
		want(t, err, codes.ResourceExhausted, "buffer for messages is full")
		r.server.buffered.Give(700_000)
	}
	own := &oip.ModelReadyRequest{Name: strings.Repeat("x", 1<<20)}
	err := overHTTP(t, r, false).Invoke(t.Context(), oip.GRPCInferenceService_ModelReady_FullMethodName, own, &oip.ModelReadyResponse{}, grpc.UseCompressor(gzip.Name))
	want(t, err, codes.ResourceExhausted)
}

// TestCutOff: a message whose end is missing, compressed or not, reaches nobody.
func TestCutOff(t *testing.T) {
	r := newRig(t, nil)
	var packed bytes.Buffer
	w := compress.NewWriter(&packed)
	_, _ = w.Write([]byte(strings.Repeat("some text", 1000)))
	_ = w.Close()
	for name, c := range map[string]struct {
		flag byte
		size int // as stated
		sent []byte
	}{
		"plain":      {0, 10, []byte("123456789")},
		"nothing":    {0, 10, nil},
		"compressed": {1, packed.Len() - 12, packed.Bytes()[:packed.Len()-12]},
	} {
		req := httptest.NewRequest(http.MethodPost, methodUnary, bytes.NewReader(append([]byte{c.flag, 0, 0, 0, byte(c.size)}, c.sent...)))
		req.Header.Set("Grpc-Encoding", "gzip")
		h, err := newHTTPStream(httptest.NewRecorder(), req, r.server)
		if err != nil {
			t.Fatal(err)
		}
		in := &frame{held: &share{budget: &r.server.buffered}}
		want(t, h.RecvMsg(in), codes.Internal)
		if in.size() != 0 || r.server.buffered.Used() != 0 {
			t.Errorf("%s: %d bytes, %d counted", name, in.size(), r.server.buffered.Used())
		}
		h.cancel()
	}
}

// TestCallsOverHTTP: a connection to the HTTP port has as many calls under way as one to the
// gRPC port.
func TestCallsOverHTTP(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.MaxCalls = 2 })
	e := startEcho(t, "a")
	r.route("test.v1.Echo", routing.Handling{}, r.plainPool("echo", e.address))
	conn := overHTTP(t, r, false)
	var open []grpc.ClientStream
	for range 2 {
		s := both(t.Context(), t, conn, methodHello)
		if _, err := s.Header(); err != nil {
			t.Fatal(err)
		}
		open = append(open, s)
	}
	more := func(conn *grpc.ClientConn) error {
		return conn.Invoke(t.Context(), methodUnary, text("m"), &wrapperspb.StringValue{}, atHost(host))
	}
	want(t, more(conn), codes.ResourceExhausted, "2 calls under way")
	if err := more(overHTTP(t, r, false)); err != nil {
		t.Error(err)
	}
	_ = open[0].CloseSend()
	if _, err := got(open[0]); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	until(t, func() bool { return more(conn) == nil }) // once its handler has returned
}

// TestStopOverHTTP: calls over the HTTP port go on while its server waits for them.
func TestStopOverHTTP(t *testing.T) {
	r := newRig(t, nil)
	e := startEcho(t, "a")
	r.route("test.v1.Echo", routing.Handling{}, r.plainPool("echo", e.address))
	conn := overHTTP(t, r, false)
	s := both(t.Context(), t, conn, methodBoth)
	exchange := func() {
		t.Helper()
		if err := s.SendMsg(text("m")); err != nil {
			t.Fatal(err)
		}
		if m, err := got(s); err != nil || m != "a m" {
			t.Fatalf("%q %v", m, err)
		}
	}
	exchange()
	r.stop()
	if err := <-r.served; err != nil {
		t.Fatal(err)
	}
	exchange()
	_ = s.CloseSend()
	if _, err := got(s); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	until(t, func() bool {
		r.server.upstreams.mu.Lock()
		defer r.server.upstreams.mu.Unlock()
		return r.server.upstreams.closed
	})
}

// FuzzHTTPMessages: whatever a client sends as messages is read within the bound, and
// gives its memory back.
func FuzzHTTPMessages(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 2, 'h', 'i', 0, 0, 0, 0, 0}, "")
	f.Add([]byte{1, 0, 0, 0, 2, 'h', 'i'}, "gzip")
	f.Add([]byte{0, 255, 255, 255, 255}, "identity")
	f.Add([]byte{7, 0, 0, 0, 1, 0}, "br")
	r := newRig(f, func(c *Config, _ *dispatch.Config) { c.MaxMessageBytes = 1000 })
	f.Fuzz(func(t *testing.T, body []byte, coding string) {
		req := httptest.NewRequest(http.MethodPost, methodUnary, strings.NewReader(string(body)))
		req.Header["Grpc-Encoding"] = []string{coding}
		h, err := newHTTPStream(httptest.NewRecorder(), req, r.server)
		if err != nil {
			t.Fatal(err)
		}
		defer h.cancel()
		for range len(body) + 1 {
			in := &frame{held: &share{budget: &r.server.buffered}}
			err := h.RecvMsg(in)
			if size := in.size(); size > 1000 || err != nil && size > 0 || r.server.buffered.Used() != int64(size) {
				t.Fatalf("%d bytes, %d counted, and %v", size, r.server.buffered.Used(), err)
			}
			if in.free(); err != nil {
				return
			}
		}
		t.Fatal("more messages than bytes")
	})
}

// FuzzHTTPMetadata: a client's metadata and timeout are read, or the call is refused.
func FuzzHTTPMetadata(f *testing.F) {
	f.Add("X-A-Bin", "AQ==", "1S")
	f.Add("x-a-bin", "*", "99999999H")
	f.Add("Te", "trailers", "")
	r := newRig(f, nil)
	f.Fuzz(func(t *testing.T, name, value, timeout string) {
		req := httptest.NewRequest(http.MethodPost, methodUnary, http.NoBody)
		req.Header[name] = []string{value}
		req.Header["Grpc-Timeout"] = []string{timeout}
		h, err := newHTTPStream(httptest.NewRecorder(), req, r.server)
		if err != nil {
			return
		}
		h.cancel()
		if limit, ok := timeoutOf(timeout); timeout != "" && (!ok || limit < 0) {
			t.Fatalf("%q is %v", timeout, limit)
		}
		for _, c := range []byte(percentEncoded(value)) {
			if c < ' ' || c > '~' {
				t.Fatalf("%q is encoded as %q", value, percentEncoded(value))
			}
		}
	})
}
