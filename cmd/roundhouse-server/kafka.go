package main

import (
	"cmp"
	"strings"

	"roundhouse.dev/roundhouse/internal/edge/modelserver"
	"roundhouse.dev/roundhouse/internal/edge/modelserver/kafka"
)

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
