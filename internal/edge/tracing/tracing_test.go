package tracing

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"roundhouse.dev/roundhouse/test/loopback"
)

// receiver is a collector: OpenTelemetry's own service over gRPC, and its
// messages over HTTP.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	mu       sync.Mutex
	requests []*collector.ExportTraceServiceRequest
	headers  []map[string]string
	fail     []error // answers before it takes anything
	got      chan struct{}
}

func newReceiver() *receiver { return &receiver{got: make(chan struct{}, 1000)} }

func (r *receiver) take(request *collector.ExportTraceServiceRequest, headers map[string]string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.fail) > 0 {
		err := r.fail[0]
		r.fail = r.fail[1:]
		return err
	}
	r.requests = append(r.requests, request)
	r.headers = append(r.headers, headers)
	r.got <- struct{}{}
	return nil
}

func (r *receiver) Export(ctx context.Context, request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	headers := map[string]string{}
	for name, values := range md {
		headers[name] = values[0]
	}
	return &collector.ExportTraceServiceResponse{}, r.take(request, headers)
}

// ServeHTTP is the collector over HTTP.
func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	var body io.Reader = q.Body
	if q.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(q.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = z
	}
	text, err := io.ReadAll(body)
	request := &collector.ExportTraceServiceRequest{}
	if err == nil {
		err = proto.Unmarshal(text, request)
	}
	if err != nil || q.URL.Path != "/v1/traces" || q.Method != "POST" || q.Header.Get("Content-Type") != "application/x-protobuf" {
		http.Error(w, "not an export", http.StatusBadRequest)
		return
	}
	headers := map[string]string{}
	for name := range q.Header {
		headers[strings.ToLower(name)] = q.Header.Get(name)
	}
	if err := r.take(request, headers); err != nil {
		w.Header().Set("Retry-After", "0")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	answer, _ := proto.Marshal(&collector.ExportTraceServiceResponse{})
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(answer)
}

// serveGRPC serves the collector and returns its address.
func (r *receiver) serveGRPC(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	collector.RegisterTraceServiceServer(s, r)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

func (r *receiver) serveHTTP(t *testing.T) string {
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	return s.URL
}

// spans are all that were received, by name.
func (r *receiver) spans() map[string]*otlp.Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]*otlp.Span{}
	for _, request := range r.requests {
		for _, rs := range request.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				for _, s := range ss.Spans {
					out[s.Name] = s
				}
			}
		}
	}
	return out
}

func start(t *testing.T, c Config) (trace.TracerProvider, func()) {
	t.Helper()
	p, shutdown, err := New(t.Context(), c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return p, end
}

// record makes two spans with everything in them.
func record(p trace.TracerProvider) (parent, child trace.SpanContext) {
	tracer := p.Tracer("test", trace.WithInstrumentationVersion("v2"))
	remote, _ := trace.ParseTraceState("vendor=x")
	from := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1, 2}, SpanID: trace.SpanID{3}, TraceFlags: trace.FlagsSampled, TraceState: remote, Remote: true})
	ctx, outer := tracer.Start(trace.ContextWithRemoteSpanContext(context.Background(), from), "outer", trace.WithSpanKind(trace.SpanKindServer),
		trace.WithTimestamp(time.Unix(100, 5)), trace.WithAttributes(attribute.String("text", "é\xff"), attribute.Int("n", -3), attribute.Bool("yes", false), attribute.Float64("f", 0.5)))
	ctx, inner := tracer.Start(ctx, "first name")
	inner.SetName("inner")
	inner.SetAttributes(attribute.StringSlice("list", []string{"a", ""}), attribute.Int64Slice("ns", []int64{1, 2}), attribute.String("k", "old"), attribute.String("k", "new"))
	inner.AddEvent("event", trace.WithAttributes(attribute.Bool("b", true)), trace.WithTimestamp(time.Unix(7, 0)))
	inner.RecordError(errors.New("broken"))
	inner.AddLink(trace.Link{SpanContext: from, Attributes: []attribute.KeyValue{attribute.Int("i", 1)}})
	inner.AddLink(trace.Link{}) // no span: left out
	inner.SetStatus(codes.Error, "it broke")
	inner.SetStatus(codes.Unset, "")
	inner.End()
	inner.SetName("too late")
	inner.End()
	outer.SetStatus(codes.Ok, "")
	outer.SetStatus(codes.Error, "no more")
	outer.End(trace.WithTimestamp(time.Unix(101, 0)))
	return outer.SpanContext(), trace.SpanContextFromContext(ctx)
}

