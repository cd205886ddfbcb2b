package oipgrpc

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/api/oip/modelrepository"
)

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
