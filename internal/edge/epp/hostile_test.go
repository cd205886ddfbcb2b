package epp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	pb "roundhouse.dev/roundhouse/api/extproc"
	"roundhouse.dev/roundhouse/test/loopback"
)

func headersSaying(m *pb.HeaderMutation) *pb.ProcessingResponse {
	return &pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestHeaders{RequestHeaders: &pb.HeadersResponse{Response: &pb.CommonResponse{HeaderMutation: m}}}}
}

func mutated(m *pb.BodyMutation) *pb.ProcessingResponse {
	return &pb.ProcessingResponse{Response: &pb.ProcessingResponse_RequestBody{RequestBody: &pb.BodyResponse{Response: &pb.CommonResponse{BodyMutation: m}}}}
}

// TestMisbehaves: a picker that misbehaves, in each way, gives no answer, and
// costs no more than its bounds.
func TestMisbehaves(t *testing.T) {
	const good = "10.0.0.1:8000"
	long := strings.Repeat("x", 1<<20)
	for name, c := range map[string]struct {
		serve func(*testing.T, stream) error
		want  Reason
		text  string // within the message
	}{
		"silent":              {func(_ *testing.T, s stream) error { <-s.Context().Done(); return nil }, Timeout, "gave no answer in time"},
		"silent after header": {func(t *testing.T, s stream) error { s.to(t, good); <-s.Context().Done(); return nil }, Timeout, ""},
		"hangs up":            {func(*testing.T, stream) error { return nil }, Broken, "ended the conversation"},
		"hangs up halfway":    {func(t *testing.T, s stream) error { s.to(t, good); return nil }, Broken, "ended the conversation"},
		"fails":               {func(*testing.T, stream) error { return status.Error(codes.Internal, "out of\nluck") }, Broken, "out of luck"},
		"cancels":             {func(*testing.T, stream) error { return status.Error(codes.Canceled, "no") }, Broken, "cancelled"},
		"has no room":         {func(*testing.T, stream) error { return status.Error(codes.ResourceExhausted, "no") }, TooLarge, ""},
		"is going":            {func(*testing.T, stream) error { return status.Error(codes.Unavailable, "bye") }, Unreachable, "bye"},
		"names nobody": {func(t *testing.T, s stream) error {
			s.say(t, headersSaying(nil))
			s.body(t, true, long)
			return s.rest()
		}, NoEndpoint, ""},
		"names rubbish": {func(t *testing.T, s stream) error {
			s.to(t, "localhost:80, 10.0.0.1, :8000, 10.0.0.1:99999,,")
			s.body(t, true, long)
			return s.rest()
		}, NoEndpoint, ""},
		"names another's": {func(t *testing.T, s stream) error {
			s.to(t, "169.254.169.254:80,[::1]:8000")
			s.body(t, true, long)
			return s.rest()
		}, Foreign, "169.254.169.254:80"},
		"a long body": {func(t *testing.T, s stream) error {
			s.to(t, good)
			for range 5 {
				s.body(t, false, long)
			}
			return s.rest()
		}, TooLarge, "a body over"},
		"a long message": {func(t *testing.T, s stream) error { s.body(t, true, strings.Repeat("y", 5<<20)); return s.rest() }, TooLarge, "larger than max"},
		"many headers": {func(t *testing.T, s stream) error {
			s.say(t, headersSaying(&pb.HeaderMutation{RemoveHeaders: make([]string, maxChanges+1)}))
			return s.rest()
		}, TooLarge, "headers"},
		"long headers": {func(t *testing.T, s stream) error {
			s.to(t, good, "x-long", strings.Repeat("z", maxChangedBytes))
			return s.rest()
		}, TooLarge, "headers"},
		"no end": {func(t *testing.T, s stream) error {
			s.to(t, good)
			for s.SendMsg(mutated(&pb.BodyMutation{Mutation: &pb.BodyMutation_StreamedResponse{StreamedResponse: &pb.StreamedBodyResponse{}}})) == nil {
			}
			return nil
		}, TooLarge, "too many messages"},
		"two bodies": {func(t *testing.T, s stream) error {
			s.body(t, true, long)
			s.body(t, true, long)
			return s.rest()
		}, NoEndpoint, ""},
		"out of turn": {func(t *testing.T, s stream) error {
			s.say(t, &pb.ProcessingResponse{Response: &pb.ProcessingResponse_ResponseHeaders{}})
			return s.rest()
		}, Broken, "has not begun"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := picker(t, func(s stream) error { return c.serve(t, s) })
			k := client(t, target, func(c *Config) {
				c.MaxBodyBytes = 2 << 20
				if c.Timeout = 5 * time.Minute; strings.HasPrefix(name, "silent") {
					c.Timeout = 300 * time.Millisecond
				}
				c.AnswerTimeout = 50 * time.Millisecond
			})
			r := request(long)
			r.Within = func(a string) bool { return a == good }
			begun := time.Now()
			v, err := k.Ask(t.Context(), pool, r)
			if err == nil {
				t.Fatalf("it was followed to %v", v.Endpoints())
			}
			if why := reason(err); why != c.want || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 700 {
				t.Errorf("%s: %v, want %s %q", why, err, c.want, c.text)
			}
			if took := time.Since(begun); took > time.Minute {
				t.Errorf("it took %v", took)
			}
			if n := k.streams.Load(); n != 0 {
				t.Errorf("%d streams are left", n)
			}
		})
	}
}