func TestExport(t *testing.T) {
	for _, protocol := range []string{"grpc", "http", "grpc gzip", "http gzip"} {
		t.Run(protocol, func(t *testing.T) {
			r, c := newReceiver(), DefaultConfig()
			if strings.HasPrefix(protocol, "grpc") {
				c.Endpoint = r.serveGRPC(t)
			} else {
				c.Endpoint = r.serveHTTP(t)
			}
			c.Gzip = strings.HasSuffix(protocol, "gzip")
			c.Headers = map[string]string{"authorization": "secret"}
			c.Service, c.Version, c.Attributes = "svc", "1.2", map[string]string{"deployment": "test"}
			p, end := start(t, c)
			parent, child := record(p)
			end()
			if len(r.requests) != 1 || r.headers[0]["authorization"] != "secret" {
				t.Fatalf("%d requests, headers %v", len(r.requests), r.headers)
			}
			resource := r.requests[0].ResourceSpans[0].Resource.Attributes
			if text := attributes(resource); text != "deployment=test service.name=svc service.version=1.2 telemetry.sdk.language=go" {
				t.Errorf("resource: %s", text)
			}
			if s := r.requests[0].ResourceSpans[0].ScopeSpans[0].Scope; s.Name != "test" || s.Version != "v2" {
				t.Errorf("scope: %v", s)
			}
			checkSpans(t, r.spans(), parent, child)
		})
	}
}

func checkSpans(t *testing.T, spans map[string]*otlp.Span, parent, child trace.SpanContext) {
	t.Helper()
	outer, inner := spans["outer"], spans["inner"]
	if outer == nil || inner == nil || len(spans) != 2 {
		t.Fatalf("spans: %v", spans)
	}
	if id := parent.SpanID(); string(outer.SpanId) != string(id[:]) || outer.TraceId[1] != 2 || outer.ParentSpanId[0] != 3 || outer.TraceState != "vendor=x" ||
		outer.Kind != otlp.Span_SPAN_KIND_SERVER || outer.StartTimeUnixNano != 100_000_000_005 || outer.EndTimeUnixNano != 101_000_000_000 || outer.Flags != 0x301 {
		t.Errorf("outer: %v", outer)
	}
	if text := attributes(outer.Attributes); text != "text=é n=-3 yes=false f=0.5" {
		t.Errorf("outer's attributes: %s", text)
	}
	if outer.Status.Code != otlp.Status_STATUS_CODE_OK || outer.Status.Message != "" {
		t.Errorf("outer's status: %v", outer.Status)
	}
	id, traceID := child.SpanID(), child.TraceID()
	if string(inner.SpanId) != string(id[:]) || string(inner.TraceId) != string(traceID[:]) || string(inner.ParentSpanId) != string(outer.SpanId) || inner.Kind != otlp.Span_SPAN_KIND_INTERNAL || inner.Flags != 0x101 {
		t.Errorf("inner: %v", inner)
	}
	if text := attributes(inner.Attributes); text != "list=[a ] ns=[1 2] k=new" {
		t.Errorf("inner's attributes: %s", text)
	}
	if e := inner.Events; len(e) != 2 || e[0].Name != "event" || e[0].TimeUnixNano != 7_000_000_000 || attributes(e[0].Attributes) != "b=true" ||
		attributes(e[1].Attributes) != "exception.type=*errors.errorString exception.message=broken" {
		t.Errorf("inner's events: %v", e)
	}
	if l := inner.Links; len(l) != 1 || l[0].TraceId[0] != 1 || l[0].SpanId[0] != 3 || attributes(l[0].Attributes) != "i=1" || l[0].Flags != 0x301 {
		t.Errorf("inner's links: %v", l)
	}
	if inner.Status.Code != otlp.Status_STATUS_CODE_ERROR || inner.Status.Message != "it broke" {
		t.Errorf("inner's status: %v", inner.Status)
	}
}

