package main

import (
	"context"
	"os"

	"go.opentelemetry.io/otel/trace"

	"cmp"
	"strings"

	"roundhouse.dev/roundhouse/internal/edge/modelserver"
	"roundhouse.dev/roundhouse/internal/edge/modelserver/kafka"
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

// addKafka has the server answer Kafka's records, if its settings say so.
func (c *serveCommand) addKafka(server *modelserver.Server) error {
	s := c.settings
	if s == nil || !s.KafkaEnabled {
		return nil
	}
	k := kafka.DefaultConfig()
	k.Servers = strings.Split(s.KafkaServers, ",")
	for i := range k.Servers {
		k.Servers[i] = strings.TrimSpace(k.Servers[i])
	}
	k.Input, k.Output = s.KafkaTopicInput, s.KafkaTopicOutput
	k.Group, k.Reset = cmp.Or(s.KafkaGroup, c.config.ServerName), s.KafkaOffsetReset
	k.Limits.MaxMessageBytes = int(min(c.config.Limits.MaxBodyBytes, 1<<30))
	k.Tracer = c.config.Tracer
	bridge, err := kafka.New(k, server, c.config.Metrics.Registry, c.log)
	if err != nil {
		return err
	}
	server.AddTransport(bridge)
	return nil
}
