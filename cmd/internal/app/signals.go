package app

import (
	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/edge/process"
	"roundhouse.dev/roundhouse/internal/edge/promquery"
)

// signals measure what the services of one machine scale on besides requests: the
// engines' own metrics, what processes take, and what Prometheus servers answer.
type signals struct {
	traffic  *front.Traffic
	platform *process.Platform
	queries  *promquery.Reader
}

// Load implements fleet.Signals.
func (s *signals) Load(k service.Key, replicaID string) *replica.Load {
	return s.traffic.EngineLoad(k, replicaID)
}

// Use implements fleet.Signals.
func (s *signals) Use(replicaID string) *replica.Use { return s.platform.Use(replicaID) }

// External implements fleet.Signals.
func (s *signals) External(_ service.Key, m service.ExternalMetric) autoscale.Reading {
	return s.queries.Read(m)
}
