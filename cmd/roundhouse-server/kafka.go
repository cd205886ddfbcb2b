package main

import (
	"cmp"
	"errors"
	"strings"

	"roundhouse.dev/roundhouse/internal/edge/modelserver"
	"roundhouse.dev/roundhouse/internal/edge/modelserver/kafka"
)

// kafkaProgram is the bridge to Kafka, which lies beside this program or on
// PATH. Apart, it costs nothing where there is no Kafka.
const kafkaProgram = "roundhouse-kafka"

// addKafka has the server answer Kafka's records, if its settings say so.
func (c *serveCommand) addKafka(server *modelserver.Server) error {
	s := c.settings
	if s == nil || !s.KafkaEnabled {
		return nil
	}
	program, err := companion(kafkaProgram)
	if err != nil {
		return errors.New("kafka_enabled needs the program roundhouse-kafka beside roundhouse-server or on PATH: `make build` makes both")
	}
	k := kafka.DefaultConfig()
	k.Command = []string{program}
	k.Servers = strings.Split(s.KafkaServers, ",")
	for i := range k.Servers {
		k.Servers[i] = strings.TrimSpace(k.Servers[i])
	}
	k.Input, k.Output, k.Debug = s.KafkaTopicInput, s.KafkaTopicOutput, s.Debug
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
