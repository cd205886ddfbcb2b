package oipgrpc

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"strings"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/api/oip/modelrepository"
	"roundhouse.dev/roundhouse/internal/edge/modelserver/metrics"
)

// families are the metrics of gRPC, under the names that its interceptors in
// all languages share, and a gauge of ours.
type families struct{ started, handled, received, sent, took, underWay *metrics.Family }

// meters holds what is counted for each method of the protocol, by its full
// name. Health checks and reflection are not counted.
type meters map[string]*methodMeters

// methodMeters counts the calls of a method. Its series are there from its
// first call on.
type methodMeters struct {
	families                            *families
	labels                              []string // type, service, method
	once                                sync.Once
	started, received, sent, took, open *metrics.Series
	handled                             [codes.Unauthenticated + 1]atomic.Pointer[metrics.Series]
}

func newMeters(r *metrics.Registry) (meters, error) {
	f := &families{}
	labels := []string{"grpc_type", "grpc_service", "grpc_method"}
	for _, item := range []struct {
		family **metrics.Family
		desc   metrics.Desc
	}{
		{&f.started, metrics.Desc{Name: "grpc_server_started_total", Help: "gRPC calls begun.", Kind: metrics.Counter, Labels: labels}},
		{&f.handled, metrics.Desc{Name: "grpc_server_handled_total", Help: "gRPC calls ended, by status.", Kind: metrics.Counter, Labels: append(labels[:3:3], "grpc_code")}},
		{&f.received, metrics.Desc{Name: "grpc_server_msg_received_total", Help: "gRPC messages received.", Kind: metrics.Counter, Labels: labels}},
		{&f.sent, metrics.Desc{Name: "grpc_server_msg_sent_total", Help: "gRPC messages sent.", Kind: metrics.Counter, Labels: labels}},
		{&f.took, metrics.Desc{Name: "grpc_server_handling_seconds", Help: "Seconds of gRPC calls.", Kind: metrics.Histogram, Labels: labels}},
		{&f.underWay, metrics.Desc{Name: "grpc_server_requests_in_progress", Help: "gRPC calls under way.", Kind: metrics.Gauge, Labels: labels}},
	} {
		var err error
		if *item.family, err = r.Register(item.desc); err != nil {
			return nil, err
		}
	}
	m := meters{}
	for _, d := range []*grpc.ServiceDesc{&oip.GRPCInferenceService_ServiceDesc, &modelrepository.ModelRepositoryService_ServiceDesc} {
		for _, method := range d.Methods {
			m["/"+d.ServiceName+"/"+method.MethodName] = &methodMeters{families: f, labels: []string{"unary", d.ServiceName, method.MethodName}}
		}
		for _, stream := range d.Streams {
			m["/"+d.ServiceName+"/"+stream.StreamName] = &methodMeters{families: f, labels: []string{"bidi_stream", d.ServiceName, stream.StreamName}}
		}
	}
	return m, nil
}

// begin counts a call that begins. The result may be nil: nothing is counted.
func (m meters) begin(method string) *methodMeters {
	c := m[method]
	if c == nil {
		return nil
	}
	c.once.Do(func() {
		c.started, c.received = c.families.started.With(c.labels...), c.families.received.With(c.labels...)
		c.sent, c.took = c.families.sent.With(c.labels...), c.families.took.With(c.labels...)
		c.open = c.families.underWay.With(c.labels...)
	})
	c.started.Add(1)
	c.open.Add(1)
	return c
}

// end counts a call that ended.
func (c *methodMeters) end(code codes.Code, took time.Duration) {
	if c == nil {
		return
	}
	c.open.Add(-1)
	c.took.Observe(took.Seconds())
	code = min(code, codes.Unauthenticated) // the last one there is
	handled := c.handled[code].Load()
	if handled == nil {
		handled = c.families.handled.With(append(c.labels[:3:3], codeNames[code])...)
		c.handled[code].Store(handled)
	}
	handled.Add(1)
}

// codeNames are the protocol's names, as MLServer's metrics have them.
var codeNames = [...]string{"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
	"RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"}

func (c *methodMeters) gotMessage() {
	if c != nil {
		c.received.Add(1)
	}
}