// rest reads what comes until the end.
func (s stream) rest() error {
	for {
		if _, err := s.recv(); err != nil {
			return err
		}
	}
}

// TestImmediate: a picker's own answer is passed on, within what an answer may
// be.
func TestImmediate(t *testing.T) {
	for name, c := range map[string]struct {
		status, want int
		body         int
	}{"shed": {429, 429, 10}, "no status": {0, 500, 10}, "informational": {101, 500, 0}, "long": {503, 503, 2 << 20}} {
		t.Run(name, func(t *testing.T) {
			target := picker(t, func(s stream) error {
				s.say(t, &pb.ProcessingResponse{Response: &pb.ProcessingResponse_ImmediateResponse{ImmediateResponse: &pb.ImmediateResponse{
					Status: &pb.HttpStatus{Code: int32(c.status)}, Body: make([]byte, c.body),
					Headers: &pb.HeaderMutation{SetHeaders: []*pb.HeaderValueOption{{Header: value("retry-after", "7")}, {Header: value("content-length", "1")}, {Header: value("bad name", "1")}}}}}})
				return nil // before the body was read
			})
			_, err := client(t, target, nil).Ask(t.Context(), pool, request(strings.Repeat("x", 1<<20)))
			var own *Immediate
			if !errors.As(err, &own) {
				t.Fatal(err)
			}
			if own.Status != c.want || len(own.Body) != min(c.body, maxImmediate) || fmt.Sprint(own.Header) != "map[Retry-After:[7]]" {
				t.Errorf("%d %v and %d bytes", own.Status, own.Header, len(own.Body))
			}
		})
	}
}

