package rawgrpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/internal/core/apikey"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// TestRoutedCalls: a route leads calls of every kind, of a service that the gateway does
// not know, to a server as they stand, at each of its ports.
func TestRoutedCalls(t *testing.T) {
	atEveryPort(t, nil, func(t *testing.T, r *rig, conn *grpc.ClientConn) {
		e := startEcho(t, "a")
		r.route("test.v1.Echo", routing.Handling{}, r.plainPool("echo", e.address))
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-mine", "1", "x-mine", "2", "x-mine-bin", "\x01\xfe", "x-request-id", "id-1")
		var reply wrapperspb.StringValue
		var header, trailer metadata.MD
		err := conn.Invoke(ctx, methodUnary, text("hi"), &reply, atHost(host), grpc.Header(&header), grpc.Trailer(&trailer), grpc.UseCompressor(gzip.Name))
		if err != nil || reply.GetValue() != "a hi" {
			t.Errorf("%q %v", reply.GetValue(), err)
		}
		if first(header["x-from"]) != "a" || first(header["x-request-id"]) != "id-1" || first(trailer["x-trailer"]) != "t" || first(trailer["x-trailer-bin"]) != "\x00\xff" {
			t.Errorf("header %v, trailer %v", header, trailer)
		}
		at := e.seen()[0]
		for name, want := range map[string]string{":authority": host, ":path": methodUnary, "x-mine": "1 2", "x-mine-bin": "\x01\xfe", "x-forwarded-host": host, "x-forwarded-for": "127.0.0.1"} {
			if have := strings.Join(at[name], " "); have != want {
				t.Errorf("the server got %s %q, want %q", name, have, want)
			}
		}

		err = conn.Invoke(ctx, methodUnary, text("fail on purpose: 100 % \u00fc"), &reply, atHost(host), grpc.Trailer(&trailer))
		want(t, err, codes.FailedPrecondition, "on purpose: 100 % \u00fc")
		if d := status.Convert(err).Details(); len(d) != 1 || d[0].(*wrapperspb.StringValue).GetValue() != "detail" || first(trailer["x-trailer"]) != "t" {
			t.Errorf("details %v, trailer %v", d, trailer)
		}

		s := both(ctx, t, conn, methodServer)
		if err := errors.Join(s.SendMsg(text("n")), s.CloseSend()); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if m, err := got(s); err != nil || m != fmt.Sprint("a n ", i) {
				t.Errorf("%q %v", m, err)
			}
		}
		if _, err := got(s); !errors.Is(err, io.EOF) || first(s.Trailer()["x-trailer"]) != "t" {
			t.Errorf("%v, trailer %v", err, s.Trailer())
		}

		s = both(ctx, t, conn, methodClient)
		for _, m := range []string{"x", "y", "z"} {
			if err := s.SendMsg(text(m)); err != nil {
				t.Fatal(err)
			}
		}
		_ = s.CloseSend()
		if m, err := got(s); err != nil || m != "a x+y+z" {
			t.Errorf("%q %v", m, err)
		}

		s = both(ctx, t, conn, methodBoth)
		for i := range 20 {
			m := strings.Repeat("m", i*3000)
			if err := s.SendMsg(text(m)); err != nil {
				t.Fatal(err)
			}
			if back, err := got(s); err != nil || back != "a "+m {
				t.Fatalf("%d: %d bytes, %v", i, len(back), err)
			}
		}
		_ = s.CloseSend()
		if _, err := got(s); !errors.Is(err, io.EOF) {
			t.Error(err)
		}

		s = both(ctx, t, conn, methodHello) // a server that speaks first
		if md, err := s.Header(); err != nil || first(md["x-hello"]) != "a" {
			t.Errorf("%v %v", md, err)
		}
		if err := s.SendMsg(text("now")); err != nil {
			t.Fatal(err)
		}
		if m, err := got(s); err != nil || m != "a now" {
			t.Errorf("%q %v", m, err)
		}
		_ = s.CloseSend()
		if _, err := got(s); !errors.Is(err, io.EOF) {
			t.Error(err)
		}

		s = both(ctx, t, conn, methodClient) // of no message
		_ = s.CloseSend()
		if m, err := got(s); err != nil || m != "a " {
			t.Errorf("%q %v", m, err)
		}
	})
}

