package gateway

import (
	"context"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"roundhouse.dev/roundhouse/internal/core/openai"
)

// spans are those of one request, by OpenTelemetry's conventions for
// generative AI and HTTP: one of the server, one while the request waits for a
// replica, one per try. All are nil without a tracer.
type spans struct {
	ctx      context.Context // of server
	server   trace.Span
	upstream trace.Span
}

// startSpans begins the request's trace, or goes on with its client's.
func (x *exchange) startSpans(path string) {
	if v := x.r.Header.Get(headerTraceparent); v != "" && !parseTraceparent(v).IsValid() {
		// W3C Trace Context, section 3.2: who cannot read it passes on neither.
		x.r.Header.Del(headerTraceparent)
		x.r.Header.Del("Tracestate")
	}
	t := x.gw.cfg.Tracer
	if t == nil {
		return
	}
	ctx := x.r.Context()
	if parent := parseTraceparent(x.r.Header.Get(headerTraceparent)); parent.IsValid() {
		if state, err := trace.ParseTraceState(strings.Join(x.r.Header["Tracestate"], ",")); err == nil {
			parent = parent.WithTraceState(state)
		}
		ctx = trace.ContextWithRemoteSpanContext(ctx, parent)
	}
	x.seen.spans.ctx, x.seen.spans.server = t.Start(ctx, x.r.Method, trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(attribute.String("http.request.method", x.r.Method), attribute.String("url.path", path)))
}

// startQueue begins the wait for a replica; call the result at its end.
func (x *exchange) startQueue() func() {
	s := &x.seen.spans
	if s.server == nil {
		return func() {}
	}
	_, span := x.gw.cfg.Tracer.Start(s.ctx, "queue", trace.WithSpanKind(trace.SpanKindInternal))
	return func() { span.End() }
}

// startUpstream begins a try; the replica is told of it.
func (x *exchange) startUpstream() {
	s := &x.seen.spans
	if s.server == nil {
		return
	}
	_, s.upstream = x.gw.cfg.Tracer.Start(s.ctx, x.r.Method, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.String("http.request.method", x.r.Method), attribute.String("server.address", x.grant.Address()),
			attribute.String("roundhouse.replica", x.grant.Replica()), attribute.Int("http.request.resend_count", x.seen.tries-1)))
	c := s.upstream.SpanContext()
	if !c.IsValid() {
		return
	}
	x.fields = x.fields[:0] // each replica is told of its own try
	x.r.Header[headerTraceparent] = []string{"00-" + c.TraceID().String() + "-" + c.SpanID().String() + "-" + c.TraceFlags().String()}
}

// endUpstream ends a try, when its answer begins or it has failed.
func (s *spans) endUpstream(status int, err error) {
	if s.upstream == nil {
		return
	}
	if err != nil {
		s.upstream.SetStatus(codes.Error, err.Error())
	} else {
		s.upstream.SetAttributes(attribute.Int("http.response.status_code", status))
		if status >= 400 {
			s.upstream.SetStatus(codes.Error, "")
		}
	}
	s.upstream.End()
	s.upstream = nil
}

// endSpans ends the request's trace.
func (x *exchange) endSpans(u openai.Usage, known bool) {
	s := &x.seen.spans
	if s.server == nil {
		return
	}
	if s.upstream != nil { // the client left before an answer
		s.upstream.End()
	}
	attrs := []attribute.KeyValue{attribute.Int("http.response.status_code", x.code), attribute.String("roundhouse.request_id", x.id)}
	if x.seen.operation != "" {
		s.server.SetName(strings.TrimSpace(x.seen.operation + " " + x.model))
		attrs = append(attrs, attribute.String("gen_ai.operation.name", x.seen.operation),
			attribute.String("gen_ai.provider.name", x.surface.provider()), attribute.String("gen_ai.request.model", x.model))
		if x.parsed != nil && x.parsed.MaxTokens > 0 {
			attrs = append(attrs, attribute.Int64("gen_ai.request.max_tokens", x.parsed.MaxTokens))
		}
	}
	if known {
		attrs = append(attrs, attribute.Int64("gen_ai.usage.input_tokens", u.PromptTokens),
			attribute.Int64("gen_ai.usage.output_tokens", u.CompletionTokens),
			attribute.Int64("gen_ai.usage.cache_read.input_tokens", u.CachedTokens))
	}
	if x.code >= 500 || x.seen.cut != "" {
		s.server.SetStatus(codes.Error, x.seen.cut)
	}
	s.server.SetAttributes(attrs...)
	s.server.End()
}

// parseTraceparent reads a header of W3C trace context; what is none is not
// valid.
func parseTraceparent(v string) trace.SpanContext {
	parts := strings.Split(v, "-")
	if len(parts) < 4 || len(parts[0]) != 2 || parts[0] == "ff" || parts[0] == "00" && len(parts) != 4 || len(parts[3]) != 2 {
		return trace.SpanContext{}
	}
	id, err1 := trace.TraceIDFromHex(parts[1])
	span, err2 := trace.SpanIDFromHex(parts[2])
	if err1 != nil || err2 != nil {
		return trace.SpanContext{}
	}
	flags, err := strconv.ParseUint(parts[3], 16, 8)
	if err != nil {
		return trace.SpanContext{}
	}
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span, TraceFlags: trace.TraceFlags(flags) & trace.FlagsSampled, Remote: true})
}

// traceID is that of the request's trace, for the access log; "" if it has
// none.
func (x *exchange) traceID() string {
	c := parseTraceparent(x.r.Header.Get(headerTraceparent))
	if x.seen.spans.server != nil {
		c = x.seen.spans.server.SpanContext()
	}
	if !c.HasTraceID() {
		return ""
	}
	return c.TraceID().String()
}
