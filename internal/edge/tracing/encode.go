package tracing

import (
	"maps"
	"math"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/encoding/protowire"
)

// This file writes OTLP's ExportTraceServiceRequest. The numbers are those of
// the fields in opentelemetry/proto/trace/v1/trace.proto and its neighbours.

// message is a protobuf message being written.
type message []byte

func (m *message) bytes(field protowire.Number, b []byte) {
	*m = protowire.AppendBytes(protowire.AppendTag(*m, field, protowire.BytesType), b)
}

// text writes a string, unless it is empty.
func (m *message) text(field protowire.Number, s string) {
	if s != "" {
		*m = protowire.AppendString(protowire.AppendTag(*m, field, protowire.BytesType), s)
	}
}

// number writes a varint, unless it is 0.
func (m *message) number(field protowire.Number, n uint64) {
	if n != 0 {
		*m = protowire.AppendVarint(protowire.AppendTag(*m, field, protowire.VarintType), n)
	}
}

func (m *message) fixed64(field protowire.Number, n uint64) {
	*m = protowire.AppendFixed64(protowire.AppendTag(*m, field, protowire.Fixed64Type), n)
}

func (m *message) time(field protowire.Number, t time.Time) { m.fixed64(field, uint64(t.UnixNano())) }

// within writes a message that f fills.
func (m *message) within(field protowire.Number, f func(*message)) {
	var inner message
	f(&inner)
	m.bytes(field, inner)
}

// encodeResource writes a Resource, once for all exports.
func encodeResource(c Config) []byte {
	var m message
	attributes := map[string]string{"telemetry.sdk.language": "go"}
	maps.Copy(attributes, c.Attributes)
	attributes["service.name"] = c.Service
	if c.Version != "" {
		attributes["service.version"] = c.Version
	}
	for _, key := range slices.Sorted(maps.Keys(attributes)) {
		m.attribute(1, attribute.String(key, attributes[key]))
	}
	return m
}

// encodeBatch writes an ExportTraceServiceRequest of spans that have ended.
func encodeBatch(resource []byte, spans []*span) []byte {
	byScope := map[scope][]*span{}
	for _, s := range spans {
		byScope[s.tracer.scope] = append(byScope[s.tracer.scope], s)
	}
	var out message
	out.within(1, func(resourceSpans *message) {
		resourceSpans.bytes(1, resource)
		for of, list := range byScope {
			resourceSpans.within(2, func(scopeSpans *message) {
				scopeSpans.within(1, func(m *message) {
					m.text(1, of.name)
					m.text(2, of.version)
				})
				for _, s := range list {
					scopeSpans.within(2, s.encode)
				}
			})
		}
	})
	return out
}

// encode writes a Span. It has ended, so that nothing changes it any more.
func (s *span) encode(m *message) {
	m.context(s.context, 1, 2, 3)
	if s.parent.IsValid() {
		id := s.parent.SpanID()
		m.bytes(4, id[:])
	}
	m.text(5, s.mu.name)
	m.number(6, uint64(s.kind))
	m.time(7, s.start)
	m.time(8, s.mu.end)
	for _, kv := range s.mu.attributes {
		m.attribute(9, kv)
	}
	m.number(10, uint64(s.mu.droppedAttributes))
	for _, e := range s.mu.events {
		m.within(11, func(m *message) {
			m.time(1, e.at)
			m.text(2, e.name)
			for _, kv := range e.attributes {
				m.attribute(3, kv)
			}
		})
	}
	m.number(12, uint64(s.mu.droppedEvents))
	for _, l := range s.mu.links {
		m.within(13, func(m *message) {
			m.context(l.SpanContext, 1, 2, 3)
			for _, kv := range l.Attributes {
				m.attribute(4, kv)
			}
			m.flags(6, l.SpanContext, l.SpanContext.IsRemote())
		})
	}
	m.number(14, uint64(s.mu.droppedLinks))
	if s.mu.status != codes.Unset {
		m.within(15, func(m *message) {
			m.text(2, s.mu.description)
			m.number(3, statusCodes[s.mu.status])
		})
	}
	m.flags(16, s.context, s.parent.IsRemote())
}

// statusCodes are OTLP's numbers, which differ from the API's.
var statusCodes = map[codes.Code]uint64{codes.Ok: 1, codes.Error: 2}

// context writes the ids of a span and its trace state.
func (m *message) context(c trace.SpanContext, traceField, spanField, stateField protowire.Number) {
	traceID, spanID := c.TraceID(), c.SpanID()
	m.bytes(traceField, traceID[:])
	m.bytes(spanField, spanID[:])
	m.text(stateField, c.TraceState().String())
}

// The bits of flags beyond W3C's: whether it is known if the context came from
// another process, and whether it did.
const (
	flagRemoteKnown = 0x100
	flagRemote      = 0x200
)

func (m *message) flags(field protowire.Number, c trace.SpanContext, remote bool) {
	flags := uint32(c.TraceFlags()) | flagRemoteKnown
	if remote {
		flags |= flagRemote
	}
	*m = protowire.AppendFixed32(protowire.AppendTag(*m, field, protowire.Fixed32Type), flags)
}

// attribute writes a KeyValue.
func (m *message) attribute(field protowire.Number, kv attribute.KeyValue) {
	m.within(field, func(m *message) {
		m.text(1, string(kv.Key))
		m.within(2, func(m *message) { m.value(kv.Value) })
	})
}

// value writes the content of an AnyValue. An empty text and a zero are written
// too, because they carry the type.
func (m *message) value(v attribute.Value) {
	switch v.Type() {
	case attribute.BOOL:
		m.boolean(v.AsBool())
	case attribute.INT64:
		m.integer(v.AsInt64())
	case attribute.FLOAT64:
		m.fixed64(4, math.Float64bits(v.AsFloat64()))
	case attribute.BOOLSLICE:
		list(m, v.AsBoolSlice(), (*message).boolean)
	case attribute.INT64SLICE:
		list(m, v.AsInt64Slice(), (*message).integer)
	case attribute.FLOAT64SLICE:
		list(m, v.AsFloat64Slice(), func(m *message, f float64) { m.fixed64(4, math.Float64bits(f)) })
	case attribute.STRINGSLICE:
		list(m, v.AsStringSlice(), func(m *message, s string) { m.bytes(1, []byte(s)) })
	default:
		m.bytes(1, []byte(v.String()))
	}
}

func (m *message) boolean(b bool) {
	*m = protowire.AppendVarint(protowire.AppendTag(*m, 2, protowire.VarintType), protowire.EncodeBool(b))
}

func (m *message) integer(n int64) {
	*m = protowire.AppendVarint(protowire.AppendTag(*m, 3, protowire.VarintType), uint64(n))
}

// list writes an ArrayValue.
func list[T any](m *message, values []T, write func(*message, T)) {
	m.within(5, func(m *message) {
		for _, v := range values {
			m.within(1, func(m *message) { write(m, v) })
		}
	})
}