// left reports whether a server's call ended because its client left.
func left(err error) bool {
	return errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled
}

// TestRoutedCallsEnd: a server hears of its client's deadline, and of one that leaves.
func TestRoutedCallsEnd(t *testing.T) {
	atEveryPort(t, nil, func(t *testing.T, r *rig, conn *grpc.ClientConn) {
		e := startEcho(t, "a")
		r.route("test.v1.Echo", routing.Handling{}, r.plainPool("echo", e.address))
		begin := func(ctx context.Context) grpc.ClientStream {
			s := both(ctx, t, conn, methodBoth)
			if err := s.SendMsg(text("hi")); err != nil {
				t.Fatal(err)
			}
			if _, err := got(s); err != nil {
				t.Fatal(err)
			}
			if err := s.SendMsg(text("wait")); err != nil {
				t.Fatal(err)
			}
			return s
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := got(begin(ctx))
		want(t, err, codes.DeadlineExceeded)
		if err := <-e.ended; !left(err) && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		ctx, leave := context.WithCancel(t.Context())
		s := begin(ctx)
		leave()
		_, err = got(s)
		want(t, err, codes.Canceled)
		if err := <-e.ended; !left(err) {
			t.Error(err)
		}
	})
}

// TestUnroutedCalls: a call that no route takes is UNIMPLEMENTED, one whose route leads
// nowhere UNAVAILABLE.
func TestUnroutedCalls(t *testing.T) {
	atEveryPort(t, nil, func(t *testing.T, r *rig, conn *grpc.ClientConn) {
		e := startEcho(t, "a")
		echo, iris := r.plainPool("echo", e.address), routing.Backend{Ref: routing.Service(service.ParseKey("default/iris")), Weight: 1}
		r.d.SetPool(pool("iris", e.address))
		lost, idle, gone := echo, echo, iris
		lost.Fault, idle.Weight, gone.Name = "there is no Service echo", 0, "gone"
		for name, c := range map[string]struct {
			called   string
			backends []routing.Backend
			host     string
			code     codes.Code
			says     string
		}{
			"fine":                       {"test.v1.Echo", []routing.Backend{echo}, host, codes.OK, ""},
			"another host":               {"test.v1.Echo", []routing.Backend{echo}, "other.example.com", codes.Unimplemented, "no route takes calls of " + methodUnary + " at host other.example.com"},
			"another service":            {"test.v1.Other", []routing.Backend{echo}, host, codes.Unimplemented, "no route"},
			"a backend with a fault":     {"test.v1.Echo", []routing.Backend{lost}, host, codes.Unavailable, "GRPCRoute default/calls: there is no Service echo"},
			"every call, with a fault":   {"", []routing.Backend{lost}, host, codes.Unavailable, "there is no Service echo"},
			"no weight":                  {"test.v1.Echo", []routing.Backend{idle}, host, codes.Unavailable, "no backend has a weight above 0"},
			"no backend":                 {"test.v1.Echo", nil, host, codes.Unavailable, "GRPCRoute default/calls"},
			"a service of ours, lost":    {"test.v1.Echo", []routing.Backend{gone}, host, codes.Unavailable, "there is no service default/gone"},
			"a service of ours":          {"test.v1.Echo", []routing.Backend{iris}, host, codes.OK, ""},
			"a service of ours, unnamed": {"", []routing.Backend{iris}, host, codes.Unimplemented, "no route"}, // a model server's other services
			"no server":                  {"test.v1.Echo", []routing.Backend{r.plainPool("empty")}, host, codes.Unavailable, ""},
		} {
			r.route(c.called, routing.Handling{}, c.backends...)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			err := conn.Invoke(ctx, methodUnary, text("hi"), &wrapperspb.StringValue{}, atHost(c.host))
			cancel()
			if status.Code(err) != c.code || c.says != "" && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v, want %v %q", name, err, c.code, c.says)
			}
		}
	})
	for method, plain := range map[string]bool{"/a.B/c": true, "/a/../c": false, "/../c": false, "a.B/c": false, "/a.B": false, "/a.B/c/d": false, "/a.B/c?d": false, "/a%2e/c": false, "//c": false, "/a/\x00": false, "": false} {
		if plainMethod(method) != plain {
			t.Errorf("%q: %v", method, !plain)
		}
	}
}

