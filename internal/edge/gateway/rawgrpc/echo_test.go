package rawgrpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// The methods of a service that no gateway knows, one of each kind.
const (
	methodUnary  = "/test.v1.Echo/Unary"
	methodServer = "/test.v1.Echo/Server"
	methodClient = "/test.v1.Echo/Client"
	methodBoth   = "/test.v1.Echo/Both"
	methodHello  = "/test.v1.Echo/Hello" // sends its header before it reads
)

// echoServer is a stock server of test.v1.Echo: it gives texts back, with its name.
type echoServer struct {
	name    string
	address string

	mu    sync.Mutex
	calls []metadata.MD // of those that came, with ":path"
	ended chan error    // why a call of methodBoth ended
}

func startEcho(t testing.TB, name string) *echoServer {
	t.Helper()
	e := &echoServer{name: name, ended: make(chan error, 10)}
	server := grpc.NewServer(grpc.UnknownServiceHandler(e.serve))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e.address = l.Addr().String()
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return e
}

func (e *echoServer) seen() []metadata.MD {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.calls)
}

// serve answers as the client's text and metadata ask for.
func (e *echoServer) serve(_ any, s grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(s)
	md, _ := metadata.FromIncomingContext(s.Context())
	md = md.Copy()
	md[":path"] = []string{method}
	e.mu.Lock()
	e.calls = append(e.calls, md)
	e.mu.Unlock()
	if method == grpc_health_v1.Health_Check_FullMethodName {
		if err := s.RecvMsg(&grpc_health_v1.HealthCheckRequest{}); err != nil {
			return err
		}
		return s.SendMsg(&grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_NOT_SERVING})
	}
	if method == methodHello {
		if err := s.SendHeader(metadata.Pairs("x-hello", e.name)); err != nil {
			return err
		}
	}
	s.SetTrailer(metadata.Pairs("x-trailer", "t", "x-trailer-bin", "\x00\xff"))
	if method != methodHello {
		if err := s.SetHeader(metadata.Pairs("x-from", e.name, "x-server", "secret")); err != nil {
			return err
		}
	}
	var texts []string
	for {
		var in wrapperspb.StringValue
		err := s.RecvMsg(&in)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			e.ended <- err
			return err
		}
		texts = append(texts, in.GetValue())
		if rest, ok := strings.CutPrefix(in.GetValue(), "fail "); ok {
			st, err := status.New(codes.FailedPrecondition, rest).WithDetails(text("detail"))
			if err != nil {
				return err
			}
			return st.Err()
		}
		if in.GetValue() == "wait" {
			<-s.Context().Done()
			e.ended <- s.Context().Err()
			return status.FromContextError(s.Context().Err()).Err()
		}
		if method == methodBoth || method == methodHello {
			if err := s.SendMsg(wrapperspb.String(e.name + " " + in.GetValue())); err != nil {
				return err
			}
		}
	}
	switch method {
	case methodUnary, methodClient:
		return s.SendMsg(wrapperspb.String(e.name + " " + strings.Join(texts, "+")))
	case methodServer:
		for i := range 3 {
			if err := s.SendMsg(wrapperspb.String(fmt.Sprint(e.name, " ", texts[0], " ", i))); err != nil {
				return err
			}
		}
	}
	return nil
}

// atEveryPort runs a test of a gateway's calls at each of its ports.
func atEveryPort(t *testing.T, mutate func(*Config, *dispatch.Config), test func(t *testing.T, r *rig, conn *grpc.ClientConn)) {
	t.Helper()
	for _, port := range []string{"gRPC", "HTTP", "HTTPS"} {
		t.Run(port, func(t *testing.T) {
			r := newRig(t, mutate)
			conn := r.conn
			if port != "gRPC" {
				conn = overHTTP(t, r, port == "HTTPS")
			}
			test(t, r, conn)
		})
	}
}

// overHTTP is a client of a rig's calls through net/http, as the gateway's HTTP port takes
// them.
func overHTTP(t testing.TB, r *rig, secure bool) *grpc.ClientConn {
	t.Helper()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !IsCall(req) {
			http.Error(w, "no call", http.StatusTeapot)
			return
		}
		r.server.ServeHTTP(w, req)
	}))
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetHTTP2(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	creds := plain
	if secure {
		srv.EnableHTTP2 = true
		srv.StartTLS()
		creds = credentials.NewTLS(srv.Client().Transport.(*http.Transport).TLSClientConfig)
	} else {
		srv.Start()
	}
	conn, err := grpc.NewClient("passthrough:///"+srv.Listener.Addr().String(), grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		srv.Close()
	})
	return conn
}

// host is that of the routes here, one of httptest's certificate.
const host = "calls.example.com"

// atHost calls a host.
func atHost(name string) grpc.CallOption { return grpc.CallAuthority(name) }

// plainPool is a Kubernetes Service of servers at addresses.
func (r *rig) plainPool(name string, addresses ...string) routing.Backend {
	p := pool(name, addresses...)
	at := routing.ServicePool(p.Key, 80)
	p.Key, p.Shared = at.Key, true
	r.d.SetPool(p)
	return routing.Backend{Ref: at, Weight: 1, Plain: true}
}

// route sets a GRPCRoute at the host: calls of a service, or all of them for "", go to
// backends.
func (r *rig) route(called string, h routing.Handling, backends ...routing.Backend) {
	r.t.Helper()
	m := routing.HTTPMatch{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: "/" + called}}
	if called != "" {
		m.Call.Service = routing.ValueMatch{Type: routing.MatchExact, Value: called}
	}
	objects := []routing.Object{&routing.HTTPRoute{GRPC: true, Meta: service.Meta{Key: service.ParseKey("default/calls")}, Hostnames: []string{host},
		Rules: []routing.HTTPRule{{Matches: []routing.HTTPMatch{m}, Backends: backends, Handling: h}}}}
	for _, ref := range append(slices.Clone(backends), mirrored(h)...) {
		if ref.Pool {
			objects = append(objects, &routing.Pool{Meta: service.Meta{Key: ref.Key}})
		}
	}
	r.d.SetObjects(objects)
}

func mirrored(h routing.Handling) (out []routing.Backend) {
	for _, m := range h.Mirrors {
		out = append(out, routing.Backend{Ref: m.Ref})
	}
	return out
}

func text(s string) *wrapperspb.StringValue { return wrapperspb.String(s) }

// both opens a stream of messages in both directions.
func both(ctx context.Context, t testing.TB, conn *grpc.ClientConn, method string, o ...grpc.CallOption) grpc.ClientStream {
	t.Helper()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, append(o, atHost(host))...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// got is the next text of a stream.
func got(s grpc.ClientStream) (string, error) {
	var m wrapperspb.StringValue
	err := s.RecvMsg(&m)
	return m.GetValue(), err
}