// TestUnreachable: what is at an address and is no picker, or nothing.
func TestUnreachable(t *testing.T) {
	listen := func(serve func(net.Conn)) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				t.Cleanup(func() { _ = c.Close() })
				if serve != nil {
					go serve(c)
				}
			}
		}()
		return l.Addr().String()
	}
	closed := listen(nil)
	plain := picker(t, func(s stream) error { return s.rest() })
	at := func(addresses ...string) *Target {
		return &Target{Name: "prod/epp:9002", Authority: "epp.prod.svc:9002", Plain: true, Addresses: addresses}
	}
	tlsToPlain := *plain
	tlsToPlain.Plain = false
	other := grpc.NewServer()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = other.Serve(l) }()
	t.Cleanup(other.Stop)
	for name, c := range map[string]struct {
		target *Target
		want   Reason
		text   string
	}{
		"refused":         {at(loopback.Reserve(t)), Unreachable, "refused"},
		"says nothing":    {at(closed), Unreachable, ""},
		"hangs up":        {at(listen(func(c net.Conn) { _ = c.Close() })), Unreachable, ""},
		"HTTP/1":          {at(listen(func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) })), Unreachable, ""},
		"plain text":      {&tlsToPlain, Unreachable, "appProtocol: kubernetes.io/h2c"},
		"another service": {at(l.Addr().String()), Broken, "does not speak external processing"},
		"no pod":          {at(), Missing, "no pod that is ready"},
		"no Service":      {&Target{Name: "prod/epp:9002", Problem: "there is no Service epp"}, Missing, "there is no Service epp"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := client(t, c.target, func(cfg *Config) {
				if cfg.ConnectTimeout = time.Minute; c.text == "" {
					cfg.ConnectTimeout = 300 * time.Millisecond
				}
			})
			for range 2 {
				_, err := k.Ask(t.Context(), pool, request("{}"))
				if why := reason(err); why != c.want || !strings.Contains(err.Error(), c.text) {
					t.Errorf("%s: %v, want %s %q", why, err, c.want, c.text)
				}
			}
		})
	}
	k := client(t, plain, nil)
	other2 := pool
	other2.Name = "another"
	if _, err := k.Ask(t.Context(), other2, request("{}")); reason(err) != Missing {
		t.Errorf("a pool that nothing is known of: %v", err)
	}
}

// serveOne is a picker at an address that sends everything to one endpoint,
// after what it does first.
func serveOne(t *testing.T, address, to string, options ...grpc.ServerOption) (at string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(options...)
	s.RegisterService(&grpc.ServiceDesc{ServiceName: pb.ServiceName, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: "Process", ServerStreams: true, ClientStreams: true, Handler: func(_ any, ss grpc.ServerStream) error {
			s := stream{ss}
			_, body, err := s.ask()
			if err != nil {
				return err
			}
			s.to(t, to)
			s.body(t, true, string(body))
			return s.rest()
		}}}}, s)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	stop = func() { s.Stop(); <-done }
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

// TestOneOfSeveral: a picker that goes is replaced by the next, over a new
// connection, without a failure; one that is back is asked again.
func TestOneOfSeveral(t *testing.T) {
	first, stop := serveOne(t, loopback.Reserve(t), "10.0.0.1:1")
	second, stop2 := serveOne(t, "127.0.0.1:0", "10.0.0.2:2")
	target := &Target{Name: "prod/epp:9002", Authority: "epp.prod.svc:9002", Plain: true, Addresses: []string{first, second}}
	k := client(t, target, nil)
	ask := func() string {
		v, err := k.Ask(t.Context(), pool, request("{}"))
		if err != nil {
			return string(reason(err))
		}
		defer v.Close()
		return v.Endpoints()[0]
	}
	if got := ask(); got != "10.0.0.1:1" {
		t.Fatal(got)
	}
	stop()
	for range 5 {
		if got := ask(); got != "10.0.0.2:2" {
			t.Errorf("after the first is gone: %s", got)
		}
	}
	stop2()
	if got := ask(); got != string(Unreachable) {
		t.Errorf("after both are gone: %s", got)
	}
	serveOne(t, first, "10.0.0.3:3")
	one := *target
	one.Addresses = []string{first}
	if err := k.Set(pool, &one); err != nil { // as the API server says that it is ready
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		if got := ask(); got == "10.0.0.3:3" {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("it is not asked again: %s", got)
		}
	}
	if err := k.Set(pool, nil); err != nil {
		t.Fatal(err)
	}
	if got := ask(); got != string(Missing) || len(k.peers) != 0 {
		t.Errorf("without a picker: %s, %d peers", got, len(k.peers))
	}
}

