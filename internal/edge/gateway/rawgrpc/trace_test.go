package rawgrpc

import (
	"context"
	"encoding/binary"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// tracer keeps the spans that have ended.
type tracer struct {
	embedded.Tracer
	mu    sync.Mutex
	next  uint64
	ended []*span
}

type span struct {
	noop.Span
	of           *tracer
	name         string
	kind         trace.SpanKind
	parent, self trace.SpanContext
	attributes   map[attribute.Key]attribute.Value
	code         otelcodes.Code
}

func (t *tracer) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	c := trace.NewSpanStartConfig(options...)
	s := &span{of: t, name: name, kind: c.SpanKind(), parent: trace.SpanContextFromContext(ctx), attributes: map[attribute.Key]attribute.Value{}}
	t.mu.Lock()
	t.next++
	var id trace.SpanID
	binary.BigEndian.PutUint64(id[:], t.next)
	t.mu.Unlock()
	s.self = s.parent.WithSpanID(id).WithRemote(false)
	s.SetAttributes(c.Attributes()...)
	return trace.ContextWithSpan(ctx, s), s
}

func (s *span) SpanContext() trace.SpanContext { return s.self }

func (s *span) SetStatus(code otelcodes.Code, _ string) { s.code = code }

func (s *span) SetAttributes(list ...attribute.KeyValue) {
	for _, kv := range list {
		s.attributes[kv.Key] = kv.Value
	}
}

func (s *span) End(...trace.SpanEndOption) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.ended = append(s.of.ended, s)
}

// take waits for n spans to end and returns them.
func (t *tracer) take(tb testing.TB, n int) []*span {
	tb.Helper()
	var out []*span
	until(tb, func() bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		out = t.ended
		return len(out) >= n
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = nil
	return out
}

// TestTrace: a call is a span of its client's trace, each try a span of the
// call's, and the replica is told of its own.
func TestTrace(t *testing.T) {
	recorded := &tracer{}
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.Tracer = recorded })
	f, gone := startFake(t, nil), startFake(t, nil)
	gone.server.Stop()
	r.d.SetPool(pool("iris", gone.address, f.address))
	const id = "0af7651916cd43dd8448eb211c80319c"
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+id+"-b7ad6b7169203331-01", "tracestate", "a=b")
	for i := 0; f.calls.Load() == 0 || i < 2; i++ { // two calls, so that one tried the other replica first
		if _, err := r.ModelInfer(ctx, request("iris")); err != nil {
			t.Fatal(err)
		}
	}
	spans := recorded.take(t, 5)
	var server, failed, answered *span
	for _, s := range spans {
		switch {
		case s.kind == trace.SpanKindServer && server == nil && failed != nil:
			server = s
		case s.kind == trace.SpanKindClient && s.code == otelcodes.Error:
			failed = s
		case s.kind == trace.SpanKindClient:
			answered = s
		}
	}
	if server == nil || failed == nil || answered == nil {
		t.Fatalf("%d spans, without a failed try, one that answered and their call's", len(spans))
	}
	if server.name != "inference.GRPCInferenceService/ModelInfer" || server.parent.SpanID().String() != "b7ad6b7169203331" ||
		server.attributes["rpc.grpc.status_code"].AsInt64() != 0 || server.attributes["gen_ai.request.model"].AsString() != "iris" {
		t.Errorf("%+v", server)
	}
	if failed.self.TraceID().String() != id || failed.parent.SpanID() != server.self.SpanID() || failed.attributes["roundhouse.replica"].AsString() != "iris-0" {
		t.Errorf("%+v", failed)
	}
	if answered.self.TraceID().String() != id || answered.attributes["roundhouse.replica"].AsString() != "iris-1" {
		t.Errorf("%+v", answered)
	}
	_, md := f.seen()
	if want := "00-" + id + "-" + answered.self.SpanID().String() + "-01"; strings.Join(md["traceparent"], ",") != want || first(md["tracestate"]) != "a=b" {
		t.Errorf("the replica was told %v, want %s", md["traceparent"], want)
	}

	_, err := r.ModelInfer(ctx, request("none"))
	want(t, err, codes.NotFound)
	if s := recorded.take(t, 1)[0]; s.code == otelcodes.Error || s.attributes["rpc.grpc.status_code"].AsInt64() != int64(codes.NotFound) {
		t.Errorf("an unknown model is no fault of the server: %+v", s)
	}
	f.server.Stop()
	r.d.SetPool(pool("iris", ""))
	_, err = r.ModelInfer(ctx, request("iris"))
	want(t, err, codes.Unimplemented)
	if s := recorded.take(t, 1)[0]; s.code != otelcodes.Error {
		t.Errorf("a service without gRPC: %+v", s)
	}
}