// TestOwnMethodsRouted: what the gateway answers itself goes to a Service where a route
// says so, and nowhere else.
func TestOwnMethodsRouted(t *testing.T) {
	atEveryPort(t, nil, func(t *testing.T, r *rig, conn *grpc.ClientConn) {
		e := startEcho(t, "a")
		f := startFake(t, nil)
		r.d.SetPool(pool("iris", f.address))
		r.route("", routing.Handling{}, r.plainPool("echo", e.address))
		health, models := grpc_health_v1.NewHealthClient(conn), oip.NewGRPCInferenceServiceClient(conn)
		for at, want := range map[string]grpc_health_v1.HealthCheckResponse_ServingStatus{
			host: grpc_health_v1.HealthCheckResponse_NOT_SERVING, "example.com": grpc_health_v1.HealthCheckResponse_SERVING} {
			if h, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}, atHost(at)); err != nil || h.GetStatus() != want {
				t.Errorf("%s: %v %v", at, h, err)
			}
		}
		if m, err := models.ModelInfer(t.Context(), request("iris")); err != nil || m.GetModelName() != "iris" {
			t.Errorf("%v %v", m, err)
		}
		if live, err := models.ServerLive(t.Context(), &oip.ServerLiveRequest{}); err != nil || !live.GetLive() {
			t.Errorf("%v %v", live, err)
		}
		s, err := models.ModelStreamInfer(t.Context())
		if err == nil {
			err = s.Send(request("iris"))
		}
		if err != nil {
			t.Fatal(err)
		}
		if m, err := s.Recv(); err != nil || m.GetModelName() != "iris" {
			t.Errorf("%v %v", m, err)
		}
		_ = s.CloseSend()
		if _, err := s.Recv(); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		_, err = models.ModelInfer(t.Context(), request("nope"))
		want(t, err, codes.NotFound, "nope")
		asked := len(e.seen())
		_, _ = models.ModelInfer(t.Context(), request("iris"), atHost(host)) // which the echo cannot answer
		if got := e.seen(); len(got) != asked+1 || first(got[asked][":path"]) != oip.GRPCInferenceService_ModelInfer_FullMethodName {
			t.Errorf("the Service was asked %v", got)
		}
	})
}

// TestRoutedFilters: a rule's filters change what passes, and copies go to mirrors.
func TestRoutedFilters(t *testing.T) {
	atEveryPort(t, nil, func(t *testing.T, r *rig, conn *grpc.ClientConn) {
		a, b := startEcho(t, "a"), startEcho(t, "b")
		copies := r.plainPool("copies", b.address)
		h := routing.Handling{
			RequestHeader:  []routing.HeaderChange{{Op: routing.HeaderSet, Name: "X-Tenant", Value: "t"}, {Op: routing.HeaderAdd, Name: "X-Mine", Value: "2"}, {Op: routing.HeaderRemove, Name: "X-Drop"}},
			ResponseHeader: []routing.HeaderChange{{Op: routing.HeaderRemove, Name: "X-Server"}, {Op: routing.HeaderSet, Name: "X-Route", Value: "r"}},
			Mirrors:        []routing.Mirror{{Ref: copies.Ref, PerMillion: routing.Whole}},
		}
		r.route("test.v1.Echo", h, r.plainPool("echo", a.address))
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-mine", "1", "x-drop", "1", "x-tenant", "forged")
		var header metadata.MD
		var reply wrapperspb.StringValue
		if err := conn.Invoke(ctx, methodUnary, text("hi"), &reply, atHost(host), grpc.Header(&header)); err != nil || reply.GetValue() != "a hi" {
			t.Errorf("%q %v", reply.GetValue(), err)
		}
		if first(header["x-route"]) != "r" || len(header["x-server"]) > 0 || first(header["x-from"]) != "a" {
			t.Errorf("header %v", header)
		}
		until(t, func() bool { return len(b.seen()) == 1 })
		for name, md := range map[string]metadata.MD{"the server": a.seen()[0], "the mirror": b.seen()[0]} {
			if got := fmt.Sprint(md["x-mine"], md["x-drop"], md["x-tenant"]); got != "[1 2] [] [t]" {
				t.Errorf("%s got %s", name, got)
			}
		}
		s := both(ctx, t, conn, methodBoth) // of several messages there is no copy
		for range 2 {
			if err := s.SendMsg(text("m")); err != nil {
				t.Fatal(err)
			}
			if _, err := got(s); err != nil {
				t.Fatal(err)
			}
		}
		_ = s.CloseSend()
		if _, err := got(s); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		until(t, func() bool { return metric(t, r.reg, "roundhouse_gateway_grpc_mirrored_total") == 1 })
		if n := len(b.seen()); n != 1 {
			t.Errorf("the mirror got %d calls", n)
		}
	})
}

