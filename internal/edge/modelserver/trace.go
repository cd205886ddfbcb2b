package modelserver

import (
	"context"
	"maps"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// This file records OpenTelemetry spans, where the configuration has a tracer:
// one for every request of a client (a server span, child of the caller's), in
// it one for the model, and one for every batch, linked to those of its
// requests. What the model's code is given names the innermost as traceparent.

// traceContext reads and writes the headers of W3C's Trace Context.
var traceContext propagation.TraceContext

// beginRequest begins the span of an HTTP request; end completes it, once the
// request has the pattern that its path matched.
func (s *Server) beginRequest(r *http.Request) (traced *http.Request, end func(status int)) {
	if s.config.Tracer == nil {
		return r, func(int) {}
	}
	ctx := traceContext.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := s.config.Tracer.Start(ctx, knownMethod(r.Method), trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("http.request.method", knownMethod(r.Method)), attribute.String("url.path", r.URL.Path)))
	if !span.IsRecording() && !span.SpanContext().IsValid() {
		return r, func(int) { span.End() }
	}
	traced = r.WithContext(ctx)
	return traced, func(status int) {
		route := template(traced.Pattern)
		span.SetName(knownMethod(r.Method) + " " + route)
		span.SetAttributes(attribute.String("http.route", route), attribute.Int("http.response.status_code", status))
		if status >= 500 {
			span.SetStatus(codes.Error, http.StatusText(status))
		}
		span.End()
	}
}

// beginModel begins the span of a model that answers; end completes it.
func (s *Server) beginModel(ctx context.Context, i *instance) (_ context.Context, end func(error)) {
	if s.config.Tracer == nil {
		return ctx, func(error) {}
	}
	ctx, span := s.config.Tracer.Start(ctx, "infer "+i.name, trace.WithAttributes(
		attribute.String("model.name", i.name), attribute.String("model.version", i.version)))
	return ctx, func(err error) { endSpan(span, err) }
}

// endSpan completes a span with how its work ended.
func endSpan(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, bounded(err.Error()))
	}
	span.End()
}

// passTrace has a request's headers name the span in ctx, if there is one, so
// that the model's code can continue the trace. The headers may be shared: they
// are copied.
func passTrace(ctx context.Context, r *tensor.Request) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return
	}
	given, _ := r.Parameters[headersParameter].(map[string]any)
	headers := make(map[string]any, len(given)+2)
	maps.Copy(headers, given)
	delete(headers, "tracestate")
	traceContext.Inject(ctx, headerCarrier(headers))
	r.Parameters = maps.Clone(r.Parameters)
	SetHeaders(r, headers)
}

// headerCarrier is a request's headers as OpenTelemetry writes them.
type headerCarrier map[string]any

// Get is a header's value.
func (c headerCarrier) Get(name string) string {
	value, _ := c[strings.ToLower(name)].(string)
	return value
}

// Set sets a header.
func (c headerCarrier) Set(name, value string) { c[strings.ToLower(name)] = value }

// Keys are the headers' names.
func (c headerCarrier) Keys() []string {
	names := make([]string, 0, len(c))
	for name := range c {
		names = append(names, name)
	}
	return names
}
