package epp

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// metrics are of pools that name a picker, and go with them.
type metrics struct {
	client  *Client
	asked   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	streams *prometheus.Desc
}

func newMetrics(c *Client) *metrics {
	const prefix = "roundhouse_gateway_endpoint_picker_"
	return &metrics{
		client: c,
		asked: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "requests_total",
			Help: "Requests that a pool's endpoint picker was asked about: answered, refused by it, left by their client, or why it gave no answer: " +
				"missing, unreachable, timeout, broken, no_endpoint, foreign_endpoint, too_large, overloaded."}, []string{"pool", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "seconds",
			Help:    "Time a pool's endpoint picker took to say where a request goes, or to refuse it.",
			Buckets: []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}}, []string{"pool"}),
		streams: prometheus.NewDesc(prefix+"streams", "Requests under way with endpoint pickers.", nil, nil),
	}
}

// The outcomes that are no failure's reason.
const (
	outcomeAnswered = "answered"
	outcomeRefused  = "refused"
	outcomeLeft     = "left"
)

func (m *metrics) ended(pool service.Key, outcome string, begun time.Time) {
	if m.client.peer(pool) == nil {
		return // it has no picker, or none any more
	}
	name := pool.String()
	m.asked.WithLabelValues(name, outcome).Inc()
	if outcome == outcomeAnswered || outcome == outcomeRefused {
		m.seconds.WithLabelValues(name).Observe(time.Since(begun).Seconds())
	}
}

func (m *metrics) forget(pool service.Key) {
	gone := prometheus.Labels{"pool": pool.String()}
	m.asked.DeletePartialMatch(gone)
	m.seconds.DeletePartialMatch(gone)
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(c chan<- *prometheus.Desc) {
	m.asked.Describe(c)
	m.seconds.Describe(c)
	c <- m.streams
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(c chan<- prometheus.Metric) {
	m.asked.Collect(c)
	m.seconds.Collect(c)
	c <- prometheus.MustNewConstMetric(m.streams, prometheus.GaugeValue, float64(m.client.streams.Load()))
}
