package main

import (
	"io"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// borrowed is what the gateway alone and the endpoint picker have in common:
// pools over servers that neither starts nor stops.
type borrowed struct {
	log     *slog.Logger
	fleet   *fleet.Fleet // of routing objects only
	traffic *front.Traffic
	metrics *prometheus.Registry
}

// newBorrowed puts the parts together. The caller closes the traffic.
func newBorrowed(log *slog.Logger) (b borrowed, err error) {
	b.log, b.metrics = log, prometheus.NewRegistry()
	if b.traffic, err = front.NewTraffic(nothing{}, "", log); err != nil {
		return b, err
	}
	b.fleet, err = fleet.New(fleet.Config{Platform: nothing{}, Store: nothing{}, Models: nothing{}, Traffic: b.traffic, Routing: b.traffic,
		URL: func(service.Key) string { return "" }, Log: log})
	if err != nil {
		return b, err
	}
	b.traffic.Attach(b.fleet)
	return b, nil
}

// newLog writes text, more of it if verbose.
func newLog(w io.Writer, verbose bool) *slog.Logger {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}
