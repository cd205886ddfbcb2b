package controller

import (
	"net/url"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/edge/kube/demand"
	"roundhouse.dev/roundhouse/internal/edge/kube/podmetrics"
	"roundhouse.dev/roundhouse/internal/edge/promquery"
)

// signals measure what services scale on besides requests: what engines told gateways,
// what pods take of processors and memory, and what Prometheus servers answer. Who
// writes manifests may ask only servers that the controller is told of: else they
// could reach whatever the controller can.
type signals struct {
	queries *promquery.Reader
	engines *demand.Server
	pods    *podmetrics.Reader
}

// newSignals asks these servers.
func newSignals(servers []string, engines *demand.Server, pods *podmetrics.Reader) (*signals, error) {
	allowed := make([]string, len(servers))
	for i, s := range servers {
		allowed[i] = strings.TrimRight(s, "/")
	}
	cfg := promquery.DefaultConfig()
	cfg.Refuse = func(u *url.URL) string {
		if slices.Contains(allowed, strings.TrimRight(u.String(), "/")) {
			return ""
		}
		return "not asked: the controller asks only the servers of its flag --metrics-server"
	}
	q, err := promquery.New(cfg)
	if err != nil {
		return nil, err
	}
	return &signals{q, engines, pods}, nil
}

// Load implements fleet.Signals.
func (s *signals) Load(k service.Key, pod string) *replica.Load { return s.engines.Engine(k, pod) }

// Use implements fleet.Signals.
func (s *signals) Use(k service.Key, pod string) *replica.Use { return s.pods.Use(k.Namespace, pod) }

// External implements fleet.Signals.
func (s *signals) External(_ service.Key, m service.ExternalMetric) autoscale.Reading {
	return s.queries.Read(m)
}

func (s *signals) close() {
	if s != nil {
		s.queries.Close()
	}
}
