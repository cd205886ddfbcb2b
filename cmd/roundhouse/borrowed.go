package main

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/endpoints"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// borrowed is what the gateway alone and the endpoint picker have in common:
// pools over servers that neither starts nor stops.
type borrowed struct {
	log        *slog.Logger
	fleet      *fleet.Fleet // of routing objects only
	dispatcher *dispatch.Dispatcher
	traffic    *traffic
	metrics    *prometheus.Registry
}

// newBorrowed puts the parts together. The caller closes them.
func newBorrowed(log *slog.Logger) (b borrowed, err error) {
	b.log, b.metrics = log, prometheus.NewRegistry()
	dispatching := dispatch.DefaultConfig()
	var t *traffic // asked once it is there
	dispatching.Asked = func(r routing.Ref) { t.scraping.wake(r) }
	if b.dispatcher, err = dispatch.New(dispatching, nothing{}, dispatch.SystemClock{}, rand.IntN); err != nil {
		return b, err
	}
	t = newTraffic(b.dispatcher)
	b.traffic = t
	if t.scraping, err = newScraping(b.dispatcher, log); err != nil {
		return b, err
	}
	if err := b.metrics.Register(t.scraping); err != nil {
		return b, fmt.Errorf("register metrics: %w", err)
	}
	lookups := endpoints.DefaultConfig()
	lookups.Log = log
	if t.lookups, err = endpoints.New(lookups, t); err != nil {
		return b, err
	}
	b.fleet, err = fleet.New(fleet.Config{Platform: nothing{}, Store: nothing{}, Models: nothing{}, Traffic: t, Routing: t,
		URL: func(service.Key) string { return "" }, Log: log})
	if err != nil {
		return b, err
	}
	t.troubled = b.fleet.Troubled
	return b, nil
}

func (b *borrowed) close() {
	b.traffic.scraping.Close()
	b.dispatcher.Close()
}

// newLog writes text, more of it if verbose.
func newLog(w io.Writer, verbose bool) *slog.Logger {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}
