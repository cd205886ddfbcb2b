package tracing

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
)

// tracerProvider makes tracers whose spans go to the exporter.
type tracerProvider struct {
	embedded.TracerProvider
	config   Config
	exporter *exporter
}

// scope is the instrumentation scope of OTLP: the library that recorded a span.
type scope struct{ name, version string }

// Tracer makes the tracer of a name.
func (p *tracerProvider) Tracer(name string, options ...trace.TracerOption) trace.Tracer {
	c := trace.NewTracerConfig(options...)
	return &tracer{provider: p, scope: scope{name, c.InstrumentationVersion()}}
}

type tracer struct {
	embedded.Tracer
	provider *tracerProvider
	scope    scope
}

// Start begins a span, as a child of that in ctx.
func (t *tracer) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	c := trace.NewSpanStartConfig(options...)
	var parent trace.SpanContext
	if !c.NewRoot() {
		parent = trace.SpanContextFromContext(ctx)
	}
	id := parent.TraceID()
	if !id.IsValid() {
		binary.NativeEndian.PutUint64(id[:8], rand.Uint64())
		binary.NativeEndian.PutUint64(id[8:], rand.Uint64()|1) // never all zero
	}
	var spanID trace.SpanID
	binary.NativeEndian.PutUint64(spanID[:], rand.Uint64()|1)
	sampled := t.provider.config.Sampler.sample(parent, id)
	next := trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: spanID, TraceFlags: parent.TraceFlags().WithSampled(sampled),
		TraceState: parent.TraceState()})
	if !sampled {
		ctx = trace.ContextWithSpanContext(ctx, next)
		return ctx, trace.SpanFromContext(ctx)
	}
	s := &span{tracer: t, context: next, parent: parent, kind: trace.ValidateSpanKind(c.SpanKind()), start: orNow(c.Timestamp())}
	s.mu.name = t.provider.text(name)
	s.SetAttributes(c.Attributes()...)
	for _, l := range c.Links() {
		s.AddLink(l)
	}
	return trace.ContextWithSpan(ctx, s), s
}

// sample decides whether a trace is recorded.
func (s Sampler) sample(parent trace.SpanContext, id trace.TraceID) bool {
	if s.Parent && parent.IsValid() {
		return parent.IsSampled()
	}
	if s.Ratio >= 1 {
		return true
	}
	// The lower 63 bits of the id, as OpenTelemetry's SDKs compare them.
	return binary.BigEndian.Uint64(id[8:])>>1 < uint64(s.Ratio*math.MaxInt64)
}

func orNow(t time.Time) time.Time {
	if t.IsZero() {
		return time.Now()
	}
	return t
}

// text cuts a text to the limit, between two characters, and makes it valid UTF-8,
// as protobuf requires.
func (p *tracerProvider) text(s string) string {
	if n := p.config.Limits.MaxValueBytes; len(s) > n {
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "")
}

// span is a span that is recorded. Its methods are safe for concurrent use;
// after End they change nothing, and the exporter reads it without the lock.
type span struct {
	embedded.Span
	tracer  *tracer
	context trace.SpanContext
	parent  trace.SpanContext
	kind    trace.SpanKind
	start   time.Time

	mu struct {
		sync.Mutex
		name              string
		end               time.Time // zero: under way
		status            codes.Code
		description       string
		attributes        []attribute.KeyValue
		events            []event
		links             []trace.Link
		droppedAttributes int
		droppedEvents     int
		droppedLinks      int
	}
}

type event struct {
	name       string
	at         time.Time
	attributes []attribute.KeyValue
}

// change runs f under the lock, unless the span has ended.
func (s *span) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.end.IsZero() {
		f()
	}
}

// End completes the span and has it exported.
func (s *span) End(options ...trace.SpanEndOption) {
	c := trace.NewSpanEndConfig(options...)
	ended := false
	s.change(func() { s.mu.end, ended = orNow(c.Timestamp()), true })
	if ended {
		s.tracer.provider.exporter.add(s)
	}
}