// TestTLS: a certificate that the picker signed itself is taken.
func TestTLS(t *testing.T) {
	at, _ := serveOne(t, "127.0.0.1:0", "10.0.0.1:1", grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{selfSigned(t)}})))
	v, err := client(t, &Target{Name: "prod/epp:9002", Authority: "epp.prod.svc:9002", Addresses: []string{at}}, nil).Ask(t.Context(), pool, request("{}"))
	if err != nil {
		t.Fatal(err)
	}
	v.Close()
}

// TestClientLeaves: a request whose client leaves ends its stream.
func TestClientLeaves(t *testing.T) {
	begun, ended := make(chan bool), make(chan bool)
	target := picker(t, func(s stream) error {
		begun <- true
		<-s.Context().Done()
		ended <- true
		return nil
	})
	k := client(t, target, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-begun; cancel() }()
	if _, err := k.Ask(ctx, pool, request("{}")); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	<-ended
}

// TestBounds: no more requests than may be under way, and an answer's header
// waits for no silent picker.
func TestBounds(t *testing.T) {
	target := picker(t, func(s stream) error {
		_, body, err := s.ask()
		if err != nil {
			return err
		}
		s.to(t, "10.0.0.1:1")
		s.body(t, true, string(body))
		<-s.Context().Done()
		return nil
	})
	k := client(t, target, func(c *Config) { c.MaxStreams, c.AnswerTimeout = 3, 50*time.Millisecond })
	var all []*Conversation
	for range 2 {
		v, err := k.Ask(t.Context(), pool, request("{}"))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	if _, err := k.Ask(t.Context(), pool, request("{}")); reason(err) != Overloaded {
		t.Error(err)
	}
	begun := time.Now()
	h := http.Header{"A": {"b"}}
	all[0].Answered(200, h, "10.0.0.1:1")
	if took := time.Since(begun); took > time.Minute || len(h) != 1 {
		t.Errorf("waited %v, %v", took, h)
	}
	for _, v := range all {
		v.Close()
	}
	if v, err := k.Ask(t.Context(), pool, request("{}")); err != nil {
		t.Error(err)
	} else {
		v.Close()
	}
}

// TestForeignAtFirst: a picker that has heard before us of a pod, or after us,
// is asked once more.
func TestForeignAtFirst(t *testing.T) {
	asked := 0
	target := picker(t, func(s stream) error {
		_, body, err := s.ask()
		if err != nil {
			return err
		}
		asked++
		s.to(t, fmt.Sprintf("10.0.0.%d:80", asked))
		s.body(t, true, string(body))
		return s.rest()
	})
	r := request("{}")
	r.Within = func(a string) bool { return a == "10.0.0.2:80" }
	v, err := client(t, target, nil).Ask(t.Context(), pool, r)
	if err != nil {
		t.Fatal(err)
	}
	v.Close()
	if v.Endpoints()[0] != "10.0.0.2:80" || asked != 2 {
		t.Errorf("asked %d times, %v", asked, v.Endpoints())
	}
}

// TestSilence: a picker that says nothing holds up few requests, and is asked
// again once it speaks.
func TestSilence(t *testing.T) {
	speaks := atomic.Bool{}
	asked := atomic.Int64{}
	target := picker(t, func(s stream) error {
		asked.Add(1)
		_, body, err := s.ask()
		if err != nil {
			return err
		}
		if !speaks.Load() {
			<-s.Context().Done()
			return nil
		}
		s.to(t, "10.0.0.1:1")
		s.body(t, true, string(body))
		return s.rest()
	})
	k := client(t, target, func(c *Config) { c.Timeout = 400 * time.Millisecond })
	for i := range 20 {
		_, err := k.Ask(t.Context(), pool, request("{}"))
		if reason(err) != Timeout {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	if n := asked.Load(); n < silentAfter || n > 15 {
		t.Errorf("asked %d times", n)
	}
	speaks.Store(true)
	for row, deadline := 0, time.Now().Add(time.Minute); row < 20; {
		v, err := k.Ask(t.Context(), pool, request("{}"))
		if err == nil {
			v.Close()
			row++
			continue
		}
		row = 0 // not asked yet, or late on a busy machine
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