// TestMirroredModel: a copy for a service names the model as its replicas do.
func TestMirroredModel(t *testing.T) {
	r := newRig(t, nil)
	f, g := startFake(t, nil), startFake(t, nil)
	r.d.SetPool(pool("iris", f.address))
	next := pool("next", g.address)
	next.ServedName = "own"
	r.d.SetPool(next)
	iris := routing.Backend{Ref: routing.Service(service.ParseKey("default/iris")), Weight: 1}
	r.route("inference.GRPCInferenceService", routing.Handling{Mirrors: []routing.Mirror{{Ref: routing.Service(service.ParseKey("default/next")), PerMillion: routing.Whole}}}, iris)
	if _, err := r.ModelInfer(t.Context(), request("iris"), atHost(host)); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { asked, _ := g.seen(); return len(asked) == 1 && asked[0].GetModelName() == "own" })
}

// TestRoutedRetries: a call whose server cannot be reached goes to another, with what its
// client has sent.
func TestRoutedRetries(t *testing.T) {
	atEveryPort(t, nil, func(t *testing.T, r *rig, conn *grpc.ClientConn) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close() // nobody listens there
		e := startEcho(t, "a")
		r.route("test.v1.Echo", routing.Handling{}, r.plainPool("echo", l.Addr().String(), e.address))
		for range 4 {
			var reply wrapperspb.StringValue
			if err := conn.Invoke(t.Context(), methodUnary, text("hi"), &reply, atHost(host)); err != nil || reply.GetValue() != "a hi" {
				t.Errorf("%q %v", reply.GetValue(), err)
			}
		}
	})
}

// TestSentOnce: a call that a server of an own pool may have had is not sent to another, as
// one of the gateway's own methods is.
func TestSentOnce(t *testing.T) {
	atEveryPort(t, nil, func(t *testing.T, r *rig, conn *grpc.ClientConn) {
		var got atomic.Int32
		breaks := func() string { // a server whose connections end once it has a message
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			conns := &accepted{Listener: l, conns: make(chan net.Conn, 10)}
			server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
				if err := s.RecvMsg(&wrapperspb.StringValue{}); err == nil {
					got.Add(1)
					_ = (<-conns.conns).Close()
				}
				<-s.Context().Done()
				return s.Context().Err()
			}))
			go func() { _ = server.Serve(conns) }()
			t.Cleanup(server.Stop)
			return l.Addr().String()
		}
		r.d.SetPool(pool("echo", breaks(), breaks()))
		r.route("test.v1.Echo", routing.Handling{}, routing.Backend{Ref: routing.Service(service.ParseKey("default/echo")), Weight: 1})
		err := conn.Invoke(t.Context(), methodUnary, text("hi"), &wrapperspb.StringValue{}, atHost(host))
		want(t, err, codes.Unavailable, "not sent again")
		if n := got.Load(); n != 1 {
			t.Errorf("the call was sent %d times", n)
		}
	})
}

// accepted tells of its connections.
type accepted struct {
	net.Listener
	conns chan net.Conn
}

