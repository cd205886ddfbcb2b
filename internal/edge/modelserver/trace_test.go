package modelserver

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/decide/batch"
	"roundhouse.dev/roundhouse/internal/edge/modelserver/metrics"
)

// recorder is a tracer that keeps what begins.
type recorder struct {
	noop.Tracer
	mu    sync.Mutex
	began []begun
}

type begun struct {
	name         string
	parent, span trace.SpanContext
	links        []trace.Link
}

func (r *recorder) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	parent := trace.SpanContextFromContext(ctx)
	var id trace.SpanID
	binary.BigEndian.PutUint64(id[:], uint64(len(r.began)+1))
	traceID := parent.TraceID()
	if !traceID.IsValid() {
		traceID[0] = byte(len(r.began) + 1)
	}
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: id, TraceFlags: trace.FlagsSampled})
	c := trace.NewSpanStartConfig(options...)
	r.began = append(r.began, begun{name, parent, span, c.Links()})
	ctx = trace.ContextWithSpanContext(ctx, span)
	return ctx, trace.SpanFromContext(ctx)
}

// listener is a model that keeps the headers it is given.
type listener struct {
	fakeModel
	mu      sync.Mutex
	headers []map[string]any
}

func (l *listener) Infer(ctx context.Context, r *tensor.Request) (*tensor.Response, error) {
	l.mu.Lock()
	headers, _ := r.Parameters["headers"].(map[string]any)
	l.headers = append(l.headers, headers)
	l.mu.Unlock()
	return l.fakeModel.Infer(ctx, r)
}

// TestTraceOfBatches: a batch is linked to the requests in it, and the model's
// code is told of the batch, in place of what the client wrote.
func TestTraceOfBatches(t *testing.T) {
	meters, err := newModelMeters(&metrics.Registry{})
	if err != nil {
		t.Fatal(err)
	}
	c := batch.DefaultConfig()
	c.MaxSize, c.MaxTime, c.Executors = 8, time.Hour, 1
	f, tracer := newFakes(), &recorder{}
	model := &listener{fakeModel: fakeModel{fakes: f, word: "wait"}}
	b := newBatcher(c, newInstance(model, "m", ""), meters.queueOf("m", ""), tracer, slog.New(slog.DiscardHandler))
	var clients sync.WaitGroup
	ask := func() {
		clients.Go(func() {
			ctx, _ := tracer.Start(t.Context(), "request")
			r := &tensor.Request{Inputs: []tensor.Tensor{{Name: "x", Datatype: tensor.FP32, Shape: []int64{1}, Data: tensor.Values{Float32: []float32{1}}}}}
			SetHeaders(r, map[string]any{"traceparent": "client's", "tracestate": "client's", "own": "1"})
			if _, err := b.infer(ctx, r); err != nil {
				t.Error(err)
			}
		})
	}
	ask()
	<-f.entered
	for n := range 3 {
		ask()
		for meters.waiting.With("m", "").Value() != int64(n)+1 {
			time.Sleep(time.Millisecond)
		}
	}
	close(f.leave)
	clients.Wait()
	requests := map[trace.SpanID]bool{}
	var batches []begun
	for _, s := range tracer.began {
		if s.name == "batch m" {
			batches = append(batches, s)
		} else {
			requests[s.span.SpanID()] = true
		}
	}
	if len(batches) != 2 || len(requests) != 4 || len(model.headers) != 2 {
		t.Fatalf("spans: %+v", tracer.began)
	}
	for n, s := range batches {
		if len(s.links) != 1+2*n || !requests[s.parent.SpanID()] {
			t.Errorf("batch %d: %+v", n, s)
		}
		for _, l := range s.links {
			if !requests[l.SpanContext.SpanID()] {
				t.Errorf("batch %d is linked to %v", n, l.SpanContext)
			}
		}
		want := map[string]any{"own": "1", "traceparent": fmt.Sprintf("00-%s-%s-01", s.span.TraceID(), s.span.SpanID())}
		if got := model.headers[n]; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("batch %d: the model got %v, want %v", n, got, want)
		}
	}
}

// TestNoTrace: without a tracer a client's own trace reaches the model.
func TestNoTrace(t *testing.T) {
	r := &tensor.Request{}
	SetHeaders(r, map[string]any{"traceparent": "client's"})
	passTrace(t.Context(), r)
	if got, _ := r.Parameters["headers"].(map[string]any); got["traceparent"] != "client's" {
		t.Errorf("%v", got)
	}
	keys := headerCarrier{"a": "x", "b": 5}.Keys()
	slices.Sort(keys)
	if fmt.Sprint(keys) != "[a b]" || (headerCarrier{"b": 5}).Get("B") != "" {
		t.Errorf("keys %v", keys)
	}
}
