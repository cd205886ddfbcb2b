// Package tracing records OpenTelemetry spans and exports them over OTLP. It is
// a small provider of OpenTelemetry's tracing API: whoever records spans takes a
// trace.Tracer and knows nothing of this package.
//
// Nothing here delays or fails a request: an ended span is put into a queue of
// fixed size or dropped, and one goroutine exports batches of them. Without an
// endpoint nothing is recorded and no goroutine runs.
//
// OpenTelemetry's own SDK does the same and more; linked, it costs every idle
// replica a megabyte of memory, and with its exporters two.
package tracing

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// New makes a provider that exports to c's endpoint; without one it records
// nothing. shutdown exports the spans that have ended, within the time its
// context has, and ends the export; spans that end later are dropped. An
// unreachable collector is no error: it is logged and tried again. ctx bounds
// only the making.
func New(ctx context.Context, c Config, log *slog.Logger) (provider trace.TracerProvider, shutdown func(context.Context) error, err error) {
	if err := c.Validate(); err != nil {
		return nil, nil, err
	}
	if c.Endpoint == "" {
		return noop.NewTracerProvider(), func(context.Context) error { return nil }, nil
	}
	send, err := newSender(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	e := newExporter(c, send, log)
	go e.run()
	return &tracerProvider{config: c, exporter: e}, e.shutdown, nil
}
