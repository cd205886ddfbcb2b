package gateway

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// metrics are the gateway's. Labels name known services only, and a deleted
// service's series go with it.
type metrics struct {
	dispatch *dispatch.Dispatcher
	requests *prometheus.CounterVec
	cuts     *prometheus.CounterVec
	waits    *prometheus.HistogramVec
	queued   *prometheus.Desc
	inFlight *prometheus.Desc

	mu   sync.Mutex
	seen map[string]bool // services with series
}

func newMetrics(d *dispatch.Dispatcher) *metrics {
	const prefix = "roundhouse_gateway_"
	label := []string{"service"}
	return &metrics{
		dispatch: d,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "requests_total",
			Help: "Requests answered, by service (empty for none) and status code; 499 is a client that left."}, []string{"service", "code"}),
		cuts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "answers_cut_total",
			Help: "Answers that a replica broke off."}, label),
		waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "wait_seconds",
			Help:    "Time admitted requests waited for a replica.",
			Buckets: []float64{0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}}, label),
		queued:   prometheus.NewDesc(prefix+"queued", "Requests waiting for a replica now.", label, nil),
		inFlight: prometheus.NewDesc(prefix+"in_flight", "Requests replicas work on now.", label, nil),
		seen:     map[string]bool{},
	}
}

func (m *metrics) answered(service string, code int) {
	label := "other"
	if code >= 100 && code <= 599 {
		label = strconv.Itoa(code)
	}
	m.requests.WithLabelValues(service, label).Inc()
}

func (m *metrics) cut(service string) { m.cuts.WithLabelValues(service).Inc() }

func (m *metrics) waited(service string, d time.Duration) {
	m.waits.WithLabelValues(service).Observe(d.Seconds())
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(c chan<- *prometheus.Desc) {
	m.requests.Describe(c)
	m.cuts.Describe(c)
	m.waits.Describe(c)
	c <- m.queued
	c <- m.inFlight
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(c chan<- prometheus.Metric) {
	pools := m.dispatch.Pools()
	m.forget(pools)
	for _, s := range pools {
		name := s.Pool.Key.String()
		c <- prometheus.MustNewConstMetric(m.queued, prometheus.GaugeValue, float64(s.Demand.Queued), name)
		c <- prometheus.MustNewConstMetric(m.inFlight, prometheus.GaugeValue, float64(s.Demand.Running), name)
	}
	m.requests.Collect(c)
	m.cuts.Collect(c)
	m.waits.Collect(c)
}

// forget deletes the series of services seen before and gone now.
func (m *metrics) forget(pools []dispatch.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := make(map[string]bool, len(pools))
	for _, s := range pools {
		now[s.Pool.Key.String()] = true
	}
	for name := range m.seen {
		if !now[name] {
			gone := prometheus.Labels{"service": name}
			m.requests.DeletePartialMatch(gone)
			m.cuts.DeletePartialMatch(gone)
			m.waits.DeletePartialMatch(gone)
		}
	}
	m.seen = now
}
