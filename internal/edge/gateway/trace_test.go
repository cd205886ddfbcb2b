package gateway

import (
	"context"
	"encoding/binary"
	"net/http"
	"regexp"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"

	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// recorder is a tracer that keeps its spans.
type recorder struct {
	embedded.Tracer
	mu    sync.Mutex
	spans []*recorded
}

type recorded struct {
	noop.Span
	r      *recorder
	name   string
	kind   trace.SpanKind
	parent trace.SpanContext
	self   trace.SpanContext
	attrs  map[string]string
	status codes.Code
	ended  int
}

func (r *recorder) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	c := trace.NewSpanStartConfig(opts...)
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &recorded{r: r, name: name, kind: c.SpanKind(), parent: trace.SpanContextFromContext(ctx), attrs: map[string]string{}}
	id := s.parent.TraceID()
	if !s.parent.IsValid() {
		id = trace.TraceID{9, byte(len(r.spans))}
	}
	var span trace.SpanID
	binary.BigEndian.PutUint64(span[:], uint64(len(r.spans)+1))
	s.self = trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span, TraceFlags: trace.FlagsSampled, TraceState: s.parent.TraceState()})
	r.spans = append(r.spans, s)
	s.set(c.Attributes())
	return trace.ContextWithSpan(ctx, s), s
}

func (s *recorded) set(kv []attribute.KeyValue) {
	for _, a := range kv {
		s.attrs[string(a.Key)] = a.Value.String()
	}
}

func (s *recorded) SpanContext() trace.SpanContext { return s.self }
func (s *recorded) SetName(name string)            { s.name = name }
func (s *recorded) SetStatus(c codes.Code, _ string) {
	s.status = c
}
func (s *recorded) SetAttributes(kv ...attribute.KeyValue) { s.set(kv) }
func (s *recorded) End(...trace.SpanEndOption)             { s.ended++ }

// TestSpans: one span of the server within the client's trace; the wait and
// each try below it; each replica is told of its own try.
func TestSpans(t *testing.T) {
	rec := &recorder{}
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.Tracer = rec })
	got := make(chan http.Header, 1)
	r.d.SetPool(pool("chat", "127.0.0.1:1", replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
		got <- req.Header
		stream(events, 9)(w, req)
	})))
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	r.send("POST", "/v1/chat/completions", `{"model":"chat","max_tokens":5}`, "Traceparent", parent, "Tracestate", "a=1,b=2").want(t, 200)
	r.waitSettled()
	h := <-got
	if len(rec.spans) != 4 {
		t.Fatalf("%d spans", len(rec.spans))
	}
	server, queue, failed, upstream := rec.spans[0], rec.spans[1], rec.spans[2], rec.spans[3]
	if server.name != "chat chat" || server.kind != trace.SpanKindServer || server.parent.SpanID().String() != "b7ad6b7169203331" || server.parent.TraceState().Get("b") != "2" {
		t.Errorf("server: %+v", server)
	}
	for k, want := range map[string]string{"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "chat",
		"gen_ai.request.max_tokens": "5", "gen_ai.usage.input_tokens": "7", "gen_ai.usage.output_tokens": "10", "http.response.status_code": "200",
		"http.request.method": "POST", "url.path": "/v1/chat/completions"} {
		if server.attrs[k] != want {
			t.Errorf("server's %s is %q, want %q", k, server.attrs[k], want)
		}
	}
	if queue.name != "queue" || queue.parent.SpanID() != server.self.SpanID() {
		t.Errorf("queue: %+v", queue)
	}
	if failed.status != codes.Error || failed.attrs["server.address"] != "127.0.0.1:1" || upstream.status != codes.Unset ||
		upstream.kind != trace.SpanKindClient || upstream.attrs["http.request.resend_count"] != "1" || upstream.parent.SpanID() != server.self.SpanID() {
		t.Errorf("tries: %+v %+v", failed, upstream)
	}
	if want := "00-0af7651916cd43dd8448eb211c80319c-" + upstream.self.SpanID().String() + "-01"; h.Get("Traceparent") != want || h.Get("Tracestate") != "a=1,b=2" {
		t.Errorf("replica got %q %q, want %q", h.Get("Traceparent"), h.Get("Tracestate"), want)
	}
	r.send("POST", "/v1/chat/completions", `{"model":"nope"}`, "Traceparent", "00-nonsense").want(t, 404)
	r.send("GET", "/v1/models", "").want(t, 200)
	r.waitSettled()
	if n := len(rec.spans); n != 7 || rec.spans[4].parent.IsValid() || rec.spans[4].attrs["http.response.status_code"] != "404" || rec.spans[6].name != "GET" {
		t.Errorf("%d spans: %+v", n, rec.spans[4])
	}
	for i, s := range rec.spans {
		if s.ended != 1 {
			t.Errorf("span %d ended %d times", i, s.ended)
		}
	}
}

// TestInvalidTraceparentIsDropped: what the gateway cannot read no replica is
// given, nor the state that goes with it.
func TestInvalidTraceparentIsDropped(t *testing.T) {
	r := newRig(t, nil)
	var got http.Header
	r.d.SetPool(pool("iris", replicaServer(t, func(_ http.ResponseWriter, q *http.Request) { got = q.Header })))
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for in, state := range map[string]string{good: "a=b", "00-zz-b7ad6b7169203331-01": "", "00-00000000000000000000000000000000-b7ad6b7169203331-01": "", "garbage": "", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01": ""} {
		r.send("GET", "/v2/models/iris", "", "Traceparent", in, "Tracestate", "a=b").want(t, 200)
		if now := got.Get("Traceparent"); (now == in) != (in == good) || !regexp.MustCompile("^00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]$").MatchString(now) || got.Get("Tracestate") != state {
			t.Errorf("%q: the replica is given %q and state %q", in, now, got.Get("Tracestate"))
		}
	}
}
