package main

import (
	"context"
	"os"

	"go.opentelemetry.io/otel/trace"

	"roundhouse.dev/roundhouse/internal/edge/tracing"
)

// openTracer has the server's spans exported where --tracing-server, its
// settings or OpenTelemetry's variables say, in that order. close exports the
// last ones.
func (c *serveCommand) openTracer(ctx context.Context) (closer func() error, err error) {
	cfg := tracing.DefaultConfig()
	cfg.Endpoint, cfg.Version = c.tracingServer, version
	if s := c.settings; s != nil {
		if cfg.Endpoint == "" && s.TracingServer != nil {
			cfg.Endpoint = *s.TracingServer
		}
		cfg.Service, cfg.Version = s.ServerName, c.config.ServerVersion
	}
	none := func() error { return nil }
	if cfg, err = cfg.WithEnvironment(os.Environ()); err != nil || cfg.Endpoint == "" {
		return none, err
	}
	provider, shutdown, err := tracing.New(ctx, cfg, c.log)
	if err != nil {
		return none, err
	}
	c.config.Tracer = provider.Tracer("roundhouse.dev/roundhouse/modelserver", trace.WithInstrumentationVersion(version))
	return func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tracing.ShutdownTimeout)
		defer cancel()
		return shutdown(ctx)
	}, nil
}
