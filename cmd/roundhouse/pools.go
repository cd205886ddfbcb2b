package main

import (
	"io"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// pools are what the gateway alone and the endpoint picker have in common:
// routes and pools over servers that neither starts nor stops.
type pools struct {
	routes  *fleet.Routes
	traffic *front.Traffic
	metrics *prometheus.Registry
}

// newPools puts the parts together. The caller closes the traffic.
func newPools(log *slog.Logger) (p pools, err error) {
	p.metrics = prometheus.NewRegistry()
	if p.traffic, err = front.NewTraffic(nil, "", log); err != nil {
		return p, err
	}
	p.routes = fleet.NewRoutes(p.traffic, time.Now)
	p.traffic.Attach(p.routes)
	return p, nil
}

// newLog writes text, more of it if verbose.
func newLog(w io.Writer, verbose bool) *slog.Logger {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}