// TestRetry: a collector that is busy is asked again, one that refuses is not.
func TestRetry(t *testing.T) {
	for _, protocol := range []string{"grpc", "http"} {
		r, c := newReceiver(), DefaultConfig()
		r.fail = []error{status.Error(grpccodes.Unavailable, "busy"), status.Error(grpccodes.ResourceExhausted, "busy")}
		if c.Endpoint = r.serveGRPC(t); protocol == "http" {
			c.Endpoint = r.serveHTTP(t)
		}
		c.Batch.Delay = time.Millisecond
		p, end := start(t, c)
		_, s := p.Tracer("x").Start(t.Context(), "again")
		s.End()
		<-r.got
		end()
		if len(r.spans()) != 1 || len(r.fail) != 0 {
			t.Errorf("%s: %v, %d failures left", protocol, r.spans(), len(r.fail))
		}
	}
	r, c := newReceiver(), DefaultConfig()
	r.fail = []error{status.Error(grpccodes.InvalidArgument, "no")}
	c.Endpoint, c.Batch.Delay = r.serveGRPC(t), time.Millisecond
	p, end := start(t, c)
	for _, name := range []string{"refused", "taken"} {
		_, s := p.Tracer("x").Start(t.Context(), name)
		s.End()
		if name == "taken" {
			<-r.got
			continue
		}
		for left := 1; left > 0; { // until it was refused
			r.mu.Lock()
			left = len(r.fail)
			r.mu.Unlock()
		}
	}
	end()
	if spans := r.spans(); len(spans) != 1 || spans["taken"] == nil {
		t.Errorf("spans: %v", spans)
	}
}

// TestUnreachable: a collector that is away fills a queue and no more, and
// holds nobody up.
func TestUnreachable(t *testing.T) {
	c := DefaultConfig()
	c.Endpoint, c.Batch.MaxQueue, c.Batch.MaxSize = loopback.Reserve(t), 10, 5 // nobody is there
	p, shutdown, err := New(t.Context(), c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		_, s := p.Tracer("x").Start(context.Background(), "lost")
		s.End()
	}
	if n := p.(*tracerProvider).exporter.dropped.Load(); n == 0 {
		t.Error("nothing was dropped")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = shutdown(ctx) // in time or not, it returns
	_ = shutdown(ctx)
	_, s := p.Tracer("x").Start(context.Background(), "after the end")
	s.End()
}

// TestSampling: callers' decisions are followed, others are made by ratio.
func TestSampling(t *testing.T) {
	r := newReceiver()
	c := DefaultConfig()
	c.Endpoint, c.Sampler = r.serveGRPC(t), Sampler{Parent: true, Ratio: 0.25}
	c.Batch.MaxQueue = 10000
	p, end := start(t, c)
	tracer := p.Tracer("x")
	for sampled, name := range map[trace.TraceFlags]string{0: "caller said no", trace.FlagsSampled: "caller said yes"} {
		from := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{9}, SpanID: trace.SpanID{9}, TraceFlags: sampled, Remote: true})
		ctx, s := tracer.Start(trace.ContextWithSpanContext(t.Context(), from), name)
		carrier := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(ctx, carrier)
		if got := carrier["traceparent"]; !strings.HasPrefix(got, "00-09") || strings.Contains(got, "-0900000000000000-") || !strings.HasSuffix(got, "-0"+string('0'+rune(sampled))) {
			t.Errorf("%s: passed on as %q", name, got)
		}
		if s.IsRecording() != (sampled != 0) {
			t.Errorf("%s: recording %v", name, s.IsRecording())
		}
		s.End()
	}
	recorded := 0
	for range 4000 {
		_, s := tracer.Start(t.Context(), "root")
		if s.SpanContext().IsSampled() {
			recorded++
		}
		s.End()
	}
	if recorded < 850 || recorded > 1150 {
		t.Errorf("%d of 4000 recorded at a ratio of 0.25", recorded)
	}
	end()
	if spans := r.spans(); len(spans) != 2 || spans["caller said no"] != nil {
		t.Errorf("spans: %v", len(spans))
	}
}

// TestBounds: what is beyond the limits of a span is dropped and counted.
func TestBounds(t *testing.T) {
	r, c := newReceiver(), DefaultConfig()
	c.Endpoint, c.Limits = r.serveGRPC(t), Limits{MaxAttributes: 2, MaxEvents: 1, MaxLinks: 1, MaxValueBytes: 4}
	p, end := start(t, c)
	_, s := p.Tracer("x").Start(t.Context(), "a long name")
	link := trace.Link{SpanContext: s.SpanContext()}
	for _, key := range []string{"a", "b", "c"} {
		s.SetAttributes(attribute.String(key, "longé"))
		s.AddEvent("event")
		s.AddLink(link)
	}
	s.End()
	end()
	got := r.spans()["a lo"]
	if got == nil || attributes(got.Attributes) != "a=long b=long" || got.DroppedAttributesCount != 1 || got.DroppedEventsCount != 2 || got.DroppedLinksCount != 2 {
		t.Errorf("span: %v", r.spans())
	}
}

// TestNone: without an endpoint nothing is recorded.
func TestNone(t *testing.T) {
	p, _ := start(t, DefaultConfig())
	if _, s := p.Tracer("x").Start(t.Context(), "none"); s.IsRecording() {
		t.Error("it records")
	}
}
