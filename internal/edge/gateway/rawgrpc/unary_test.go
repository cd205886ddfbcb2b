package rawgrpc

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/test/loopback"
)

func (r *rig) dial(c credentials.TransportCredentials) *grpc.ClientConn {
	r.t.Helper()
	conn, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(c), grpc.WithUserAgent("test"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// want checks an error's code and that its message has all parts.
func want(t testing.TB, err error, code codes.Code, parts ...string) {
	t.Helper()
	if status.Code(err) != code {
		t.Errorf("%v, want %v", err, code)
	}
	for _, p := range parts {
		if err == nil || !strings.Contains(err.Error(), p) {
			t.Errorf("%v lacks %q", err, p)
		}
	}
}

func TestInferPassesEverything(t *testing.T) {
	r := newRig(t, nil)
	f := startFake(t, func(f *fake) {
		f.infer = func(ctx context.Context, in *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
			_ = grpc.SetHeader(ctx, metadata.Pairs("ce-id", "5", "h-bin", "\x00\xff"))
			_ = grpc.SetTrailer(ctx, metadata.Pairs("t", "1", "t", "2"))
			return echo(in), nil
		}
	})
	p := pool("iris", f.address)
	p.ServedName = "model"
	r.d.SetPool(p)
	in := request("iris")
	in.RawInputContents = [][]byte{bytes.Repeat([]byte("0123456789abcdef"), 40_000)}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-request-id", "abc", "k", "v1", "k", "v2", "b-bin", "\x01\xfe",
		"proxy-authorization", "x", "grpc-trace-bin", "\x05", "x-forwarded-for", "10.0.0.1", "x-prefiller-host-port", "evil:1", "x-encoder-hosts-ports", "evil:1", "x-data-parallel-host-port", "evil:1")
	var header, trailer metadata.MD
	for _, options := range [][]grpc.CallOption{nil, {grpc.UseCompressor(gzip.Name)}} {
		out, err := r.ModelInfer(ctx, in, append(options, grpc.Header(&header), grpc.Trailer(&trailer))...)
		if err != nil {
			t.Fatal(err)
		}
		renamed := proto.Clone(in).(*oip.ModelInferRequest)
		renamed.ModelName = "model"
		asked, md := f.seen()
		if last := asked[len(asked)-1]; !proto.Equal(last, renamed) {
			t.Errorf("the replica was asked something else: %.200v", last)
		}
		if !proto.Equal(out, echo(renamed)) {
			t.Errorf("another answer: %.200v", out)
		}
		for name, values := range map[string][]string{"k": {"v1", "v2"}, "b-bin": {"\x01\xfe"}, "x-request-id": {"abc"}, "grpc-trace-bin": {"\x05"},
			"x-forwarded-for": {"10.0.0.1, 127.0.0.1"}, "x-forwarded-host": {r.address}, "proxy-authorization": nil,
			"x-prefiller-host-port": nil, "x-encoder-hosts-ports": nil, "x-data-parallel-host-port": nil} {
			if !slices.Equal(md[name], values) {
				t.Errorf("the replica got %s %q, want %q", name, md[name], values)
			}
		}
		if len(md["traceparent"]) != 1 || len(md["traceparent"][0]) != 55 {
			t.Errorf("traceparent %q", md["traceparent"])
		}
		for name, values := range map[string][]string{"ce-id": {"5"}, "h-bin": {"\x00\xff"}, "x-request-id": {"abc"}} {
			if !slices.Equal(header[name], values) {
				t.Errorf("header %s %q, want %q", name, header[name], values)
			}
		}
		if !slices.Equal(trailer["t"], []string{"1", "2"}) {
			t.Errorf("trailer %q", trailer)
		}
	}
	stats, err := r.ModelStatistics(t.Context(), &oip.ModelStatisticsRequest{Name: "iris", Version: "2"})
	if err != nil || stats.GetModelStats()[0].GetVersion() != "2" || stats.GetModelStats()[0].GetInferenceCount() != 7 {
		t.Errorf("statistics: %v %v", stats, err)
	}
	if c, err := r.ModelConfig(t.Context(), &oip.ModelConfigRequest{Name: "iris"}); err != nil || c.GetConfig().GetPlatform() != "fake" {
		t.Errorf("configuration: %v %v", c, err)
	}
	if _, err := r.TraceSetting(t.Context(), &oip.TraceSettingRequest{ModelName: "iris"}); status.Code(err) != codes.Unimplemented {
		t.Errorf("trace settings: %v", err)
	}
	m, err := r.ModelMetadata(t.Context(), &oip.ModelMetadataRequest{Name: "iris", Version: "2"})
	if err != nil || m.GetName() != "model" || m.GetVersions()[0] != "2" || m.GetPlatform() != "fake" {
		t.Errorf("metadata %v %v", m, err)
	}
}

// TestKeysOfRoutingHeaders: to look for them costs a call no memory.
func TestKeysOfRoutingHeaders(t *testing.T) {
	c := &call{server: &Server{}, ctx: t.Context(), md: metadata.MD{"x-slo-ttft-ms": {"5"}, "x-own": {"6"}}}
	q := c.query(0)
	if q.Header("X-Slo-Ttft-Ms") != "5" || q.Header("X-Own") != "6" || q.Header("X-None") != "" {
		t.Error("a header is not found")
	}
	if n := testing.AllocsPerRun(100, func() {
		for _, names := range [][]string{routing.HeaderObjective, routing.HeaderFairness, routing.HeaderFirst, routing.HeaderEach} {
			routing.FirstOf(q.Header, names)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestStatusPasses: a replica's refusal comes as it is, details and trailers
// included, and is asked for once.
func TestStatusPasses(t *testing.T) {
	r := newRig(t, nil)
	refusal, err := status.New(codes.Unavailable, "busy, sagt der Server: ü%").WithDetails(&oip.ModelReadyRequest{Name: "detail"}, &oip.ServerLiveResponse{Live: true})
	if err != nil {
		t.Fatal(err)
	}
	f := startFake(t, func(f *fake) {
		f.infer = func(ctx context.Context, _ *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
			_ = grpc.SetTrailer(ctx, metadata.Pairs("t", "1"))
			return nil, refusal.Err()
		}
	})
	r.d.SetPool(pool("iris", f.address))
	var trailer metadata.MD
	_, err = r.ModelInfer(t.Context(), request("iris"), grpc.Trailer(&trailer))
	if !proto.Equal(status.Convert(err).Proto(), refusal.Proto()) {
		t.Errorf("%v, want %v", status.Convert(err).Proto(), refusal.Proto())
	}
	if f.calls.Load() != 1 || first(trailer["t"]) != "1" {
		t.Errorf("%d calls, trailer %v", f.calls.Load(), trailer)
	}
}

// TestFailingReplicaIsReplaced: a status that says the replica failed, or has no
// room, is not the call's while another replica can take it, and the replica
// loses its traffic; a stream's is no other.
func TestFailingReplicaIsReplaced(t *testing.T) {
	for _, code := range []codes.Code{codes.Internal, codes.Unknown, codes.Unavailable, codes.ResourceExhausted} {
		r := newRig(t, nil)
		f := startFake(t, func(f *fake) {
			f.infer = func(ctx context.Context, _ *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
				_ = grpc.SetTrailer(ctx, metadata.Pairs("t", "1"))
				return nil, status.Error(code, "broken")
			}
			f.stream = func(s grpc.BidiStreamingServer[oip.ModelInferRequest, oip.ModelInferResponse]) error {
				s.SetTrailer(metadata.Pairs("t", "1"))
				return status.Error(code, "broken")
			}
		})
		well := startFake(t, nil)
		r.d.SetPool(pool("iris", f.address, well.address))
		for range 10 {
			if _, err := r.ModelInfer(t.Context(), request("iris")); err != nil {
				t.Errorf("%v: %v", code, err)
			}
		}
		if n := f.calls.Load(); n < 1 || n > 3 {
			t.Errorf("%v: %d calls came to the failing replica", code, n)
		}
		r = newRig(t, nil)
		r.d.SetPool(pool("iris", f.address, well.address))
		for range 4 {
			s, err := r.ModelStreamInfer(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err = s.Send(request("iris")); err == nil {
				err = s.CloseSend()
			}
			if _, failed := s.Recv(); err != nil || failed != nil {
				t.Errorf("stream, %v: %v %v", code, err, failed)
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	r := newRig(t, func(c *Config, d *dispatch.Config) { c.MaxMessageBytes = 1 << 20; d.MaxQueue = 1 })
	f := startFake(t, nil)
	r.d.SetPool(pool("iris", f.address))
	r.d.SetPool(pool("http", ""))
	chat := pool("chat")
	chat.Protocol = service.ProtocolOpenAI
	r.d.SetPool(chat)
	listed := pool("listed")
	listed.Protocols = []service.Protocol{service.ProtocolOpenAI}
	r.d.SetPool(listed)
	both := pool("both", startFake(t, nil).address) // asked for by OpenAI's protocol, of a runtime that has both
	both.Protocol, both.Protocols = service.ProtocolOpenAI, []service.Protocol{service.ProtocolOpenAI, service.ProtocolGRPCV2}
	r.d.SetPool(both)
	broken := pool("broken")
	broken.Cause = dispatch.Cause{Reason: "NoRuntime", Message: "no runtime serves it", Permanent: true}
	r.d.SetPool(broken)
	r.d.SetPool(pool("asleep"))

	ask := func(model string) error { _, err := r.ModelInfer(t.Context(), request(model)); return err }
	want(t, ask("nope"), codes.NotFound, `"nope"`, "iris")
	want(t, ask("http"), codes.Unimplemented, "default/http", "HTTP alone")
	want(t, ask("chat"), codes.Unimplemented, "default/chat", "HTTP alone")
	want(t, ask("listed"), codes.Unimplemented, "default/listed", "HTTP alone")
	if err := ask("both"); err != nil {
		t.Error(err)
	}
	want(t, ask("broken"), codes.Unavailable, "no runtime serves it")
	if r.demand.wakes.Load() != 0 {
		t.Errorf("%d wakes", r.demand.wakes.Load())
	}
	large := request("iris")
	large.RawInputContents = [][]byte{make([]byte, 1<<20)}
	_, err := r.ModelInfer(t.Context(), large)
	want(t, err, codes.ResourceExhausted, "larger than max")

	var header metadata.MD
	err = r.conn.Invoke(t.Context(), oip.GRPCInferenceService_ModelInfer_FullMethodName, &frame{parts: split([]byte{0x0a, 9, 'x'}, 1)}, &frame{},
		grpc.ForceCodecV2(r.server.upstreams.codec), grpc.Header(&header))
	want(t, err, codes.InvalidArgument, "malformed", errTruncated.Error())
	if len(header["x-request-id"]) != 1 {
		t.Errorf("header %v", header)
	}

	// One may wait; the next is told when to come again.
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan error, 1)
	go func() { _, err := r.ModelInfer(ctx, request("asleep")); waits <- err }()
	until(t, func() bool {
		s, _ := r.d.Status(routing.Service(service.ParseKey("default/asleep")))
		return s.Demand.Queued == 1
	})
	var trailer metadata.MD
	_, err = r.ModelInfer(t.Context(), request("asleep"), grpc.Trailer(&trailer))
	want(t, err, codes.ResourceExhausted, "the queue is full")
	if first(trailer["retry-after"]) != "1" {
		t.Errorf("trailer %v", trailer)
	}
	cancel()
	want(t, <-waits, codes.Canceled)
	until(t, func() bool {
		s, _ := r.d.Status(routing.Service(service.ParseKey("default/asleep")))
		return s.Demand.Queued == 0
	})
	if f.calls.Load() != 0 {
		t.Error("a refused call reached the replica")
	}
}

// TestBudget: what the gateway may hold is a bound on messages of requests and
// of answers.
func TestBudget(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.MaxMessageBytes, c.MaxBufferedBytes = 1<<20, 1<<20 })
	large := make([]byte, 900_000)
	f := startFake(t, func(f *fake) {
		f.infer = func(_ context.Context, in *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
			if in.GetId() == "large" {
				return &oip.ModelInferResponse{RawOutputContents: [][]byte{large}}, nil
			}
			return &oip.ModelInferResponse{}, nil
		}
	})
	r.d.SetPool(pool("iris", f.address))
	in := request("iris")
	in.RawInputContents = [][]byte{large}
	_, err := r.ModelInfer(t.Context(), in)
	want(t, err, codes.ResourceExhausted, "client's calls fill its share")
	in.RawInputContents = [][]byte{large[:400_000]}
	if _, err := r.ModelInfer(t.Context(), in); err != nil {
		t.Error(err)
	}
	in.Id = "large"
	_, err = r.ModelInfer(t.Context(), in) // with the answer it is too much
	want(t, err, codes.ResourceExhausted, "buffer for messages is full")
	in.RawInputContents = nil
	if out, err := r.ModelInfer(t.Context(), in); err != nil || len(out.GetRawOutputContents()[0]) != len(large) {
		t.Error(err)
	}
}

func TestWake(t *testing.T) {
	r := newRig(t, nil)
	f := startFake(t, nil)
	r.demand.onWake = func(string) { go r.d.SetPool(pool("iris", f.address)) }
	r.d.SetPool(pool("iris"))
	if ready, err := r.ModelReady(t.Context(), &oip.ModelReadyRequest{Name: "iris"}); err != nil || !ready.GetReady() || r.demand.wakes.Load() != 0 {
		t.Errorf("asleep: %v %v, %d wakes", ready, err, r.demand.wakes.Load())
	}
	if _, err := r.ModelInfer(t.Context(), request("iris")); err != nil || r.demand.wakes.Load() != 1 {
		t.Errorf("%v, %d wakes", err, r.demand.wakes.Load())
	}
}

// TestOneAddress: of a pool that speaks gRPC, an endpoint's only address is the
// gRPC one.
func TestOneAddress(t *testing.T) {
	r := newRig(t, nil)
	p := pool("iris", "")
	p.Protocol, p.Replicas[0].HTTP = service.ProtocolGRPCV2, startFake(t, nil).address
	r.d.SetPool(p)
	if _, err := r.ModelInfer(t.Context(), request("iris")); err != nil {
		t.Error(err)
	}
}

// TestHost: the authority decides between namesakes, and a name in the message
// is then the replica's affair.
func TestHost(t *testing.T) {
	r := newRig(t, nil)
	a, b := startFake(t, nil), startFake(t, nil)
	r.d.SetPool(pool("a/iris", a.address))
	r.d.SetPool(pool("b/iris", b.address))
	_, err := r.ModelInfer(t.Context(), request("iris"))
	want(t, err, codes.NotFound, "a/iris", "b/iris")
	if _, err := r.ModelInfer(t.Context(), request("b/iris")); err != nil {
		t.Error(err)
	}
	if asked, _ := b.seen(); len(asked) != 1 || asked[0].GetModelName() != "iris" {
		t.Errorf("asked %v", asked)
	}
	conn, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(plain), grpc.WithAuthority("iris.a.localhost:8081"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := oip.NewGRPCInferenceServiceClient(conn).ModelInfer(t.Context(), request("iris")); err != nil || a.calls.Load() != 1 {
		t.Errorf("%v, %d calls", err, a.calls.Load())
	}
}

// TestRetry: a call goes on elsewhere when its replica is not there, or ends
// before it answers.
func TestRetry(t *testing.T) {
	gone := loopback.Reserve(t)
	t.Run("unsent", func(t *testing.T) {
		r := newRig(t, nil)
		f := startFake(t, nil)
		r.d.SetPool(pool("iris", gone, f.address))
		for range 4 {
			if _, err := r.ModelInfer(t.Context(), request("iris")); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("unsent and alone", func(t *testing.T) {
		r := newRig(t, func(_ *Config, d *dispatch.Config) { d.MaxWait = time.Second })
		var logged bytes.Buffer
		r.server.warnings = observe.NewWarnings(slog.New(slog.NewTextHandler(&logged, nil)))
		r.d.SetPool(pool("iris", gone))
		_, err := r.ModelInfer(t.Context(), request("iris"))
		want(t, err, codes.Unavailable, "no replica took the request within", "connection refused")
		until(t, func() bool {
			s, _ := r.d.Status(routing.Service(service.ParseKey("default/iris")))
			return s.Demand.Running == 0
		})
		if n := strings.Count(logged.String(), "replica failed before it answered"); n != 1 {
			t.Errorf("the log has %d lines of the same failure, want 1:\n%s", n, &logged)
		}
	})
	t.Run("killed", func(t *testing.T) {
		r := newRig(t, nil)
		dying := startFake(t, func(f *fake) {
			f.infer = func(ctx context.Context, _ *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
				go f.server.Stop() // cuts the connection
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
		f := startFake(t, nil)
		p := pool("iris", dying.address, f.address)
		p.ServedName = "m"
		r.d.SetPool(p)
		in := request("iris")
		in.RawInputContents = [][]byte{make([]byte, 700_000)}
		out, err := r.ModelInfer(t.Context(), in)
		if err != nil || out.GetModelName() != "m" || dying.calls.Load() != 1 || f.calls.Load() != 1 {
			t.Errorf("%v, %d and %d calls", err, dying.calls.Load(), f.calls.Load())
		}
	})
	t.Run("killed and alone", func(t *testing.T) { // it waits for the restart
		r := newRig(t, func(_ *Config, d *dispatch.Config) { d.MaxWait = time.Second })
		dying := startFake(t, func(f *fake) {
			f.infer = func(ctx context.Context, _ *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
				go f.server.Stop()
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
		r.d.SetPool(pool("iris", dying.address))
		_, err := r.ModelInfer(t.Context(), request("iris"))
		want(t, err, codes.Unavailable, "no replica took the request within")
	})
}

// TestDeadline: the replica is told the client's deadline, and a client that
// leaves ends the replica's work.
func TestDeadline(t *testing.T) {
	r := newRig(t, nil)
	var left atomic.Int64
	ended := make(chan error, 2)
	f := startFake(t, func(f *fake) {
		f.infer = func(ctx context.Context, _ *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
			if at, ok := ctx.Deadline(); ok {
				left.Store(int64(time.Until(at)))
			}
			<-ctx.Done()
			ended <- ctx.Err()
			return nil, ctx.Err()
		}
	})
	r.d.SetPool(pool("iris", f.address))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err := r.ModelInfer(ctx, request("iris"))
	want(t, err, codes.DeadlineExceeded)
	<-ended
	if d := time.Duration(left.Load()); d <= 0 || d > 3*time.Second {
		t.Errorf("the replica had %v", d)
	}
	left.Store(0)
	ctx, cancel = context.WithCancel(t.Context())
	go func() { until(t, func() bool { return f.calls.Load() == 2 }); cancel() }()
	_, err = r.ModelInfer(ctx, request("iris"))
	want(t, err, codes.Canceled)
	<-ended
	if left.Load() != 0 {
		t.Error("the replica was told a deadline that nobody set")
	}
	until(t, func() bool {
		s, _ := r.d.Status(routing.Service(service.ParseKey("default/iris")))
		return s.Demand.Running == 0
	})
}

// TestCompressedRequests: a request may come in each of gRPC's compressions.
func TestCompressedRequests(t *testing.T) {
	r := newRig(t, nil)
	r.d.SetPool(pool("iris", startFake(t, nil).address))
	for _, name := range []string{"gzip", "deflate"} {
		if _, err := r.ModelInfer(t.Context(), request("iris"), grpc.UseCompressor(name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnswerTimeout(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.AnswerTimeout = 50 * time.Millisecond })
	f := startFake(t, func(f *fake) {
		f.infer = func(ctx context.Context, _ *oip.ModelInferRequest) (*oip.ModelInferResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		f.stream = func(s grpc.BidiStreamingServer[oip.ModelInferRequest, oip.ModelInferResponse]) error {
			<-s.Context().Done()
			return s.Context().Err()
		}
	})
	r.d.SetPool(pool("iris", f.address))
	_, err := r.ModelInfer(t.Context(), request("iris"))
	want(t, err, codes.DeadlineExceeded, "did not begin its answer within 50ms")
	s, err := r.ModelStreamInfer(t.Context())
	if err == nil {
		err = s.Send(request("iris"))
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Recv()
	want(t, err, codes.DeadlineExceeded, "did not begin its answer within 50ms")
	own := pool("own", f.address)
	own.Limits.AnswerTimeout = 20 * time.Millisecond
	r.d.SetPool(own)
	_, err = r.ModelInfer(t.Context(), request("own"))
	want(t, err, codes.DeadlineExceeded, "did not begin its answer within 20ms")
}
