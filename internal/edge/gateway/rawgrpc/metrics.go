package rawgrpc

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// metrics are those of forwarded calls. Labels name known services only, and a
// deleted service's series go with it.
type metrics struct {
	dispatch *dispatch.Dispatcher
	calls    *prometheus.CounterVec
	cuts     *prometheus.CounterVec
	waits    *prometheus.HistogramVec
	copies   *prometheus.CounterVec

	mu   sync.Mutex
	seen map[string]bool // services with series
}

func newMetrics(d *dispatch.Dispatcher) *metrics {
	const prefix = "roundhouse_gateway_grpc_"
	label := []string{"service"}
	return &metrics{
		dispatch: d,
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "calls_total",
			Help: "gRPC calls for a model answered, by service (empty for none), method and status code."}, []string{"service", "method", "code"}),
		cuts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "answers_cut_total",
			Help: "gRPC streams that a replica broke off."}, label),
		waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "wait_seconds",
			Help:    "Time admitted gRPC calls waited for a replica.",
			Buckets: []float64{0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}}, label),
		copies: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "mirrored_total",
			Help: "Copies of gRPC calls for the mirrors of routes: answered, failed, or skipped because too many were under way."}, []string{"service", "outcome"}),
		seen: map[string]bool{},
	}
}

func (m *metrics) answered(service, method string, code codes.Code) {
	if code > codes.Unauthenticated { // the last one there is
		code = codes.Unknown
	}
	m.calls.WithLabelValues(service, method, code.String()).Inc()
}

func (m *metrics) cut(service string) { m.cuts.WithLabelValues(service).Inc() }

func (m *metrics) mirrored(service, outcome string) {
	m.copies.WithLabelValues(service, outcome).Inc()
}

func (m *metrics) waited(service string, d time.Duration) {
	m.waits.WithLabelValues(service).Observe(d.Seconds())
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(c chan<- *prometheus.Desc) {
	m.calls.Describe(c)
	m.cuts.Describe(c)
	m.waits.Describe(c)
	m.copies.Describe(c)
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(c chan<- prometheus.Metric) {
	m.forget()
	m.calls.Collect(c)
	m.cuts.Collect(c)
	m.waits.Collect(c)
	m.copies.Collect(c)
}

// forget deletes the series of services seen before and gone now.
func (m *metrics) forget() {
	pools := m.dispatch.Pools()
	m.mu.Lock()
	defer m.mu.Unlock()
	now := make(map[string]bool, len(pools))
	for _, s := range pools {
		now[s.Pool.Key.String()] = true
	}
	for name := range m.seen {
		if !now[name] {
			gone := prometheus.Labels{"service": name}
			m.calls.DeletePartialMatch(gone)
			m.cuts.DeletePartialMatch(gone)
			m.waits.DeletePartialMatch(gone)
			m.copies.DeletePartialMatch(gone)
		}
	}
	m.seen = now
}
