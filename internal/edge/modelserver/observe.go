package modelserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// This file records OpenTelemetry spans, where the configuration has a tracer:
// one for every request of a client (a server span, child of the caller's), in
// it one for the model, and one for every batch, linked to those of its
// requests. What the model's code is given names the innermost as traceparent.

// traceContext reads and writes the headers of W3C's Trace Context.
var traceContext propagation.TraceContext

// observer counts, logs and traces the requests of the HTTP interface.
type observer struct {
	meters      *restMeters
	tracer      trace.Tracer // nil: no spans
	metricsPath string       // whose requests are not counted
	log         *slog.Logger
}

// beginRequest begins the span of an HTTP request; end completes it, once the
// request has the pattern that its path matched.
func (o *observer) beginRequest(r *http.Request) (traced *http.Request, end func(status int)) {
	if o.tracer == nil {
		return r, func(int) {}
	}
	ctx := traceContext.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := o.tracer.Start(ctx, knownMethod(r.Method), trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
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

// endSpan completes a span with how its work ended.
func endSpan(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, excerpt.Of(err.Error(), maxErrorBytes))
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

// answered notes the status of an answer.
type answered struct {
	http.ResponseWriter
	status int // 0: not yet
}

// WriteHeader notes the first status.
func (a *answered) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write notes the status that net/http implies.
func (a *answered) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return a.ResponseWriter.Write(p)
}

// Unwrap leads http.ResponseController to the connection.
func (a *answered) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// observe lets next answer and counts it. Probes and scrapes are not counted.
func (o *observer) observe(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if strings.HasPrefix(r.URL.Path, "/v2/health/") || r.URL.Path == o.metricsPath {
		defer o.recovered(w, r)
		next.ServeHTTP(w, r)
		return
	}
	began := time.Now()
	a := &answered{ResponseWriter: w}
	method := knownMethod(r.Method)
	inProgress := o.meters.inProgress.With(appName, method)
	inProgress.Add(1)
	r, end := o.beginRequest(r)
	defer func() {
		inProgress.Add(-1)
		took := time.Since(began)
		end(a.status)
		o.meters.observe(method, r.Pattern, a.status, took)
		o.logRequest(r, a.status, took)
	}()
	defer o.recovered(a, r)
	next.ServeHTTP(a, r)
}

// logRequest logs an answered request with what ties it to others' logs.
func (o *observer) logRequest(r *http.Request, status int, took time.Duration) {
	if !o.log.Enabled(r.Context(), slog.LevelDebug) {
		return
	}
	o.log.Debug("request answered", "method", r.Method, "path", r.URL.Path, "status", status, "took", took,
		"request_id", r.Header.Get("X-Request-Id"), "traceparent", r.Header.Get("Traceparent"))
}

// knownMethod keeps methods that clients make up out of the metrics.
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	}
	return "OTHER"
}

// template is the path of a route's pattern, as metrics name it.
func template(pattern string) string {
	switch pattern {
	case "", "/":
		return "__unknown__"
	case "/{$}":
		return "/"
	}
	return strings.TrimSuffix(pattern, "/{$}")
}

// recovered turns a panic into an answer, and lets net/http's own pass.
func (o *observer) recovered(w http.ResponseWriter, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(p)
	}
	o.log.Error("request panicked", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
	writeErrorStatus(w, http.StatusInternalServerError, fmt.Errorf("internal error: %v", p))
}
