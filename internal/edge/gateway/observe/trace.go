package observe

import (
	"context"
	"math/rand/v2"
	"net/http"
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
	tracer   trace.Tracer
	ctx      context.Context // of server
	server   trace.Span
	upstream trace.Span
}

// StartTrace begins the request's trace, or continues its client's; t may be
// nil. It removes a trace context that cannot be read from the header: W3C Trace
// Context, section 3.2, has neither of its fields passed on.
func (r *Record) StartTrace(t trace.Tracer, req *http.Request, path string) {
	if v := req.Header.Get(HeaderTraceparent); v != "" && !parseTraceparent(v).IsValid() {
		req.Header.Del(HeaderTraceparent)
		req.Header.Del("Tracestate")
	}
	if t == nil {
		return
	}
	ctx := req.Context()
	if parent := parseTraceparent(req.Header.Get(HeaderTraceparent)); parent.IsValid() {
		if state, err := trace.ParseTraceState(strings.Join(req.Header["Tracestate"], ",")); err == nil {
			parent = parent.WithTraceState(state)
		}
		ctx = trace.ContextWithRemoteSpanContext(ctx, parent)
	}
	r.spans.tracer = t
	r.spans.ctx, r.spans.server = t.Start(ctx, req.Method, trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(attribute.String("http.request.method", req.Method), attribute.String("url.path", path)))
}

// StartQueue begins the wait for a replica; the caller calls the result at its
// end.
func (r *Record) StartQueue() func() {
	s := &r.spans
	if s.server == nil {
		return func() {}
	}
	_, span := s.tracer.Start(s.ctx, "queue", trace.WithSpanKind(trace.SpanKindInternal))
	return func() { span.End() }
}

// startUpstream begins a try and returns its trace context, "" when there is
// none.
func (s *spans) startUpstream(method, address, replica string, resent int) string {
	if s.server == nil {
		return ""
	}
	_, s.upstream = s.tracer.Start(s.ctx, method, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.String("http.request.method", method), attribute.String("server.address", address),
			attribute.String("roundhouse.replica", replica), attribute.Int("http.request.resend_count", resent)))
	c := s.upstream.SpanContext()
	if !c.IsValid() {
		return ""
	}
	return "00-" + c.TraceID().String() + "-" + c.SpanID().String() + "-" + c.TraceFlags().String()
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

// endTrace ends the request's trace.
func (r *Record) endTrace(u openai.Usage, known bool) {
	s := &r.spans
	if s.server == nil {
		return
	}
	if s.upstream != nil { // the client left before an answer
		s.upstream.End()
	}
	attrs := []attribute.KeyValue{attribute.Int("http.response.status_code", r.Status), attribute.String("roundhouse.request_id", r.ID)}
	if r.Operation != "" {
		s.server.SetName(strings.TrimSpace(r.Operation + " " + r.Model))
		attrs = append(attrs, attribute.String("gen_ai.operation.name", r.Operation),
			attribute.String("gen_ai.provider.name", r.Provider), attribute.String("gen_ai.request.model", r.Model))
		if r.MaxTokens > 0 {
			attrs = append(attrs, attribute.Int64("gen_ai.request.max_tokens", r.MaxTokens))
		}
	}
	if known {
		attrs = append(attrs, attribute.Int64("gen_ai.usage.input_tokens", u.PromptTokens),
			attribute.Int64("gen_ai.usage.output_tokens", u.CompletionTokens),
			attribute.Int64("gen_ai.usage.cache_read.input_tokens", u.CachedTokens))
	}
	if r.Status >= 500 || r.Cut != "" {
		s.server.SetStatus(codes.Error, r.Cut)
	}
	s.server.SetAttributes(attrs...)
	s.server.End()
}

// parseTraceparent reads a W3C trace context; the result is not valid when v
// is none.
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

// TraceID is that of the request's trace, for the access log; "" when it has
// none. The header is the request's.
func (r *Record) TraceID(header http.Header) string {
	c := parseTraceparent(header.Get(HeaderTraceparent))
	if r.spans.server != nil {
		c = r.spans.server.SpanContext()
	}
	if !c.HasTraceID() {
		return ""
	}
	return c.TraceID().String()
}

// The headers that identify a request; gRPC's metadata has them in lower case.
const (
	HeaderRequestID   = "X-Request-Id"
	HeaderTraceparent = "Traceparent"
)

// RequestID is the client's id of a request if it is one, and otherwise a new
// one.
func RequestID(client string) string {
	if validID(client) {
		return client
	}
	return string(appendRandomHex(make([]byte, 0, 32), 16))
}

// validID accepts up to 128 printable ASCII characters.
func validID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return true
}

// AppendTraceparent appends a new W3C trace context: version, trace, parent,
// not sampled.
func AppendTraceparent(b []byte) []byte {
	b = append(b, "00-"...)
	b = appendRandomHex(b, 16)
	b = append(b, '-')
	b = appendRandomHex(b, 8)
	return append(b, "-00"...)
}

// appendRandomHex appends n random bytes in hex, n a multiple of 8: an
// identifier, not a secret.
func appendRandomHex(b []byte, n int) []byte {
	const digits = "0123456789abcdef"
	for ; n > 0; n -= 8 {
		v := rand.Uint64()
		for range 16 {
			b = append(b, digits[v&15])
			v >>= 4
		}
	}
	return b
}