func (a *accepted) Accept() (net.Conn, error) {
	c, err := a.Listener.Accept()
	if err == nil {
		a.conns <- c
	}
	return c, err
}

// TestRoutedKeys: with API keys a routed call needs one, which the server does not see.
func TestRoutedKeys(t *testing.T) {
	ring, err := keys.Open(keys.DefaultConfig(), &keyStore{})
	if err != nil {
		t.Fatal(err)
	}
	secret := func(l apikey.Limits) string {
		_, s, err := ring.Create("test", l, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	all, elsewhere, model := secret(apikey.Limits{}), secret(apikey.Limits{Namespaces: []string{"other"}}), secret(apikey.Limits{Models: []string{"iris"}})
	atEveryPort(t, func(c *Config, _ *dispatch.Config) { c.Keys = ring }, func(t *testing.T, r *rig, conn *grpc.ClientConn) {
		e := startEcho(t, "a")
		r.route("", routing.Handling{}, r.plainPool("echo", e.address))
		for name, c := range map[string]struct {
			key  string
			code codes.Code
		}{"none": {"", codes.Unauthenticated}, "all": {all, codes.OK}, "another namespace": {elsewhere, codes.Unimplemented}, "a model": {model, codes.PermissionDenied}} {
			for _, method := range []string{methodUnary, grpc_health_v1.Health_List_FullMethodName} {
				ctx := t.Context()
				if c.key != "" {
					ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.key)
				}
				if err := conn.Invoke(ctx, method, text("hi"), &wrapperspb.StringValue{}, atHost(host)); status.Code(err) != c.code && (c.code != codes.OK || method == methodUnary) {
					t.Errorf("%s, %s: %v, want %v", name, method, err, c.code)
				}
			}
		}
		for _, md := range e.seen() {
			if len(md["authorization"]) > 0 {
				t.Errorf("the server got %v", md["authorization"])
			}
		}
	})
}

// TestLoopedCall: a call that comes back again and again is refused.
func TestLoopedCall(t *testing.T) {
	atEveryPort(t, nil, func(t *testing.T, r *rig, conn *grpc.ClientConn) {
		const name = "X-Forwarded-For"
		for _, changes := range [][]routing.HeaderChange{nil, {{Op: routing.HeaderRemove, Name: name}}, {{Op: routing.HeaderSet, Name: name, Value: "10.0.0.1"}}} {
			r.route("test.v1.Echo", routing.Handling{RequestHeader: changes}, r.plainPool("self", r.address))
			err := conn.Invoke(t.Context(), methodUnary, text("hi"), &wrapperspb.StringValue{}, atHost(host))
			want(t, err, codes.FailedPrecondition, "leads back to this gateway")
		}
	})
}

// TestSecureRoutes: routes of one scheme take the calls that come by it.
func TestSecureRoutes(t *testing.T) {
	atEveryPort(t, nil, func(t *testing.T, r *rig, conn *grpc.ClientConn) {
		a, b := startEcho(t, "plain"), startEcho(t, "secure")
		to := map[string]routing.Backend{"http": r.plainPool("plain", a.address), "https": r.plainPool("secure", b.address)}
		var objects []routing.Object
		for scheme, backend := range to {
			objects = append(objects, &routing.Pool{Meta: service.Meta{Key: backend.Key}}, &routing.HTTPRoute{GRPC: true, Scheme: scheme, Meta: service.Meta{Key: service.ParseKey("default/" + scheme)}, Hostnames: []string{host},
				Rules: []routing.HTTPRule{{Matches: []routing.HTTPMatch{{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: "/"}}}, Backends: []routing.Backend{backend}}}})
		}
		r.d.SetObjects(objects)
		var reply wrapperspb.StringValue
		var p peer.Peer
		if err := conn.Invoke(t.Context(), methodUnary, text("hi"), &reply, atHost(host), grpc.Peer(&p)); err != nil {
			t.Fatal(err)
		}
		want := "plain hi"
		if _, secure := p.AuthInfo.(credentials.TLSInfo); secure {
			want = "secure hi"
		}
		if reply.GetValue() != want {
			t.Errorf("%q, want %q", reply.GetValue(), want)
		}
	})
}