// AddEvent adds an event.
func (s *span) AddEvent(name string, options ...trace.EventOption) {
	c := trace.NewEventConfig(options...)
	s.change(func() {
		if len(s.mu.events) >= s.limits().MaxEvents {
			s.mu.droppedEvents++
			return
		}
		attributes := c.Attributes()
		s.mu.events = append(s.mu.events, event{s.tracer.provider.text(name), orNow(c.Timestamp()), s.bounded(attributes[:min(len(attributes), s.limits().MaxAttributes)])})
	})
}

// AddLink links another span.
func (s *span) AddLink(l trace.Link) {
	if !l.SpanContext.IsValid() {
		return
	}
	s.change(func() {
		if len(s.mu.links) >= s.limits().MaxLinks {
			s.mu.droppedLinks++
			return
		}
		l.Attributes = s.bounded(l.Attributes[:min(len(l.Attributes), s.limits().MaxAttributes)])
		s.mu.links = append(s.mu.links, l)
	})
}

// IsRecording reports whether the span is under way.
func (s *span) IsRecording() bool {
	recording := false
	s.change(func() { recording = true })
	return recording
}

// RecordError adds the event of an error, as OpenTelemetry names it.
func (s *span) RecordError(err error, options ...trace.EventOption) {
	if err == nil {
		return
	}
	s.AddEvent("exception", append(options, trace.WithAttributes(
		attribute.String("exception.type", fmt.Sprintf("%T", err)), attribute.String("exception.message", err.Error())))...)
}

// SpanContext identifies the span.
func (s *span) SpanContext() trace.SpanContext { return s.context }

// SetStatus sets the status; Ok is never replaced, nor an error by Unset.
func (s *span) SetStatus(code codes.Code, description string) {
	s.change(func() {
		if s.mu.status == codes.Ok || code == codes.Unset {
			return
		}
		s.mu.status, s.mu.description = code, ""
		if code == codes.Error {
			s.mu.description = s.tracer.provider.text(description)
		}
	})
}

// SetName renames the span.
func (s *span) SetName(name string) {
	s.change(func() { s.mu.name = s.tracer.provider.text(name) })
}

// SetAttributes sets attributes over those of the same key.
func (s *span) SetAttributes(list ...attribute.KeyValue) {
	if len(list) == 0 {
		return
	}
	s.change(func() {
		for _, kv := range s.bounded(list) {
			if i := slices.IndexFunc(s.mu.attributes, func(a attribute.KeyValue) bool { return a.Key == kv.Key }); i >= 0 {
				s.mu.attributes[i] = kv
			} else if kv.Valid() && len(s.mu.attributes) < s.limits().MaxAttributes {
				s.mu.attributes = append(s.mu.attributes, kv)
			} else {
				s.mu.droppedAttributes++
			}
		}
	})
}

// TracerProvider makes tracers like the span's own.
func (s *span) TracerProvider() trace.TracerProvider { return s.tracer.provider }

func (s *span) limits() Limits { return s.tracer.provider.config.Limits }

// bounded copies attributes with texts within the limit. Lists of texts are
// kept as they are up to as many entries as there may be attributes.
func (s *span) bounded(list []attribute.KeyValue) []attribute.KeyValue {
	list = slices.Clone(list)
	p := s.tracer.provider
	for i, kv := range list {
		switch kv.Value.Type() {
		case attribute.STRING:
			list[i].Value = attribute.StringValue(p.text(kv.Value.AsString()))
		case attribute.STRINGSLICE:
			texts := kv.Value.AsStringSlice()
			texts = texts[:min(len(texts), p.config.Limits.MaxAttributes)]
			for n := range texts {
				texts[n] = p.text(texts[n])
			}
			list[i].Value = attribute.StringSliceValue(texts)
		}
	}
	return list
}
