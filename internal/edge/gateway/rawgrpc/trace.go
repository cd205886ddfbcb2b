package rawgrpc

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// carrier is metadata as propagation knows headers.
type carrier metadata.MD

// Get, Set and Keys implement propagation.TextMapCarrier.
func (c carrier) Get(name string) string { return first(c[name]) }
func (c carrier) Set(name, value string) { c[name] = []string{value} }
func (c carrier) Keys() []string         { return nil }

// startSpan begins the call's trace, or goes on with its client's.
func (c *call) startSpan() {
	t := c.server.cfg.Tracer
	if t == nil {
		return
	}
	ctx := propagation.TraceContext{}.Extract(c.ctx, carrier(c.md))
	_, c.span = t.Start(ctx, c.method[1:], trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(c.named()...))
}

// named are the attributes that name the method.
func (c *call) named() []attribute.KeyValue {
	service, method, _ := strings.Cut(c.method[1:], "/")
	return []attribute.KeyValue{attribute.String("rpc.system", "grpc"), attribute.String("rpc.service", service), attribute.String("rpc.method", method)}
}

// endSpan ends the call's trace.
func (c *call) endSpan(err error) {
	if c.span == nil {
		return
	}
	code := status.Code(err)
	c.span.SetAttributes(attribute.Int("rpc.grpc.status_code", int(code)), attribute.String("gen_ai.request.model", c.model),
		attribute.String("roundhouse.request_id", c.id))
	if serverFault(code) {
		c.span.SetStatus(otelcodes.Error, status.Convert(err).Message())
	}
	c.span.End()
}

// serverFault says whether a code is the server's fault, by OpenTelemetry's
// conventions for gRPC.
func serverFault(code codes.Code) bool {
	switch code {
	case codes.Unknown, codes.DeadlineExceeded, codes.Unimplemented, codes.Internal, codes.Unavailable, codes.DataLoss:
		return true
	}
	return false
}

// startTry begins a call to the granted replica, which is told of it. Call the
// result with how it ended.
func (c *call) startTry() func(error) {
	if c.span == nil {
		return func(error) {}
	}
	ctx, span := c.server.cfg.Tracer.Start(trace.ContextWithSpan(context.WithoutCancel(c.ctx), c.span), c.method[1:], trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(append(c.named(), attribute.String("server.address", c.grant.GRPCAddress()),
			attribute.String("roundhouse.replica", c.grant.Replica()))...))
	propagation.TraceContext{}.Inject(ctx, carrier(c.out))
	return func(err error) {
		if err != nil {
			span.SetStatus(otelcodes.Error, err.Error())
		}
		span.End()
	}
}

// traceID is that of the call's trace, for the access log; "" if it has none.
func (c *call) traceID() string {
	s := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier(c.out)))
	if !s.HasTraceID() {
		return ""
	}
	return s.TraceID().String()
}