func (c *methodMeters) sentMessage() {
	if c != nil {
		c.sent.Add(1)
	}
}

// unary is around every call of one message: it counts, and gives errors their
// status.
func (s *Server) unary(ctx context.Context, in any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (out any, err error) {
	m, began := s.meters.begin(info.FullMethod), time.Now()
	m.gotMessage()
	ctx, endSpan := s.beginCall(ctx, info.FullMethod)
	defer func() {
		if p := recover(); p != nil {
			err = s.panicked(info.FullMethod, p)
		}
		code := codes.OK
		if err != nil {
			state := statusOf(ctx, err)
			out, err, code = nil, state.Err(), state.Code()
		} else {
			m.sentMessage()
		}
		m.end(code, time.Since(began))
		endSpan(code, err)
	}()
	return handle(ctx, in)
}

// stream is unary of streams.
func (s *Server) stream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
	m, began := s.meters.begin(info.FullMethod), time.Now()
	ctx, endSpan := s.beginCall(stream.Context(), info.FullMethod)
	defer func() {
		if p := recover(); p != nil {
			err = s.panicked(info.FullMethod, p)
		}
		code := codes.OK
		if err != nil {
			state := statusOf(stream.Context(), err)
			err, code = state.Err(), state.Code()
		}
		m.end(code, time.Since(began))
		endSpan(code, err)
	}()
	if ctx != stream.Context() {
		stream = &tracedStream{stream, ctx}
	}
	return handle(service, &countedStream{stream, m})
}

// panicked makes an error of a panic.
func (s *Server) panicked(method string, p any) error {
	s.log.Error("call panicked", "method", method, "panic", p, "stack", string(debug.Stack()))
	return status.Error(codes.Internal, bounded(fmt.Sprintf("internal error: %v", p)))
}

// countedStream counts the messages of a stream.
type countedStream struct {
	grpc.ServerStream
	meters *methodMeters
}

func (c *countedStream) RecvMsg(m any) error {
	err := c.ServerStream.RecvMsg(m)
	if err == nil {
		c.meters.gotMessage()
	}
	return err
}

func (c *countedStream) SendMsg(m any) error {
	err := c.ServerStream.SendMsg(m)
	if err == nil {
		c.meters.sentMessage()
	}
	return err
}

// traceContext reads W3C's Trace Context.
var traceContext propagation.TraceContext

// beginCall begins the span of a call of the protocol, as a child of the
// caller's; end completes it.
func (s *Server) beginCall(ctx context.Context, method string) (_ context.Context, end func(codes.Code, error)) {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	if s.config.Tracer == nil || service != oip.GRPCInferenceService_ServiceDesc.ServiceName && service != modelrepository.ModelRepositoryService_ServiceDesc.ServiceName {
		return ctx, func(codes.Code, error) {}
	}
	md, _ := metadata.FromIncomingContext(ctx)
	ctx, span := s.config.Tracer.Start(traceContext.Extract(ctx, carrier(md)), service+"/"+name, trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(attribute.String("rpc.system", "grpc"), attribute.String("rpc.service", service), attribute.String("rpc.method", name)))
	return ctx, func(code codes.Code, err error) {
		span.SetAttributes(attribute.Int("rpc.grpc.status_code", int(code)))
		switch code {
		case codes.Unknown, codes.DeadlineExceeded, codes.Unimplemented, codes.Internal, codes.Unavailable, codes.DataLoss: // the server's
			span.SetStatus(otelcodes.Error, bounded(err.Error()))
		}
		span.End()
	}
}

// carrier is a call's metadata as OpenTelemetry reads it.
type carrier metadata.MD

// Get is the first value of a name.
func (c carrier) Get(name string) string {
	if values := metadata.MD(c).Get(name); len(values) > 0 {
		return values[0]
	}
	return ""
}

// Set does nothing: what came is only read.
func (c carrier) Set(string, string) {}

// Keys are the names.
func (c carrier) Keys() []string {
	names := make([]string, 0, len(c))
	for name := range c {
		names = append(names, name)
	}
	return names
}

// tracedStream is a stream with the context of its span.
type tracedStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context is the stream's, with the span.
func (t *tracedStream) Context() context.Context { return t.ctx }
