package rawgrpc

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/journal"
)

// carrier is metadata as propagation knows headers.
type carrier metadata.MD

// Get, Set and Keys implement propagation.TextMapCarrier.
func (c carrier) Get(name string) string { return first(c[name]) }
func (c carrier) Set(name, value string) { c[name] = []string{value} }
func (c carrier) Keys() []string         { return nil }

// record is what is observed of one call. The call's goroutine owns it, but for
// received.
type record struct {
	begun, firstByte time.Time
	received         atomic.Int64 // bytes of messages
	sent             int64
	tries            int
	retried          string // why the last try that failed did
	cut              string // why the replica broke off its answer
	span             trace.Span
}

// startSpan begins the call's trace, or continues its client's.
func (r *record) startSpan(ctx context.Context, t trace.Tracer, method string, md metadata.MD) {
	if t == nil {
		return
	}
	ctx = propagation.TraceContext{}.Extract(ctx, carrier(md))
	_, r.span = t.Start(ctx, method[1:], trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(rpcAttributes(method)...))
}

// rpcAttributes name a method, "/service/method".
func rpcAttributes(method string) []attribute.KeyValue {
	service, name, _ := strings.Cut(method[1:], "/")
	return []attribute.KeyValue{attribute.String("rpc.system", "grpc"), attribute.String("rpc.service", service), attribute.String("rpc.method", name)}
}

// endSpan ends the call's trace.
func (r *record) endSpan(err error, model, id string) {
	if r.span == nil {
		return
	}
	code := status.Code(err)
	r.span.SetAttributes(attribute.Int("rpc.grpc.status_code", int(code)), attribute.String("gen_ai.request.model", model),
		attribute.String("roundhouse.request_id", id))
	if serverFault(code) {
		r.span.SetStatus(otelcodes.Error, status.Convert(err).Message())
	}
	r.span.End()
}

// serverFault reports whether a code is the server's fault, by OpenTelemetry's
// conventions for gRPC.
func serverFault(code codes.Code) bool {
	switch code {
	case codes.Unknown, codes.DeadlineExceeded, codes.Unimplemented, codes.Internal, codes.Unavailable, codes.DataLoss:
		return true
	}
	return false
}

// startTry begins the span of a call to the granted replica, whose metadata out
// gets it. Call the result with the call's error.
func (r *record) startTry(ctx context.Context, t trace.Tracer, method string, g *dispatch.Grant, out metadata.MD) func(error) {
	if r.span == nil {
		return func(error) {}
	}
	ctx, span := t.Start(trace.ContextWithSpan(context.WithoutCancel(ctx), r.span), method[1:], trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(append(rpcAttributes(method), attribute.String("server.address", g.GRPCAddress()),
			attribute.String("roundhouse.replica", g.Replica()))...))
	propagation.TraceContext{}.Inject(ctx, carrier(out))
	return func(err error) {
		if err != nil {
			span.SetStatus(otelcodes.Error, err.Error())
		}
		span.End()
	}
}

// traceID is the id of the trace in a call's metadata; "" if it has none.
func traceID(md metadata.MD) string {
	s := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier(md)))
	if !s.HasTraceID() {
		return ""
	}
	return s.TraceID().String()
}

// entry is the record's part of what is told of the call.
func (r *record) entry(err error) journal.Request {
	e := journal.Request{Time: r.begun, Method: "gRPC", Status: httpStatus(status.Code(err)), Duration: time.Since(r.begun),
		Received: r.received.Load(), Sent: r.sent, Tries: r.tries, Retried: r.retried, Cut: r.cut}
	if !r.firstByte.IsZero() {
		e.FirstByte = r.firstByte.Sub(r.begun)
	}
	return e
}
